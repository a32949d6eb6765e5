"""What the camera sees is what is there."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from prota.samples.camera import View, between, extent, look

SIZE = (64, 48)


def ramp() -> Image.Image:
    """Red grows to the right, green downwards: a pixel's colour tells where it is."""
    across, down = np.meshgrid(np.linspace(0, 240, 160), np.linspace(0, 240, 120))
    return Image.fromarray(np.stack([across, down, np.zeros_like(down)], axis=2).round().astype(np.uint8))


def place(frame: Image.Image, x: int, y: int) -> tuple[float, float]:
    """Where in the photograph, in parts of it, the middle of some pixels lies."""
    red, green, _ = np.asarray(frame)[y : y + 2, x : x + 2].reshape(-1, 3).mean(axis=0) / 240
    return float(red), float(green)


def test_zoom_one_is_all_that_fits() -> None:
    frame = look(ramp(), View(1), SIZE)
    assert frame.size == SIZE
    assert place(frame, 0, 0) == pytest.approx((0, 0), abs=0.03)
    assert place(frame, 62, 46) == pytest.approx((1, 1), abs=0.03)


@pytest.mark.parametrize("turn", [0, 1e-9, 30, -90, 180])
@pytest.mark.parametrize("zoom", [2, 5])
def test_the_centre_stays_where_it_is_pointed(turn: float, zoom: float) -> None:
    frame = look(ramp(), View(zoom, 0.4, 0.55, turn), SIZE)
    assert place(frame, 31, 23) == pytest.approx((0.4, 0.55), abs=0.02)


def test_turning_goes_round() -> None:
    upright, turned = (look(ramp(), View(2, turn=turn), (48, 48)) for turn in (0, 90))
    assert np.abs(np.rot90(np.asarray(upright), 1).astype(int) - np.asarray(turned)).mean() < 3


@pytest.mark.parametrize("turn", [0.0, 20.0])
def test_the_frame_never_leaves_the_photograph(turn: float) -> None:
    white = Image.new("RGB", (160, 120), "white")
    for x, y in ((-1, 0.5), (2, 0.5), (0.5, -3), (0.5, 1)):
        assert np.asarray(look(white, View(2, x, y, turn), SIZE)).min() == 255


def test_moves_begin_and_end_where_they_should() -> None:
    start, end = View(1, 0.2, 0.3, -10), View(4, 0.8, 0.5, 20)
    assert between(start, end, 0) == start
    last, middle = between(start, end, 1), between(start, end, 0.5)
    assert (last.zoom, last.x, last.y, last.turn) == pytest.approx((4, 0.8, 0.5, 20))
    assert (middle.zoom, middle.x, middle.y, middle.turn) == pytest.approx((2, 0.5, 0.4, 5))


def test_extent_of_a_turned_frame() -> None:
    assert extent((200, 100), View(1), (40, 40)) == pytest.approx((100, 100, 100, 100))
    assert extent((200, 100), View(2, turn=90), (40, 20)) == pytest.approx((100, 50, 50, 100))
