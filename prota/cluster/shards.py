"""Parts of a library in the memory of a cluster: what an actor of Ray holds, and how it is watched.

Actors alone, without Ray Serve: Serve sends a request to any one of some equal replicas, while here each request has to
reach every part. HTTP, batches and queues are the server's already.
"""

from __future__ import annotations

import copy
import math
import sys
import threading
import time
import uuid
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

import ray
import torch
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from prota.library.finding import EXACT_SEGMENTS, Ranked, RowFinder
from prota.library.records import ModelStamp
from prota.library.storage.location import Location
from prota.library.storage.reader import Snapshot
from prota.library.storage.versions import Head
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens

__all__ = ["Part", "Shard", "Slot", "default_shards", "divide", "for_stored"]

# Of a GPU: the shards of the next version are built beside those of the present one, and have to find room.
GPU_SHARE = 0.5
# A shard that says nothing for so many times what its loading took, and at least so many seconds, hangs.
_HANGS, _HANGS_AT_LEAST = 5.0, 60.0
# Seconds until what could not be built is tried again.
_AGAIN = 10.0


@dataclass(frozen=True)
class Part:
    """Neighbouring rows of one version of a library."""

    folder: Location
    """The same on all machines."""
    stamp: ModelStamp
    version: Head
    rows: range
    hidden: frozenset[str] = frozenset()
    """Contents that are not to be found."""
    threads: int = 1
    gpu: bool = False

    @property
    def name(self) -> str:
        return f"{self.folder} version {self.version.version} rows {self.rows.start}-{self.rows.stop - 1}"


def divide(rows: int, shards: int) -> list[range]:
    """All rows in neighbouring parts that differ by one at most; none is empty."""
    parts = min(rows, shards)
    return [range(rows * part // parts, rows * (part + 1) // parts) for part in range(parts)]


def default_shards(rows: int, nodes: int, cpus: int, gpus: int) -> int:
    """One on each GPU. Without any: so many that each scores all of its rows, up to the CPUs; one a node at least."""
    if gpus:
        return gpus
    return max(nodes, min(cpus, math.ceil(rows / EXACT_SEGMENTS)), 1)


def for_stored(head: ScoreHead) -> ScoreHead:
    """What of a head scores stored tokens: without the networks that prepare them.

    So small it travels with the call that makes an actor; from Ray's store it might be gone when Ray makes it again.
    """
    slim = copy.deepcopy(head).cpu()
    del slim.text, slim.video
    return slim


class Shard:
    """A part, in memory wherever all of it is scored: on a GPU, and on a CPU where it is small enough.

    Built again with the same arguments, which Ray does when it dies, it is the same: the version is among them.
    """

    def __init__(self, part: Part, head: ScoreHead) -> None:
        torch.set_num_threads(part.threads)
        self._device = torch.device("cuda" if part.gpu else "cpu")
        store = Snapshot(part.folder, part.stamp, part.version)
        exact = sys.maxsize if part.gpu else EXACT_SEGMENTS
        self._finder = RowFinder(store, head.to(self._device), self._device, part.hidden, exact, part.rows)
        self._finder.warm()

    def node(self) -> str:
        """Where it is; who is told knows that it is ready."""
        return str(ray.get_runtime_context().get_node_id())

    def find(self, tokens: PreparedTokens, count: int, where: str | None, exact: bool) -> list[Ranked]:
        return self._finder.find(tokens.to(self._device), count, where, exact).ranked


class Slot:
    """A part and the actor that holds it, seen from the front.

    An actor that failed or was late is not asked again until it has answered a call of ours: while Ray restarts it,
    every request would wait for it until its deadline.
    """

    def __init__(self, part: Part, head: ScoreHead, node: str | None = None) -> None:
        """``node``: where the actor is to be; Ray does not take it elsewhere when that dies, `mend` does."""
        self.part, self._head = part, head
        self.called: Any = None
        """The call that it has not answered yet, if it is down."""
        self._lock = threading.Lock()
        # Seconds that it took to be ready, at the longest.
        self._loading = 0.0
        self._start(node)

    def _start(self, node: str | None) -> None:
        where = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False)
        # Names are of the cluster: a part has two actors while it moves.
        name = f"{self.part.name} {uuid.uuid4().hex[:8]}"
        # No CPU is reserved: what another version or an index run holds must not keep a shard from coming back.
        options: dict[str, Any] = {"num_gpus": GPU_SHARE} if self.part.gpu else {"num_cpus": 0}
        make = ray.remote(Shard).options(name=name, max_restarts=-1, scheduling_strategy=where, **options)
        self.actor: Any = make.remote(self.part, self._head)
        self.node, self.called, self._since = "", self.actor.node.remote(), time.monotonic()

    def beside(self, node: str) -> Slot:
        """Another actor of the same part, on that node."""
        other = Slot(self.part, self._head, node)
        other._loading = self._loading
        return other

    def state(self) -> Literal["up", "down", "dead"]:
        """``down``: it may be back soon. ``dead``: Ray does not restart it, `reason` says why."""
        with self._lock:
            if self.called is None:
                return "up"
            if not ray.wait([self.called], timeout=0)[0]:
                return "down"
            try:
                self.node = ray.get(self.called)
            except ActorDiedError:
                return "dead"
            except RayError:
                self.called = self.actor.node.remote()
                return "down"
            self.called, self._loading = None, max(self._loading, time.monotonic() - self._since)
            return "up"

    @property
    def hangs(self) -> bool:
        """Whether what is down should have been back long ago."""
        return time.monotonic() - self._since > max(_HANGS * self._loading, _HANGS_AT_LEAST)

    @property
    def reason(self) -> str:
        """Why it is dead: the last line of what Ray tells, without the name of the error."""
        try:
            ray.get(self.called, timeout=0)
        except RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            return lines[-1].partition("Error: ")[2] or lines[-1].strip()
        return ""

    def missed(self) -> None:
        """It did not answer: it is to say when it is back."""
        with self._lock:
            if self.called is None:
                self.called, self._since = self.actor.node.remote(), time.monotonic()

    def mend(self, nodes: Container[str]) -> None:
        """Build it anew where Ray gave up or its node is gone; end it where it hangs, so that Ray restarts it."""
        state = self.state()
        with self._lock:
            waited = time.monotonic() - self._since > _AGAIN
            if (state == "dead" and waited) or (self.node and self.node not in nodes):
                self._start(None)
            elif state == "down" and self.hangs:
                self._since = time.monotonic()
                ray.kill(self.actor, no_restart=False)

    def end(self) -> None:
        """The actor goes, and Ray does not restart it; without a cluster it is gone already."""
        if ray.is_initialized():
            ray.kill(self.actor)
