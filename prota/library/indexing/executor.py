"""Executors fingerprint, read and encode files: on this machine, or on a cluster (`prota.cluster.executor`).

Worker processes import this module, so it does not import torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Protocol

from prota.library.indexing.reading import ReadRequest, VideoContent, read_video, remaining
from prota.library.records import SegmentBatch, VideoRecord
from prota.video.timeline import DecodeError
from prota.video.walk import FoundFile, content_id
from prota.workers.process_pool import DecodePool, Outcome

__all__ = ["LOOK", "Event", "Executor", "Failed", "Fingerprint", "LocalExecutor", "Part", "Read", "Task"]
__all__ += ["fingerprint", "part_of"]

LOOK = 0.2
"""Seconds after which an executor without events yields an empty list, so that its caller can cancel."""


@dataclass(frozen=True)
class Read:
    """A task: read and encode a part of a file."""

    record: VideoRecord
    request: ReadRequest


@dataclass(frozen=True)
class Fingerprint:
    """A file whose content was hashed."""

    record: VideoRecord


@dataclass(frozen=True)
class Part:
    """Encoded segments of a file: all of a short one, some of a long one."""

    record: VideoRecord
    """Of the file, with the number of all its segments."""
    first: int
    """The number of the first segment in this part."""
    count: int
    rest: tuple[ReadRequest, ...] = ()
    """With the first part: the requests for the others."""
    segments: SegmentBatch | None = None
    """None if a worker has written them."""
    fragments: tuple[str, ...] = ()
    """From `write_segments`, if a worker has. Parts of one list of events may share them."""


@dataclass(frozen=True)
class Failed:
    """A file that cannot be read."""

    record: VideoRecord
    """Without an id if the content could not be hashed."""
    reason: str


Task = FoundFile | Read
"""A file to fingerprint, or a part to read."""
Event = Fingerprint | Part | Failed


class Executor(Protocol):
    """Runs the tasks of an indexing run."""

    def run(self, tasks: deque[Task]) -> Generator[list[Event], None, None]:
        """Run tasks from the left of the deque as there is room, until all are done; yield the events.

        The caller may add tasks while it iterates, and cancels by closing the generator, which yields an empty list
        every `LOOK` seconds. Events of one list must be committed together.
        """
        ...


def fingerprint(found: FoundFile) -> Fingerprint | Failed:
    """Hash a file."""
    try:
        return Fingerprint(VideoRecord.of(found, content_id(found.path)))
    except DecodeError as error:
        return Failed(VideoRecord.of(found, ""), str(error))


def part_of(task: Read, outcome: Outcome) -> Part | Failed:
    """The part of a finished read, still without segments; RuntimeError for a bug, as opposed to a bad file."""
    if outcome.bug:
        raise RuntimeError(f"cannot read {task.record.path} because of a bug:\n{outcome.bug}")
    if outcome.error is not None:
        return Failed(task.record, outcome.error)
    content: VideoContent = outcome.value
    record = replace(
        task.record, duration=content.duration, width=content.width, height=content.height, fps=content.fps,
        codec=content.codec, segments=content.total,
    )  # fmt: skip
    rest = remaining(task.request, content) if content.first == 0 else ()
    return Part(record, content.first, len(content), tuple(rest))


class LocalExecutor:
    """Reads in worker processes of this machine, and encodes in this process."""

    def __init__(
        self, encode: Callable[[str, VideoContent], SegmentBatch], *, workers: int = 1, timeout: float = 300.0
    ) -> None:
        self.encode, self.workers, self.timeout = encode, workers, timeout

    def run(self, tasks: deque[Task]) -> Generator[list[Event], None, None]:
        """See `Executor`."""
        if not tasks:
            return
        done: list[tuple[Read, Outcome]] = []
        with DecodePool(self.workers, self.timeout) as pool:
            while tasks or pool.busy or done:
                while tasks and pool.has_room():
                    task = tasks.popleft()
                    if isinstance(task, Read):
                        pool.submit(read_video, task, task.request)
                    else:
                        # Not in a worker: the time limit of decoding does not apply to hashing.
                        yield [fingerprint(task)]
                # After submitting: the workers read the next parts while this process encodes.
                for read, outcome in done:
                    yield [self._encoded(read, outcome)]
                done = pool.collect(LOOK)
                if not done:
                    yield []

    def _encoded(self, task: Read, outcome: Outcome) -> Part | Failed:
        part = part_of(task, outcome)
        if isinstance(part, Failed):
            return part
        return replace(part, segments=self.encode(task.record.video_id, outcome.value))
