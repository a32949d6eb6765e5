"""Uniform sampling of frames."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["uniform_indices"]

Indices = np.ndarray[Any, np.dtype[np.int64]]

# Decoders round time stamps differently; this tolerance makes ties independent of the decoder.
SAME_TIME = 1e-6


def uniform_indices(
    times: np.ndarray[Any, np.dtype[np.float64]],
    duration: float,
    count: int,
    *,
    max_seconds: float = 0.0,
) -> Indices:
    """Ascending indices of the frames in the middle of ``count`` intervals of equal length.

    A clip of at most ``count`` frames gives all its frames once. A clip is cut off after ``max_seconds``; 0: never.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if len(times) == 0:
        raise ValueError("the clip has no frames")
    if 0 < max_seconds < duration:
        # A frame shown at max_seconds is not part of the clip, however its time stamp was rounded.
        seen = int(np.searchsorted(times, max_seconds - SAME_TIME))
        times, duration = times[: max(1, seen)], max_seconds
    if len(times) <= count:
        return np.arange(len(times))
    points = (np.arange(count) + 0.5) / count * duration
    return np.maximum(np.searchsorted(times, points + SAME_TIME, side="right") - 1, 0).astype(np.int64)
