"""What a library keeps of its videos and their segments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from prota.errors import ProtaError
from prota.video.walk import FoundFile

__all__ = ["EXACT_SEGMENTS", "LibraryError", "ModelStamp", "SegmentBatch", "VideoRecord"]

# Up to this number all segments are scored; in larger libraries a vector index finds candidates first.
EXACT_SEGMENTS = 20_000

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


class LibraryError(ProtaError, ValueError):
    """Something about a library that its user can mend; the message says what is wrong and what to do."""

    code = "library"


@dataclass(frozen=True)
class ModelStamp:
    """Which model made the tokens of a library: others' tokens cannot be compared with them."""

    name: str
    """What `ProTA.from_pretrained` was given: a name, a hub id or a folder."""
    fingerprint: str
    """SHA-256 of its settings and weights."""
    width: int
    """D."""
    frames: int
    """M, the most tokens of a segment."""
    spread: bool
    """Whether tokens are Gaussians."""


@dataclass(frozen=True)
class VideoRecord:
    """One file, as it was when it was indexed."""

    video_id: str
    """SHA-256 of its content, hexadecimal: the same wherever it lies."""
    path: str
    """Absolute."""
    size: int
    modified: int
    """Nanoseconds, as the file system tells."""
    state: Literal["indexed", "bad", "gone"]
    """bad: could not be indexed, see reason; gone: was indexed, but its file is no longer there."""
    reason: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    fps: float = 0.0
    codec: str = ""
    segments: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    """The user's own."""

    @classmethod
    def of(cls, found: FoundFile, video_id: str) -> VideoRecord:
        """Of a file that has not been opened yet."""
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
class SegmentBatch:
    """All segments of one video, in their order, or some that follow each other."""

    video_id: str
    start: Floats
    """[S] seconds."""
    end: Floats
    """[S] seconds."""
    times: Floats
    """[S, M] seconds of each frame, NaN where there is none."""
    direction: Floats
    """[S, M, D] fp16."""
    spread: Floats | None
    """[S, M, D] fp16."""
    weight: Floats
    """[S, M] fp32."""
    mask: Bools
    """[S, M]."""
    pooled: Floats
    """[S, D] fp32, unit vectors: what the candidate stage of a search compares."""
    thumbnails: tuple[bytes, ...]
    """A small JPEG each, of the frame in the middle."""
    first: int = 0
    """The number of the first segment that is here."""

    def __len__(self) -> int:
        return len(self.start)
