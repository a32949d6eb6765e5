"""Search a library that is distributed in shards over the memory of a Ray cluster.

Each shard is an actor with consecutive rows of one version of the library. Version and rows are arguments of the actor,
so a restarted actor has the same rows, and an answer never mixes versions; a new version gets new actors. Actors end
with the process that created them.

Not Ray Serve: a deployment outlives its process, is updated replica by replica, and routes each request to one replica,
while a search needs all shards.
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

# Share of a GPU per shard: a new version is loaded beside the current one.
GPU_SHARE = 0.5
# A shard is restarted this many seconds after an unanswered search.
HANGS = 60.0
# Seconds between warnings that shards are still loading.
_PATIENCE = 60.0
_log = logging.getLogger("prota.cluster")


@dataclass(frozen=True)
class ShardSpec:
    """The content of a shard: consecutive rows of one version of a library."""

    folder: Location
    """Location of the library; the same on all machines."""
    library: dict[str, Any]
    """Content of library.json: another library in the same place may have the same version numbers."""
    stamp: ModelStamp
    version: Head
    rows: range
    hidden: frozenset[str] = frozenset()
    """Contents to exclude from results."""
    threads: int = 1
    gpu: bool = False


class Shard:
    """The actor. Rows are in memory if all of them are scored: always on a GPU, up to `EXACT_SEGMENTS` on a CPU."""

    def __init__(self, spec: ShardSpec, head: ScoreHead) -> None:
        torch.set_num_threads(spec.threads)
        self._spec, self._head, self._device = spec, head, torch.device("cuda" if spec.gpu else "cpu")
        self._loaded: RowFinder | None = None
        # Ray never restarts an actor whose constructor failed; the next call retries and raises the error.
        with suppress(Exception):
            self.ready()

    def ready(self) -> None:
        """Load the rows if they are not loaded."""
        self._finder()

    def find(self, tokens: PreparedTokens, count: int, where: str | None, exact: bool) -> list[Ranked]:
        return self._finder().find(tokens.to(self._device), count, where, exact).ranked

    def _finder(self) -> RowFinder:
        if self._loaded is None:
            spec = self._spec
            store = Snapshot(spec.folder, spec.stamp, spec.version)
            # After opening the snapshot, to detect that another library has replaced this one.
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
    """A shard as the client sees it. Searches skip it while a call is unanswered."""

    def __init__(self, spec: ShardSpec, head: ScoreHead) -> None:
        # No CPU is reserved, so that other versions and index runs do not prevent a restart. One byte of memory is: Ray
        # does not spread actors without resources, but places them at random.
        resources: dict[str, Any] = {"num_gpus": GPU_SHARE} if spec.gpu else {"num_cpus": 0, "memory": 1}
        make = ray.remote(Shard).options(max_restarts=-1, scheduling_strategy="SPREAD", **resources)
        self.actor: Any = make.remote(spec, head)
        self._unanswered: Any = None
        self._since = 0.0

    def missed(self, call: Any) -> None:
        """Remember a call that was late, or that failed because the actor died."""
        if self._unanswered is None:
            self._unanswered, self._since = call, time.monotonic()

    def answers(self, hangs: float) -> bool:
        """Whether no call is unanswered; restarts the actor if one has been for ``hangs`` seconds."""
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
            pass  # An error of the search is an answer, too.
        except RayError:
            # The actor is dead or restarting.
            self._unanswered, self._since = self.actor.ready.remote(), time.monotonic()
            return False
        self._unanswered = None
        return True


class ShardedFinder:
    """Finds the best rows of one version of a library on the connected cluster.

    The actors live as long as this object, so that a search in progress keeps its version.
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
        """Start the actors. ``shards``: their number, 0: by the rows and the cluster; ``gpus``: use GPUs if any."""
        # Errors of failed searches may keep the actors of earlier versions in a reference cycle.
        gc.collect()
        self.deadline = deadline
        self._store, self._device = store, device
        self._logged: set[str] = set()
        slim = _for_stored(head)
        self.shards = [_Handle(spec, slim) for spec in _specs(store, shards, gpus)]

    def warm(self) -> None:
        """Wait until all shards are loaded; on failure, end them all."""
        calls, started = [shard.actor.ready.remote() for shard in self.shards], time.monotonic()
        try:
            while calls:
                done, calls = ray.wait(calls, timeout=_PATIENCE)
                ray.get(done)
                if not done:
                    _log.warning(
                        "%d of %d shards are not loaded after %.0f s; check the resources of the cluster",
                        len(calls), len(self.shards), time.monotonic() - started,
                    )  # fmt: skip
        except RayTaskError as error:
            self.close()
            raise LibraryError(
                f"cannot load a shard ({one_line(error.cause)})",
                hint=f"check that all machines can access {self._store.location}",
            ) from None
        except RayError as error:
            self.close()
            raise ClusterError(f"a shard died while loading ({one_line(error)})") from None

    def find(self, tokens: PreparedTokens, count: int, where: str | None = None, exact: bool = False) -> TopRows:
        """Like `RowFinder.find`; dead shards, and those that miss the deadline, are not in the coverage."""
        # Stored once for all shards; arguments are copied for each shard.
        question = ray.put(tokens.to("cpu"))
        # If no shard responds, wait rather than return nothing.
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
            # All refused: an invalid filter, or the files of this version were removed.
            raise LibraryError(refusals[0])
        return TopRows(merged(answers, len(tokens), count), Coverage(len(answers), len(self.shards)))

    def tokens(self, rows: Rows) -> PreparedTokens:
        """The tokens of single rows, read by this process."""
        return stored_tokens(self._store.tokens(rows), self._device)

    @property
    def up(self) -> int:
        """Number of shards that the next search will use."""
        return sum(shard.answers(self._hangs) for shard in self.shards)

    def close(self) -> None:
        """End the actors, even while this object is referenced."""
        if ray.is_initialized():
            for shard in self.shards:
                ray.kill(shard.actor)

    @property
    def _hangs(self) -> float:
        return max(HANGS, self.deadline)

    def _log(self, problem: str) -> None:
        """Log each problem once."""
        if problem not in self._logged:
            self._logged.add(problem)
            _log.warning("a shard failed to search: %s", problem)


def merged(parts: Sequence[Sequence[Ranked]], queries: int, count: int) -> list[Ranked]:
    """Merge the best rows of all shards, ordered as on one machine: equal scores by row."""
    best = []
    for query in range(queries):
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(part[query][0] for part in parts)])
        scores = np.concatenate([np.zeros(0, dtype=np.float32), *(part[query][1] for part in parts)])
        order = np.lexsort((rows, -scores))[:count]
        best.append((rows[order], scores[order]))
    return best


def divide(rows: int, shards: int) -> list[range]:
    """Divide all rows into consecutive ranges whose lengths differ by at most one; none is empty."""
    parts = min(rows, shards)
    return [range(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def default_shards(rows: int, nodes: int, cpus: int, gpus: int) -> int:
    """One per GPU. Without GPUs: enough to score all rows exactly, at most one per CPU, at least one per node."""
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

    It is small enough to be an argument of the actor; at a restart, Ray's store might have lost it.
    """
    slim = copy.deepcopy(head).cpu()
    del slim.text, slim.video
    return slim
