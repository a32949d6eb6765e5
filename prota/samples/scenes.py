"""What the sample clips show: scenes with their captions, and the clips they are cut together to.

Every caption was written with the photograph in view. Details are shown so close that they are scenes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from prota.samples.camera import View

__all__ = ["CLIPS", "SCENES", "Clip", "Scene"]


@dataclass(frozen=True)
class Scene:
    """A move of the camera over one photograph, and sentences that someone would look for it with."""

    picture: str
    start: View
    end: View
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Clip:
    """Scenes with their seconds, one after the other."""

    name: str
    cuts: tuple[tuple[str, float], ...]


SCENES = {
    "astronaut": Scene(
        "astronaut", View(1, y=0.36), View(1, y=0.56),
        ("an astronaut in an orange suit in front of a flag", "a woman poses in a space suit with her helmet"),
    ),
    "bricks": Scene(
        "brick", View(2.2, 0.3, 0.2), View(1.5, 0.6, 0.7, 8),
        ("a wall of long grey bricks", "brickwork with pale joints"),
    ),
    "photographer": Scene(
        "camera", View(1.9, 0.5, 0.25), View(1, y=0.5),
        ("a man in a dark coat looks through a camera on a tripod", "someone takes pictures in a park"),
    ),
    "cell": Scene(
        "cell", View(1.1, 0.3, 0.3), View(2.6, 0.775, 0.58),
        ("a single round cell under a microscope", "a bright grey ball on a dark grey background"),
    ),
    "cat": Scene(
        "chelsea", View(1, 0.0), View(1.35, 0.6, 0.6),
        ("a tabby cat with green eyes looks past the camera", "the face of a brown cat"),
    ),
    "coffee": Scene(
        "coffee", View(1.15, 0.5, 0.5, -6), View(1.5, 0.5, 0.43, 8),
        ("a cup of coffee on a red saucer", "espresso in a cup on a wooden table"),
    ),
    "coins": Scene(
        "coins", View(2, 0.0, 0.0), View(2, 1.0, 1.0),
        ("rows of old coins on a dark background", "a collection of ancient coins"),
    ),
    "grass": Scene(
        "grass", View(1.6, 0.2, 0.8), View(1.6, 0.9, 0.2, 10),
        ("blades of grass on the ground", "a lawn seen from above in black and white"),
    ),
    "gravel": Scene(
        "gravel", View(1.4, turn=-15), View(1.8, turn=25),
        ("small grey stones cover the ground", "gravel seen from above"),
    ),
    "horse": Scene(
        "horse", View(1), View(1.15, 0.55, 0.4),
        ("the black silhouette of a standing horse", "a drawing of a horse, black on white"),
    ),
    "galaxies": Scene(
        "hubble", View(1.5, 0.3, 0.4), View(2.2, 0.65, 0.55, 20),
        ("countless galaxies in the blackness of space", "lights of many colours in deep space"),
    ),
    "retina": Scene(
        "retina", View(1), View(1.6, 0.55, 0.5),
        ("the inside of a human eye with its blood vessels", "a doctor's picture of a retina"),
    ),
    "handwriting": Scene(
        "text", View(1.05, 0.0), View(1.05, 1.0),
        ("formulas written by hand on lined paper", "handwritten mathematics"),
    ),
    "pagoda": Scene(
        "china", View(1, 0.5), View(1.5, 0.34, 0.45),
        ("a Chinese temple tower above a lake", "a red pagoda with orange roofs among trees"),
    ),
    "flower": Scene(
        "flower", View(1.1, 0.5, 0.5), View(1.7, 0.48, 0.52, 12),
        ("an orange dahlia in bloom", "a round flower in front of dark green leaves"),
    ),
    "face": Scene(
        "astronaut", View(2.3, 0.45, 0.2), View(3, 0.45, 0.22), ("the face of a smiling woman with short fair hair",)
    ),
    "shuttle": Scene(
        "astronaut", View(2.4, 0.9, 0.4), View(2.4, 0.9, 0.15), ("a model of a space shuttle on its fuel tank",)
    ),
    "helmet": Scene(
        "astronaut", View(2.5, 0.78, 0.9), View(2, 0.78, 0.9), ("a white space helmet with a shining black visor",)
    ),
    "patch": Scene(
        "astronaut", View(4, 0.33, 0.754), View(3, 0.33, 0.754), ("a round blue badge sewn on orange cloth",)
    ),
    "skyline": Scene(
        "camera", View(3, 0.84, 0.3), View(2.8, 0.82, 0.36), ("a tall building with a white ball on its roof",)
    ),
    "tripod": Scene("camera", View(2.2, 0.62, 0.62), View(2.2, 0.62, 0.9), ("three metal legs of a tripod on grass",)),
    "eye": Scene("chelsea", View(2.2, 0.377, 0.39), View(3.6, 0.377, 0.39), ("a green cat's eye, very close",)),
    "nose": Scene(
        "chelsea", View(2.4, 0.45, 0.8), View(2.4, 0.62, 0.8), ("the pink nose and the white whiskers of a cat",)
    ),
    "spoon": Scene("coffee", View(2.6, 0.61, 0.7), View(3.2, 0.62, 0.71), ("a small spoon lies on a red saucer",)),
    "table": Scene("coffee", View(4, 0.89, 0.84), View(4, 0.89, 0.3), ("the grain of a brown wooden table",)),
    "coin": Scene("coins", View(3, 0.12, 0.87), View(4.4, 0.12, 0.87), ("an old coin with a head in profile",)),
    "horse-head": Scene("horse", View(2.6, 0.9, 0.2), View(2, 0.8, 0.25), ("the silhouette of a horse's head",)),
    "galaxy": Scene("hubble", View(4, 0.7, 0.52), View(8, 0.726, 0.545), ("one galaxy glows orange among small ones",)),
    "nerve": Scene("retina", View(2.4, 0.25, 0.45), View(4, 0.16, 0.464), ("red veins run into a bright yellow spot",)),
    "roof": Scene("china", View(2.6, 0.32, 0.1), View(2.2, 0.32, 0.28), ("an orange tiled roof under a pale sky",)),
    "balcony": Scene(
        "china", View(2.6, 0.2, 0.52), View(2.6, 0.45, 0.6), ("red columns along the balconies of a temple",)
    ),
    "lake": Scene("china", View(2.3, 0.78, 0.5), View(2.3, 0.85, 0.58), ("a wide lake in the haze behind trees",)),
    "petals": Scene(
        "flower", View(4.5, 0.48, 0.52), View(2.8, 0.48, 0.52, 25), ("the orange petals of a flower, close up",)
    ),
}  # fmt: skip

CLIPS = (
    *(Clip(name, ((name, seconds),)) for name, seconds in (
        ("astronaut", 8), ("bricks", 6), ("photographer", 8), ("cell", 6), ("cat", 8), ("coffee", 8), ("coins", 8),
        ("grass", 6), ("gravel", 6), ("horse", 6), ("galaxies", 8), ("retina", 6), ("handwriting", 6), ("pagoda", 8),
        ("flower", 8),
    )),
    Clip("three-scenes-1", (("lake", 4), ("spoon", 3), ("face", 4))),
    Clip("three-scenes-2", (("shuttle", 4), ("petals", 4), ("tripod", 3))),
    Clip("three-scenes-3", (("eye", 3), ("roof", 4), ("coin", 4))),
    Clip("three-scenes-4", (("helmet", 3), ("table", 3), ("horse-head", 4))),
    Clip("three-scenes-5", (("galaxy", 4), ("balcony", 4), ("nose", 4))),
    Clip("three-scenes-6", (("nerve", 3), ("patch", 3), ("skyline", 3))),
)  # fmt: skip
