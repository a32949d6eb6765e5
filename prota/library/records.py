"""The records of a library: videos, segments and the model that encoded them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from prota.errors import ProtaError
from prota.video.walk import FoundFile

__all__ = ["EXACT_SEGMENTS", "DamagedError", "LibraryError", "ModelStamp", "SegmentBatch", "SegmentTokens"]
__all__ += ["VideoRecord", "clock"]

# Up to this number all segments are scored; larger libraries use a vector index to find candidates.
EXACT_SEGMENTS = 20_000

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class LibraryError(ProtaError, ValueError):
    """An invalid use or state of a library that its user can correct."""

    code = "library"


class DamagedError(LibraryError):
    """A library whose files differ from what was written."""

    code = "damaged"

    @classmethod
    def at(cls, place: object, problem: str) -> DamagedError:
        return cls(f"{problem}: run `prota library repair --library {place}`")


@dataclass(frozen=True)
class ModelStamp:
    """The identity of the model that encoded a library: tokens of different models are not comparable."""

    name: str
    """The argument of `ProTA.from_pretrained`: a name, a hub id or a folder."""
    fingerprint: str
    """SHA-256 of its settings and weights."""
    width: int
    """D."""
    frames: int
    """M, the maximum of tokens per segment."""
    spread: bool
    """Whether tokens are Gaussians."""


@dataclass(frozen=True)
class VideoRecord:
    """A file as it was indexed."""

    video_id: str
    """Hexadecimal SHA-256 of its content."""
    path: str
    """Absolute."""
    size: int
    modified: int
    """Modification time of the file in nanoseconds."""
    state: Literal["indexed", "bad", "gone"]
    """bad: could not be indexed, see `reason`; gone: indexed, but the file no longer exists."""
    reason: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    fps: float = 0.0
    codec: str = ""
    segments: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    """Set by the user."""

    @classmethod
    def of(cls, found: FoundFile, video_id: str) -> VideoRecord:
        """The record of a file that was not opened yet."""
        return cls(video_id, str(found.path), found.size, found.modified, "indexed")

    @property
    def whole(self) -> bool:
        """Whether its segments are in the library; a bad file has none."""
        return self.state != "bad" and self.segments > 0

    @property
    def kind(self) -> Literal["picture", "video"]:
        """A picture has one segment of duration 0; a video lasts longer, even with one frame."""
        return "picture" if self.whole and not self.duration else "video"


@dataclass(frozen=True)
class SegmentTokens:
    """The tokens of some segments; the arrays may be read-only."""

    direction: Floats
    """[S, M, D] fp16."""
    spread: Floats | None
    """[S, M, D] fp16."""
    weight: Floats
    """[S, M] fp32."""
    mask: Bools
    """[S, M]."""

    def __len__(self) -> int:
        return len(self.direction)


@dataclass(frozen=True)
class SegmentBatch(SegmentTokens):
    """The segments of a video, or a run of consecutive ones, as a library stores them."""

    video_id: str
    start: Floats
    """[S] seconds."""
    end: Floats
    """[S] seconds."""
    times: Floats
    """[S, M] seconds of each frame, NaN for padding."""
    pooled: Floats
    """[S, D] fp32, unit vectors for the candidate stage of a search."""
    thumbnails: tuple[bytes, ...]
    """A small JPEG of each middle frame."""
    first: int = 0
    """The number of the first segment in the batch."""


def clock(seconds: float, decimals: int = 1) -> str:
    """Hours, minutes and seconds, as people write a time of a video."""
    minutes, rest = divmod(round(seconds, decimals), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:0{decimals + 3 if decimals else 2}.{decimals}f}"
    return f"{hours}:{minutes:02d}:{shown}" if hours else f"{minutes}:{shown}"
