"""Index on a Ray cluster: workers hash and read files, actors encode them and write fragments, this process commits.

    fingerprint (task) → here: decide → read (task with a decoder process) → encode and write (actor) → here: commit

Frames stay in Ray's object store, which spills to disk; this process holds references. Ray reruns the tasks of dead
workers and machines. Only returned results are committed, so nothing is duplicated; unreferenced fragments are garbage.

Only hashing and reading reserve a core. An encoder that reserved one could wait for frames of a dead machine, while no
core is left to read them again.

Ray's workers import this module. Readers do not need torch, so it is imported in functions.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from prota.errors import ClusterError, ProtaError, one_line
from prota.library.indexing import IndexOptions
from prota.library.indexing.executor import LOOK, Event, Failed, Fingerprint, Part, Read, Task, fingerprint, part_of
from prota.library.indexing.reading import PART, VideoContent, read_video
from prota.library.records import LibraryError, ModelStamp
from prota.library.storage.location import Location
from prota.video.walk import FoundFile
from prota.workers.process_pool import DecodePool

if TYPE_CHECKING:
    from prota.library.storage.writer import Writer
    from prota.model.prota import ProTA

__all__ = ["RayExecutor"]

# Segments of short videos per call of an encoder, written as one fragment.
CALL_SEGMENTS = 16
# Calls per encoder: a running one and the next one.
CALLS = 2
# Restarts of an encoder by Ray; an encoder that always dies ends the run.
RESTARTS = 20
# Seconds without a result after losing a machine, before the run fails: an encoder may wait for a GPU of that machine,
# together with its calls.
LOST = 600.0

Ref = Any
"""A reference to an object in Ray's store."""


class RayExecutor:
    """See `prota.library.indexing.executor.Executor`; the process is connected to a cluster.

    ``decoders``, ``encoders``: maximum numbers; 0: by the resources of the cluster.
    """

    def __init__(
        self,
        writer: Writer,
        model: ProTA,
        options: IndexOptions,
        *,
        device: str = "auto",
        decoders: int = 0,
        encoders: int = 0,
    ) -> None:
        resources = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device not in ("auto", "cpu") and not gpus:
            raise LibraryError(f"the cluster has no GPU for --device {device}: omit it or give cpu")
        cores = max(1, int(resources.get("CPU", 1)))
        # More tasks than cores, so that Ray always has a next one.
        self.decoders, self.encoders = decoders or 2 * cores, encoders or gpus or cores
        self._timeout = options.timeout
        self._fingerprint = _remote(fingerprint_here, num_cpus=1, max_retries=-1)
        self._read = _remote(read_part, num_cpus=1, max_retries=-1, num_returns=2)
        self._encoder = _remote(Encoder, num_cpus=0, num_gpus=min(gpus, 1), max_restarts=RESTARTS, max_task_retries=-1)
        # In a list, so that encoders fetch the model themselves, also after a restart.
        shared = [ray.put(model.to("cpu"))]
        self._arguments = writer.location.absolute(), writer.stamp, shared, "cuda" if gpus else "cpu"
        self._pending: dict[Ref, Callable[[Any], list[Event]]] = {}
        """The handler of each result."""
        self._tasks = 0
        """Submitted tasks: files to hash and parts to read."""
        self._parts: deque[tuple[Part, Ref]] = deque()
        """Parts with their contents that wait for an encoder."""
        self._segments = 0
        """Segments that were read and are not yet encoded."""
        self._calls: dict[Any, int] = {}
        """Calls per encoder."""
        self._starting: Any = None
        """An encoder that is loading its model."""

    def run(self, tasks: deque[Task]) -> Generator[list[Event], None, None]:
        """See `Executor`."""
        machines, heard = _machines(), time.monotonic()
        try:
            while tasks or self._pending or self._parts:
                self._submit(tasks)
                self._encode()
                done = _done(list(self._pending))
                for ref in done:
                    yield self._pending.pop(ref)(_result(ref))
                if done:
                    heard = time.monotonic()
                    continue
                if time.monotonic() - heard > LOST and _machines() < machines:
                    raise ClusterError(
                        "the cluster lost a machine and has returned no result since", hint="the same command resumes"
                    )
                yield []
        finally:
            self._stop()

    def _submit(self, tasks: deque[Task]) -> None:
        """Submit as many tasks as there is room for; their frames must fit into memory."""
        while tasks and self._tasks < self.decoders and self._segments < PART * CALLS * self.encoders:
            task = tasks.popleft()
            if isinstance(task, FoundFile):
                self._pending[self._fingerprint.remote(task)] = self._hashed
            else:
                part, content = self._read.remote(task, self._timeout)
                self._pending[part] = partial(self._was_read, content)
                if not self._calls:
                    self._start_encoder()
            self._tasks += 1

    def _hashed(self, result: tuple[Fingerprint | Failed, str]) -> list[Event]:
        self._tasks -= 1
        event, machine = result
        if machine and os.path.lexists(event.record.path):
            raise LibraryError(
                f"machine {machine} cannot access {event.record.path}: "
                "all machines of the cluster must have the videos under the same path"
            )
        return [event]

    def _was_read(self, content: Ref, part: Part | Failed) -> list[Event]:
        self._tasks -= 1
        if isinstance(part, Failed):
            return [part]
        self._parts.append((part, content))
        self._segments += part.count
        return []

    def _encode(self) -> None:
        """Distribute parts evenly over encoders."""
        while self._parts and self._calls:
            encoder = min(self._calls, key=self._calls.__getitem__)
            if self._calls[encoder] == CALLS:
                self._start_encoder()
                return
            share, some, count = -(-len(self._parts) // self.encoders), list[tuple[Part, Ref]](), 0
            while self._parts and len(some) < share and (not some or count + self._parts[0][0].count <= CALL_SEGMENTS):
                some.append(self._parts.popleft())
                count += some[-1][0].count
            result = encoder.encode.remote([part for part, _ in some], *(content for _, content in some))
            self._pending[result] = partial(self._encoded, encoder, count)
            self._calls[encoder] += 1

    def _encoded(self, encoder: Any, segments: int, events: list[Event]) -> list[Event]:
        self._calls[encoder] -= 1
        self._segments -= segments
        return events

    def _start_encoder(self) -> None:
        """Start one encoder at a time, so that no calls are given to encoders that wait for a GPU."""
        if self._starting is None and len(self._calls) < self.encoders:
            self._starting = self._encoder.remote(*self._arguments)
            self._pending[self._starting.check_library.remote()] = self._started

    def _started(self, _: None) -> list[Event]:
        self._calls[self._starting], self._starting = 0, None
        return []

    def _stop(self) -> None:
        for encoder in (*self._calls, *filter(None, [self._starting])):
            ray.kill(encoder)
        for ref in self._pending:
            # Calls of ended encoders cannot be cancelled.
            with suppress(ValueError, TypeError):
                ray.cancel(ref, force=True)


def _remote(what: Any, **options: Any) -> Any:
    return ray.remote(what).options(scheduling_strategy="SPREAD", **options)


def _machines() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


def _done(pending: list[Ref]) -> list[Ref]:
    """The finished results, after at most `LOOK` seconds."""
    done, _ = ray.wait(pending, timeout=LOOK, fetch_local=False)
    return ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)[0] if done else []


def _result(ref: Ref) -> Any:
    try:
        return ray.get(ref)
    except RayError as error:
        raise _explained(error) from error


def _explained(error: Exception) -> Exception:
    """The cause of an error on the cluster: an error that the user can fix, a bug, or the cluster itself."""
    inner: Any = error
    while inner is not None:
        if isinstance(inner, ProtaError) and not isinstance(inner, RayError):
            return inner
        inner = getattr(inner, "cause", None) or inner.__cause__
    bug = isinstance(error, RayTaskError)
    return error if bug else ClusterError(f"the cluster failed: {one_line(error)}", hint="the same command resumes")


def fingerprint_here(found: FoundFile) -> tuple[Fingerprint | Failed, str]:
    """A task: hash a file; also returns the name of this machine if the file is missing here."""
    return fingerprint(found), "" if os.path.lexists(found.path) else platform.node()


@cache
def _pool(timeout: float) -> DecodePool:
    """The decoder process of this worker, reused by its tasks."""
    return DecodePool(1, timeout)


def read_part(task: Read, timeout: float) -> tuple[Part | Failed, VideoContent | None]:
    """A task: read a part of a file."""
    [(_, outcome)] = _pool(timeout).run(read_video, [(task, task.request)])
    part = part_of(task, outcome)
    return part, outcome.value if isinstance(part, Part) else None


class Encoder:
    """An actor with a model, which encodes parts and writes them to the library."""

    def __init__(self, location: Location, stamp: ModelStamp, model: list[Ref], device: str) -> None:
        import torch

        # There may be one encoder per core.
        torch.set_num_threads(1)
        self.location, self.stamp, self.device = location, stamp, device
        self.model = ray.get(model[0]).to(torch.device(device)).eval()
        self._checked = False

    def check_library(self) -> None:
        """LibraryError unless this machine sees the library: its fragments would be lost."""
        from prota.library.storage.reader import Snapshot

        if self._checked:
            return
        try:
            Snapshot.open(self.location).check_model(self.stamp)
        except LibraryError as error:
            raise LibraryError(
                f"machine {platform.node()} cannot access the library ({error})",
                hint="use a folder that all machines share, or object storage",
            ) from None
        self._checked = True

    def encode(self, parts: Sequence[Part], *contents: VideoContent | None) -> list[Event]:
        """Encode and write parts: whole videos share a fragment, a part of a long video has its own."""
        # Once per process: a restart may be on another machine.
        self.check_library()
        events: list[Event] = []
        whole: list[tuple[Part, VideoContent]] = []
        for part, content in zip(parts, contents, strict=True):
            if content is None or (len(content), content.total) != (part.count, part.record.segments):
                # Read again after a machine was lost, with another result.
                events.append(Failed(part.record, "changed while being read; index it again"))
            elif part.count == part.record.segments:
                whole.append((part, content))
            else:
                events += self._written([(part, content)])
        return [*events, *self._written(whole)]

    def _written(self, given: Sequence[tuple[Part, VideoContent]]) -> list[Part]:
        from prota.library.storage.writer import write_segments
        from prota.library.tokens import encode_videos

        videos = [(part.record.video_id, content) for part, content in given]
        # On a CPU one by one, which is as fast and bit-equal to a single machine.
        groups = [videos] if videos and self.device != "cpu" else [[video] for video in videos]
        batches = [batch for group in groups for batch in encode_videos(self.model, group)]
        records = [part.record for part, _ in given]
        fragments = write_segments(self.location, self.stamp, list(zip(records, batches, strict=True)))
        return [replace(part, fragments=tuple(fragments)) for part, _ in given]
