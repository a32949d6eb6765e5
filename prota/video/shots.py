"""Find where the shots of a video begin: hard cuts, to the frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from prota.video.decode import decode_chosen
from prota.video.sampling import SAME_TIME

__all__ = ["cut_places", "shot_boundaries"]

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Pictures = Picture | Sequence[Picture]
Times = np.ndarray[Any, np.dtype[np.float64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]

# Pictures compared in a second of video, and their side.
LOOKS = 4
LOOK_SIZE = 16
# A cut changes at least this share of the colours in their places, and this many times the usual change around it.
LEAST_CHANGE = 0.22
TIMES_USUAL = 3.0
# Pictures on either side of a cut that must all differ across it: after a flash, the old picture returns.
SIDE = 3
# Pictures before and after, whose median is the usual change.
AROUND = 8
LEVELS = 8
# Colours are counted in so many parts of a picture's height and width: two views of one room have the same colours, in
# other places.
GRID = 4
CHUNK = 512


def shot_boundaries(path: str | Path) -> tuple[float, ...]:
    """Times of all cuts in seconds: first approximate, from a few pictures a second, then to the frame."""
    timeline, chosen, looks = decode_chosen(
        path,
        lambda timeline: _first_of_each(np.floor(timeline.times * LOOKS)),
        _look,
        threads=1,
    )
    places = cut_places(looks)
    spans = [(timeline.times[chosen[place - 1]], timeline.times[chosen[place]]) for place in places]
    if not spans:
        return ()
    # By time, not by number: the decoder may count frames differently for another choice of frames.
    timeline, chosen, looks = decode_chosen(
        path,
        lambda timeline: sorted({index for span in spans for index in _within(timeline.times, *span)}),
        _look,
        threads=1,
    )
    times = timeline.times[chosen]
    cuts = []
    for span in spans:
        inside = _within(times, *span)
        if len(inside) > 1:
            (change,) = _changes(looks[inside.start : inside.stop], 1)
            cuts.append(float(times[inside.start + 1 + int(np.argmax(change))]))
    return tuple(cuts)


def _first_of_each(groups: Times) -> list[int]:
    return [int(place) for place in np.unique(groups, return_index=True)[1]]


def _within(times: Times, start: float, end: float) -> range:
    first, last = np.searchsorted(times, [start - SAME_TIME, end + SAME_TIME])
    return range(int(first), int(last))


def _look(frame: Picture) -> Picture:
    small = Image.fromarray(frame).resize((LOOK_SIZE, LOOK_SIZE), Image.Resampling.BOX, reducing_gap=2.0)
    return np.asarray(small)


def cut_places(pictures: Pictures) -> list[int]:
    """The numbers of the pictures that begin a shot; sides must be multiples of `GRID`.

    Across a cut the colours of each place change at once, much more than around it, and stay changed. In a pan or a
    flicker they change all the time, in a flash only for a moment.
    """
    if len(pictures) < 2:
        return []
    changes = _changes(pictures, 2 * SIDE - 1)
    lasting = np.full(len(pictures), np.inf, dtype=np.float32)
    for before in range(1, SIDE + 1):
        for after in range(SIDE):
            # A change from `place - before` to `place + after`; at the ends of the video there is less to compare.
            places = slice(before, len(pictures) - after)
            lasting[places] = np.minimum(lasting[places], changes[before + after - 1])
    lasting[0] = 0
    padded = np.pad(changes[0], (AROUND + 1, AROUND), constant_values=np.nan)
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1)
    usual = np.nanmedian(around, axis=1)
    peak = (lasting >= np.append(lasting[1:], 0)) & (lasting >= np.append(0, lasting[:-1]))
    found = peak & (lasting >= LEAST_CHANGE) & (lasting >= TIMES_USUAL * usual)
    return [int(place) for place in np.flatnonzero(found)]


def _changes(pictures: Pictures, apart: int) -> list[Floats]:
    """For 1 to `apart` steps: the share of the colours, 0 to 1, that differ between each picture and a later one.

    Computed in chunks: the histograms of a day's recording take gigabytes.
    """
    found: list[list[Floats]] = [[np.zeros(0, dtype=np.float32)] for _ in range(apart)]
    for start in range(0, len(pictures), CHUNK):
        colours = _colours(pictures[start : start + CHUNK + apart])
        for steps, parts in enumerate(found, start=1):
            later = colours[steps : steps + CHUNK]
            parts.append(np.abs(later - colours[: len(later)]).sum(axis=2).mean(axis=1) / 2)
    return [np.concatenate(parts) for parts in found]


def _colours(pictures: Pictures) -> Floats:
    """Histograms [n, GRID² · 3, LEVELS]. A value counts for its two nearest levels, so that dimming changes little."""
    values = np.asarray(pictures).astype(np.float32) * ((LEVELS - 1) / 255)
    count, height, width, _ = values.shape
    values = values.reshape(count, GRID, height // GRID, GRID, width // GRID, 3)
    shares = [np.maximum(0, 1 - np.abs(values - level)).mean(axis=(2, 4)) for level in range(LEVELS)]
    return np.stack(shares, axis=-1).reshape(count, -1, LEVELS)
