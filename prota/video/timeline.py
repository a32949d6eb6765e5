"""When the frames of a video are shown, and what Pillow and PyAV do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from prota.errors import ProtaError

__all__ = ["COMPLETE_SHARE", "DecodeError", "Picture", "Timeline", "Times", "Transform", "end_of", "finished"]

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Times = np.ndarray[Any, np.dtype[np.float64]]
Transform = Callable[[Picture], Any]
"""What is kept of a picture."""

# A file that holds less than this share of what its header announces is cut short; headers are off by a frame or two.
COMPLETE_SHARE = 0.9


class DecodeError(ProtaError, ValueError):
    """A file that does not give the frames asked for; the message is one line."""

    code = "decode"


@dataclass(frozen=True)
class Timeline:
    """When each frame of a video is shown."""

    times: Times
    """Seconds from the first frame, ascending, one per displayable frame in presentation order."""
    duration: float
    """Seconds until the end of the last frame, taken to last as long as frames usually do."""
    width: int
    height: int
    """Both of the upright picture."""
    fps: float
    codec: str
    rotation: int
    """Degrees clockwise (0, 90, 180, 270) by which stored pictures were turned to be upright."""
    mirrored: bool = False
    """Whether left and right of stored pictures were exchanged before."""
    counted: bool = False
    """Whether the packets announce more, and the frames that are there had to be counted by decoding all."""


def end_of(times: Times, fps: float) -> float:
    """The last frame lasts as long as frames usually do."""
    return float(times[-1] + (np.median(np.diff(times)) if len(times) > 1 else 1 / fps))


def finished(picture: Picture, transform: Transform | None) -> Any:
    picture = np.ascontiguousarray(picture)
    return picture if transform is None else transform(picture)
