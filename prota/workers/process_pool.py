"""Worker processes for jobs that may hang or crash, such as decoding videos.

Each worker is a new Python process that runs one job at a time. A job that exceeds the time limit is killed with its
worker, a crash fails one job, and errors are reported per item. Workers are not forked and do not run the main script
again, so they are safe beside torch and CUDA and need no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from types import TracebackType
from typing import Any, TypeVar

from prota.errors import ProtaError
from prota.platform import Connection, end_with, inherit, limit_memory

__all__ = ["DecodePool", "Outcome", "WorkerError"]

# Seconds for a worker to start; generous, for a machine under load.
START_LIMIT = 120.0

Key = TypeVar("Key")


class WorkerError(ProtaError, RuntimeError):
    """Worker processes cannot be started."""

    code = "worker"


@dataclass(frozen=True)
class Outcome:
    """The result of one item: a value, or an error in one line."""

    value: Any
    error: str | None
    seconds: float
    bug: str = ""
    """The traceback of an error that is neither a `ProtaError` nor one of the system."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    """Whether Python has started: the time limit of a job does not include it."""
    busy: bool = False
    key: Any = None
    """Key of its item."""

    @property
    def free(self) -> bool:
        return self.ready and not self.busy

    def kill(self) -> int:
        """Kill the process and wait for it; returns its exit status."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class DecodePool:
    """Runs a function in ``workers`` processes, with a ``timeout`` in seconds per item; a context manager.

    ``memory``: limit in bytes per process, for untrusted files; 0: none.
    """

    def __init__(self, workers: int, timeout: float, memory: int = 0) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout}")
        self.workers, self.timeout, self.memory = workers, timeout, memory
        self._crew: list[_Worker] = []
        self._failed: list[tuple[Any, Outcome]] = []
        """Items that could not be sent to a worker."""

    def __enter__(self) -> DecodePool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for worker in self._crew:
            worker.process.kill()
        for worker in self._crew:
            worker.kill()
        self._crew.clear()

    def run(
        self, job: Callable[[Any], Any], items: Iterable[tuple[Key, Any]]
    ) -> Generator[tuple[Key, Outcome], None, None]:
        """Yield (key, outcome) as jobs finish. Takes an item only when a worker is free."""
        if getattr(job, "__module__", None) == "__main__":
            raise ValueError(f"workers cannot import {job!r} from the main script; move it to a module")
        waiting = iter(items)
        exhausted = False
        outcomes: list[tuple[Key, Outcome]] = []
        try:
            while True:
                while not exhausted and self.has_room():
                    item = next(waiting, None)
                    if item is None:
                        exhausted = True
                    else:
                        self.submit(job, *item)
                # After submitting, so that workers are busy while the caller handles outcomes.
                yield from outcomes
                if exhausted and not self.busy:
                    return
                outcomes = self.collect()
        finally:
            # If the caller stops early, running jobs are killed.
            for worker in [worker for worker in self._crew if worker.busy]:
                self._dismiss(worker)

    @property
    def busy(self) -> bool:
        """Whether outcomes are pending."""
        return bool(self._failed) or any(worker.busy for worker in self._crew)

    def has_room(self) -> bool:
        """Whether a worker is free; starts missing workers, which become free in a later `collect`."""
        for worker in [worker for worker in self._crew if worker.free and worker.process.poll() is not None]:
            self._dismiss(worker)
        while len(self._crew) < self.workers:
            self._crew.append(_start_worker(self.memory))
        return any(worker.free for worker in self._crew)

    def submit(self, job: Callable[[Any], Any], key: Any, argument: Any) -> None:
        """Send an item to a free worker."""
        worker = next(worker for worker in self._crew if worker.free)
        worker.busy, worker.key, worker.started = True, key, time.monotonic()
        try:
            worker.connection.send((job, argument))
        except OSError:
            # The worker has just died; `collect` reports the closed connection.
            pass
        except Exception as error:
            worker.busy = False
            self._failed.append((key, Outcome(None, _line(error), 0.0)))

    def collect(self, patience: float = 3600.0) -> list[tuple[Any, Outcome]]:
        """Wait at most ``patience`` seconds for an event; returns finished outcomes, if any."""
        failed, self._failed = self._failed, []
        return [*failed, *self._collect(0.0 if failed else patience)]

    def _collect(self, patience: float) -> Iterator[tuple[Any, Outcome]]:
        watched = [worker for worker in self._crew if not worker.ready or worker.busy]
        deadlines = [worker.started + (self.timeout if worker.ready else START_LIMIT) for worker in watched]
        # Limited by the next deadline; the system cannot wait for years.
        patience = min(patience, max(0.0, min(deadlines, default=0.0) - time.monotonic()))
        heard = wait([worker.connection for worker in watched], patience)
        # The time is taken before yielding: the time that callers spend does not count for other workers.
        now = time.monotonic()
        for worker, deadline in zip(watched, deadlines, strict=True):
            if worker.connection in heard:
                yield from self._listen(worker)
            elif now >= deadline:
                self._dismiss(worker)
                if not worker.busy:
                    raise WorkerError(f"a decode worker did not start within {START_LIMIT:.0f} s")
                yield worker.key, Outcome(None, f"timed out after {self.timeout:g} s", self.timeout)

    def _listen(self, worker: _Worker) -> Iterator[tuple[Any, Outcome]]:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            status = self._dismiss(worker, grace=1.0)
            if not worker.busy:
                raise WorkerError(f"decode workers cannot start ({_ending(status)}); see the messages above") from None
            seconds = time.monotonic() - worker.started
            yield worker.key, Outcome(None, f"the decoder crashed ({_ending(status)})", seconds)
            return
        if not worker.ready:
            worker.ready = True
            return
        worker.busy = False
        yield worker.key, Outcome(*message)

    def _dismiss(self, worker: _Worker, grace: float = 0.0) -> int:
        """End a worker; wait ``grace`` seconds for its own exit status first."""
        self._crew.remove(worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(grace)
        return worker.kill()


def _start_worker(memory: int) -> _Worker:
    """Start Python in a session of its own, so that Ctrl-C in the terminal reaches the parent only."""
    ours, theirs = Pipe()
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[4]); from prota.workers.process_pool import _work; _work()"
    )
    numbers = [str(number) for number in (theirs.fileno(), os.getpid(), memory)]
    command = [sys.executable, "-c", code, *numbers, json.dumps(sys.path)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            # Output of a decoder must not mix with the JSON that a command prints.
            stdout=subprocess.DEVNULL,
            **inherit(theirs.fileno()),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return _Worker(process, ours)


def _work() -> None:
    """The main function of a worker: runs jobs until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    parent, memory = int(sys.argv[2]), int(sys.argv[3])
    # Crashes are expected here: no core dumps.
    limit_memory(memory)
    end_with(parent)
    try:
        connection.send("ready")
        while True:
            _answer(connection)
    except (EOFError, OSError):
        # Not sys.exit: threads of a decoder may hang.
        os._exit(0)


def _answer(connection: Connection[Any, Any]) -> None:
    payload = connection.recv_bytes()
    started = time.monotonic()
    value, error, bug = None, None, ""
    try:
        # Not by recv(): if importing the job fails, this item fails.
        job, argument = pickle.loads(payload)
        value = job(argument)
    except BaseException as failure:
        error = _line(failure)
        bug = "" if isinstance(failure, ProtaError | OSError | MemoryError) else traceback.format_exc()
    seconds = time.monotonic() - started
    try:
        connection.send((value, error, seconds, bug))
    except (AttributeError, TypeError, ValueError) as failure:
        connection.send((None, f"cannot send the result back: {_line(failure)}", seconds))


def _line(error: BaseException) -> str:
    """An exception in one line, without its type if the message is clear."""
    if isinstance(error, MemoryError):
        return "decoding needs more memory than available or allowed"
    text = " ".join(str(error).split())
    plain = isinstance(error, ValueError | OSError | RuntimeError) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
