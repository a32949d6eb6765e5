"""Answers to queries: one worker thread encodes, searches and renders JSON for all waiting requests in batches.

`routes.search` parses a query, `QueryWorker.ask` looks it up and submits it (event loop) → `QueryWorker._answer`:
`View.encode` → `View.search` → `Search.answer` → JSON (worker thread) → the response (event loop).
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
    Kind,
    LikeRequest,
    MomentFound,
    TimelineSegment,
)
from prota.server.view import LibraryVersion

if TYPE_CHECKING:
    from prota.library.records import ModelStamp
    from prota.library.search.hits import Hit, Results
    from prota.library.search.queries import Query
    from prota.library.search.view import View

__all__ = ["Explain", "Filters", "QueryWorker", "Search", "Task", "Timeline", "thumbnail_of", "timeline", "title_of"]

# Larger batches are hardly faster per query, and the first query would wait longer.
_LARGEST_BATCH = 16

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Filters:
    """The filters of a search."""

    min_duration: float | None = None
    max_duration: float | None = None
    folder: str | None = None
    after: date | None = None
    before: date | None = None
    kind: Kind | None = None

    def condition(self, library: LibraryVersion) -> str | None:
        """SQL over the segments. Of the client's input it contains only numbers, dates and quoted names."""
        parts = []
        if self.kind is not None:
            parts.append(f"kind = '{self.kind}'")
        if self.min_duration is not None:
            parts.append(f"duration >= {self.min_duration!r}")
        if self.max_duration is not None:
            parts.append(f"duration <= {self.max_duration!r}")
            if not self.min_duration:
                # A picture has no duration: it is not a short video.
                parts.append("duration > 0")
        if self.after is not None:
            parts.append(f"modified >= timestamp '{self.after.isoformat()} 00:00:00'")
        if self.before is not None and self.before < date.max:
            # The end of that day.
            parts.append(f"modified < timestamp '{(self.before + timedelta(days=1)).isoformat()} 00:00:00'")
        if self.folder is not None:
            parts.append(library.folders.condition(self.folder))
        return " AND ".join(parts) or None


@dataclass(frozen=True)
class Task:
    """A request for the worker, with the version of the library at its start."""

    library: LibraryVersion
    source: str | LikeRequest | Query
    """The query: text, a moment of a video of the library, or an encoded clip."""

    @property
    def view(self) -> View:
        assert self.library.view is not None
        return self.library.view

    def answer(self, query: Query, results: Results | None) -> BaseModel:
        """The response; ``results``: for a search."""
        raise NotImplementedError


@dataclass(frozen=True)
class Search(Task):
    """Find the k best moments."""

    k: int
    started: float
    """From `time.perf_counter`."""
    filters: Filters = Filters()
    everything: bool = False
    """Return weaker matches among the good ones."""

    @property
    def key(self) -> tuple[object, ...] | None:
        """The key of its answer in the cache; None: only answers to text queries are cached."""
        if not isinstance(self.source, str):
            return None
        return self.library.number, self.source, self.k, self.filters, self.everything

    def answer(self, query: Query, results: Results | None) -> Answer:
        """Good matches, and weaker ones apart from them."""
        assert results is not None
        shown = results.hits if self.everything else results.good
        version = self.library.version
        return Answer(
            query=readable(query.text),
            cut=query.cut,
            no_good_match=results.no_good_match,
            hint=None if results.hint is None else readable(results.hint),
            version=version,
            took_ms=self.took_ms(),
            partial=results.coverage.partial,
            shards=results.coverage.shards,
            shards_answered=results.coverage.answered,
            damaged=results.damaged,
            moments=[_moment(hit, version) for hit in shown],
            weaker=[_moment(hit, version) for hit in results.hits if hit not in shown],
        )

    def took_ms(self) -> float:
        return round(1000 * (time.perf_counter() - self.started), 2)


@dataclass(frozen=True)
class Explain(Task):
    """Explain the score of one segment."""

    row: int

    def answer(self, query: Query, results: Results | None) -> Explained:
        return Explained.model_validate(self.view.explain(query, self.row).to_dict())


@dataclass(frozen=True)
class Timeline(Task):
    """Score all segments of a video."""

    video_id: str

    def answer(self, query: Query, results: Results | None) -> RootModel[list[TimelineSegment]]:
        return timeline(self.library, self.video_id, query)


class QueryWorker:
    """The thread that answers queries. Queries that arrive while it is busy form the next batch."""

    def __init__(self, cached: int) -> None:
        """``cached``: size of the cache of encoded texts, and of the cache of answers."""
        self._queries: LruCache[Query] = LruCache(cached)
        self._answers: LruCache[Answer] = LruCache(cached)
        self._batcher: Batcher[Task, str] = Batcher("prota-queries", self._answer, _LARGEST_BATCH)
        # Each counter is written by one thread: the event loop's or the worker.
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
        results = _searched(tasks, queries)
        self.scored_batches += bool(results)
        return [
            query if isinstance(query, Exception) else _attempt(self._render, task, query, results.get(place))
            for place, (task, query) in enumerate(zip(tasks, queries, strict=True))
        ]

    def _encode(self, tasks: Sequence[Task]) -> dict[tuple[ModelStamp, str], Query]:
        """Encode the texts of a batch: each text once, all texts of a model in one pass."""
        wanted = {(task.library.snapshot.stamp, task.source): task for task in tasks if isinstance(task.source, str)}
        found = {key: self._queries.get(key) for key in wanted}
        new: dict[ModelStamp, list[str]] = {}
        for (stamp, text), query in found.items():
            if query is None:
                new.setdefault(stamp, []).append(text)
        for stamp, texts in new.items():
            queries = wanted[stamp, texts[0]].view.encode(texts)
            self.encoded_batches += 1
            self.encoded_queries += len(texts)
            for text, query in zip(texts, queries, strict=True):
                found[stamp, text] = query
                self._queries.put((stamp, text), query)
        return {key: query for key, query in found.items() if query is not None}

    def _render(self, task: Task, query: Query, results: Results | None) -> str:
        answer = task.answer(query, results)
        if isinstance(task, Search) and isinstance(answer, Answer):
            self.partial += answer.partial
            # Not cached: the same search may get the whole answer later.
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
        return encoded[task.library.snapshot.stamp, task.source]
    return _like_query(task, task.source) if isinstance(task.source, LikeRequest) else task.source


def _searched(tasks: Sequence[Task], queries: Sequence[Query | Exception]) -> dict[int, Results]:
    """The results of searches by position; searches with equal version, k and filters are scored in one pass."""
    groups: dict[tuple[int, int, Filters], tuple[Search, dict[int, Query]]] = {}
    for place, (task, query) in enumerate(zip(tasks, queries, strict=True)):
        if isinstance(task, Search) and not isinstance(query, Exception):
            groups.setdefault((task.library.number, task.k, task.filters), (task, {}))[1][place] = query
    results: dict[int, Results] = {}
    for task, group in groups.values():
        where = task.filters.condition(task.library)
        results |= zip(group, task.view.search(list(group.values()), task.k, where), strict=True)
    return results


def _like_query(task: Task, wanted: LikeRequest) -> Query:
    from prota.library.search.clips import stored_query

    record = task.library.record(wanted.video)
    if wanted.end < wanted.start or (wanted.end == wanted.start and record.kind != "picture"):
        raise ProblemError(422, "end: must be after start")
    query = stored_query(task.view, record, wanted.start, wanted.end)
    if query is None:
        raise ProblemError(422, "start, end: beyond the end of the video")
    return query


def timeline(library: LibraryVersion, video_id: str, query: Query | None = None) -> RootModel[list[TimelineSegment]]:
    """All segments of a video in order, with scores if there is a query."""
    table = library.snapshot.segments(["row", "start", "end"], one_of("video_id", [video_id])).to_pydict()
    rows: list[int] = table["row"]
    library.snapshot.require(rows, "place", "tokens")
    scores: list[float] | list[None] = [None] * len(rows)
    relevance: list[float] | list[None] = [None] * len(rows)
    if query is not None and library.view is not None:
        numbers = library.view.scores(query, rows)
        scores, relevance = numbers, library.view.relevance(query, numbers, library.segments)
    columns = zip(rows, table["start"], table["end"], scores, relevance, strict=True)
    found = [
        TimelineSegment(segment=row, start=round(start, 3), end=round(end, 3), score=score, probability=judged)
        for row, start, end, score, judged in columns
    ]
    return RootModel[list[TimelineSegment]](sorted(found, key=lambda segment: segment.start))


def title_of(record: VideoRecord) -> str:
    return readable(Path(record.path).stem)


def thumbnail_of(row: int, version: int) -> str:
    """The path of a picture of a segment."""
    # With the version: rows change between versions, and browsers cache pictures.
    return f"/api/v1/segments/{row}/thumbnail?version={version}"


def _moment(hit: Hit, version: int) -> MomentFound:
    return MomentFound(
        segment=hit.row,
        video=hit.video.video_id,
        title=title_of(hit.video),
        folder=readable(Path(hit.video.path).parent.name),
        duration=hit.video.duration,
        thumbnail=thumbnail_of(hit.row, version),
        **hit.fields(),
    )
