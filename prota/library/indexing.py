"""Bringing a library up to date with folders of videos: what is new is read and encoded, what is known is not.

Files are decoded in worker processes while the model encodes; what is finished is committed every few seconds. A run
that is stopped or killed loses at most what was not yet committed, and the next one goes on from there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from prota.frames.pool import DecodePool, Outcome
from prota.library.encoding import encode_video
from prota.library.reading import ReadRequest, VideoContent, read_video, remaining
from prota.library.records import LibraryError, SegmentBatch, VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.store import Store
from prota.library.walk import FoundFile, Unreadable, below, content_id, walk
from prota.model import ProTA

__all__ = ["IndexOptions", "IndexReport", "Indexer"]

# What is finished waits at most so long, or so many videos, to be committed.
_COMMIT_SECONDS, _COMMIT_VIDEOS = 5.0, 16


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
    within: tuple[str, ...] = ()
    """Real paths of folders; a file that a link leads to from elsewhere is passed over. Empty: none is."""


@dataclass
class IndexReport:
    """What an indexing run did."""

    indexed: int = 0
    unchanged: int = 0
    moved: int = 0
    duplicates: int = 0
    """Files whose content is in the library already, at another path."""
    bad: dict[str, str] = field(default_factory=dict)
    """Path → reason."""
    gone: int = 0
    segments: int = 0
    seconds: float = 0.0
    """Of video that was encoded."""
    found: int = 0
    """Files that were found, readable or not."""
    bytes_new: int = 0
    """Of files that look new and are to be read: how long a video is shows only when it is opened."""
    bytes_done: float = 0.0
    """Of those, the ones that were dealt with; of a long video, the share of its segments that are encoded."""
    finished: bool = False

    @property
    def done(self) -> int:
        return self.indexed + self.unchanged + self.moved + self.duplicates + len(self.bad)


@dataclass
class _Reading:
    """A video of which parts are still to come."""

    record: VideoRecord
    request: ReadRequest
    """Of its first part."""
    parts: dict[int, SegmentBatch] = field(default_factory=dict)
    total: int = 0

    @property
    def encoded(self) -> int:
        return sum(len(part) for part in self.parts.values())

    @property
    def complete(self) -> bool:
        return self.encoded >= self.total

    def joined(self) -> SegmentBatch:
        parts = [self.parts[first] for first in sorted(self.parts)]
        if len(parts) == 1:
            return parts[0]
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("start", "end", "times", "direction", "weight", "mask", "pooled")
        }
        spreads = [part.spread for part in parts if part.spread is not None]
        spread = np.concatenate(spreads) if spreads else None
        thumbnails = tuple(picture for part in parts for picture in part.thumbnails)
        return SegmentBatch(video_id=self.record.video_id, spread=spread, thumbnails=thumbnails, **arrays)


class Indexer:
    """One run over one library that is open for writing."""

    def __init__(
        self,
        store: Store,
        model: ProTA,
        options: IndexOptions | None = None,
        report: Callable[[IndexReport], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.store, self.model = store, model
        most = model.config.encoder.frames
        self.options = options or IndexOptions(SegmentPlan(most))
        if self.options.plan.frames > most:
            raise LibraryError(
                f"{self.options.plan.frames} frames a segment are too many; the model takes {most} at most"
            )
        self.notify, self.should_stop, self.autocast = report, should_stop, autocast
        self.result = IndexReport()
        self._records = {record.path: record for record in store.videos()}
        self._by_content = {record.video_id: record for record in self._records.values() if record.state != "bad"}
        self._reading: dict[str, _Reading] = {}
        self._parts: deque[ReadRequest] = deque()
        """What is still to be read of videos whose first part is encoded."""
        self._finished: list[tuple[VideoRecord, SegmentBatch]] = []
        self._failed: list[VideoRecord] = []
        self._changed: list[VideoRecord] = []
        self._left: list[str] = []
        """Paths whose records a commit takes away."""
        self._seen: set[str] = set()
        self._committed = time.monotonic()

    def run(self, paths: Sequence[Path]) -> IndexReport:
        """Index all videos at and under ``paths``."""
        found = self._find(paths)
        with DecodePool(self.options.workers, self.options.timeout) as pool:
            self._decode(pool, self._requests(found))
            while self._parts and not self.should_stop():
                # The last file turned out to be long when there was nothing left to ask for.
                self._decode(pool, self._requests(deque()))
        stopped = self.should_stop()
        if not stopped:
            self._mark_gone(paths)
        self._commit()
        self.result.finished = not stopped
        return self.result

    def _find(self, paths: Sequence[Path]) -> deque[FoundFile]:
        """The files to look at, before the first of them is read: without them nobody knows how much there is to do."""
        files: deque[FoundFile] = deque()
        for found in walk(paths):
            if self.should_stop():
                break
            if self.options.within and not below(found.path, self.options.within):
                continue
            self.result.found += 1
            if isinstance(found, Unreadable):
                self.result.bad[str(found.path)] = found.reason
            else:
                self._seen.add(str(found.path))
                known = self._records.get(str(found.path))
                if known is not None and self._unchanged(known, found):
                    self.result.unchanged += 1
                else:
                    files.append(found)
                    self.result.bytes_new += found.size
            self.notify(self.result)
        return files

    def _requests(self, files: deque[FoundFile]) -> Iterator[tuple[str, ReadRequest]]:
        """What has to be read. A long video is finished first, while a worker still knows where its frames are."""
        while (self._parts or files) and not self.should_stop():
            if self._parts:
                yield _keyed(self._parts.popleft())
                continue
            found = files.popleft()
            request = self._examine(found, self._records.get(str(found.path)))
            if request is not None:
                yield _keyed(request)
            else:
                self.result.bytes_done += found.size
            self.notify(self.result)

    def _unchanged(self, known: VideoRecord, found: FoundFile) -> bool:
        if (known.size, known.modified) != (found.size, found.modified):
            return False
        return known.state == "indexed" or (known.state == "bad" and not self.options.retry)

    def _examine(self, found: FoundFile, known: VideoRecord | None) -> ReadRequest | None:
        """What a file that looks new or changed is, by its content; a request where it must be read."""
        path = str(found.path)
        record = VideoRecord("", path, found.size, found.modified, "indexed")
        try:
            record = replace(record, video_id=content_id(found.path))
        except (OSError, ValueError) as error:
            self._fail(record, str(error))
            return None
        if known is not None and known.video_id == record.video_id and known.state != "bad":
            # Touched, or back again, but the same: only its date is new.
            self._keep(replace(known, size=found.size, modified=found.modified, state="indexed"))
            self.result.unchanged += 1
            return None
        twin = self._by_content.get(record.video_id)
        if twin is not None:
            moved = not os.path.lexists(twin.path)
            if moved:
                self._left.append(twin.path)
                self._records.pop(twin.path, None)
                self.result.moved += 1
            else:
                self.result.duplicates += 1
            same = replace(twin, path=path, size=found.size, modified=found.modified, state="indexed")
            self._by_content[record.video_id] = same
            self._keep(same)
            return None
        if any(reading.record.video_id == record.video_id for reading in self._reading.values()):
            # Its twin is being read: known by the next run.
            self.result.duplicates += 1
            return None
        request = ReadRequest(path, self.options.plan, self.model.config.encoder.image_size)
        self._reading[path] = _Reading(record, request)
        return request

    def _decode(self, pool: DecodePool, items: Iterable[tuple[str, ReadRequest]]) -> None:
        for key, outcome in pool.run(read_video, items):
            path, first = key.rsplit("\n", 1)
            if path in self._reading:
                self._take(self._reading[path], int(first), outcome)
            self.notify(self.result)
            if self.should_stop():
                return

    def _take(self, reading: _Reading, first: int, outcome: Outcome) -> None:
        """Encode what was read; commit where enough has come together."""
        record, content = reading.record, outcome.value
        if outcome.error is not None or not isinstance(content, VideoContent):
            self._give_up(reading, outcome.error or "nothing was read")
            return
        try:
            part = reading.parts[first] = encode_video(self.model, record.video_id, content, self.autocast)
        except ValueError as error:
            self._give_up(reading, str(error))
            return
        if first == 0:
            reading.total = content.total
            self._parts.extend(remaining(reading.request, content))
        self.result.bytes_done += record.size * len(part) / content.total
        self.result.seconds += content.duration * len(part) / content.total
        reading.record = replace(
            record, duration=content.duration, width=content.width, height=content.height, fps=content.fps,
            codec=content.codec, segments=content.total,
        )  # fmt: skip
        if reading.complete:
            del self._reading[record.path]
            self._by_content[record.video_id] = reading.record
            self._records[record.path] = reading.record
            self._finished.append((reading.record, reading.joined()))
            self.result.indexed += 1
            self.result.segments += content.total
        if len(self._finished) >= _COMMIT_VIDEOS or time.monotonic() - self._committed > _COMMIT_SECONDS:
            self._commit()

    def _give_up(self, reading: _Reading, reason: str) -> None:
        """Forget what was read of a file, and what was still to be read of it."""
        record = reading.record
        del self._reading[record.path]
        self._parts = deque(request for request in self._parts if str(request.path) != record.path)
        share = reading.encoded / max(1, reading.total)
        self.result.bytes_done += record.size * (1 - share)
        self.result.seconds -= record.duration * share
        self._fail(record, reason)

    def _keep(self, record: VideoRecord) -> None:
        self._records[record.path] = record
        self._changed.append(record)

    def _fail(self, record: VideoRecord, reason: str) -> None:
        line = " ".join(reason.split()).removeprefix(f"{record.path}: ")
        self.result.bad[record.path] = line
        bad = replace(record, state="bad", reason=line, video_id=record.video_id or f"unread:{record.path}")
        self._records[record.path] = bad
        self._failed.append(bad)

    def _mark_gone(self, paths: Sequence[Path]) -> None:
        """Files of the library under the given folders that are no longer there."""
        roots = [os.path.abspath(path) for path in paths]
        for record in list(self._records.values()):
            under = any(record.path == root or record.path.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
            if not under or record.path in self._seen or os.path.lexists(record.path):
                continue
            if self.options.prune:
                self._left.append(record.path)
            elif record.state != "gone":
                self._keep(replace(record, state="gone"))
            else:
                continue
            self.result.gone += 1

    def _commit(self) -> None:
        """One transaction for what is finished, one for records that changed; nothing, where there is nothing."""
        self._committed = time.monotonic()
        if self._changed:
            self.store.update(self._changed)
        if self._finished or self._failed or self._left:
            records = [*(record for record, _ in self._finished), *self._failed]
            self.store.commit(records, [segments for _, segments in self._finished], remove=self._left)
        self._changed, self._finished, self._failed, self._left = [], [], [], []


def _keyed(request: ReadRequest) -> tuple[str, ReadRequest]:
    return f"{request.path}\n{request.first}", request
