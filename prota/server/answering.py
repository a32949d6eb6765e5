"""Answers to queries: one worker thread encodes, searches and renders JSON for all waiting requests in batches.

The way of a query: `routes.search` parses and checks it, `QueryWorker.ask` looks it up and submits it (event loop) →
`QueryWorker._answer` (worker thread): `_encode` → `best_segments` → `Search.answer` → JSON → the response (event loop).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pydantic import BaseModel, RootModel

from prota.library.records import VideoRecord
from prota.library.storage.schema import one_of
from prota.server.problems import ProblemError, readable
from prota.server.queueing import Batcher, LruCache
from prota.server.schemas import (
    Answer,
    Explained,
    FrameShare,
    Kind,
    LikeRequest,
    MomentFound,
    TimelineSegment,
    WordShare,
)
from prota.server.view import View

if TYPE_CHECKING:
    from prota.library.records import ModelStamp
    from prota.library.search import BestSegments, Hit, Query, Searcher

__all__ = ["Explain", "Filters", "QueryWorker", "Search", "Timeline", "timeline", "title_of"]

# One pass over the library serves so many queries nearly as fast as more, and the first of them does not wait longer.
_LARGEST_BATCH = 16

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Filters:
    """What a search is limited to."""

    min_duration: float | None = None
    max_duration: float | None = None
    folder: str | None = None
    after: date | None = None
    before: date | None = None
    kind: Kind | None = None

    def condition(self, view: View) -> str | None:
        """SQL over the segments; of the client's input it contains only numbers, dates and quoted names."""
        parts = []
        if self.kind is not None:
            parts.append(f"kind = '{self.kind}'")
        if self.min_duration is not None:
            parts.append(f"duration >= {self.min_duration!r}")
        if self.max_duration is not None:
            parts.append(f"duration <= {self.max_duration!r}")
            if not self.min_duration:
                # A picture has no length: it is not a short video.
                parts.append("duration > 0")
        if self.after is not None:
            parts.append(f"modified >= timestamp '{self.after.isoformat()} 00:00:00'")
        if self.before is not None and self.before < date.max:
            # Until the end of that day.
            parts.append(f"modified < timestamp '{(self.before + timedelta(days=1)).isoformat()} 00:00:00'")
        if self.folder is not None:
            parts.append(view.folders.condition(self.folder))
        return " AND ".join(parts) or None


@dataclass(frozen=True)
class Task:
    """A request for the worker, with the view it began with."""

    view: View
    source: str | LikeRequest | Query
    """What to look for: words, a stretch of a video of the library, or an encoded clip."""

    @property
    def searcher(self) -> Searcher:
        assert self.view.searcher is not None
        return self.view.searcher

    def answer(self, query: Query, best: BestSegments | None) -> BaseModel:
        """``best``: of a search, its best segments."""
        raise NotImplementedError


@dataclass(frozen=True)
class Search(Task):
    """Find the k best moments."""

    k: int
    started: float
    """As `time.perf_counter` tells."""
    filters: Filters = Filters()
    everything: bool = False
    """Do not set weaker matches apart."""

    @property
    def key(self) -> tuple[object, ...] | None:
        """For the cache of answers; None: only answers to words are cached."""
        if not isinstance(self.source, str):
            return None
        return self.view.number, self.source, self.k, self.filters, self.everything

    def answer(self, query: Query, best: BestSegments | None) -> Answer:
        """Good matches apart from weaker ones."""
        assert best is not None
        found = self.searcher.moments(query, best, self.k)
        good = self.searcher.good(found)
        shown = found if self.everything else good
        version = self.view.version
        return Answer(
            query=readable(query.text),
            cut=query.cut,
            no_good_match=bool(found) and not good,
            version=version,
            took_ms=self.took_ms(),
            partial=best.coverage.partial,
            shards=best.coverage.shards,
            shards_answered=best.coverage.answered,
            moments=[_moment(hit, version) for hit in shown],
            weaker=[_moment(hit, version) for hit in found if hit not in shown],
        )

    def took_ms(self) -> float:
        return round(1000 * (time.perf_counter() - self.started), 2)


@dataclass(frozen=True)
class Explain(Task):
    """Explain the score of one segment."""

    row: int

    def answer(self, query: Query, best: BestSegments | None) -> Explained:
        found = self.searcher.explain(query, self.row)
        words = found.by_word(self.searcher.model.text_encoder.words(query.text))
        times = self.searcher.frame_times(self.row)
        columns = zip(times, found.video_contributions.tolist(), found.video_weight.tolist(), strict=True)
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
            frames=[FrameShare(time=round(at, 3), contribution=adds, weight=weight) for at, adds, weight in columns],
            similarities=[list(word.similarities) for word in words],
        )


@dataclass(frozen=True)
class Timeline(Task):
    """Score all segments of a video."""

    video_id: str

    def answer(self, query: Query, best: BestSegments | None) -> RootModel[list[TimelineSegment]]:
        return timeline(self.view, self.video_id, query)


class QueryWorker:
    """The one thread that answers queries. Those that arrive while it is busy are its next batch."""

    def __init__(self, cached: int) -> None:
        """``cached``: how many encoded texts, and how many answers, are kept."""
        self._queries: LruCache[Query] = LruCache(cached)
        self._answers: LruCache[Answer] = LruCache(cached)
        self._batcher: Batcher[Task, str] = Batcher("prota-queries", self._answer, _LARGEST_BATCH)
        # Each is counted by one thread: the event loop's, or the worker.
        self.hits, self.misses = 0, 0
        self.partial, self.encoded_batches, self.encoded_queries, self.scored_batches = 0, 0, 0, 0

    def close(self) -> None:
        self._batcher.close()

    async def ask(self, task: Task) -> str:
        """The answer as JSON, from the cache or from the worker thread."""
        if isinstance(task, Search) and task.key is not None:
            if (known := self._answers.get(task.key)) is not None:
                self.hits += 1
                return known.model_copy(update={"took_ms": task.took_ms()}).model_dump_json()
            self.misses += 1
        return await asyncio.wrap_future(self._batcher.submit(task))

    def _answer(self, tasks: Sequence[Task]) -> list[str | Exception]:
        encoded = self._encode(tasks)
        queries = [_attempt(_query_of, task, encoded) for task in tasks]
        best = best_segments(tasks, queries)
        self.scored_batches += any(found is not None for found in best)
        return [
            query if isinstance(query, Exception) else _attempt(self._render, task, query, found)
            for task, query, found in zip(tasks, queries, best, strict=True)
        ]

    def _encode(self, tasks: Sequence[Task]) -> dict[tuple[ModelStamp, str], Query]:
        """All texts of a batch by their model: each text once, and those of one model in one pass."""
        wanted = {(task.view.store.stamp, task.source): task for task in tasks if isinstance(task.source, str)}
        found = {key: self._queries.get(key) for key in wanted}
        new: dict[ModelStamp, list[str]] = {}
        for (stamp, text), query in found.items():
            if query is None:
                new.setdefault(stamp, []).append(text)
        for stamp, texts in new.items():
            queries = wanted[stamp, texts[0]].searcher.encode_all(texts)
            self.encoded_batches += 1
            self.encoded_queries += len(texts)
            for text, query in zip(texts, queries, strict=True):
                found[stamp, text] = query
                self._queries.put((stamp, text), query)
        return {key: query for key, query in found.items() if query is not None}

    def _render(self, task: Task, query: Query, best: BestSegments | None) -> str:
        answer = task.answer(query, best)
        if isinstance(task, Search) and isinstance(answer, Answer):
            self.partial += answer.partial
            # The same search may get the whole answer later.
            if task.key is not None and not answer.partial:
                self._answers.put(task.key, answer)
        return answer.model_dump_json()


def _attempt(work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | Exception:
    """An error of one task must not fail the others of its batch."""
    try:
        return work(*arguments, **options)
    except Exception as error:
        return error


def _query_of(task: Task, encoded: Mapping[tuple[ModelStamp, str], Query]) -> Query:
    if isinstance(task.source, str):
        return encoded[task.view.store.stamp, task.source]
    return _stored_query(task.view, task.source) if isinstance(task.source, LikeRequest) else task.source


def best_segments(tasks: Sequence[Task], queries: Sequence[Query | Exception]) -> list[BestSegments | None]:
    """The best segments of each search; those with the same view, k and filters are scored in one pass."""
    groups: dict[tuple[int, int, Filters], tuple[Search, dict[int, Query]]] = {}
    for place, (task, query) in enumerate(zip(tasks, queries, strict=True)):
        if isinstance(task, Search) and not isinstance(query, Exception):
            groups.setdefault((task.view.number, task.k, task.filters), (task, {}))[1][place] = query
    best: list[BestSegments | None] = [None] * len(tasks)
    for task, group in groups.values():
        where = task.filters.condition(task.view)
        found = task.searcher.best_segments(list(group.values()), task.k, where)
        for place, segments in zip(group, found, strict=True):
            best[place] = segments
    return best


def _stored_query(view: View, wanted: LikeRequest) -> Query:
    """A stretch of a video of the library as a query: the stored tokens of the segment that covers most of it.

    A picture's segment has length 0 and is covered by a stretch that includes 0.
    """
    from prota.library.search import Query
    from prota.library.tokens import stored_tokens

    assert view.searcher is not None
    record, start, end = view.record(wanted.video), wanted.start, wanted.end
    picture = record.kind == "picture"
    if end < start or (end == start and not picture):
        raise ProblemError(422, "end: must be after start")
    segments = view.store.segments(["row", "start", "end"], one_of("video_id", [wanted.video])).to_pydict()
    spans = dict(zip(segments["row"], zip(segments["start"], segments["end"], strict=True), strict=True))
    covered = {row: min(last, end) - max(first, start) for row, (first, last) in spans.items()}
    best = max(covered, key=lambda row: covered[row], default=None)
    if best is None or covered[best] < 0 or (covered[best] == 0 and not picture):
        raise ProblemError(422, "the video shows nothing there: it is shorter")
    tokens = stored_tokens(view.store.tokens([best]), view.searcher.device)
    first, last = spans[best]
    # Neither the stretch nor the segment that stands for it is a result.
    around = (wanted.video, min(first, start), max(last, end))
    return Query(f"like {title_of(record)}", tokens, False, like=around)


def timeline(view: View, video_id: str, query: Query | None = None) -> RootModel[list[TimelineSegment]]:
    """All segments of a video in their order, with scores if there is a query."""
    table = view.store.segments(["row", "start", "end"], one_of("video_id", [video_id])).to_pydict()
    rows: list[int] = table["row"]
    scores: list[float] | list[None] = [None] * len(rows)
    relevance: list[float] | list[None] = [None] * len(rows)
    if query is not None and view.searcher is not None:
        numbers = view.searcher.scores(query, rows)
        scores, relevance = numbers, view.searcher.judged(query, numbers, view.segments)
    columns = zip(rows, table["start"], table["end"], scores, relevance, strict=True)
    found = [
        TimelineSegment(segment=row, start=round(start, 3), end=round(end, 3), score=score, relevance=judged)
        for row, start, end, score, judged in columns
    ]
    return RootModel[list[TimelineSegment]](sorted(found, key=lambda segment: segment.start))


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
        # Rows mean other segments in another version, and browsers cache pictures.
        thumbnail=f"/api/v1/segments/{hit.row}/thumbnail?version={version}",
    )
