"""Words, or a clip, in; the moments of a library that match, out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from prota.library.finding import EXACT_SEGMENTS, Coverage, Finder, Ranked, RowFinder, without_file
from prota.library.moments import Moment, ScoredSegment, find_moments
from prota.library.records import LibraryError, VideoRecord
from prota.library.storage.reader import Snapshot
from prota.library.tokens import stored_tokens
from prota.model.prota import ProTA
from prota.model.relevance import query_facts
from prota.types import Explanation, PreparedTokens

__all__ = ["BestSegments", "Hit", "Query", "Searcher", "clean_query", "has_words"]

# Segments looked at for each moment asked for: half of them overlap another.
_SEGMENTS_PER_MOMENT = 8
# As if so many moments were asked for: who asks for fewer sees the same ones, as long as they are.
_LEAST_MOMENTS = 24
# Where they make too few moments, so many times more are looked at, until there were as many as that.
_DEEPER, _MOST_SEGMENTS = 8, 10_000
# Some 25 MB of tokens at M = 12, D = 512.
_ROWS_AT_ONCE = 1024


def has_words(text: str) -> bool:
    """Whether there is anything in it but spaces and what cannot be seen."""
    return bool(_words(text))


def _words(text: str) -> str:
    plain = "".join(" " if unicodedata.category(letter).startswith("C") else letter for letter in text)
    return " ".join(plain.split())


def clean_query(text: str) -> str:
    """Words without control characters and runs of spaces; LibraryError where nothing is left."""
    words = _words(text)
    if not words:
        raise LibraryError("the query is empty: say in words what the moment shows")
    return words


@dataclass(frozen=True)
class Query:
    """What is looked for, encoded."""

    text: str
    tokens: PreparedTokens
    cut: bool
    """Whether the text was longer than the model reads."""
    like: tuple[str, float, float] | None = None
    """Of a clip as the query: its content, start and end, which are not to be found again."""


@dataclass(frozen=True)
class BestSegments:
    """Enough segments for the best moments of a query, best first."""

    segments: list[ScoredSegment]
    coverage: Coverage
    searched: int
    """How many segments there were to choose from; where a filter left many, all that the library has."""


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
    """Of the segment that speaks for it, in the store's present version."""
    relevance: float | None = None
    """How likely it is a match; None where the model was not calibrated, or the query is a clip."""


def _alone(place: int, real: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One item of a batch, without its padding."""
    return values[place : place + 1][:, real]


def _itself(query: Query, video_id: str, start: float, end: float) -> bool:
    if query.like is None or query.like[0] != video_id:
        return False
    # A picture has one segment, of length 0, which overlaps nothing.
    return start == end or (start < query.like[2] and query.like[1] < end)


class Searcher:
    """Searches one library with the model that made it."""

    def __init__(
        self,
        store: Snapshot,
        model: ProTA,
        *,
        exact_segments: int = EXACT_SEGMENTS,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        finder: Finder | None = None,
    ) -> None:
        """``finder``: default, one in this process, which scores all of up to ``exact_segments``."""
        self.store, self.model, self.autocast = store, model, autocast
        self.device = model.logit_scale.device
        videos = store.videos()
        self._records: dict[str, VideoRecord] = {}
        for record in videos:
            # The same content may lie at several paths: one that is there speaks for it.
            if record.state == "indexed":
                self._records.setdefault(record.video_id, record)
        self.finder = finder or RowFinder(
            store, model.head, self.device, hidden=without_file(videos), exact_segments=exact_segments
        )
        self._background: PreparedTokens | None = None

    def encode(self, text: str) -> Query:
        return self.encode_all([text])[0]

    @torch.inference_mode()
    def encode_all(self, texts: Sequence[str]) -> list[Query]:
        """Several queries in one pass of the model, each as it would be alone."""
        words = [clean_query(text) for text in texts]
        encoder = self.model.text_encoder
        with self.autocast():
            tokens = self.model.encode_text(words).without_source()
        cut = [len(encoder.tokenizer.pieces(text, 10_000)) > encoder.length for text in words]
        # Without the padding that longer neighbours brought.
        alone = [tokens.map(partial(_alone, place, tokens.mask[place])) for place in range(len(words))]
        return [Query(*parts) for parts in zip(words, alone, cut, strict=True)]

    def search(self, query: Query | str, k: int = 10, where: str | None = None, exact: bool = False) -> list[Hit]:
        """The k best moments, best first."""
        query = self.encode(query) if isinstance(query, str) else query
        return self.moments(query, self.best_segments([query], k, where, exact)[0], k)

    def best_segments(
        self, queries: Sequence[Query], k: int = 10, where: str | None = None, exact: bool = False
    ) -> list[BestSegments]:
        """Enough segments for the k best moments of each query; several are scored in one pass."""
        if k < 1:
            raise LibraryError(f"k = {k} asks for nothing; allowed: 1 or more")
        tokens = PreparedTokens.cat([query.tokens for query in queries])
        best = []
        count = max(k, _LEAST_MOMENTS) * _SEGMENTS_PER_MOMENT
        found = self.finder.find(tokens, count, where, exact)
        for query, ranked in zip(queries, found.ranked, strict=True):
            enough = self._best(query, ranked, count, found.coverage)
            asked, got = count, len(ranked[0])
            # One long scene, or the clip that is the query itself, may have taken all the places.
            while got == asked < _MOST_SEGMENTS and len(find_moments(enough.segments, k)) < k:
                asked *= _DEEPER
                deeper = self.finder.find(query.tokens, asked, where, exact)
                enough = self._best(query, deeper.ranked[0], asked, deeper.coverage)
                got = len(deeper.ranked[0])
            best.append(enough)
        return best

    def _best(self, query: Query, ranked: Ranked, asked: int, coverage: Coverage) -> BestSegments:
        """What was found, without what is not there any more and what is the query itself."""
        rows, scores = ranked
        table = self.store.segments(["video_id", "start", "end"], rows=rows.tolist()).to_pydict()
        columns = zip(table["video_id"], table["start"], table["end"], strict=True)
        segments = [
            ScoredSegment(int(row), video_id, start, end, float(score))
            for row, score, (video_id, start, end) in zip(rows, scores, columns, strict=True)
            if video_id in self._records and not _itself(query, video_id, start, end)
        ]
        return BestSegments(segments, coverage, len(rows) if len(rows) < asked else self.store.count())

    def moments(self, query: Query, best: BestSegments, k: int) -> list[Hit]:
        """The k best moments of a query's best segments."""
        hits = self._hits(query, find_moments(best.segments, k))
        judged = self.judged(query, [hit.score for hit in hits], best.searched)
        return [replace(hit, relevance=value) for hit, value in zip(hits, judged, strict=True)]

    @torch.inference_mode()
    def judged(self, query: Query, scores: Sequence[float], searched: int) -> list[float] | list[None]:
        """The relevance of results with these scores among so many segments, where there is a way to tell."""
        relevance = self.model.relevance
        if relevance is None or query.like is not None or not scores:
            return [None] * len(scores)
        if self._background is None:
            self._background = relevance.background.to(self.device)
        background = self.model.score(query.tokens, self._background)[0].cpu()
        return relevance.of(torch.tensor(scores), background, query_facts(query.tokens)[0].cpu(), searched)

    def good(self, hits: list[Hit]) -> list[Hit]:
        """Those that are likely a match; all, where there is no way to tell."""
        least = 0.0 if self.model.relevance is None else self.model.relevance.fit.cutoff
        return [hit for hit in hits if hit.relevance is None or hit.relevance >= least]

    def warm(self) -> None:
        """Read what every search will need, before the first."""
        self.finder.warm()

    @torch.inference_mode()
    def scores(self, query: Query, rows: Sequence[int]) -> list[float]:
        """Of these segments, in the order given."""
        found: list[float] = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = stored_tokens(self.store.tokens(rows[start : start + _ROWS_AT_ONCE]), self.device)
            found += self.model.score(query.tokens, some)[0].tolist()
        return found

    def explain(self, query: Query, row: int) -> Explanation:
        """What the score of one segment is made of."""
        return self.model.explain(query.tokens, stored_tokens(self.store.tokens([row]), self.device))

    def frame_times(self, row: int) -> list[float]:
        """Seconds of the frames of a segment, in the order of its explanation."""
        return self._times([row])[0]

    def _times(self, rows: Sequence[int]) -> list[list[float]]:
        times = self.store.segments(["times"], rows=rows)["times"].to_pylist()
        return [[float(value) for value in row if value is not None and not np.isnan(value)] for row in times]

    @torch.inference_mode()
    def _hits(self, query: Query, moments: Sequence[Moment]) -> list[Hit]:
        """Moments with their videos and best frames; what that takes is read at once for all of them."""
        if not moments:
            return []
        rows = [moment.row for moment in moments]
        hits = []
        frames = self.model.head.best_frames(query.tokens, self.finder.tokens(rows)).tolist()
        for moment, times, best in zip(moments, self._times(rows), frames, strict=True):
            best_time = times[min(best, len(times) - 1)]
            record = self._records[moment.video_id]
            hits.append(Hit(record, moment.start, moment.end, moment.score, best_time, moment.row))
        return hits
