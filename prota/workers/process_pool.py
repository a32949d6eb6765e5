"""Worker processes for work that may hang or crash, as video decoders do.

Each worker is a fresh Python that runs one job at a time. A job that takes too long is killed with its worker, a crash
costs one job, and what goes wrong with an item is reported with that item. Workers are neither forks of the parent nor
run its main script again, so they are safe beside torch and CUDA, and no `if __name__ == "__main__"` is needed.
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

# A machine under load may take long to start Python; one that takes longer than this will not start it at all.
START_LIMIT = 120.0

Key = TypeVar("Key")


class WorkerError(ProtaError, RuntimeError):
    """Worker processes that cannot be started."""

    code = "worker"


@dataclass(frozen=True)
class Outcome:
    """What became of one item: a value, or the one-line reason why there is none."""

    value: Any
    error: str | None
    seconds: float
    bug: str = ""
    """The traceback of an error that no file explains: neither a `ProtaError` nor one of the system."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    started: float = field(default_factory=time.monotonic)
    ready: bool = False
    """Python is up: a job's time does not include the start of its worker."""
    busy: bool = False
    key: Any = None
    """Of its item."""

    @property
    def free(self) -> bool:
        return self.ready and not self.busy

    def kill(self) -> int:
        """End it whatever it does, and leave no zombie."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class DecodePool:
    """Runs a function in `workers` processes, at most `timeout` seconds an item; a context manager.

    ``memory``: bytes that a process may take up, for files of strangers; 0: any.
    """

    def __init__(self, workers: int, timeout: float, memory: int = 0) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers} is not allowed; allowed: 1 or more")
        if not timeout > 0:
            raise ValueError(f"timeout = {timeout} is not allowed; allowed: seconds above 0")
        self.workers, self.timeout, self.memory = workers, timeout, memory
        self._crew: list[_Worker] = []
        self._failed: list[tuple[Any, Outcome]] = []
        """Items that could not be handed over."""

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
        """Yield (key, outcome) as jobs finish. Items are taken only when a worker is free for them."""
        if getattr(job, "__module__", None) == "__main__":
            raise ValueError(f"workers cannot import {job!r} from the main script: put it into a module")
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
                # Only now: while the caller is busy with what is done, its workers are busy with what is next.
                yield from outcomes
                if exhausted and not self.busy:
                    return
                outcomes = self.collect()
        finally:
            # If the caller stops early, what is still running is of no use.
            for worker in [worker for worker in self._crew if worker.busy]:
                self._dismiss(worker)

    @property
    def busy(self) -> bool:
        """Whether outcomes are still to come."""
        return bool(self._failed) or any(worker.busy for worker in self._crew)

    def has_room(self) -> bool:
        """Whether a worker is free; missing ones are started, and are free some `collect` later."""
        for worker in [worker for worker in self._crew if worker.free and worker.process.poll() is not None]:
            self._dismiss(worker)
        while len(self._crew) < self.workers:
            self._crew.append(_start_worker(self.memory))
        return any(worker.free for worker in self._crew)

    def submit(self, job: Callable[[Any], Any], key: Any, argument: Any) -> None:
        """Hand an item to a free worker."""
        worker = next(worker for worker in self._crew if worker.free)
        worker.busy, worker.key, worker.started = True, key, time.monotonic()
        try:
            worker.connection.send((job, argument))
        except OSError:
            # It has just died. Its connection now reads as closed, which `collect` reports.
            pass
        except Exception as error:
            worker.busy = False
            self._failed.append((key, Outcome(None, _line(error), 0.0)))

    def collect(self, patience: float = 3600.0) -> list[tuple[Any, Outcome]]:
        """Wait until something happens, at most ``patience`` seconds; the outcomes, if any."""
        failed, self._failed = self._failed, []
        return [*failed, *self._collect(0.0 if failed else patience)]

    def _collect(self, patience: float) -> Iterator[tuple[Any, Outcome]]:
        watched = [worker for worker in self._crew if not worker.ready or worker.busy]
        deadlines = [worker.started + (self.timeout if worker.ready else START_LIMIT) for worker in watched]
        # Not longer than asked for: the system cannot wait for a year.
        patience = min(patience, max(0.0, min(deadlines, default=0.0) - time.monotonic()))
        heard = wait([worker.connection for worker in watched], patience)
        # Taken now: while a result is yielded the caller may take its time, which is not the other workers' fault.
        now = time.monotonic()
        for worker, deadline in zip(watched, deadlines, strict=True):
            if worker.connection in heard:
                yield from self._listen(worker)
            elif now >= deadline:
                self._dismiss(worker)
                if not worker.busy:
                    raise WorkerError(f"a decode worker did not start within {START_LIMIT:.0f} s")
                yield worker.key, Outcome(None, f"took longer than {self.timeout:g} s", self.timeout)

    def _listen(self, worker: _Worker) -> Iterator[tuple[Any, Outcome]]:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            status = self._dismiss(worker, grace=1.0)
            if not worker.busy:
                raise WorkerError(f"decode workers cannot start ({_ending(status)}): see the messages above") from None
            seconds = time.monotonic() - worker.started
            yield worker.key, Outcome(None, f"the decoder crashed ({_ending(status)})", seconds)
            return
        if not worker.ready:
            worker.ready = True
            return
        worker.busy = False
        yield worker.key, Outcome(*message)

    def _dismiss(self, worker: _Worker, grace: float = 0.0) -> int:
        """End a worker; one that is ending by itself gets a grace, so that its own exit status is seen."""
        self._crew.remove(worker)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(grace)
        return worker.kill()


def _start_worker(memory: int) -> _Worker:
    """A fresh Python in its own session, where a Ctrl-C at the terminal does not reach it: the parent decides."""
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
            # What a decoder prints must not end up in the output of a command that prints JSON.
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
    """A worker's life: jobs, one at a time, until the parent closes the connection or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    parent, memory = int(sys.argv[2]), int(sys.argv[3])
    # A crash here is an expected event, not one to write gigabytes about.
    limit_memory(memory)
    end_with(parent)
    try:
        connection.send("ready")
        while True:
            _answer(connection)
    except (EOFError, OSError):
        # Not sys.exit: a decoder's threads may be stuck.
        os._exit(0)


def _answer(connection: Connection[Any, Any]) -> None:
    payload = connection.recv_bytes()
    started = time.monotonic()
    value, error, bug = None, None, ""
    try:
        # Read here and not by recv(), because importing the job may fail, and that is this item's error.
        job, argument = pickle.loads(payload)
        value = job(argument)
    except BaseException as failure:
        error = _line(failure)
        bug = "" if isinstance(failure, ProtaError | OSError | MemoryError) else traceback.format_exc()
    seconds = time.monotonic() - started
    try:
        connection.send((value, error, seconds, bug))
    except (AttributeError, TypeError, ValueError) as failure:
        connection.send((None, f"the result cannot be sent back: {_line(failure)}", seconds))


def _line(error: BaseException) -> str:
    """One line for an exception; the type is left out where the message speaks for itself."""
    if isinstance(error, MemoryError):
        return "decoding it takes more memory than there is, or than is allowed"
    text = " ".join(str(error).split())
    plain = isinstance(error, ValueError | OSError | RuntimeError) and text
    return text if plain else f"{type(error).__name__}: {text}".removesuffix(": ")


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    return signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
