"""Worker processes for jobs that may hang or crash, such as decoding videos.

Each worker is a new Python process that runs one job at a time. A job that exceeds the time limit is killed with its
worker, a crash fails one job, and errors are reported per item. Workers are not forked and do not run the main script
again, so they are safe beside torch and CUDA and need no `if __name__ == "__main__"`.

Workers are confined where the system can (`prota.platform.confine`): the parent opens the file of a job; a worker can
open no other, write none, and use no network. It has no keys from the environment, and only data is read from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from prota.errors import ProtaError
from prota.platform import (
    Connection,
    confine,
    end_with,
    inherit,
    limit_memory,
    limit_silence,
    receive_file,
    send_file,
    unconfined,
)
from prota.video.opening import given, open_file

__all__ = ["MEMORY", "DecodePool", "Outcome", "WorkerError"]

# Seconds for a worker to start; generous, for a machine under load.
START_LIMIT = 120.0
# Bytes of address space of a worker: frames of 8K with those that their decoder keeps take 2 to 4 GB.
MEMORY = 8 * 2**30
# Bytes of a result, and seconds that a worker may stop in the middle of one.
LARGEST, SILENCE = 4 * 2**30, 60

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
    code: str = ""
    """That of a `ProtaError`."""
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

    def send(self, job: Callable[[Any], Any], argument: Any, file: io.FileIO | None) -> None:
        path = argument if isinstance(argument, Path) else getattr(argument, "path", None)
        with contextlib.nullcontext(file) if path is None or file is not None else open_file(path) as found:
            self.connection.send_bytes(pickle.dumps((path, pickle.dumps((job, argument)))))
            if path is not None and found is not None:
                send_file(self.connection, found.fileno(), self.process.pid)

    def kill(self) -> int:
        """Kill the process and wait for it; returns its exit status."""
        self.process.kill()
        self.connection.close()
        return self.process.wait()


class DecodePool:
    """Runs a function in ``workers`` processes, with a ``timeout`` in seconds per item; a context manager.

    The function reads one file at most: its argument is a `Path`, or has one as ``path``. ``memory``: limit in bytes
    per process; 0: none.
    """

    def __init__(self, workers: int, timeout: float, memory: int = MEMORY) -> None:
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

    def submit(self, job: Callable[[Any], Any], key: Any, argument: Any, *, file: io.FileIO | None = None) -> None:
        """Send an item to a free worker; ``file``: that of its path, if it is open already."""
        worker = next(worker for worker in self._crew if worker.free)
        worker.busy, worker.key, worker.started = True, key, time.monotonic()
        try:
            worker.send(job, argument, file)
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
            message = worker.connection.recv_bytes(LARGEST)
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
        yield worker.key, _outcome_of(message)

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
            env=_environment(),
            **inherit(theirs.fileno()),
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    limit_silence(ours, SILENCE)
    return _Worker(process, ours)


def _environment() -> dict[str, str]:
    """Without keys, and with one thread for matrix products: threads that run already are not confined."""
    secret = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)
    environment = {name: value for name, value in os.environ.items() if not secret.search(name)}
    return environment | {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}


def _work() -> None:
    """The main function of a worker: runs jobs until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    # Crashes are expected here: no core dumps.
    limit_memory(int(sys.argv[3]))
    from prota.video.decode import load_decoders

    readable = tuple(load_decoders())
    try:
        connection.send_bytes(b"ready")
        while True:
            _answer(connection, readable)
    except (EOFError, OSError):
        # Not sys.exit: threads of a decoder may hang.
        os._exit(0)


def _answer(connection: Connection[Any, Any], readable: tuple[Path, ...]) -> None:
    path, work = pickle.loads(connection.recv_bytes())
    file = contextlib.nullcontext() if path is None else given(Path(path), receive_file(connection))
    started = time.monotonic()
    value, error, code, bug = None, None, "", ""
    with file:
        try:
            # Loaded apart: if importing the job fails, this item fails.
            job, argument = pickle.loads(work)
            _confine(readable)
            value = job(argument)
        except BaseException as failure:
            error = _line(failure)
            code = failure.code if isinstance(failure, ProtaError) else ""
            bug = "" if isinstance(failure, ProtaError | OSError | MemoryError) else traceback.format_exc()
    seconds = time.monotonic() - started
    try:
        message = _dumps((value, error, seconds, code, bug))
    except (AttributeError, TypeError, ValueError, pickle.PicklingError) as failure:
        message = _dumps((None, f"cannot send the result back: {_line(failure)}", seconds, "", ""))
    connection.send_bytes(message)


@cache
def _confine(readable: tuple[Path, ...]) -> None:
    """Before the first job runs, and after its module is imported."""
    reason = confine(readable)
    if reason != unconfined():
        print(f"warning: decoding is not confined: {reason}", file=sys.stderr)
    # What is imported is kept for good: a garbage collection after each file need not look at it.
    gc.freeze()
    # Threads that start later are confined, too.
    end_with(int(sys.argv[2]))


class _Pickler(pickle.Pickler):
    """Writes arrays as `_array`, which reads nothing but numbers."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            numbers: Any = np.ascontiguousarray(value)
            return _array, (value.dtype.str, value.shape, pickle.PickleBuffer(numbers))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Reads what a confined worker may have forged: arrays, plain values and frozen dataclasses of this package."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, "_array"):
            return _array
        found = getattr(sys.modules.get(module), name, None) if module.startswith("prota.") else None
        if isinstance(found, type) and dataclasses.is_dataclass(found) and found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not data")


def _array(kind: str, shape: tuple[int, ...], data: bytes | bytearray) -> np.ndarray[Any, Any]:
    dtype = np.dtype(str(kind))
    if dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"no array of numbers: {kind!r}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _dumps(message: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(message)
    return file.getvalue()


def _outcome_of(message: bytes) -> Outcome:
    try:
        value, error, seconds, code, bug = _Unpickler(io.BytesIO(message)).load()
        return Outcome(value, None if error is None else str(error), float(seconds), str(code), str(bug))
    except Exception as invalid:
        # Invalid pickles raise errors of any type.
        return Outcome(None, f"the decoder sent an invalid result: {_line(invalid)}", 0.0)


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
