"""Search one version of a library with the model that made it.

A query passes `View.encode` and `View.search`: best rows (`rows`) → `find_moments` → best frames → relevance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch

from prota.library.records import EXACT_SEGMENTS, Floats, LibraryError
from prota.library.search.explain import MomentExplanation, Unrelated, explain_segment
from prota.library.search.hits import Hit, Results
from prota.library.search.moments import Moment, Segment, find_moments, stretch
from prota.library.search.queries import Query, clean_query, reading
from prota.library.search.rows import Finder, Ranked, RowFinder
from prota.library.storage.reader import Snapshot
from prota.library.tokens import stored_relevance, stored_tokens
from prota.model.prota import ProTA
from prota.model.relevance import Relevance, query_facts
from prota.types import PreparedTokens

__all__ = ["View"]

# Segments ranked for each moment: half of them overlap another.
_SEGMENTS_PER_MOMENT = 8
# A smaller k ranks as many segments as this one, so that its moments are a prefix of those of a larger k.
_LEAST_MOMENTS = 24
# If they make too few moments, rank this many times more segments, up to the limit.
_DEEPER, _MOST_SEGMENTS = 8, 10_000
# About 25 MB of tokens at M = 12, D = 512.
_ROWS_AT_ONCE = 1024
# Segments of the library that stand for unrelated videos.
_SAMPLE = 64


class View:
    """A pinned version of a library: later commits do not change its results."""

    def __init__(
        self, snapshot: Snapshot, model: ProTA, finder: Finder | None = None, *, exact_segments: int = EXACT_SEGMENTS
    ) -> None:
        """``finder``: by default a `RowFinder` in this process, exact up to ``exact_segments``."""
        self.snapshot, self.model, self.device = snapshot, model, model.logit_scale.device
        self.finder = finder or RowFinder(
            snapshot, model.head, self.device, hidden=snapshot.hidden, exact_segments=exact_segments
        )

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> list[Query]:
        """Encode texts in one pass of the model; each query is the same as if encoded alone."""
        words, encoder = [clean_query(text) for text in texts], self.model.text_encoder
        batch = encoder.tokenize(words)
        tokens = self.model.encode_text(batch).without_source()
        # Only a text that fills the model's length can be longer.
        full = (batch.mask.sum(dim=1) >= encoder.length).tolist()
        cut = [
            filled and len(encoder.tokenizer.pieces(text, 10_000)) > encoder.length
            for text, filled in zip(words, full, strict=True)
        ]
        # Without the padding to the longest text.
        alone = [tokens[place : place + 1].map(partial(_unpadded, real)) for place, real in enumerate(tokens.mask)]
        known = [reading(text, encoder.tokenizer, encoder.length) for text in words]
        return [
            Query(text, one, long, unread=read.unread, foreign=read.foreign, common=read.common)
            for text, one, long, read in zip(words, alone, cut, known, strict=True)
        ]

    def search(
        self, queries: Sequence[Query], k: int = 10, where: str | None = None, *, exact: bool = False
    ) -> list[Results]:
        """The k best moments for each query; all queries are scored in one pass.

        ``where``: an SQL filter; ``exact``: score all segments, even of a large library.
        """
        if k < 1:
            raise LibraryError(f"k must be at least 1, got {k}")
        count = max(k, _LEAST_MOMENTS) * _SEGMENTS_PER_MOMENT
        top = self.finder.find(PreparedTokens.cat([query.tokens for query in queries]), count, where, exact)
        results = []
        for query, first in zip(queries, top.ranked, strict=True):
            ranked, asked, coverage = first, count, top.coverage
            moments = self._moments(query, ranked, k)
            # One long scene, or the query clip itself, may have filled the ranking.
            while len(moments) < k and len(ranked[0]) == asked < _MOST_SEGMENTS:
                asked *= _DEEPER
                deeper = self.finder.find(query.tokens, asked, where, exact)
                ranked, coverage = deeper.ranked[0], deeper.coverage
                moments = self._moments(query, ranked, k)
            # A short ranking holds all segments that pass the filter; of a full one their number is unknown.
            searched = len(ranked[0]) if len(ranked[0]) < asked else self.snapshot.count()
            while (hits := self._hits(query, moments, searched)) is None:
                # Without the rows that are now known to be corrupt.
                moments = self._moments(query, ranked, k)
            cutoff, least = self._limits(query)
            results.append(Results(query, hits, cutoff, coverage, self.snapshot.damage, least))
        return results

    def _moments(self, query: Query, ranked: Ranked, k: int) -> list[Moment]:
        """The k best moments of ranked rows, without missing files, corrupt rows and the query clip itself."""
        places, sound = self.snapshot.places(ranked[0])
        rows, scores, table = ranked[0][sound], ranked[1][sound], places.to_pydict()
        columns = zip(rows, table["video_id"], table["start"], table["end"], scores, strict=True)
        segments = [
            Moment(int(row), video_id, start, end, float(score))
            for row, video_id, start, end, score in columns
            if video_id in self.snapshot.shown and not query.is_itself(video_id, start, end)
        ]
        return find_moments(segments, k)

    @torch.inference_mode()
    def _hits(self, query: Query, moments: Sequence[Moment], searched: int) -> list[Hit] | None:
        """Moments with videos, best frames and relevance, read and computed together; None if tokens are corrupt."""
        if not moments:
            return []
        if (spans := self._spans(query, moments)) is None:
            return None
        relevance = self.relevance(query, [moment.score for moment in moments], searched)
        hits = []
        for moment, (start, end, best), judged in zip(moments, spans, relevance, strict=True):
            video, origin = self.snapshot.shown[moment.video_id], (self, query)
            hits.append(Hit(video, start, end, moment.score, best, moment.row, judged, origin))
        return hits

    def _spans(self, query: Query, moments: Sequence[Moment]) -> list[tuple[float, float, float]] | None:
        """Start, end and best second of each moment: the stretch of its scene in which the query holds.

        None if the tokens of a row differ from their checksum.
        """
        rows = [row for moment in moments for row in moment.rows]
        unrelated = Unrelated.of(self.model, query.tokens, self._unrelated)
        blocks = [rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE)]
        heats: list[Floats] = []
        for block in blocks:
            tokens = self.finder.tokens(block)
            # Reading them has compared them.
            if self.snapshot.damaged(block, "tokens").any():
                return None
            heats += unrelated.heats(self.model, query.tokens, tokens)
        frames = dict(zip(rows, zip(self._times(rows), heats, strict=True), strict=True))
        return [self._span(moment, [frames[row] for row in moment.rows]) for moment in moments]

    def _span(self, moment: Moment, segments: Sequence[tuple[list[float], Floats]]) -> tuple[float, float, float]:
        """The frames of overlapping segments are the same pictures: the mean of their heats counts."""
        seen: dict[float, list[float]] = defaultdict(list)
        for times, heats in segments:
            for time, heat in zip(times, heats, strict=False):
                seen[time].append(float(heat))
        times = sorted(seen)
        heat = np.array([np.mean(seen[time]) for time in times])
        own = [place for place, time in enumerate(times) if time in segments[0][0]]
        best = own[int(heat[own].argmax())]
        start, end = stretch(heat, Segment(moment.start, moment.end, times), best)
        return start, end, times[best]

    @torch.inference_mode()
    def relevance(self, query: Query, scores: Sequence[float], searched: int) -> list[float] | list[None]:
        """The relevance of scores among ``searched`` segments; None for clips and without calibration."""
        relevance = self.judge
        if relevance is None or query.like is not None or not scores:
            return [None] * len(scores)
        background = self.model.score(query.tokens, self._background)[0].cpu()
        facts, values = query_facts(query.tokens)[0].cpu(), torch.tensor(scores)
        return relevance.of(values, background, facts, searched, broad=query.common)

    @torch.inference_mode()
    def _limits(self, query: Query) -> tuple[float, float]:
        """The least probability and the least score of a good match."""
        relevance = self.judge
        if relevance is None:
            return 0.0, -math.inf
        alike = relevance.alike(self.model.score(query.tokens, self._background)[0]) if query.like else -math.inf
        return relevance.fit.cutoff, alike

    @cached_property
    def judge(self) -> Relevance | None:
        """What calibration learned: about the model with captions, else about the library without any."""
        return self.model.relevance or stored_relevance(self.snapshot.location)

    @cached_property
    def _background(self) -> PreparedTokens:
        assert self.judge is not None
        return self.judge.background.to(self.device)

    @cached_property
    def _unrelated(self) -> PreparedTokens:
        """Tokens of unrelated videos: the calibration's, else segments of the library itself."""
        if self.judge is not None:
            return self._background
        rows = np.unique(np.linspace(0, self.snapshot.count() - 1, _SAMPLE).astype(int))
        sound = rows[~self.snapshot.damaged(rows.tolist(), "tokens")]
        return self._stored((sound if len(sound) else rows).tolist())

    @torch.inference_mode()
    def scores(self, query: Query, rows: Sequence[int]) -> list[float]:
        """Score these segments, in the order given."""
        found: list[float] = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            found += self.model.score(query.tokens, self._stored(rows[start : start + _ROWS_AT_ONCE]))[0].tolist()
        return found

    def explain(self, query: Query, row: int) -> MomentExplanation:
        """Explain the score of a segment for a text."""
        self.snapshot.require([row], "place", "tokens")
        (times,) = self._times([row])
        table = self.snapshot.segments(["start", "end"], rows=[row]).to_pydict()
        segment = Segment(table["start"][0], table["end"][0], times)
        video, unrelated = self._stored([row]), self._unrelated
        return explain_segment(self.model, query.text, query.tokens, video=video, segment=segment, unrelated=unrelated)

    def thumbnail(self, row: int) -> bytes:
        """A small JPEG of a segment."""
        return self.snapshot.thumbnails([row])[0]

    def _stored(self, rows: Sequence[int]) -> PreparedTokens:
        return stored_tokens(self.snapshot.tokens(rows), self.device)

    def _times(self, rows: Sequence[int]) -> list[list[float]]:
        """Seconds of the frames of each segment."""
        times = self.snapshot.segments(["times"], rows=rows)["times"].to_pylist()
        return [[float(value) for value in row if value is not None and not np.isnan(value)] for row in times]


def _unpadded(real: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return values[:, real]
