"""The work of an indexing run: files that look new are read and encoded, here on this machine.

`prota.library.indexing` keeps the books and asks for the work; `prota.cluster.indexing` does the same work on many
machines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from prota.library.encoding import encode_video
from prota.library.reading import ReadRequest, VideoContent, read_video, remaining
from prota.library.records import SegmentBatch, VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.storage.writer import Writer
from prota.model.prota import ProTA
from prota.video.walk import FoundFile, content_id
from prota.workers.process_pool import DecodePool, Outcome

__all__ = ["Books", "Finished", "IndexOptions", "LocalWork", "Part", "Verdict", "Work", "described"]

Verdict = Literal["read", "done", "later"]
"""What to do with a file: read it, nothing, or ask again when the files that are being read are finished."""


@dataclass(frozen=True)
class IndexOptions:
    """How videos are read."""

    plan: SegmentPlan = field(default_factory=SegmentPlan)
    workers: int = 1
    timeout: float = 300.0
    """Seconds that a part of a video may take to decode."""
    prune: bool = False
    """Remove videos whose files are gone, instead of marking them."""
    retry: bool = False
    """Try bad files again."""
    pictures: bool = True
    """Index pictures, too. False removes none from the library."""
    within: tuple[str, ...] = ()
    """Real paths of folders; a file that a link leads to from elsewhere is passed over. Empty: none is."""


@dataclass(frozen=True)
class Part:
    """What became of some segments of a file, of all of them where it is short."""

    record: VideoRecord
    """Of the file; it knows the number of all segments."""
    first: int = 0
    """The number of the first segment that is here."""
    count: int = 0
    segments: SegmentBatch | None = None
    """The segments themselves; None where they are written already."""
    fragments: tuple[str, ...] = ()
    """Where they are written, see `fragments`; parts that come together may share what one of them has."""
    error: str = ""
    """Why there are none."""


Finished = tuple[VideoRecord, list[Part]]
"""A video with all its parts, in their order."""


class Books(Protocol):
    """What the bookkeeping of a run knows of a file, by its content."""

    def examine(self, found: FoundFile, video_id: str) -> Verdict:
        """Whether a file must be read; where it is done, its record is kept."""
        ...

    def begin(self, found: FoundFile, video_id: str) -> VideoRecord:
        """A file is going to be read: copies of it are to wait. To be told of its parts is enough otherwise."""
        ...

    def contents(self) -> Collection[str]:
        """What the library has."""
        ...

    def unreadable(self, found: FoundFile, reason: str) -> None:
        """A file has no content that could be looked at."""
        ...

    def should_stop(self) -> bool:
        """Whether the run is to end now."""
        ...


class Work(Protocol):
    """Reads and encodes files, and saves what came of them."""

    def run(self, files: deque[FoundFile], books: Books) -> Iterator[Sequence[Part]]:
        """What becomes of the files, as it is done. Parts that come together are saved together.

        Nothing comes of a file after an error. It also comes up for air without any part, so that the caller can look
        around.
        """
        ...

    def save(
        self, writer: Writer, finished: Sequence[Finished], others: Sequence[VideoRecord], remove: Collection[str]
    ) -> None:
        """One commit: videos with their segments, records without any, and paths that leave."""
        ...


def described(record: VideoRecord, content: VideoContent) -> VideoRecord:
    """A record with what was seen when its file was opened."""
    return replace(
        record, duration=content.duration, width=content.width, height=content.height, fps=content.fps,
        codec=content.codec, segments=content.total,
    )  # fmt: skip


@dataclass
class _Open:
    """A file that is being read."""

    record: VideoRecord
    request: ReadRequest
    """Of its first part."""
    missing: int = 1
    """Parts that are still to come, as far as known."""


class LocalWork:
    """Files are decoded in worker processes of this machine while its model encodes."""

    def __init__(
        self,
        model: ProTA,
        options: IndexOptions,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model, self.options, self.autocast = model, options, autocast
        self._queue: deque[tuple[FoundFile, str]] = deque()
        """Files, and their contents where they were looked at before."""
        self._later: list[tuple[FoundFile, str]] = []
        self._parts: deque[ReadRequest] = deque()
        """What is still to be read of videos whose first part is encoded."""
        self._open: dict[str, _Open] = {}

    def run(self, files: deque[FoundFile], books: Books) -> Iterator[Sequence[Part]]:
        """See `Work`."""
        self._queue.extend((found, "") for found in files)
        with DecodePool(self.options.workers, self.options.timeout) as pool:
            # Again, where the last file turned out to be long when there was nothing left to ask for.
            while (self._queue or self._parts) and not books.should_stop():
                for key, outcome in pool.run(read_video, self._requests(books)):
                    path, first = key.rsplit("\n", 1)
                    yield [self._encoded(self._open[path], int(first), outcome)] if path in self._open else []
                if not self._parts:
                    self._queue.extend(self._later)
                    self._later = []

    def save(
        self, writer: Writer, finished: Sequence[Finished], others: Sequence[VideoRecord], remove: Collection[str]
    ) -> None:
        """See `Work`."""
        records = [*(record for record, _ in finished), *others]
        writer.commit(records, [_joined(parts) for _, parts in finished], remove=remove)

    def _requests(self, books: Books) -> Iterator[tuple[str, ReadRequest]]:
        """What has to be read. A long video is finished first, while a worker still knows where its frames are."""
        while (self._parts or self._queue) and not books.should_stop():
            request = self._parts.popleft() if self._parts else self._next(books)
            if request is not None:
                yield f"{request.path}\n{request.first}", request

    def _next(self, books: Books) -> ReadRequest | None:
        """The first part of the next file, if it has to be read."""
        found, video_id = self._queue.popleft()
        try:
            video_id = video_id or content_id(found.path)
        except (OSError, ValueError) as error:
            books.unreadable(found, str(error))
            return None
        verdict = books.examine(found, video_id)
        if verdict == "later":
            self._later.append((found, video_id))
        if verdict != "read":
            return None
        encoder = self.model.config.encoder
        request = ReadRequest(str(found.path), self.options.plan, encoder.image_size, encoder.picture)
        self._open[str(found.path)] = _Open(books.begin(found, video_id), request)
        return request

    def _encoded(self, file: _Open, first: int, outcome: Outcome) -> Part:
        record, content = file.record, outcome.value
        if outcome.error is not None or not isinstance(content, VideoContent):
            return self._given_up(record, outcome.error or "nothing was read")
        try:
            segments = encode_video(self.model, record.video_id, content, autocast=self.autocast)
        except ValueError as error:
            return self._given_up(record, str(error))
        if first == 0:
            more = remaining(file.request, content)
            self._parts.extend(more)
            file.missing += len(more)
        file.missing -= 1
        if not file.missing:
            del self._open[record.path]
        return Part(described(record, content), first, len(content), segments)

    def _given_up(self, record: VideoRecord, reason: str) -> Part:
        """Forget what was still to be read of a file."""
        del self._open[record.path]
        self._parts = deque(request for request in self._parts if str(request.path) != record.path)
        return Part(record, error=reason)


def _joined(parts: Sequence[Part]) -> SegmentBatch:
    batches = [part.segments for part in parts if part.segments is not None]
    if len(batches) == 1:
        return batches[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("start", "end", "times", "direction", "weight", "mask", "pooled")
    }
    spreads = [batch.spread for batch in batches if batch.spread is not None]
    spread = np.concatenate(spreads) if spreads else None
    thumbnails = tuple(picture for batch in batches for picture in batch.thumbnails)
    return SegmentBatch(video_id=batches[0].video_id, spread=spread, thumbnails=thumbnails, **arrays)
