"""Bringing a library up to date with folders of videos and pictures: what is new is encoded, what is known is not.

This is the bookkeeping: which files are new, unchanged, moved, doubled, bad or gone. The work itself is that of
`working`, here or on many machines. What is finished is committed every few seconds. A run that is stopped or killed
loses at most what was not yet committed, and the next one goes on from there.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from prota.library.records import LibraryError, VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.storage.writer import Writer
from prota.library.working import Finished, IndexOptions, LocalWork, Part, Verdict, Work
from prota.model.prota import ProTA
from prota.video.pictures import is_picture
from prota.video.walk import FoundFile, Unreadable, below, placed, under, walk

__all__ = ["IndexOptions", "IndexReport", "Indexer", "WorkMaker"]

# What is finished waits at most so long, or so many videos, to be committed.
_COMMIT_SECONDS, _COMMIT_VIDEOS = 5.0, 16

WorkMaker = Callable[[Writer, ProTA, IndexOptions], Work]


@dataclass
class IndexReport:
    """What an indexing run did."""

    indexed: int = 0
    unchanged: int = 0
    still_bad: int = 0
    """Of these, the ones that were bad before and are not tried again."""
    moved: int = 0
    duplicates: int = 0
    """Files whose content is in the library already, at another path."""
    bad: dict[str, str] = field(default_factory=dict)
    """Path → reason."""
    gone: int = 0
    segments: int = 0
    pictures: int = 0
    """Of `indexed`."""
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
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def encoded(self) -> int:
        return sum(part.count for part in self.parts.values())

    @property
    def share(self) -> float:
        """Of its segments, how many are encoded."""
        return self.encoded / max(1, self.record.segments)

    @property
    def complete(self) -> bool:
        return self.encoded >= self.record.segments


class Indexer:
    """One run over one library that is open for writing."""

    def __init__(
        self,
        writer: Writer,
        model: ProTA,
        options: IndexOptions | None = None,
        *,
        report: Callable[[IndexReport], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        work: WorkMaker | None = None,
    ) -> None:
        self.writer = writer
        most = model.config.encoder.frames
        self.options = options or IndexOptions(SegmentPlan(most))
        if self.options.plan.frames > most:
            raise LibraryError(
                f"{self.options.plan.frames} frames a segment are too many; the model takes {most} at most"
            )
        self.notify, self.should_stop = report, should_stop
        self.work = work(writer, model, self.options) if work else LocalWork(model, self.options, autocast)
        self.result = IndexReport()
        self._records = {record.path: record for record in writer.snapshot.videos()}
        self._by_content = {record.video_id: record for record in self._records.values() if _is_right(record)}
        self._reading: dict[str, _Reading] = {}
        self._finished: list[Finished] = []
        self._failed: list[VideoRecord] = []
        self._changed: list[VideoRecord] = []
        self._left: list[str] = []
        """Paths whose records a commit takes away."""
        self._seen: set[str] = set()
        self._unreadable: list[str] = []
        self._committed = time.monotonic()

    def run(self, paths: Sequence[Path]) -> IndexReport:
        """Index all videos at and under ``paths``."""
        for parts in self.work.run(self._find(paths), self):
            for part in parts:
                self._take(part)
            self._commit_in_time()
            self.notify(self.result)
            if self.should_stop():
                break
        stopped = self.should_stop()
        if not stopped:
            self._mark_gone(paths)
        self._commit()
        self.result.finished = not stopped
        return self.result

    def contents(self) -> Collection[str]:
        """What the library has."""
        return self._by_content.keys()

    def _find(self, paths: Sequence[Path]) -> deque[FoundFile]:
        """The files to look at, before the first of them is read: without them nobody knows how much there is to do."""
        files: deque[FoundFile] = deque()
        for found in walk(paths, self.options.pictures):
            if self.should_stop():
                break
            if self.options.within and not below(found.path, self.options.within):
                continue
            self.result.found += 1
            if isinstance(found, Unreadable):
                self.result.bad[str(found.path)] = found.reason
                self._unreadable.append(str(found.path))
            else:
                self._seen.add(str(found.path))
                known = self._records.get(str(found.path))
                if known is not None and self._unchanged(known, found):
                    self.result.unchanged += 1
                    self.result.still_bad += known.state == "bad"
                else:
                    files.append(found)
                    self.result.bytes_new += found.size
            self.notify(self.result)
        return files

    def _unchanged(self, known: VideoRecord, found: FoundFile) -> bool:
        if (known.size, known.modified) != (found.size, found.modified):
            return False
        if known.state == "bad":
            return not self.options.retry
        return known.state == "indexed" and _is_right(known)

    def examine(self, found: FoundFile, video_id: str) -> Verdict:
        """What a file that looks new or changed is, by its content."""
        path = str(found.path)
        known, twin = self._records.get(path), self._by_content.get(video_id)
        if known is not None and known.video_id == video_id and _is_right(known):
            # Touched, or back again, but the same: only its date is new.
            self._keep(replace(known, size=found.size, modified=found.modified, state="indexed"))
            self.result.unchanged += 1
        elif twin is not None:
            moved = _is_gone(twin.path)
            if moved:
                self._left.append(twin.path)
                self._records.pop(twin.path, None)
                self.result.moved += 1
            else:
                self.result.duplicates += 1
            same = replace(twin, path=path, size=found.size, modified=found.modified, state="indexed")
            self._replace(same)
            self._changed.append(same)
        else:
            twins = (reading for reading in self._reading.values() if reading.record.video_id == video_id)
            return "read" if next(twins, None) is None else "later"
        self.result.bytes_done += found.size
        self.notify(self.result)
        return "done"

    def begin(self, found: FoundFile, video_id: str) -> VideoRecord:
        """A file is going to be read."""
        record = VideoRecord.of(found, video_id)
        self._reading[record.path] = _Reading(record)
        return record

    def unreadable(self, found: FoundFile, reason: str) -> None:
        """A file has no content that could be looked at."""
        self._fail(VideoRecord.of(found, ""), reason)
        self.result.bytes_done += found.size
        self.notify(self.result)

    def _take(self, part: Part) -> None:
        """Note what was encoded of a video, or why it was not."""
        record = part.record
        reading = self._reading.setdefault(record.path, _Reading(record))
        if part.error:
            self._give_up(reading, part.error)
            return
        reading.record, reading.parts[part.first] = record, part
        self.result.bytes_done += record.size * part.count / record.segments
        self.result.seconds += record.duration * part.count / record.segments
        if reading.complete:
            del self._reading[record.path]
            self._replace(record)
            self._finished.append((record, [reading.parts[first] for first in sorted(reading.parts)]))
            self.result.indexed += 1
            self.result.pictures += record.kind == "picture"
            self.result.segments += record.segments

    def _give_up(self, reading: _Reading, reason: str) -> None:
        """Forget what was encoded of a file."""
        record = reading.record
        del self._reading[record.path]
        self.result.bytes_done += record.size * (1 - reading.share)
        self.result.seconds -= record.duration * reading.share
        self._fail(record, reason)

    def _replace(self, record: VideoRecord) -> None:
        """Put a record in the place of one with another content, whose segments leave if nobody else has it."""
        old = self._records.get(record.path)
        if old is not None and (owner := self._by_content.get(old.video_id)) is not None and owner.path == record.path:
            del self._by_content[old.video_id]
        self._records[record.path] = record
        if record.whole:
            self._by_content[record.video_id] = record

    def _keep(self, record: VideoRecord) -> None:
        self._records[record.path] = record
        self._changed.append(record)

    def _fail(self, record: VideoRecord, reason: str) -> None:
        line = " ".join(reason.split()).removeprefix(f"{' '.join(record.path.split())}: ")
        self.result.bad[record.path] = line
        video_id = record.video_id or f"unread:{record.path}"
        bad = replace(record, state="bad", reason=line, video_id=video_id, segments=0)
        self._replace(bad)
        self._failed.append(bad)

    def _mark_gone(self, paths: Sequence[Path]) -> None:
        """Files of the library under the given folders that are no longer there."""
        roots = [str(placed(path)) for path in paths]
        for record in list(self._records.values()):
            if record.path in self._seen or not under(record.path, roots):
                continue
            if not _is_gone(record.path) and (under(record.path, self._unreadable) or not _is_another(record)):
                continue
            if self.options.prune or record.state == "bad":
                # Of a bad file there is nothing to keep until it is back.
                self._left.append(record.path)
            elif record.state != "gone":
                self._keep(replace(record, state="gone"))
            else:
                continue
            self.result.gone += 1

    def _commit_in_time(self) -> None:
        if len(self._finished) >= _COMMIT_VIDEOS or time.monotonic() - self._committed > _COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        """One transaction; nothing, where there is nothing. A copy may come with the segments that it shares."""
        self._committed = time.monotonic()
        others = {record.path: record for record in (*self._changed, *self._failed) if record.path not in self._left}
        if self._finished or others or self._left:
            self.work.save(self.writer, self._finished, list(others.values()), self._left)
        self._changed, self._finished, self._failed, self._left = [], [], [], []


def _is_right(record: VideoRecord) -> bool:
    """Whether a file's segments are there and current: earlier versions indexed a picture, where given, as a video."""
    return record.whole and (record.kind == "picture" or not is_picture(Path(record.path)))


def _is_gone(path: str) -> bool:
    """Not what cannot be looked at for another reason: a folder without permission, a disk that does not answer."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP
    return False


def _is_another(record: VideoRecord) -> bool:
    """Whether a path has become a second name of another file: that one comes under its first name."""
    try:
        status = os.stat(record.path)
        link = os.path.islink(record.path) or status.st_nlink > 1
    except OSError:
        return False
    return link and (status.st_size, status.st_mtime_ns) != (record.size, record.modified)
