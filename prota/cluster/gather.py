"""The front of a library whose parts are on a cluster: every search is asked of all of them, and answered in time.

What a part does not say before the deadline is left out, and the answer says so. Single rows (the best frames of what
was found, reasons, a clip as the query) are read here.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import ray
import torch
from ray.exceptions import RayError, RayTaskError

from prota.cluster.shards import Part, Slot, default_shards, divide, for_stored
from prota.errors import one_line
from prota.library.encoding import stored_tokens
from prota.library.finding import Coverage, Found, Ranked, without_file
from prota.library.records import LibraryError
from prota.library.snapshot import Rows, Snapshot
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens

__all__ = ["Gather", "Shards", "merged"]

# Seconds between two looks at what is dead or could be moved.
_ROUND = 1.0
_ROUNDS_TO_CLEAR = 10
# Seconds until a move that failed is tried again.
_TRY_AGAIN = 15.0
# Seconds after which it is said that shards are not ready.
_PATIENCE = 60.0
_log = logging.getLogger("prota.cluster")


def merged(parts: Sequence[Sequence[Ranked]], queries: int, count: int) -> list[Ranked]:
    """The best of what parts of a library found for each query, in the order in which one machine has it."""
    best = []
    for query in range(queries):
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(part[query][0] for part in parts)])
        scores = np.concatenate([np.zeros(0, dtype=np.float32), *(part[query][1] for part in parts)])
        order = np.lexsort((rows, -scores))[:count]
        best.append((rows[order], scores[order]))
    return best


class Gather:
    """Finds the best rows of one version of a library on the actors that hold its parts.

    They live as long as this object: who still searches an old version keeps its actors, and with the last one they go.
    """

    def __init__(self, store: Snapshot, device: torch.device, slots: list[Slot], deadline: float) -> None:
        self.slots, self.deadline = slots, deadline
        self._store, self._device = store, device
        self._moving: tuple[int, Slot] | None = None
        self._move_after = 0.0
        self._told: set[str] = set()

    def find(self, tokens: PreparedTokens, count: int, where: str | None = None, exact: bool = False) -> Found:
        # Once for all of them: what is sent along with a call is written for each.
        question = ray.put(tokens.to("cpu"))
        up = self._up()
        calls = [call for slot in self.slots if (call := slot.called) is not None]
        if calls and not up:
            # All are busy or dead, and a wait is better than the answer of nobody.
            ray.wait(calls, num_returns=len(calls), timeout=self.deadline)
            up = self._up()
        asked = {slot.actor.find.remote(question, count, where, exact): slot for slot in up}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=self.deadline) if asked else ([], [])
        for call in late:
            asked[call].missed()
        answers: list[list[Ranked]] = []
        refusals: list[str] = []
        for call in done:
            try:
                answers.append(ray.get(call))
            except RayTaskError as error:
                cause = getattr(error, "cause", error)
                if isinstance(cause, LibraryError):
                    refusals.append(one_line(cause))
                self._tell(f"{asked[call].part.name}: {one_line(cause)}")
            except RayError:
                asked[call].missed()
        if refusals and not answers:
            # What all of them refuse is the fault of none: a filter, or files that were cleaned up.
            raise LibraryError(refusals[0])
        return Found(merged(answers, len(tokens), count), Coverage(len(answers), len(self.slots)))

    def _tell(self, what: str) -> None:
        """Once: it may be so with every request."""
        if what not in self._told:
            self._told.add(what)
            _log.warning("a shard did not answer: %s", what)

    def tokens(self, rows: Rows) -> PreparedTokens:
        return stored_tokens(self._store.tokens(rows), self._device)

    def warm(self) -> None:
        """The actors have read all when they are ready."""

    def _up(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.state() == "up"]

    @property
    def up(self) -> int:
        """Parts that can be asked."""
        return len(self._up())

    def tend(self) -> None:
        """Mend what is broken, and move what stands crowded to a node that has room."""
        nodes: dict[str, dict[str, float]] = {
            node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]
        }
        for slot in self.slots:
            slot.mend(nodes)
        if self._moving is not None:
            self._finish_move(*self._moving)
        elif time.monotonic() > self._move_after and self.up == len(self.slots):
            self._begin_move(nodes)

    def _begin_move(self, nodes: Mapping[str, Mapping[str, float]]) -> None:
        """One shard at a time, from the fullest node to the emptiest, where that makes a difference."""
        need = "GPU" if any(slot.part.gpu for slot in self.slots) else "CPU"
        room = sorted(node for node, resources in nodes.items() if resources.get(need))
        counts = Counter(slot.node for slot in self.slots)
        if not room or not counts:
            return
        fullest, emptiest = counts.most_common(1)[0][0], min(room, key=lambda node: counts[node])
        if counts[fullest] - counts[emptiest] > 1:
            place = next(place for place, slot in enumerate(self.slots) if slot.node == fullest)
            self._moving = place, self.slots[place].beside(emptiest)

    def _finish_move(self, place: int, other: Slot) -> None:
        """Once the other is ready, requests go there; the one before ends with its last."""
        state = other.state()
        if state == "down" and not other.hangs:
            return
        if state == "up":
            self.slots[place] = other
        else:
            self._move_after = time.monotonic() + _TRY_AGAIN
        self._moving = None

    def close(self) -> None:
        """End the actors, and do not wait until the last who knows them is forgotten: a failed search may keep them."""
        moving = [] if self._moving is None else [self._moving[1]]
        for slot in (*self.slots, *moving):
            slot.end()
        self.slots.clear()
        self._moving = None


class Shards:
    """Builds the parts of each version of a library on a cluster, and looks after those of the present one."""

    def __init__(self, shards: int = 0, deadline: float = 5.0, device: str = "auto") -> None:
        """On the cluster that this process is connected to. ``shards``: 0, as many as it and the library ask for."""
        self._shards, self._deadline, self._use_gpus = shards, deadline, device != "cpu"
        self._present: Callable[[], Gather | None] = lambda: None
        self._before: list[Callable[[], Gather | None]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="prota-shards", daemon=True)
        self._thread.start()

    def take(self, store: Snapshot, head: ScoreHead, device: torch.device) -> Gather:
        """The parts of this version, once all of them are ready; those of the one before go on until then."""
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if self._use_gpus else 0
        cpus, nodes = int(resources.get("CPU", 1)), sum(node["Alive"] for node in ray.nodes())
        rows, hidden = store.count(), without_file(store.videos())
        ranges = divide(rows, self._shards or default_shards(rows, nodes, cpus, gpus))
        threads = max(1, cpus // max(1, len(ranges)))
        folder = store.folder.absolute()
        parts = [Part(folder, store.stamp, store.head, own, hidden, threads, bool(gpus)) for own in ranges]
        slim = for_stored(head)
        gather = Gather(store, device, [Slot(part, slim) for part in parts], self._deadline)
        self._wait(gather)
        self._before.append(self._present)
        self._present = weakref.ref(gather)
        return gather

    def _wait(self, gather: Gather) -> None:
        started = said = time.monotonic()
        while not self._ended.wait(0.05):
            if time.monotonic() - said > _PATIENCE:
                said = time.monotonic()
                counted = f"{gather.up} of {len(gather.slots)} shards after {said - started:.0f} s"
                _log.warning("%s are ready: are the others still reading, or is there no room for them?", counted)
            states = {slot: slot.state() for slot in gather.slots}
            for slot, state in states.items():
                if state == "dead":
                    folder = slot.part.folder
                    raise LibraryError(f"a shard cannot be loaded ({slot.reason}): is {folder} on all machines?")
            if all(state == "up" for state in states.values()):
                return

    @property
    def present(self) -> Gather | None:
        return self._present()

    def close(self) -> None:
        """Nobody asks any more: the actors may go, whoever still knows the last version."""
        self._ended.set()
        self._thread.join(_PATIENCE)
        for known in (*self._before, self._present):
            if (gather := known()) is not None:
                gather.close()

    def _watch(self) -> None:
        rounds = 0
        while not self._ended.wait(_ROUND):
            self._tend()
            rounds += 1
            self._before = [gather for gather in self._before if gather() is not None]
            if self._before and rounds % _ROUNDS_TO_CLEAR == 0:
                # What failed in a search may keep it, and in a circle: that holds memory on other machines, which the
                # counts of Python know nothing of.
                gc.collect()

    def _tend(self) -> None:
        try:
            if (gather := self._present()) is not None:
                gather.tend()
        except Exception as error:
            # Whatever it is, the next round may do better: without any, what dies stays dead.
            _log.warning("the shards cannot be looked after: %s", one_line(error))
