"""The best rows of a library, or of a range of its rows: by exact scores, or among the nearest pooled vectors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from prota.kernels import dispatch
from prota.kernels.search import VideoBank
from prota.library.records import EXACT_SEGMENTS
from prota.library.storage.reader import Rows, Snapshot
from prota.library.tokens import pooled_vectors, stored_tokens
from prota.scoring.score import ScoreHead
from prota.scoring.search import search
from prota.types import PreparedTokens

__all__ = ["Coverage", "Finder", "Ranked", "RowFinder", "TopRows"]

CANDIDATES = 500
# More under a filter: far from the query, pooled vectors rank less accurately.
FILTERED_CANDIDATES = 1500

Ranked = tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.float32]]]
"""Rows and their scores, best first; ties in the order of rows."""


@dataclass(frozen=True)
class Coverage:
    """How many shards of a library answered."""

    answered: int = 1
    shards: int = 1

    @property
    def partial(self) -> bool:
        return self.answered < self.shards


@dataclass(frozen=True)
class TopRows:
    """The best rows for each of some queries."""

    ranked: list[Ranked]
    coverage: Coverage = Coverage()


class Finder(Protocol):
    """Finds the best rows of a library, in this process or on a cluster."""

    def find(self, tokens: PreparedTokens, count: int, where: str | None = None, exact: bool = False) -> TopRows:
        """The ``count`` best rows for each query that pass an SQL filter; ``exact``: score all rows."""
        ...

    def tokens(self, rows: Rows) -> PreparedTokens:
        """The tokens of these rows, in the order given."""
        ...

    def warm(self) -> None:
        """Load what every search needs."""
        ...


def _ranked(rows: np.ndarray, scores: np.ndarray) -> Ranked:
    """Drop unused places: if fewer rows than asked for are allowed, the rest score -inf."""
    used = np.isfinite(scores)
    return rows[used], scores[used]


class RowFinder:
    """Finds rows of one store in this process, and keeps their tokens in memory."""

    def __init__(
        self,
        store: Snapshot,
        head: ScoreHead,
        device: torch.device,
        *,
        hidden: Collection[str] = (),
        exact_segments: int = EXACT_SEGMENTS,
        rows: range | None = None,
    ) -> None:
        """``hidden``: contents to leave out; ``rows``: a range of rows, by default all."""
        self.store, self.head, self.device = store, head, device
        self.exact_segments, self._hidden = exact_segments, hidden
        self.rows, self._within = range(store.count()) if rows is None else rows, rows
        self._tokens: PreparedTokens | VideoBank | None = None
        self._visible: torch.Tensor | None = None
        """Rows that are not hidden, computed when first needed."""

    def find(self, tokens: PreparedTokens, count: int, where: str | None = None, exact: bool = False) -> TopRows:
        if not self.rows:
            return TopRows([(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))] * len(tokens))
        if not exact and len(self.rows) > self.exact_segments:
            return TopRows([self._near(tokens[place : place + 1], count, where) for place in range(len(tokens))])
        scores, places = search(self.head, tokens, self._all(), count, allowed=self._allowed(where))
        rows = places.cpu().numpy() + self.rows.start
        return TopRows([_ranked(*found) for found in zip(rows, scores.cpu().numpy(), strict=True)])

    def _near(self, tokens: PreparedTokens, count: int, where: str | None) -> Ranked:
        """The best of the segments whose pooled vectors are nearest to a query."""
        vector = pooled_vectors(tokens)[0].cpu().numpy()
        number = max(FILTERED_CANDIDATES if where is not None or self._hidden else CANDIDATES, 2 * count)
        # In the order of rows, which ties keep.
        candidates = np.sort(self.store.nearest(vector, number, where, within=self._within, hidden=self._hidden))
        if not len(candidates):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
        # Compared with their checksums if they are shown.
        near = stored_tokens(self.store.tokens(candidates, check=False), self.device)
        scores, places = search(self.head, tokens, near, count)
        return _ranked(candidates[places[0].cpu().numpy()], scores[0].cpu().numpy())

    def _allowed(self, where: str | None) -> torch.Tensor | None:
        """A mask of the rows that pass a filter and are not hidden; None: all."""
        if where is not None:
            return self._fitting(where)
        if self._hidden and self._visible is None:
            self._visible = self._fitting(None)
        return self._visible

    def _fitting(self, where: str | None) -> torch.Tensor:
        table = self.store.segments([], where, within=self._within, hidden=self._hidden)
        allowed = torch.zeros(len(self.rows), dtype=torch.bool)
        allowed[torch.tensor(table.column("row").to_pylist(), dtype=torch.long) - self.rows.start] = True
        return allowed.to(self.device)

    def warm(self) -> None:
        if self.rows and len(self.rows) <= self.exact_segments:
            self._all()

    def tokens(self, rows: Rows) -> PreparedTokens:
        if isinstance(self._tokens, PreparedTokens):
            return self._tokens[torch.as_tensor(np.asarray(rows, dtype=np.int64) - self.rows.start)]
        return stored_tokens(self.store.tokens(rows), self.device)

    @torch.no_grad()
    def _all(self) -> PreparedTokens | VideoBank:
        """The tokens of all rows; for the fused kernels a bank in the precision they are stored in."""
        if self._tokens is None:
            stored, one = self.store.tokens(self.rows), stored_tokens(self.store.tokens(self.rows[:1]), self.device)
            if dispatch.choose(self.head.config, one, one, "auto") == "triton":
                here = stored_tokens(stored, torch.device("cpu"), as_stored=True)
                self._tokens = VideoBank.of(here, device=self.device)
            else:
                self._tokens = stored_tokens(stored, self.device)
        return self._tokens
