"""Collect what is finished, and commit it every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prota.library.indexing.executor import Part
from prota.library.records import VideoRecord
from prota.library.storage.writer import Writer

__all__ = ["COMMIT_SECONDS", "COMMIT_VIDEOS", "BatchWriter"]

# Commit after this time, or this number of finished videos.
COMMIT_SECONDS, COMMIT_VIDEOS = 5.0, 16


class BatchWriter:
    """Commits records, segments and removals together."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._records: dict[str, VideoRecord] = {}
        self._parts: dict[str, list[Part]] = {}
        """By content."""
        self._removed: list[str] = []
        self._committed = time.monotonic()

    def add(self, record: VideoRecord, parts: Iterable[Part] = ()) -> None:
        """A record, with all parts of its content where that is new."""
        self._records[record.path] = record
        if found := sorted(parts, key=lambda part: part.first):
            self._parts[record.video_id] = found

    def remove(self, path: str) -> None:
        """A path that leaves; its segments stay if another record has them."""
        self._records.pop(path, None)
        self._removed.append(path)

    def commit_in_time(self) -> None:
        """Commit if it is due."""
        if len(self._parts) >= COMMIT_VIDEOS or time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """One transaction; none if there is nothing."""
        records, parts, removed = list(self._records.values()), self._parts, self._removed
        self._records, self._parts, self._removed = {}, {}, []
        fragments = dict.fromkeys(name for some in parts.values() for part in some for name in part.fragments)
        if fragments:
            self.writer.adopt(records, list(fragments), parts.keys(), removed)
        elif records or removed:
            batches = [part.segments for some in parts.values() for part in some if part.segments is not None]
            self.writer.commit(records, batches, remove=removed)
        self._committed = time.monotonic()
