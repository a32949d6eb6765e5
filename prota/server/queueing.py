"""Bounded queues, batching and a cache, which keep the server responsive under load."""

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

__all__ = ["Batcher", "BoundedPool", "LruCache"]

A = TypeVar("A")
B = TypeVar("B")


class BoundedPool:
    """A thread pool that rejects requests when too many are running or waiting."""

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self.limit, self.active, self.rejected = limit, 0, 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for a request; ProblemError 503 if none is free. Call it on the event loop only."""
        if self.active >= self.limit:
            self.rejected += 1
            raise ProblemError(503, "too many requests; retry soon", {"Retry-After": "1"})
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    async def run(self, work: Callable[[], A]) -> A:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Batcher(Generic[A, B]):
    """A thread that processes all items submitted while it was busy as one batch."""

    def __init__(self, name: str, work: Callable[[Sequence[A]], Sequence[B | Exception]], largest: int) -> None:
        """``work``: one result for each item; an exception fails that item alone."""
        self._work, self._largest = work, largest
        self._queue: queue.SimpleQueue[tuple[A, Future[B]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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
        """Process one batch; False after the last.

        A separate function, so that no reference to the previous batch is kept while waiting: it may be the last one to
        an old version of the library.
        """
        if (first := self._queue.get()) is None:
            return False
        batch, ended = [first], False
        while len(batch) < self._largest and not self._queue.empty():
            other = self._queue.get()
            if other is None:
                ended = True
                break
            batch.append(other)
        # Skips cancelled items, whose clients have disconnected.
        self._do([(item, future) for item, future in batch if future.set_running_or_notify_cancel()])
        return not ended

    def _do(self, batch: list[tuple[A, Future[B]]]) -> None:
        if not batch:
            return
        try:
            results = self._work([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            # One item may have caused the error: process each alone.
            for one in batch:
                self._do([one])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


class LruCache(Generic[B]):
    """A thread-safe cache of the most recently used values."""

    def __init__(self, limit: int, weight: Callable[[B], int] = lambda _: 1) -> None:
        """``limit``: of the sum of the weights."""
        self.limit = limit
        self._weight, self._sum = weight, 0
        self._values: OrderedDict[Hashable, B] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> B | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: Hashable, value: B) -> None:
        with self._lock:
            if key in self._values:
                self._sum -= self._weight(self._values.pop(key))
            self._values[key] = value
            self._sum += self._weight(value)
            while self._sum > self.limit:
                self._sum -= self._weight(self._values.popitem(last=False)[1])
