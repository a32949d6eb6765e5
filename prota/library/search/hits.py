"""What a search returns: moments, and why they match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prota.library.records import VideoRecord
from prota.library.search.queries import Query
from prota.library.search.rows import Coverage
from prota.types import ExplainedWord

__all__ = ["ExplainedFrame", "Hit", "MomentExplanation", "Results"]


@dataclass(frozen=True)
class Hit:
    """A moment that a search found."""

    video: VideoRecord
    start: float
    end: float
    score: float
    best: float
    """Seconds at which the frame that matches best is shown."""
    row: int
    """Of its best segment, in the version that was searched."""
    relevance: float | None = None
    """Calibrated probability of being relevant; None if the model is not calibrated or the query is a clip."""

    def fields(self) -> dict[str, Any]:
        """Its fields as JSON, in the command line and over HTTP; not its path, which a server must not show."""
        times = {"start": round(self.start, 3), "end": round(self.end, 3), "best": round(self.best, 3)}
        return {"kind": self.video.kind, **times, "score": self.score, "relevance": self.relevance}


@dataclass(frozen=True)
class Results:
    """The best moments for one query."""

    query: Query
    hits: list[Hit]
    """Best first, with those that are no good matches."""
    cutoff: float
    """The least relevance of a good match."""
    coverage: Coverage

    @property
    def good(self) -> list[Hit]:
        """Hits that are likely a match; all if the relevance is not known."""
        return [hit for hit in self.hits if hit.relevance is None or hit.relevance >= self.cutoff]

    @property
    def no_good_match(self) -> bool:
        return bool(self.hits) and not self.good


@dataclass(frozen=True)
class ExplainedFrame:
    """What a frame adds to a score."""

    time: float
    contribution: float
    weight: float


@dataclass(frozen=True)
class MomentExplanation:
    """What the score of a segment is made of: the contributions of words and frames add up to it."""

    score: float
    words: Sequence[ExplainedWord]
    frames: Sequence[ExplainedFrame]

    @property
    def similarities(self) -> list[tuple[float, ...]]:
        """Words x frames."""
        return [word.similarities for word in self.words]
