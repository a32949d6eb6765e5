"""The timeline of a video, and parts common to the readers of pictures and videos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from prota.errors import ProtaError

__all__ = ["DecodeError", "Picture", "Timeline", "Times", "TooLargeError", "Transform", "end_of", "finished"]

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Times = np.ndarray[Any, np.dtype[np.float64]]
Transform = Callable[[Picture], Any]
"""Converts a decoded frame."""


class DecodeError(ProtaError, ValueError):
    """A file whose frames cannot be decoded."""

    code = "decode"


class TooLargeError(DecodeError):
    """A file whose frames have more pixels than allowed."""

    code = "too-large"


@dataclass(frozen=True)
class Timeline:
    """When each frame of a video is shown, and properties of the video."""

    times: Times
    """Seconds from the first frame, ascending, one per displayed frame."""
    duration: float
    """Seconds until the end of the last frame, which lasts the median frame duration."""
    width: int
    height: int
    """Width and height of the upright picture."""
    fps: float
    codec: str
    rotation: int
    """Degrees clockwise (0, 90, 180, 270) by which stored frames are rotated to be upright."""
    mirrored: bool = False
    """Whether stored frames are mirrored horizontally before the rotation."""
    counted: bool = False
    """Whether frames were counted by decoding, because the packets announce more."""


def end_of(times: Times, fps: float) -> float:
    """The end of the last frame, which lasts the median frame duration."""
    return float(times[-1] + (np.median(np.diff(times)) if len(times) > 1 else 1 / fps))


def finished(picture: Picture, transform: Transform | None) -> Any:
    picture = np.ascontiguousarray(picture)
    return picture if transform is None else transform(picture)
