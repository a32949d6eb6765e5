"""Bring a library up to date with folders: new content is read and encoded, known content is not.

    scan → fingerprint → decide → read → encode → commit

The pipeline orders the work and collects the results; an `Executor` does the work. Commits follow every few seconds:
a run that is stopped or killed loses only uncommitted work, and the next run resumes.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from prota.library.indexing import IndexOptions, IndexReport
from prota.library.indexing.executor import Event, Executor, Failed, Fingerprint, LocalExecutor, Part, Read, Task
from prota.library.indexing.reading import PART, ReadRequest
from prota.library.records import VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.storage.schema import Catalogue
from prota.library.storage.writer import Writer
from prota.library.tokens import encode_video
from prota.model.prota import ProTA
from prota.video.pictures import is_picture
from prota.video.walk import FoundFile, Unreadable, below, placed, under, walk

__all__ = ["ExecutorMaker", "Pipeline"]

# Commit after this time, or this number of finished videos.
COMMIT_SECONDS, COMMIT_VIDEOS = 5.0, 16

ExecutorMaker = Callable[[Writer, ProTA, IndexOptions], Executor]


def _local_executor(_: Writer, model: ProTA, options: IndexOptions) -> Executor:
    """Run on this machine, with the model in this process."""
    return LocalExecutor(partial(encode_video, model), workers=options.workers, timeout=options.timeout)


@dataclass
class _Film:
    """A content that is being read."""

    record: VideoRecord
    parts: dict[int, Part] = field(default_factory=dict)
    """By their first segment."""
    copies: list[VideoRecord] = field(default_factory=list)
    """Files of the same content: they wait, and if this file is bad, the next one is read."""

    @property
    def encoded(self) -> int:
        return sum(part.count for part in self.parts.values())


@dataclass
class _Pending:
    """What the next commit writes."""

    records: dict[str, VideoRecord] = field(default_factory=dict)
    """By path."""
    parts: dict[str, list[Part]] = field(default_factory=dict)
    """By content."""
    removed: list[str] = field(default_factory=list)
    """Paths; their segments stay while another record has them."""


class Pipeline:
    """An indexing run over a library that is open for writing."""

    def __init__(
        self,
        writer: Writer,
        model: ProTA,
        options: IndexOptions | None = None,
        *,
        report: Callable[[IndexReport], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        executor: ExecutorMaker | None = None,
    ) -> None:
        encoder = model.config.encoder
        self.options = options or IndexOptions(SegmentPlan(encoder.frames))
        self.request = partial(
            ReadRequest, plan=self.options.plan, size=encoder.image_size, extent=encoder.picture, count=PART
        )
        self.executor = (executor or _local_executor)(writer, model, self.options)
        self.notify, self.should_stop = report, should_stop
        self.report = IndexReport()
        records = writer.snapshot.videos()
        self._records = {record.path: record for record in records}
        """All records, updated by this run."""
        self._whole = Catalogue(filter(_is_current, records))
        """Those whose segments are current."""
        self._writer, self._pending, self._committed = writer, _Pending(), time.monotonic()
        self._tasks: deque[Task] = deque()
        self._films: dict[str, _Film] = {}
        """By content."""
        self._seen: set[str] = set()
        self._unreadable: list[str] = []

    def run(self, paths: Sequence[Path]) -> IndexReport:
        """Index all videos at and under ``paths``."""
        # The whole scan first: the report shows how much there is to do.
        self._tasks.extend(self._scan(paths))
        with closing(self.executor.run(self._tasks)) as batches:
            for events in batches:
                for event in events:
                    self._handle(event)
                if len(self._pending.parts) >= COMMIT_VIDEOS or time.monotonic() - self._committed > COMMIT_SECONDS:
                    self._commit()
                self.notify(self.report)
                if self.should_stop():
                    break
        self.report.finished = not self.should_stop()
        if self.report.finished:
            self._mark_gone(paths)
        self._commit()
        return self.report

    def _scan(self, paths: Sequence[Path]) -> Iterator[FoundFile]:
        """Files whose size or date is new."""
        for found in walk(paths, self.options.pictures):
            if self.should_stop():
                return
            path = str(found.path)
            if self.options.within and not below(path, self.options.within):
                continue
            self.report.found += 1
            if isinstance(found, Unreadable):
                self.report.bad[path] = found.reason
                self._unreadable.append(path)
            else:
                self._seen.add(path)
                known = self._records.get(path)
                if known is None or self._must_read(found, known):
                    self.report.bytes_new += found.size
                    yield found
                else:
                    self.report.unchanged += 1
                    self.report.still_bad += known.state == "bad"
            self.notify(self.report)

    def _must_read(self, found: FoundFile, known: VideoRecord) -> bool:
        if (known.size, known.modified) != (found.size, found.modified):
            return True
        return self.options.retry if known.state == "bad" else known.state == "gone" or not _is_current(known)

    def _handle(self, event: Event) -> None:
        match event:
            case Fingerprint(record):
                self._decide(record)
            case Part():
                self._add(event)
            case Failed(record, reason):
                self._fail(record, reason)

    def _decide(self, record: VideoRecord) -> None:
        """Save a file of known content: the same file, a moved one or a copy. Read new content."""
        twin = self._whole.records.get(record.path)
        if twin is not None and twin.video_id == record.video_id:
            self.report.unchanged += 1
        elif (twin := self._whole.owner(record.video_id)) is None:
            if film := self._films.get(record.video_id):
                film.copies.append(record)
            else:
                self._films[record.video_id] = _Film(record)
                self._tasks.appendleft(Read(record, self.request(record.path)))
            return
        elif _is_gone(twin.path):
            self._remove(twin.path)
            self.report.moved += 1
        else:
            self.report.duplicates += 1
        self._save(replace(twin, path=record.path, size=record.size, modified=record.modified, state="indexed"))
        self.report.bytes_done += record.size

    def _add(self, part: Part) -> None:
        record, film = part.record, self._film_of(part.record)
        if film is None:
            return
        film.record, film.parts[part.first] = record, part
        # The rest of a long film comes first, while workers still have its index of frames.
        self._tasks.extendleft(Read(record, request) for request in reversed(part.rest))
        self.report.bytes_done += record.size * part.count / record.segments
        self.report.seconds += record.duration * part.count / record.segments
        if film.encoded < record.segments:
            return
        del self._films[record.video_id]
        self._save(record, film.parts.values())
        self.report.indexed += 1
        self.report.pictures += record.kind == "picture"
        self.report.segments += record.segments
        for copy in film.copies:
            self._decide(copy)

    def _fail(self, record: VideoRecord, reason: str) -> None:
        film = self._film_of(record)
        if record.video_id and film is None:
            return
        share = film.encoded / max(1, film.record.segments) if film else 0.0
        record = film.record if film else record
        line = " ".join(reason.split()).removeprefix(f"{' '.join(record.path.split())}: ")
        video_id = record.video_id or f"unread:{record.path}"
        self._save(replace(record, state="bad", reason=line, video_id=video_id, segments=0))
        self.report.bad[record.path] = line
        self.report.bytes_done += record.size * (1 - share)
        if film:
            del self._films[record.video_id]
            self.report.seconds -= film.record.duration * share
            if film.parts:
                self._drop(record.path)
            for copy in film.copies:
                self._decide(copy)

    def _film_of(self, record: VideoRecord) -> _Film | None:
        """None for a file that failed already: its parts are read concurrently."""
        film = self._films.get(record.video_id)
        return film if film is not None and film.record.path == record.path else None

    def _drop(self, path: str) -> None:
        """Drop the parts of a file that are still to be read."""
        kept = [task for task in self._tasks if isinstance(task, FoundFile) or task.record.path != path]
        # In place: the executor holds this deque.
        self._tasks.clear()
        self._tasks.extend(kept)

    def _save(self, record: VideoRecord, parts: Iterable[Part] = ()) -> None:
        """Add a record, or replace the one with the same path."""
        self._forget(record.path)
        self._records[record.path] = record
        if record.whole:
            self._whole.replace([record], ())
        self._pending.records[record.path] = record
        if found := sorted(parts, key=lambda part: part.first):
            self._pending.parts[record.video_id] = found

    def _remove(self, path: str) -> None:
        self._forget(path)
        self._pending.records.pop(path, None)
        self._pending.removed.append(path)

    def _forget(self, path: str) -> None:
        """Forget a path; its content stays known while another path has it."""
        self._records.pop(path, None)
        if path in self._whole.records:
            self._whole.replace((), [path])

    def _mark_gone(self, paths: Sequence[Path]) -> None:
        """Mark or remove records at and under ``paths`` whose files are gone; not those in unreadable folders."""
        roots = [str(placed(path)) for path in paths]
        for record in list(self._records.values()):
            if record.path in self._seen or not under(record.path, roots):
                continue
            if not _is_gone(record.path) and (not _is_another(record) or under(record.path, self._unreadable)):
                continue
            if self.options.prune or record.state == "bad":
                # A bad file has no segments to keep.
                self._remove(record.path)
            elif record.state != "gone":
                self._save(replace(record, state="gone"))
            else:
                continue
            self.report.gone += 1

    def _commit(self) -> None:
        """Write all pending changes in one transaction."""
        pending, self._pending = self._pending, _Pending()
        records, parts = list(pending.records.values()), [part for some in pending.parts.values() for part in some]
        if fragments := dict.fromkeys(name for part in parts for name in part.fragments):
            self._writer.adopt(records, list(fragments), pending.parts.keys(), pending.removed)
        elif records or pending.removed:
            batches = [part.segments for part in parts if part.segments is not None]
            self._writer.commit(records, batches, pending.removed)
        self._committed = time.monotonic()


def _is_current(record: VideoRecord) -> bool:
    """Whether a file has current segments: early versions indexed pictures as videos."""
    return record.whole and (record.kind == "picture" or not is_picture(Path(record.path)))


def _is_gone(path: str) -> bool:
    """Whether a path does not exist; not if it cannot be checked, as without permission."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP
    return False


def _is_another(record: VideoRecord) -> bool:
    """Whether a path is now a link to another file, which is indexed under its first name."""
    try:
        status = os.stat(record.path)
        link = os.path.islink(record.path) or status.st_nlink > 1
    except OSError:
        return False
    return link and (status.st_size, status.st_mtime_ns) != (record.size, record.modified)
