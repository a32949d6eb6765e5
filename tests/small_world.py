"""A benchmark of a few generated clips, its frame cache and a toy experiment over it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from prota.config.experiment import Experiment
from prota.data.frame_cache import CachePlan, fill_cache

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "yellow": (220, 210, 30),
    "white": (240, 240, 240),
    "black": (10, 10, 10),
    "pink": (240, 120, 180),
    "orange": (240, 140, 20),
}
SIDES = {"left": 0, "right": 1, "top": 2, "bottom": 3}


def write_colour_clip(path: Path, colour: str, side: str, frames: int = 6) -> None:
    """A grey clip of which one half is coloured."""
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=5, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = 48, 48, "yuv420p"
        for number in range(frames):
            picture = np.full((48, 48, 3), 90 + 5 * (number % 30), dtype=np.uint8)
            half = [np.s_[:, :24], np.s_[:, 24:], np.s_[:24], np.s_[24:]][SIDES[side]]
            picture[half] = COLOURS[colour]
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


def write_world(folder: Path) -> Path:
    """Clips, captions, cache and experiment.toml; returns the TOML file. 19 training, 6 validation, 7 test clips."""
    (folder / "clips").mkdir(parents=True)
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["video", "caption", "split"])
        for number, (colour, side) in enumerate((c, s) for c in COLOURS for s in SIDES):
            name = f"{colour}-{side}"
            write_colour_clip(folder / "clips" / f"{name}.mp4", colour, side)
            split = "test" if number % 5 == 0 else "val" if number % 5 == 1 and number > 1 else "train"
            for caption in (f"{colour} on the {side}", f"the {side} half is {colour}"):
                rows.writerow([name, caption, split])
    experiment = Experiment.build(
        "prota",
        "toy",
        [
            "encoder.frames=4",
            "data.benchmark=folder",
            f"data.captions={folder / 'captions.csv'}",
            f"data.videos={folder / 'clips'}",
            f"data.cache={folder / 'cache'}",
            "data.cache_size=32",
            "train.epochs=3",
            "train.batch_size=6",
            "train.lr_text=1e-3",
            "train.lr_vision=1e-3",
            "train.lr_temporal=1e-3",
        ],
    )
    videos = {path.stem: path for path in (folder / "clips").iterdir()}
    fill_cache(folder / "cache", videos, CachePlan(4, 32), workers=2)
    (folder / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    return folder / "experiment.toml"
