"""Moments: from scored segments to the seconds of a video in which a query holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prota.library.records import Floats

__all__ = ["Moment", "Segment", "find_moments", "stretch"]

# Overlapping segments join a moment if they score at least this share of its best one.
_NEARLY = 0.9
# A stretch continues while the heat is at least this share of its peak, with gaps of at most this many frames. Chosen
# on films of MSR-VTT clips, see docs/experiments/moments.md.
_HOLDS, _GAP = 0.4, 3


@dataclass(frozen=True)
class Moment:
    """A segment with its score for a query, or such a segment widened by others of the same scene."""

    row: int
    """Of the (best) segment."""
    video_id: str
    start: float
    end: float
    score: float
    others: tuple[int, ...] = ()
    """Rows of the segments that widened it."""

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of its segments, the best one first."""
        return (self.row, *self.others)

    def overlaps(self, other: Moment) -> bool:
        return self.video_id == other.video_id and self.start < other.end and other.start < self.end


def find_moments(segments: Sequence[Moment], k: int) -> list[Moment]:
    """The k best moments of segments sorted by score; they do not overlap.

    The best segment of a scene makes a moment. Segments that score at least nine tenths of it widen it, each
    overlapping the one before. Weaker segments that overlap it are left out.
    """
    moments: list[Moment] = []
    taken: dict[str, list[Moment]] = defaultdict(list)
    for position, segment in enumerate(segments):
        if len(moments) == k:
            break
        others = taken[segment.video_id]
        if not any(map(segment.overlaps, others)):
            moments.append(_widened(segment, segments[position + 1 :], others))
            others.append(moments[-1])
    return moments


def _widened(best: Moment, others: Sequence[Moment], taken: Sequence[Moment]) -> Moment:
    # Scores may be negative, where nine tenths would be a better score.
    least = best.score - (1 - _NEARLY) * abs(best.score)
    good = [
        other
        for other in others
        if other.video_id == best.video_id and other.score >= least and not any(map(other.overlaps, taken))
    ]
    widened = best
    for other in sorted(good, key=lambda segment: segment.start):
        if widened.overlaps(other):
            widened = replace(widened, end=max(widened.end, other.end), others=(*widened.others, other.row))
    for other in sorted(good, key=lambda segment: -segment.end):
        if widened.overlaps(other):
            widened = replace(widened, start=min(widened.start, other.start), others=(*widened.others, other.row))
    return replace(widened, others=tuple(dict.fromkeys(widened.others)))


@dataclass(frozen=True)
class Segment:
    """A segment, or a scene of several: start, end and the seconds of its frames."""

    start: float
    end: float
    times: Sequence[float]


def stretch(heat: Floats, segment: Segment, peak: int) -> tuple[float, float]:
    """The seconds around a peak in which the heat holds; all of them if there is none."""
    least = _HOLDS * float(heat[peak])
    if least <= 0:
        return segment.start, segment.end
    holding = [place for place in range(len(heat)) if heat[place] >= least]
    place = holding.index(peak)
    first = last = place
    while first > 0 and holding[first] - holding[first - 1] <= _GAP + 1:
        first -= 1
    while last + 1 < len(holding) and holding[last + 1] - holding[last] <= _GAP + 1:
        last += 1
    begin, after = holding[first], holding[last] + 1
    start = segment.start if begin == 0 else segment.times[begin]
    return start, segment.end if after == len(heat) else segment.times[after]
