"""From scored segments to moments: stretches of videos that do not overlap, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Moment", "ScoredSegment", "find_moments"]

# Segments that overlap a moment belong to it if they score nearly as well as its best one.
_NEARLY = 0.9


@dataclass(frozen=True)
class ScoredSegment:
    """A segment with its score for one query."""

    row: int
    """Of the store."""
    video_id: str
    start: float
    end: float
    score: float


@dataclass(frozen=True)
class Moment:
    """A stretch of a video, and the segment that speaks for it."""

    video_id: str
    start: float
    end: float
    score: float
    row: int
    """Of its best segment."""


def find_moments(segments: Sequence[ScoredSegment], k: int) -> list[Moment]:
    """The k best moments of segments that come best first.

    The best segment of a stretch makes the moment. Those that score at least nine tenths of it join it and widen it,
    each overlapping the one before: a scene that goes on is one moment. Weaker ones that overlap it are the same
    moment seen worse, and are left out.
    """
    moments: list[Moment] = []
    taken: dict[str, list[Moment]] = {}
    for position, segment in enumerate(segments):
        if len(moments) == k:
            break
        if any(_overlap(segment, moment) for moment in taken.get(segment.video_id, [])):
            continue
        moment = _widened(segment, segments[position + 1 :], taken.get(segment.video_id, []))
        moments.append(moment)
        taken.setdefault(segment.video_id, []).append(moment)
    return moments


def _widened(best: ScoredSegment, others: Sequence[ScoredSegment], taken: Sequence[Moment]) -> Moment:
    # Scores may be negative: nine tenths of the way from there would be better than the best.
    least = best.score - (1 - _NEARLY) * abs(best.score)
    good = [
        other
        for other in others
        if other.video_id == best.video_id and other.score >= least and not any(_overlap(other, m) for m in taken)
    ]
    start, end = best.start, best.end
    for other in sorted(good, key=lambda segment: segment.start):
        if start < other.end and other.start < end:
            end = max(end, other.end)
    for other in sorted(good, key=lambda segment: -segment.end):
        if start < other.end and other.start < end:
            start = min(start, other.start)
    return Moment(best.video_id, start, end, best.score, best.row)


def _overlap(one: ScoredSegment, other: Moment) -> bool:
    return one.video_id == other.video_id and one.start < other.end and other.start < one.end
