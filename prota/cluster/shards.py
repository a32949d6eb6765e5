"""A library in parts in the memory of a Ray cluster, searched as one.

Each shard is an actor that holds neighbouring rows of one version of the library. Version and rows are arguments of the
actor, so one that Ray restarts holds what it held before, and an answer never mixes versions; a new version gets new
actors. Actors end with the process that made them.

Not Ray Serve: a deployment outlives its process, is updated replica by replica, and sends each request to one replica,
while a search has to reach all shards.
"""

from __future__ import annotations

import copy
import gc
import logging
import math
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError

from prota.errors import ClusterError, one_line
from prota.library.records import EXACT_SEGMENTS, LibraryError, ModelStamp
from prota.library.search.rows import Coverage, Ranked, RowFinder, TopRows
from prota.library.storage.location import Location
from prota.library.storage.reader import Rows, Snapshot
from prota.library.storage.versions import Head, read_library
from prota.library.tokens import stored_tokens
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens

__all__ = ["Shard", "ShardSpec", "ShardedFinder", "default_shards", "divide", "merged"]

# Of a GPU: while a new version is loaded, it needs room beside the present one.
GPU_SHARE = 0.5
# A shard that has not answered a search for this many seconds after its deadline is restarted.
HANGS = 60.0
# Seconds between two warnings that shards are still loading.
_PATIENCE = 60.0
_log = logging.getLogger("prota.cluster")


@dataclass(frozen=True)
class ShardSpec:
    """What a shard holds: neighbouring rows of one version of a library."""

    folder: Location
    """The same on all machines."""
    library: dict[str, Any]
    """Its library.json: another library in the same place may have the same version numbers."""
    stamp: ModelStamp
    version: Head
    rows: range
    hidden: frozenset[str] = frozenset()
    """Contents to leave out of results."""
    threads: int = 1
    gpu: bool = False


class Shard:
    """The actor: rows in memory where all of them are scored, on a GPU always, on a CPU up to `EXACT_SEGMENTS`."""

    def __init__(self, spec: ShardSpec, head: ScoreHead) -> None:
        torch.set_num_threads(spec.threads)
        self._spec, self._head, self._device = spec, head, torch.device("cuda" if spec.gpu else "cpu")
        self._loaded: RowFinder | None = None
        # Ray never restarts an actor whose constructor failed. The next call tries again, and raises what is wrong.
        with suppress(Exception):
            self.ready()

    def ready(self) -> None:
        """Load the rows, unless they are loaded."""
        self._finder()

    def find(self, tokens: PreparedTokens, count: int, where: str | None, exact: bool) -> list[Ranked]:
        return self._finder().find(tokens.to(self._device), count, where, exact).ranked

    def _finder(self) -> RowFinder:
        if self._loaded is None:
            spec = self._spec
            store = Snapshot(spec.folder, spec.stamp, spec.version)
            # After the snapshot is open, so that a library that replaces this one meanwhile is noticed.
            if read_library(spec.folder) != spec.library:
                raise LibraryError(f"{spec.folder} was replaced by another library")
            exact = sys.maxsize if spec.gpu else EXACT_SEGMENTS
            finder = RowFinder(
                store,
                self._head.to(self._device),
                self._device,
                hidden=spec.hidden,
                exact_segments=exact,
                rows=spec.rows,
            )
            finder.warm()
            self._loaded = finder
        return self._loaded


class _Handle:
    """A shard as its front sees it. While a call is unanswered, searches do without the shard."""

    def __init__(self, spec: ShardSpec, head: ScoreHead) -> None:
        # No CPU is reserved: what another version or an index run holds must not keep a shard from restarting. One byte
        # of memory is, because Ray does not spread actors that need no resource, but picks nodes at random.
        resources: dict[str, Any] = {"num_gpus": GPU_SHARE} if spec.gpu else {"num_cpus": 0, "memory": 1}
        make = ray.remote(Shard).options(max_restarts=-1, scheduling_strategy="SPREAD", **resources)
        self.actor: Any = make.remote(spec, head)
        self._unanswered: Any = None
        self._since = 0.0

    def missed(self, call: Any) -> None:
        """Remember a call that was late, or that failed because the actor is gone."""
        if self._unanswered is None:
            self._unanswered, self._since = call, time.monotonic()

    def answers(self, hangs: float) -> bool:
        """Whether no call is unanswered; restarts the actor if one has been for so many seconds."""
        if self._unanswered is None:
            return True
        if not ray.wait([self._unanswered], timeout=0)[0]:
            if time.monotonic() - self._since > hangs:
                self._since = time.monotonic()
                ray.kill(self.actor, no_restart=False)
            return False
        try:
            ray.get(self._unanswered)
        except RayTaskError:
            pass  # An error of the search is an answer.
        except RayError:
            # The actor is gone, or not restarted yet.
            self._unanswered, self._since = self.actor.ready.remote(), time.monotonic()
            return False
        self._unanswered = None
        return True


class ShardedFinder:
    """Finds the best rows of one version of a library, on the cluster that this process is connected to.

    The actors end when this object does, so that a search in progress keeps its version.
    """

    def __init__(
        self,
        store: Snapshot,
        head: ScoreHead,
        device: torch.device,
        *,
        shards: int = 0,
        deadline: float = 5.0,
        gpus: bool = True,
    ) -> None:
        """Start the actors. ``shards``: 0 chooses a number by the rows and the cluster; ``gpus``: use any GPUs."""
        # Errors of failed searches may hold the actors of versions before in a reference cycle.
        gc.collect()
        self.deadline = deadline
        self._store, self._device = store, device
        self._logged: set[str] = set()
        slim = _for_stored(head)
        self.shards = [_Handle(spec, slim) for spec in _specs(store, shards, gpus)]

    def warm(self) -> None:
        """Wait until all shards are loaded; without success, end them all."""
        calls, started = [shard.actor.ready.remote() for shard in self.shards], time.monotonic()
        try:
            while calls:
                done, calls = ray.wait(calls, timeout=_PATIENCE)
                ray.get(done)
                if not done:
                    _log.warning(
                        "%d of %d shards are still not loaded after %.0f s: does the cluster have room for them?",
                        len(calls), len(self.shards), time.monotonic() - started,
                    )  # fmt: skip
        except RayTaskError as error:
            self.close()
            raise LibraryError(
                f"a shard cannot be loaded ({one_line(error.cause)}): is {self._store.location} on all machines?"
            ) from None
        except RayError as error:
            self.close()
            raise ClusterError(f"a shard died while it was loaded ({one_line(error)})") from None

    def find(self, tokens: PreparedTokens, count: int, where: str | None = None, exact: bool = False) -> TopRows:
        """As `RowFinder.find`; shards that are gone, or miss the deadline, are left out of the coverage."""
        # Stored once for all shards; arguments are copied for each.
        question = ray.put(tokens.to("cpu"))
        # If no shard is known to answer, a wait is better than no answer.
        asked = [shard for shard in self.shards if shard.answers(self._hangs)] or self.shards
        calls = {shard.actor.find.remote(question, count, where, exact): shard for shard in asked}
        done, late = ray.wait(list(calls), num_returns=len(calls), timeout=self.deadline) if calls else ([], [])
        for call in late:
            calls[call].missed(call)
        answers: list[list[Ranked]] = []
        refusals: list[str] = []
        for call in done:
            try:
                answers.append(ray.get(call))
            except RayTaskError as error:
                if isinstance(error.cause, LibraryError):
                    refusals.append(one_line(error.cause))
                self._log(one_line(error.cause))
            except RayError:
                calls[call].missed(call)
        if refusals and not answers:
            # Refused by all: a filter that is not valid, or files of this version that were cleaned up.
            raise LibraryError(refusals[0])
        return TopRows(merged(answers, len(tokens), count), Coverage(len(answers), len(self.shards)))

    def tokens(self, rows: Rows) -> PreparedTokens:
        """Of single rows, read by this process."""
        return stored_tokens(self._store.tokens(rows), self._device)

    @property
    def up(self) -> int:
        """How many shards the next search will ask."""
        return sum(shard.answers(self._hangs) for shard in self.shards)

    def close(self) -> None:
        """End the actors, even while something still refers to this object."""
        if ray.is_initialized():
            for shard in self.shards:
                ray.kill(shard.actor)

    @property
    def _hangs(self) -> float:
        return max(HANGS, self.deadline)

    def _log(self, problem: str) -> None:
        """Once: each search may have the same."""
        if problem not in self._logged:
            self._logged.add(problem)
            _log.warning("a shard could not search: %s", problem)


def merged(parts: Sequence[Sequence[Ranked]], queries: int, count: int) -> list[Ranked]:
    """The best rows of each query from those of all parts, in the order of one machine: equal scores by row."""
    best = []
    for query in range(queries):
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(part[query][0] for part in parts)])
        scores = np.concatenate([np.zeros(0, dtype=np.float32), *(part[query][1] for part in parts)])
        order = np.lexsort((rows, -scores))[:count]
        best.append((rows[order], scores[order]))
    return best


def divide(rows: int, shards: int) -> list[range]:
    """All rows in neighbouring ranges whose lengths differ by one at most; none is empty."""
    parts = min(rows, shards)
    return [range(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def default_shards(rows: int, nodes: int, cpus: int, gpus: int) -> int:
    """One per GPU. Without GPUs: enough that each scores all of its rows, up to one per CPU; at least one per node."""
    if gpus:
        return gpus
    return max(nodes, min(cpus, math.ceil(rows / EXACT_SEGMENTS)), 1)


def _specs(store: Snapshot, shards: int, use_gpus: bool) -> list[ShardSpec]:
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if use_gpus else 0
    cpus, nodes = int(resources.get("CPU", 1)), sum(node["Alive"] for node in ray.nodes())
    rows, hidden, folder = store.count(), store.hidden, store.location.absolute()
    library = read_library(folder)
    ranges = divide(rows, shards or default_shards(rows, nodes, cpus, gpus))
    threads = max(1, cpus // max(1, len(ranges)))
    return [ShardSpec(folder, library, store.stamp, store.head, own, hidden, threads, bool(gpus)) for own in ranges]


def _for_stored(head: ScoreHead) -> ScoreHead:
    """The part of a head that scores stored tokens, without the networks that prepare them.

    So small that it is sent with the call that makes an actor; Ray's store might have lost it at a restart.
    """
    slim = copy.deepcopy(head).cpu()
    del slim.text, slim.video
    return slim
