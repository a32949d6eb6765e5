"""How many may wait, and for what: a bounded place in the queue, queries encoded together, answers that are kept."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

from prota.server.problems import ProblemError

__all__ = ["Batcher", "Desk", "Kept"]

A = TypeVar("A")
B = TypeVar("B")
_LARGEST_BATCH = 64


class Desk:
    """Threads that work, and a bounded number of those who wait for them.

    Who finds it full is told at once to come back: a queue without end answers nobody in time.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self.limit, self.inside, self.refused = threads + waiting, 0, 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    @contextmanager
    def place(self) -> Iterator[None]:
        """To be held from the first moment of a request to the last; ProblemError 503 where there is none."""
        if self.inside >= self.limit:
            self.refused += 1
            raise ProblemError(503, "too many are asking at the same time: try again soon", {"Retry-After": "1"})
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def run(self, work: Callable[[], A]) -> A:
        """In one of the threads, while others are served."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Batcher(Generic[A, B]):
    """One thread that takes all that came while it was busy, and does it in one go."""

    def __init__(self, work: Callable[[Sequence[A]], Sequence[B]], largest: int = _LARGEST_BATCH) -> None:
        self._work, self._largest = work, largest
        self._queue: queue.SimpleQueue[tuple[A, Future[B]] | None] = queue.SimpleQueue()
        self.batches, self.items = 0, 0
        self._thread = threading.Thread(target=self._run, name="prota-batches", daemon=True)
        self._thread.start()

    def submit(self, item: A) -> Future[B]:
        future: Future[B] = Future()
        self._queue.put((item, future))
        return future

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while self._next():
            pass

    def _next(self) -> bool:
        """One batch; False after the last. While it waits for the first of a batch it keeps nothing of the one before,
        which may be all that still needs an old version of the library."""
        if (first := self._queue.get()) is None:
            return False
        batch, ended = [first], False
        while len(batch) < self._largest and not self._queue.empty():
            other = self._queue.get()
            if other is None:
                ended = True
                break
            batch.append(other)
        self._do(batch)
        return not ended

    def _do(self, batch: list[tuple[A, Future[B]]]) -> None:
        # Who has gone meanwhile needs no answer.
        batch = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
        if not batch:
            return
        self.batches += 1
        self.items += len(batch)
        try:
            results = self._work([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            # One of them is at fault: the others must not suffer for it.
            for item, future in batch:
                try:
                    future.set_result(self._work([item])[0])
                except Exception as own:
                    future.set_exception(own)
            return
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class Kept(Generic[B]):
    """The last so many values by key; the one not asked for the longest goes first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.hits, self.misses = limit, 0, 0
        self._values: OrderedDict[Hashable, B] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> B | None:
        with self._lock:
            if key not in self._values:
                self.misses += 1
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: B) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self.limit:
                self._values.popitem(last=False)
