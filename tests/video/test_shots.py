"""Hard cuts are found; pans, flicker, flashes and fades are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from prota.video.shots import cut_places

SCENE = np.random.default_rng(7).integers(0, 256, (3, 16, 400, 3), dtype=np.uint8)
RATE = 4


def scene(which: int, seconds: float, speed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Pictures of a wide landscape, each colour in a range of its own, over which the view may move."""
    low = np.array([(20, 120, 60), (160, 30, 90), (90, 90, 200)][which])
    wide = (low + SCENE[which] * 0.25 + np.linspace(0, 60, 400)[None, :, None]).clip(0, 255).astype(np.uint8)
    return [wide[:, n * speed % 380 : n * speed % 380 + 16] for n in range(round(seconds * RATE))]


def cuts_in(pictures: Sequence[np.ndarray[Any, Any]] | np.ndarray[Any, Any]) -> list[float]:
    return [place / RATE for place in cut_places(pictures)]


def test_hard_cuts_are_found() -> None:
    assert cuts_in([*scene(0, 5), *scene(1, 4), *scene(2, 6)]) == [5.0, 9.0]
    assert cuts_in([*scene(0, 1), *scene(1, 1), *scene(0, 1)]) == [1.0, 2.0]
    assert cuts_in([*scene(0, 5, speed=3), *scene(1, 4, speed=5), *scene(2, 6)]) == [5.0, 9.0]
    assert cuts_in(np.stack([*scene(0, 300), *scene(1, 300)])) == [300.0]


def test_a_cut_to_the_same_colours_in_other_places_is_found() -> None:
    """As from one face to another in the same room."""
    room = np.concatenate([np.stack(scene(0, 4))[:, :, :8], np.stack(scene(1, 4))[:, :, 8:]], axis=2)
    assert cuts_in([*room, *room[:, :, ::-1]]) == [4.0]


def test_pans_are_no_cuts() -> None:
    for speed in (1, 4, 10):
        assert cuts_in(scene(0, 8, speed)) == []
    # A pan that begins and ends.
    assert cuts_in([*scene(0, 4), *scene(0, 2, 8), *([scene(0, 2, 8)[-1]] * 16)]) == []


def test_flicker_and_flashes_are_no_cuts() -> None:
    generator = np.random.default_rng(1)
    still = scene(1, 10)
    lamp = [(picture * generator.uniform(0.5, 1)).astype(np.uint8) for picture in still]
    assert cuts_in(lamp) == []
    strobe = [picture // 3 if number % 2 else picture for number, picture in enumerate(still)]
    assert cuts_in(strobe) == []
    for length in (1, 2):
        flash = list(still)
        flash[20 : 20 + length] = [np.full_like(still[0], 255)] * length
        assert cuts_in(flash) == []
    noise = [(picture + generator.normal(0, 12, picture.shape)).clip(0, 255).astype(np.uint8) for picture in still]
    assert cuts_in(noise) == []


def test_slow_fades_are_no_cuts() -> None:
    one, other = scene(0, 1)[0].astype(float), scene(1, 1)[0].astype(float)
    fade = [(one + (other - one) * share).astype(np.uint8) for share in np.linspace(0, 1, 20)]
    assert cuts_in([*scene(0, 3), *fade, *scene(1, 3)]) == []


def test_there_may_be_nothing_to_compare() -> None:
    assert cuts_in([]) == []
    assert cuts_in(scene(0, 0.25)) == []
    # A single change is as usual as can be.
    assert cuts_in([*scene(0, 0.25), *scene(1, 0.25)]) == []
