"""A camera over a photograph: where it looks, how it moves, what it sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

__all__ = ["View", "between", "look"]


@dataclass(frozen=True)
class View:
    """What the camera sees: zoom 1 is the largest frame that fits into the photograph."""

    zoom: float
    x: float = 0.5
    y: float = 0.5
    """Centre, in parts of the photograph's width and height; moved inwards where the frame would leave it."""
    turn: float = 0.0
    """Degrees."""


def between(start: View, end: View, part: float) -> View:
    """The view after `part` of the way, 0 to 1: slow at both ends, and zooming by equal factors in equal times."""
    eased = part * part * (3 - 2 * part)

    def mix(first: float, last: float) -> float:
        return first + (last - first) * eased

    zoom = math.exp(mix(math.log(start.zoom), math.log(end.zoom)))
    return View(zoom, mix(start.x, end.x), mix(start.y, end.y), mix(start.turn, end.turn))


def extent(picture: tuple[int, int], view: View, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Width and height of the frame in the photograph's pixels, and of the upright box around it."""
    width = min(picture[0], picture[1] * size[0] / size[1]) / view.zoom
    height = width * size[1] / size[0]
    sine, cosine = abs(math.sin(math.radians(view.turn))), abs(math.cos(math.radians(view.turn)))
    return width, height, width * cosine + height * sine, width * sine + height * cosine


def centre(picture: tuple[int, int], view: View, size: tuple[int, int]) -> tuple[float, float]:
    """Of the frame, in the photograph's pixels: where the view says, or so far inwards that the box around it fits."""
    _, _, across, down = extent(picture, view, size)
    x = min(max(view.x * picture[0], across / 2), picture[0] - across / 2)
    return x, min(max(view.y * picture[1], down / 2), picture[1] - down / 2)


def look(picture: Image.Image, view: View, size: tuple[int, int]) -> Image.Image:
    """The frame of `size` that the camera sees."""
    width, height, _, _ = extent(picture.size, view, size)
    x, y = centre(picture.size, view, size)
    if view.turn == 0:
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        inside = (max(0.0, box[0]), max(0.0, box[1]), min(picture.width, box[2]), min(picture.height, box[3]))
        return picture.resize(size, Image.Resampling.LANCZOS, box=inside)
    # Turned at about the photograph's own resolution, then made smaller: turning alone would leave out pixels.
    scale = max(1, round(width / size[0]))
    drawn = (size[0] * scale, size[1] * scale)
    step = width / drawn[0]
    cosine, sine = step * math.cos(math.radians(view.turn)), step * math.sin(math.radians(view.turn))
    corner_x = x - (cosine * drawn[0] - sine * drawn[1]) / 2
    corner_y = y - (sine * drawn[0] + cosine * drawn[1]) / 2
    affine = (cosine, -sine, corner_x, sine, cosine, corner_y)
    turned = picture.transform(drawn, Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    return turned if scale == 1 else turned.reduce(scale)
