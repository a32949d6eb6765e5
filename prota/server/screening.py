"""What clients see of videos, decoded in worker processes: frames, and parts to play.

Results are kept in memory up to a size, so that nothing can be left on the disk.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from prota.library.records import VideoRecord
from prota.server.media import Originals
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError
from prota.server.queueing import BoundedPool, LruCache
from prota.video.cut import Clip, CutRequest, cut_clip
from prota.video.showing import PART, FrameRequest, Part, PartRequest, Playing, Plays, frame_jpeg, playing, video_part
from prota.video.source import CLOSE
from prota.workers.process_pool import DecodePool, Outcome

__all__ = ["WIDTHS", "Screening"]

# Widths of frames in pixels: a few, so that frames are found again.
WIDTHS = (160, 320, 480, 640, 960, 1280, 1920)
# Bytes of frames, of parts and of clips that are kept, and videos of which it is kept how they play.
_FRAMES, _PARTS, _CLIPS, _VIDEOS = 64 * 2**20, 192 * 2**20, 64 * 2**20, 10_000
# Seconds of a clip to download.
_LONGEST_CLIP = 600.0
# Frames that are decoded at a time, parts, and how many requests may wait for each.
_FRAMES_AT_ONCE, _PARTS_AT_ONCE, _WAITING = 1, 2, 200
# Seconds between two looks at whether a client is still there; that an abandoned job may take to end by itself;
# and without requests, after which worker processes end.
_LOOK, _GRACE, _IDLE = 0.2, 1.0, 20.0

A = TypeVar("A")
B = TypeVar("B", bound=Hashable)


@dataclass
class _Job:
    task: asyncio.Task[Any]
    left: threading.Event
    """Set when no client waits any more."""
    waiting: int = 0


class _Workers:
    """Runs jobs in worker processes, which are kept for a while. Equal jobs at one time are one."""

    def __init__(self, name: str, count: int, timeout: float, memory: int) -> None:
        self.timeout, self.memory = timeout, memory
        self.threads = BoundedPool(name, count, _WAITING)
        self._jobs: dict[Hashable, _Job] = {}
        self._idle: list[DecodePool] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._rest: asyncio.TimerHandle | None = None

    def close(self) -> None:
        self._closed.set()
        if self._rest is not None:
            self._rest.cancel()
        self.threads.close()
        self._end_idle()

    async def run(self, request: Request, key: Hashable, work: Callable[[threading.Event], Any]) -> Any:
        """The result of work in a thread. It is given an event, which is set when all clients that wait have left."""
        job = self._jobs.get(key)
        if job is None:
            left = threading.Event()
            job = self._jobs[key] = _Job(asyncio.create_task(self._start(work, left)), left)
        job.waiting += 1
        try:
            while not (await asyncio.wait({job.task}, timeout=_LOOK))[0]:
                if await request.is_disconnected():
                    raise _abandoned()
            return job.task.result()
        finally:
            job.waiting -= 1
            if not job.waiting:
                job.left.set()
                del self._jobs[key]
                # Its error is not reported again.
                job.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _start(self, work: Callable[[threading.Event], Any], left: threading.Event) -> Any:
        with self.threads.slot():
            if self._rest is not None:
                self._rest.cancel()
            try:
                return await self.threads.run(lambda: work(left))
            finally:
                self._rest = asyncio.get_running_loop().call_later(_IDLE, self._end_idle)

    def decode(self, job: Callable[[Any], Any], argument: Any, file: FileIO, left: threading.Event) -> Outcome:
        """Run a job about an open file in a worker process, from a thread."""
        with self._lock:
            pool = self._idle.pop() if self._idle else DecodePool(1, self.timeout, self.memory)
        with ExitStack() as stack:
            stack.enter_context(pool)
            outcome = self._wait(pool, partial(pool.submit, job, None, argument, file=file), left)
            with self._lock:
                if not self._closed.is_set():
                    # Kept, with its process.
                    self._idle.append(pool)
                    stack.pop_all()
        return outcome

    def _wait(self, pool: DecodePool, submit: Callable[[], None], left: threading.Event) -> Outcome:
        submitted, until = False, math.inf
        while True:
            if self._closed.is_set() or time.monotonic() > until or (left.is_set() and not submitted):
                raise _abandoned()
            if left.is_set():
                until = min(until, time.monotonic() + _GRACE)
            if not submitted and pool.has_room():
                submit()
                submitted = True
            for _, outcome in pool.collect(_LOOK):
                return outcome

    def _end_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for pool in idle:
            pool.__exit__(None, None, None)


def _abandoned() -> ProblemError:
    return ProblemError(503, "the client has left, or the server is closing")


class _Decoding(Generic[B, A]):
    """One kind of job about videos, with results that are kept."""

    def __init__(self, job: Callable[[B], A], workers: _Workers, kept: LruCache[A]) -> None:
        self.job, self.workers, self.kept = job, workers, kept

    async def get(self, request: Request, originals: Originals, record: VideoRecord, wanted: B) -> A:
        key = record.video_id, wanted
        if (known := self.kept.get(key)) is not None:
            # Not of a file that is gone, or is another.
            with await asyncio.to_thread(originals.open, record):
                return known

        def work(left: threading.Event) -> A:
            if left.is_set():
                raise _abandoned()
            with originals.open(record) as file:
                outcome = self.workers.decode(self.job, wanted, file, left)
            if outcome.error is None:
                value: A = outcome.value
                return value
            reason = outcome.error.removeprefix(f"{record.path}: ").replace(record.path, "the file")
            raise ProblemError(422, f"cannot decode the file: {reason}")

        result: A = await self.workers.run(request, key, work)
        self.kept.put(key, result)
        return result


class Screening:
    """Frames and parts of videos, and how videos play."""

    def __init__(self, originals: Originals, options: ServerOptions) -> None:
        self._originals = originals
        memory = options.decode_memory
        self._looking = _Workers("prota-frames", _FRAMES_AT_ONCE, options.decode_timeout, memory)
        self._making = _Workers("prota-parts", _PARTS_AT_ONCE, options.play_timeout, memory)
        self._ways = _Decoding(playing, self._looking, LruCache[Playing](_VIDEOS))
        self._frames = _Decoding(frame_jpeg, self._looking, LruCache[bytes](_FRAMES, len))
        self._parts = _Decoding(video_part, self._making, LruCache[Part](_PARTS, lambda part: len(part.data)))
        self._clips = _Decoding(cut_clip, self._making, LruCache[Clip](_CLIPS, lambda clip: len(clip.content)))

    @property
    def rejected(self) -> int:
        return self._looking.threads.rejected + self._making.threads.rejected

    def close(self) -> None:
        self._looking.close()
        self._making.close()

    async def playing(self, request: Request, record: VideoRecord) -> Playing:
        """How browsers play a video; ProblemError for a picture."""
        if record.kind == "picture":
            raise ProblemError(422, "a picture does not play")
        return await self._ways.get(request, self._originals, record, Path(record.path))

    async def frame(self, request: Request, record: VideoRecord, seconds: float, width: int) -> bytes:
        """The frame at a time as JPEG; ProblemError 422 if the video has ended by then."""
        _check(record, "t", seconds)
        wide = next((size for size in WIDTHS if size >= width), WIDTHS[-1])
        wanted = FrameRequest(Path(record.path), round(seconds, 3), wide)
        return await self._frames.get(request, self._originals, record, wanted)

    async def part(self, request: Request, record: VideoRecord, start: float) -> Part:
        """The part of a video that a time is in; ProblemError 422 if the video has ended by then."""
        _check(record, "start", start)
        plays = (await self.playing(request, record)).plays
        number = min(int((start + CLOSE) / PART), max(0, math.ceil(record.duration / PART) - 1))
        # A browser that asks for parts of an original cannot play that.
        way: Plays = "remuxed" if plays == "remuxed" else "transcoded"
        wanted = PartRequest(Path(record.path), number, way, record.duration)
        return await self._parts.get(request, self._originals, record, wanted)

    async def clip(self, request: Request, record: VideoRecord, *, start: float, end: float, exact: bool) -> Clip:
        """A moment as a file; ProblemError 422 if there is none, or it is too long."""
        _check(record, "start", start)
        if record.kind == "picture":
            raise ProblemError(422, "a picture has no clips")
        if not start < end <= start + _LONGEST_CLIP:
            raise ProblemError(422, f"end: must be after start, and at most {_LONGEST_CLIP:g} seconds later")
        wanted = CutRequest(Path(record.path), round(start, 3), round(end, 3), exact)
        return await self._clips.get(request, self._originals, record, wanted)


def _check(record: VideoRecord, name: str, seconds: float) -> None:
    if seconds > record.duration + CLOSE:
        end = f"the video ends at {record.duration:.3f} s" if record.duration else "a picture has no other times than 0"
        raise ProblemError(422, f"{name}: {end}")
