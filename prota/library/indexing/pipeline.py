"""Bring a library up to date with folders: what is new is read and encoded, what is known is not.

    scan → fingerprint → decide → read → encode → commit

This is the bookkeeping and the order of the work; an `Executor` does it. Commits follow every few seconds: a run that
is stopped or killed loses at most what was not committed, and the next one resumes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from prota.library.indexing.commits import BatchWriter
from prota.library.indexing.decide import KnownFiles
from prota.library.indexing.encoding import encode_video
from prota.library.indexing.executor import Event, Executor, Failed, Fingerprint, LocalExecutor, Part, Read, Task
from prota.library.indexing.options import IndexOptions, IndexReport
from prota.library.indexing.reading import PART, ReadRequest
from prota.library.records import VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.storage.writer import Writer
from prota.model.prota import ProTA
from prota.video.walk import FoundFile, Unreadable, below, walk

__all__ = ["ExecutorMaker", "Pipeline"]

ExecutorMaker = Callable[[Writer, ProTA, IndexOptions], Executor]


def _local_executor(_: Writer, model: ProTA, options: IndexOptions) -> Executor:
    """This machine, with the model in this process."""
    return LocalExecutor(partial(encode_video, model), workers=options.workers, timeout=options.timeout)


@dataclass
class _Film:
    """A content that is being read."""

    record: VideoRecord
    parts: dict[int, Part] = field(default_factory=dict)
    """By their first segment."""
    copies: list[VideoRecord] = field(default_factory=list)
    """Files of the same content, which wait: should this file turn out to be bad, the next one is read."""

    @property
    def encoded(self) -> int:
        return sum(part.count for part in self.parts.values())


class Pipeline:
    """One run over one library that is open for writing."""

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
        self._known = KnownFiles(writer.snapshot.videos())
        self._commits = BatchWriter(writer)
        self._tasks: deque[Task] = deque()
        self._films: dict[str, _Film] = {}
        """By content."""
        self._seen: set[str] = set()
        self._unreadable: list[str] = []

    def run(self, paths: Sequence[Path]) -> IndexReport:
        """Index all videos at and under ``paths``."""
        # All of them before the first is read: the report tells how much there is to do.
        self._tasks.extend(self._scan(paths))
        with closing(self.executor.run(self._tasks)) as batches:
            for events in batches:
                for event in events:
                    self._handle(event)
                self._commits.commit_in_time()
                self.notify(self.report)
                if self.should_stop():
                    break
        self.report.finished = not self.should_stop()
        if self.report.finished:
            self._mark_gone(paths)
        self._commits.commit()
        return self.report

    def _scan(self, paths: Sequence[Path]) -> Iterator[FoundFile]:
        """The files that are new or changed by their size and date."""
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
                known = self._known.known(found)
                if known is None or (known.state == "bad" and self.options.retry):
                    self.report.bytes_new += found.size
                    yield found
                else:
                    self.report.unchanged += 1
                    self.report.still_bad += known.state == "bad"
            self.notify(self.report)

    def _handle(self, event: Event) -> None:
        match event:
            case Fingerprint(record):
                self._decide(record)
            case Part():
                self._add(event)
            case Failed(record, reason):
                self._fail(record, reason)

    def _decide(self, record: VideoRecord) -> None:
        decision = self._known.decide(record)
        if decision.kind == "new":
            if film := self._films.get(record.video_id):
                film.copies.append(record)
            else:
                self._films[record.video_id] = _Film(record)
                self._tasks.appendleft(Read(record, self.request(record.path)))
            return
        if decision.kind == "moved":
            self._known.remove(decision.old_path)
            self._commits.remove(decision.old_path)
        self._save(decision.record)
        self.report.unchanged += decision.kind == "same"
        self.report.moved += decision.kind == "moved"
        self.report.duplicates += decision.kind == "copy"
        self.report.bytes_done += record.size

    def _add(self, part: Part) -> None:
        record, film = part.record, self._film_of(part.record)
        if film is None:
            return
        film.record, film.parts[part.first] = record, part
        # A long film first, while workers still know where its frames are.
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
        """None where it was given up: other parts of it may have been read at the same time."""
        film = self._films.get(record.video_id)
        return film if film is not None and film.record.path == record.path else None

    def _drop(self, path: str) -> None:
        """Forget the parts of a file that are still to be read."""
        kept = [task for task in self._tasks if isinstance(task, FoundFile) or task.record.path != path]
        # In place: the executor takes tasks from it.
        self._tasks.clear()
        self._tasks.extend(kept)

    def _save(self, record: VideoRecord, parts: Iterable[Part] = ()) -> None:
        self._known.put(record)
        self._commits.add(record, parts)

    def _mark_gone(self, paths: Sequence[Path]) -> None:
        for record in self._known.missing(paths, self._seen, self._unreadable):
            if self.options.prune or record.state == "bad":
                # Of a bad file there is nothing to keep until it is back.
                self._commits.remove(record.path)
            elif record.state != "gone":
                self._save(replace(record, state="gone"))
            else:
                continue
            self.report.gone += 1
