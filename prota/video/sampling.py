"""Which frames of a clip are looked at: uniform in time, with neighbours for train-time jitter."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["middle_indices", "uniform_indices"]

Indices = np.ndarray[Any, np.dtype[np.int64]]

# Decoders round time stamps differently; without this, ties would give other frames with another decoder.
SAME_TIME = 1e-6


def uniform_indices(
    times: np.ndarray[Any, np.dtype[np.float64]],
    duration: float,
    count: int,
    *,
    jitter: int = 1,
    max_seconds: float = 0.0,
) -> Indices:
    """Frames shown at evenly spaced times: `count` stretches of equal length, `jitter` (odd) points in each.

    Point j of stretch i lies at (i + (j + ½) / jitter) / count · duration, so that the middle point of a stretch is the
    plain uniform choice. Ascending, [count · jitter]; a clip of at most `count` frames gives all its frames, once.
    Of a clip that lasts longer than `max_seconds` only the beginning counts, as if it ended there; 0: all of it counts.
    """
    _check(count, jitter)
    if len(times) == 0:
        raise ValueError("a clip without frames has nothing to choose from")
    if 0 < max_seconds < duration:
        # A frame that is shown only when the time is up is not seen any more, however its stamp was rounded.
        seen = int(np.searchsorted(times, max_seconds - SAME_TIME))
        times, duration = times[: max(1, seen)], max_seconds
    if len(times) <= count:
        return np.arange(len(times))
    points = (np.arange(count * jitter) + 0.5) / (count * jitter) * duration
    return np.maximum(np.searchsorted(times, points + SAME_TIME, side="right") - 1, 0).astype(np.int64)


def middle_indices(available: int, count: int, jitter: int) -> Indices:
    """Which of the `available` frames that `uniform_indices` chose are the plain uniform ones; all, of a short clip."""
    _check(count, jitter)
    if available > count * jitter:
        raise ValueError(f"{available} frames are more than {count} × {jitter}: they were chosen with other settings")
    if available < count * jitter:
        return np.arange(available)
    return np.arange(count) * jitter + jitter // 2


def _check(count: int, jitter: int) -> None:
    if count < 1:
        raise ValueError(f"count = {count} is not allowed; allowed: 1 or more")
    if jitter < 1 or jitter % 2 == 0:
        raise ValueError(f"jitter = {jitter} is not allowed; allowed: odd numbers from 1, so that there is a middle")
