"""Bringing a library up to date with folders of videos: what is new is read and encoded, what is known is not.

Files are decoded in worker processes while the model encodes; what is finished is committed every few seconds. A run
that is stopped or killed loses at most what was not yet committed, and the next one goes on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from prota.frames.pool import DecodePool, Outcome
from prota.library.encoding import encode_video
from prota.library.reading import ReadRequest, VideoContent, read_video, remaining
from prota.library.records import SegmentBatch, VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.store import Store
from prota.library.walk import FoundFile, Unreadable, content_id, walk
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
    """Video files seen so far."""
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
    rest: list[ReadRequest] = field(default_factory=list)
    parts: dict[int, SegmentBatch] = field(default_factory=dict)
    total: int = 0

    @property
    def complete(self) -> bool:
        return sum(len(part) for part in self.parts.values()) >= self.total

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
        self.options = options or IndexOptions(SegmentPlan(model.config.encoder.frames))
        self.notify, self.should_stop, self.autocast = report, should_stop, autocast
        self.result = IndexReport()
        self._records = {record.path: record for record in store.videos()}
        self._by_content = {record.video_id: record for record in self._records.values() if record.state != "bad"}
        self._reading: dict[str, _Reading] = {}
        self._finished: list[tuple[VideoRecord, SegmentBatch]] = []
        self._failed: list[VideoRecord] = []
        self._changed: list[VideoRecord] = []
        self._left: list[str] = []
        """Paths whose records a commit takes away."""
        self._committed = time.monotonic()

    def run(self, paths: Sequence[Path]) -> IndexReport:
        """Index all videos at and under ``paths``."""
        seen: set[str] = set()
        with DecodePool(self.options.workers, self.options.timeout) as pool:
            self._decode(pool, self._new_files(paths, seen))
            rest = [request for reading in self._reading.values() for request in reading.rest]
            if rest and not self.should_stop():
                self._decode(pool, (_keyed(request) for request in rest))
        stopped = self.should_stop()
        if not stopped:
            self._mark_gone(paths, seen)
        self._commit()
        self.result.finished = not stopped
        return self.result

    def _new_files(self, paths: Sequence[Path], seen: set[str]) -> Iterator[tuple[str, ReadRequest]]:
        """Files that have to be read; all others are dealt with on the way."""
        for found in walk(paths):
            if self.should_stop():
                return
            if isinstance(found, Unreadable):
                self.result.bad[str(found.path)] = found.reason
                continue
            path = str(found.path)
            seen.add(path)
            self.result.found += 1
            known = self._records.get(path)
            if known is not None and self._unchanged(known, found):
                self.result.unchanged += 1
                self.notify(self.result)
                continue
            request = self._examine(found, known)
            if request is not None:
                yield _keyed(request)
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
            del self._reading[record.path]
            self._fail(record, outcome.error or "nothing was read")
            return
        try:
            reading.parts[first] = encode_video(self.model, record.video_id, content, self.autocast)
        except ValueError as error:
            del self._reading[record.path]
            self._fail(record, str(error))
            return
        if first == 0:
            reading.total, reading.rest = content.total, remaining(reading.request, content)
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
            self.result.seconds += content.duration
        if len(self._finished) >= _COMMIT_VIDEOS or time.monotonic() - self._committed > _COMMIT_SECONDS:
            self._commit()

    def _keep(self, record: VideoRecord) -> None:
        self._records[record.path] = record
        self._changed.append(record)

    def _fail(self, record: VideoRecord, reason: str) -> None:
        line = " ".join(reason.split()).removeprefix(f"{record.path}: ")
        self.result.bad[record.path] = line
        bad = replace(record, state="bad", reason=line, video_id=record.video_id or f"unread:{record.path}")
        self._records[record.path] = bad
        self._failed.append(bad)

    def _mark_gone(self, paths: Sequence[Path], seen: set[str]) -> None:
        """Files of the library under the given folders that are no longer there."""
        roots = [os.path.abspath(path) for path in paths]
        for record in list(self._records.values()):
            under = any(record.path == root or record.path.startswith(root.rstrip(os.sep) + os.sep) for root in roots)
            if not under or record.path in seen or os.path.lexists(record.path):
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
