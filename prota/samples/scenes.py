"""What the sample clips show: scenes with their captions, and the clips they are cut together to.

A caption is true of its own clip and of no other: where a photograph is used twice, the scenes show different parts of
it. Captions were written with the scenes in view, by somebody who had not seen what any model finds.
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
        "astronaut", View(1.9, 0.36, 0.22), View(1.55, 0.35, 0.33),
        ("a smiling woman with short hair wearing an orange space suit",
         "portrait of a cheerful female astronaut in front of an american flag"),
    ),
    "rocket": Scene(
        "rocket", View(1), View(1.4, 0.5, 0.52),
        ("a tall white rocket standing on its launch pad at dusk",
         "bright lights and lattice towers around a rocket under a dark blue sky"),
    ),
    "cat": Scene(
        "chelsea", View(1, 0.0), View(1.35, 0.6, 0.6),
        ("close up of a tabby cat with green eyes",
         "the pink nose and long whiskers of a furry striped animal"),
    ),
    "coffee": Scene(
        "coffee", View(1.15, turn=-6), View(1.5, 0.5, 0.43, 8),
        ("a red cup of coffee on a saucer with a spoon",
         "espresso served in a small cup on a wooden table"),
    ),
    "flower": Scene(
        "flower", View(1.1), View(1.7, 0.48, 0.52, 12),
        ("an orange dahlia flower in full bloom",
         "zooming in on a round blossom with many peach colored petals"),
    ),
    "pagoda": Scene(
        "china", View(2.4, 0.3, 0.3), View(1.7, 0.31, 0.46),
        ("a chinese pagoda with curved tiled roofs",
         "an old asian temple tower with several storeys and red wooden walls"),
    ),
    "photographer": Scene(
        "camera", View(2.2, 0.42, 0.28), View(1.8, 0.4, 0.33),
        ("a man in a dark coat bending over a camera",
         "black and white side view of a photographer wearing gloves outdoors"),
    ),
    "coins": Scene(
        "coins", View(2, 0.0, 0.0), View(2, 1.0, 1.0),
        ("rows of ancient coins with heads on them",
         "old worn metal money laid out on a dark surface, in black and white"),
    ),
    "galaxies": Scene(
        "hubble", View(1.5, 0.3, 0.4), View(2.2, 0.65, 0.55, 20),
        ("countless colorful galaxies and stars in deep space",
         "tiny glowing dots of many colors scattered over a black night sky"),
    ),
    "officer": Scene(
        "hopper", View(1.2, 0.5, 0.3), View(1.5, 0.5, 0.31),
        ("an elderly woman with glasses wearing a navy officer hat",
         "serious old lady in uniform cap before a flag and blue background"),
    ),
    "horse": Scene(
        "horse", View(1), View(1.15, 0.55, 0.4),
        ("black silhouette of a horse on a white background",
         "a simple drawing of a standing horse seen from the side"),
    ),
    "cell": Scene(
        "cell", View(1.1, 0.3, 0.3), View(2.6, 0.775, 0.58),
        ("a blurry bright disc getting bigger on a dark grey background",
         "zooming in on a fuzzy pale ball that looks like a full moon"),
    ),
    "shuttle": Scene(
        "astronaut", View(2.4, 0.9, 0.4), View(2.4, 0.9, 0.15),
        ("a model of a space shuttle with a brown fuel tank",
         "the camera moves up a white shuttle with boosters, slightly out of focus"),
    ),
    "grass": Scene(
        "grass", View(1.6, 0.2, 0.8), View(1.6, 0.9, 0.2, 10),
        ("grass and clover leaves on the ground in black and white",
         "looking straight down at a lawn with small weeds and fallen leaves"),
    ),
    "handwriting": Scene(
        "text", View(1.05, 0.0), View(1.05, 1.0),
        ("handwritten math formulas on lined paper",
         "close view of equations scribbled in dark ink on a ruled page"),
    ),
    "lake": Scene(
        "china", View(2.3, 0.78), View(2.3, 0.85, 0.58),
        ("a hazy lake with small boats and an island",
         "view over misty water from a hill with trees in front"),
    ),
    "helmet": Scene(
        "astronaut", View(2.4, 0.74, 0.84), View(1.9, 0.78, 0.84),
        ("an astronaut helmet with a shiny black visor",
         "light reflecting in the dark round glass of a space helmet"),
    ),
    "bricks": Scene(
        "brick", View(2.2, 0.3, 0.2), View(1.5, 0.6, 0.7, 8),
        ("a grey brick wall with light mortar lines",
         "long rectangular bricks standing upright in a slowly tilting pattern"),
    ),
    "skyline": Scene(
        "camera", View(3, 0.84, 0.3), View(2.8, 0.82, 0.36),
        ("city skyline with a tall tower and domed buildings",
         "a high rise with a white ball on its roof, black and white"),
    ),
    "retina": Scene(
        "retina", View(1), View(1.6, 0.55),
        ("medical picture of the inside of an eye with blood vessels",
         "a red retina with branching veins and a dark spot in the middle"),
    ),
    "ribbons": Scene(
        "hopper", View(3.4, 0.78, 0.85), View(2.6, 0.74, 0.85),
        ("colorful military ribbons pinned on a dark uniform",
         "rows of striped medal bars on black cloth, seen close up"),
    ),
    "gravel": Scene(
        "gravel", View(1.4, turn=-15), View(1.8, turn=25),
        ("a pile of crushed grey stones filling the whole picture",
         "gravel covering the ground, with many small sharp edged rocks"),
    ),
    "badge": Scene(
        "astronaut", View(4, 0.33, 0.754), View(3, 0.33, 0.754),
        ("a round purple mission patch sewn on orange fabric",
         "embroidered badge with a space shuttle and names around the edge"),
    ),
    "tripod": Scene(
        "camera", View(2.2, 0.62, 0.72), View(2.2, 0.62, 0.9),
        ("the metal legs of a tripod standing on a lawn",
         "a camera stand on short grass in black and white"),
    ),
}  # fmt: skip

CLIPS = (
    *(Clip(name, ((name, seconds),)) for name, seconds in (
        ("astronaut", 8), ("rocket", 8), ("cat", 8), ("coffee", 8), ("flower", 8), ("pagoda", 8), ("photographer", 8),
        ("coins", 8), ("galaxies", 8), ("officer", 8), ("horse", 6), ("cell", 6),
    )),
    Clip("three-scenes-1", (("shuttle", 4), ("grass", 3), ("handwriting", 4))),
    Clip("three-scenes-2", (("lake", 4), ("helmet", 4), ("bricks", 3))),
    Clip("three-scenes-3", (("skyline", 4), ("retina", 4), ("ribbons", 4))),
    Clip("three-scenes-4", (("gravel", 3), ("badge", 4), ("tripod", 4))),
)  # fmt: skip
