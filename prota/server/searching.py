"""From requests to answers: filters as SQL, hits as JSON, reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from prota.library.records import VideoRecord
from prota.library.tables import one_of
from prota.server.engine import View
from prota.server.problems import ProblemError, readable
from prota.server.schemas import Answer, Explained, FrameShare, Kind, MomentFound, TimelineSegment, WordShare

if TYPE_CHECKING:
    from prota.library.search import BestSegments, Hit, Query, Searcher

__all__ = [
    "Filters",
    "Wanted",
    "answer",
    "best_segments",
    "condition",
    "explained",
    "like_stored",
    "timeline",
    "title_of",
]


@dataclass(frozen=True)
class Filters:
    """What a search is limited to."""

    min_duration: float | None = None
    max_duration: float | None = None
    folder: str | None = None
    after: date | None = None
    before: date | None = None
    kind: Kind | None = None


def condition(filters: Filters, view: View) -> str | None:
    """Filters as SQL over the segments; nothing a client writes gets into it but numbers, dates and quoted names."""
    parts = []
    if filters.kind is not None:
        parts.append(f"kind = '{filters.kind}'")
    if filters.min_duration is not None:
        parts.append(f"duration >= {filters.min_duration!r}")
    if filters.max_duration is not None:
        parts.append(f"duration <= {filters.max_duration!r}")
        if not filters.min_duration:
            # A picture has no length: it is not a short video.
            parts.append("duration > 0")
    if filters.after is not None:
        parts.append(f"modified >= timestamp '{filters.after.isoformat()} 00:00:00'")
    if filters.before is not None and filters.before < date.max:
        # Until the end of that day.
        parts.append(f"modified < timestamp '{(filters.before + timedelta(days=1)).isoformat()} 00:00:00'")
    if filters.folder is not None:
        parts.append(view.folders.condition(filters.folder))
    return " AND ".join(parts) or None


def title_of(record: VideoRecord) -> str:
    return readable(Path(record.path).stem)


def _moment(hit: Hit, version: int) -> MomentFound:
    return MomentFound(
        segment=hit.row,
        video=hit.video.video_id,
        kind=hit.video.kind,
        title=title_of(hit.video),
        folder=readable(Path(hit.video.path).parent.name),
        start=round(hit.start, 3),
        end=round(hit.end, 3),
        best=round(hit.best, 3),
        score=hit.score,
        relevance=hit.relevance,
        duration=hit.video.duration,
        # Rows have other segments in another version, and browsers keep pictures.
        thumbnail=f"/api/v1/segments/{hit.row}/thumbnail?version={version}",
    )


@dataclass(frozen=True)
class Wanted:
    """A query whose segments are to be scored."""

    searcher: Searcher
    query: Query
    k: int
    where: str | None


def best_segments(wanted: Sequence[Wanted]) -> list[BestSegments]:
    """Of each, those that its moments are made of. Who asks for the same, but in other words, is scored together."""
    groups: dict[tuple[int, int, str | None], list[int]] = {}
    for place, one in enumerate(wanted):
        groups.setdefault((id(one.searcher), one.k, one.where), []).append(place)
    found: dict[int, BestSegments] = {}
    for places in groups.values():
        first = wanted[places[0]]
        queries = [wanted[place].query for place in places]
        found |= dict(zip(places, first.searcher.best_segments(queries, first.k, first.where), strict=True))
    return [found[place] for place in range(len(wanted))]


def answer(searcher: Searcher, query: Query, k: int, everything: bool, best: BestSegments | None = None) -> Answer:
    """The k best moments, the good ones apart from the others; `took_ms` is left to who knows it.

    ``best``: of `best_segments`, where they are known.
    """
    best = searcher.best_segments([query], k)[0] if best is None else best
    found = searcher.moments(query, best, k)
    good = searcher.good(found)
    shown = found if everything else good
    version = searcher.store.version
    return Answer(
        query=readable(query.text),
        cut=query.cut,
        no_good_match=bool(found) and not good,
        version=version,
        took_ms=0.0,
        partial=best.coverage.partial,
        shards=best.coverage.shards,
        shards_answered=best.coverage.answered,
        moments=[_moment(hit, version) for hit in shown],
        weaker=[_moment(hit, version) for hit in found if hit not in shown],
    )


def like_stored(view: View, video_id: str, start: float, end: float) -> Query:
    """A stretch of a video of the library as a query: its segment that covers most of it, as it is stored.

    A picture's segment has length 0 and is covered by a stretch that includes 0.
    """
    from prota.library.encoding import stored_tokens
    from prota.library.search import Query

    assert view.searcher is not None
    picture = view.videos[video_id].kind == "picture"
    if end < start or (end == start and not picture):
        raise ProblemError(422, "end: must be after start")
    segments = view.store.segments(["row", "start", "end"], one_of("video_id", [video_id])).to_pydict()
    spans = list(zip(segments["row"], segments["start"], segments["end"], strict=True))
    covered = {row: min(last, end) - max(first, start) for row, first, last in spans}
    best = max(covered, key=lambda row: covered[row], default=None)
    if best is None or covered[best] < 0 or (covered[best] == 0 and not picture):
        raise ProblemError(422, "the video shows nothing there: it is shorter")
    tokens = stored_tokens(view.store.tokens([best]), view.searcher.device)
    first, last = next((first, last) for row, first, last in spans if row == best)
    # Neither what was asked with nor what was taken for it is to be found again.
    around = (video_id, min(first, start), max(last, end))
    return Query(f"like {title_of(view.videos[video_id])}", tokens, False, like=around)


def explained(searcher: Searcher, query: Query, row: int) -> Explained:
    """Why a segment has its score."""
    found = searcher.explain(query, row)
    words = found.by_word(searcher.model.text_encoder.words(query.text))
    columns = zip(
        searcher.frame_times(row), found.video_contributions.tolist(), found.video_weight.tolist(), strict=True
    )
    return Explained(
        score=found.score,
        words=[
            WordShare(
                text=readable(word.text),
                contribution=word.contribution,
                weight=word.weight,
                uncertainty=word.uncertainty,
                rest=word.rest,
            )
            for word in words
        ],
        frames=[FrameShare(time=round(time, 3), contribution=adds, weight=weight) for time, adds, weight in columns],
        similarities=[list(word.similarities) for word in words],
    )


def timeline(view: View, video_id: str, query: Query | None) -> list[TimelineSegment]:
    """All segments of a video in their order, with scores where there is a query."""
    table = view.store.segments(["row", "start", "end"], one_of("video_id", [video_id])).to_pydict()
    rows: list[int] = table["row"]
    scores: list[float] | list[None] = [None] * len(rows)
    judged: list[float] | list[None] = [None] * len(rows)
    if query is not None and view.searcher is not None:
        numbers = view.searcher.scores(query, rows)
        scores, judged = numbers, view.searcher.judged(query, numbers, view.store.count())
    columns = zip(rows, table["start"], table["end"], scores, judged, strict=True)
    found = [
        TimelineSegment(segment=row, start=round(start, 3), end=round(end, 3), score=score, relevance=relevance)
        for row, start, end, score, relevance in columns
    ]
    return sorted(found, key=lambda segment: segment.start)
