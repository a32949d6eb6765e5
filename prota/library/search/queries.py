"""Queries: encoded texts and clips."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prota.errors import UsageError
from prota.library.records import LibraryError

if TYPE_CHECKING:
    from prota.types import PreparedTokens

__all__ = ["ClipRange", "Query", "clean_query", "parse_clip", "words_of"]


@dataclass(frozen=True)
class ClipRange:
    """A video file, a range of it, or a picture."""

    path: Path
    start: float | None = None
    end: float | None = None


def parse_clip(text: str) -> ClipRange:
    """Parse ``clip.mp4`` or ``clip.mp4@12-20.5``, in seconds. An existing file takes precedence."""
    found = re.fullmatch(r"(.+)@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if found is None or Path(text).exists():
        return ClipRange(Path(text))
    start, end = float(found[2]), float(found[3])
    if end <= start:
        raise UsageError(f"{text}: the range ends before it starts; use FILE@START-END in seconds")
    return ClipRange(Path(found[1]), start, end)


@dataclass(frozen=True)
class Query:
    """An encoded text or clip."""

    text: str
    tokens: PreparedTokens
    cut: bool = False
    """Whether the text was truncated to the model's length."""
    like: tuple[str, float, float] | None = None
    """Of a clip: its content, start and end, which are excluded from the results."""

    def is_itself(self, video_id: str, start: float, end: float) -> bool:
        """Whether a segment is part of the query clip."""
        if self.like is None or self.like[0] != video_id:
            return False
        # A picture has one segment of length 0, which overlaps nothing.
        return start == end or (start < self.like[2] and self.like[1] < end)


def clean_query(text: str) -> str:
    """Normalise a text query; LibraryError if it is empty."""
    words = words_of(text)
    if not words:
        raise LibraryError("empty query: describe the moment in words")
    return words


def words_of(text: str) -> str:
    """Normalise a text: no control characters, single spaces."""
    plain = "".join(" " if unicodedata.category(letter).startswith("C") else letter for letter in text)
    return " ".join(plain.split())
