"""Folders of generated videos and a toy model to index them with."""

from __future__ import annotations

from pathlib import Path

import torch

from prota.config import Config
from prota.model import ProTA
from tests.small_world import write_colour_clip


def toy_model(seed: int = 0, *overrides: str) -> ProTA:
    torch.manual_seed(seed)
    return ProTA.from_config(Config.build("prota", "toy", ["encoder.frames=4", *overrides])).eval()


def write_clips(folder: Path, *names: str) -> dict[str, Path]:
    """Clips named ``colour-side``, one and a fifth of a second each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name in names:
        colour, side = name.split("-")
        paths[name] = folder / f"{name}.mp4"
        write_colour_clip(paths[name], colour, side)
    return paths
