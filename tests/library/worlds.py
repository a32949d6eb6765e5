"""Folders of generated videos and pictures, and a toy model to index them with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from prota.config.model import Config
from prota.library.search.hits import Hit
from prota.library.search.queries import Query
from prota.library.search.view import View
from prota.model.prota import ProTA
from tests.small_world import COLOURS, write_colour_clip


def toy_model(seed: int = 0, *overrides: str) -> ProTA:
    torch.manual_seed(seed)
    return ProTA.from_config(Config.build("prota", "toy", ["encoder.frames=4", *overrides])).eval()


def broken_model() -> ProTA:
    """One whose tokens are not finite."""
    model = toy_model()
    with torch.no_grad():
        model.video_encoder.tower.projection.weight.fill_(torch.inf)
    return model


def encoded(view: View, text: str) -> Query:
    """One text as a query."""
    (query,) = view.encode([text])
    return query


def hits_of(view: View, query: Query | str, k: int = 10, where: str | None = None, exact: bool = False) -> list[Hit]:
    """All hits of one query, weak ones included."""
    (results,) = view.search([encoded(view, query) if isinstance(query, str) else query], k, where, exact=exact)
    return results.hits


def write_clips(folder: Path, *names: str) -> dict[str, Path]:
    """Clips named ``colour-side``, one and a fifth of a second each."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name in names:
        colour, side = name.split("-")
        paths[name] = folder / f"{name}.mp4"
        write_colour_clip(paths[name], colour, side)
    return paths


def write_picture(path: Path, colour: str = "red", size: tuple[int, int] = (60, 40)) -> Path:
    """The left half grey, the right half coloured; its kind is its name's."""
    pixels = np.full((size[1], size[0], 3), 90, dtype=np.uint8)
    pixels[:, size[0] // 2 :] = COLOURS[colour]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path
