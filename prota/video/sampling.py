"""Which frames of a clip are looked at: uniform in time."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["uniform_indices"]

Indices = np.ndarray[Any, np.dtype[np.int64]]

# Decoders round time stamps differently; without this, ties would give other frames with another decoder.
SAME_TIME = 1e-6


def uniform_indices(
    times: np.ndarray[Any, np.dtype[np.float64]],
    duration: float,
    count: int,
    *,
    max_seconds: float = 0.0,
) -> Indices:
    """Frames shown in the middle of `count` stretches of equal length.

    Ascending, [count]; a clip of at most `count` frames gives all its frames, once.
    Of a clip that lasts longer than `max_seconds` only the beginning counts, as if it ended there; 0: all of it counts.
    """
    if count < 1:
        raise ValueError(f"count = {count} is not allowed; allowed: 1 or more")
    if len(times) == 0:
        raise ValueError("a clip without frames has nothing to choose from")
    if 0 < max_seconds < duration:
        # A frame that is shown only when the time is up is not seen any more, however its stamp was rounded.
        seen = int(np.searchsorted(times, max_seconds - SAME_TIME))
        times, duration = times[: max(1, seen)], max_seconds
    if len(times) <= count:
        return np.arange(len(times))
    points = (np.arange(count) + 0.5) / count * duration
    return np.maximum(np.searchsorted(times, points + SAME_TIME, side="right") - 1, 0).astype(np.int64)
