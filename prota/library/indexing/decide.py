"""Decide what a file is: unchanged, touched, moved, a copy, or new; and which files of a library are gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prota.library.records import VideoRecord
from prota.video.pictures import is_picture
from prota.video.walk import FoundFile, placed, under

__all__ = ["Decision", "KnownFiles"]


@dataclass(frozen=True)
class Decision:
    """What a file is by its content."""

    kind: Literal["same", "moved", "copy", "new"]
    record: VideoRecord
    """To be stored, or, of a new file, to be read."""
    old_path: str = ""
    """Of a file that was moved."""


class KnownFiles:
    """The records of a library, kept up to date with those of this run."""

    def __init__(self, records: Iterable[VideoRecord]) -> None:
        self._records = {record.path: record for record in records}
        self._by_content = {record.video_id: record for record in self._records.values() if _is_current(record)}

    def known(self, found: FoundFile) -> VideoRecord | None:
        """The record of a file that has neither changed since, nor to be read for another reason."""
        record = self._records.get(str(found.path))
        if record is None or (record.size, record.modified) != (found.size, found.modified):
            return None
        return record if record.state == "bad" or (record.state == "indexed" and _is_current(record)) else None

    def decide(self, record: VideoRecord) -> Decision:
        """What a file that looks new or changed is."""
        known, twin = self._records.get(record.path), self._by_content.get(record.video_id)

        def at_this_path(one: VideoRecord) -> VideoRecord:
            return replace(one, path=record.path, size=record.size, modified=record.modified, state="indexed")

        if known is not None and known.video_id == record.video_id and _is_current(known):
            # Touched, or back again.
            return Decision("same", at_this_path(known))
        if twin is None:
            return Decision("new", record)
        if _is_gone(twin.path):
            return Decision("moved", at_this_path(twin), twin.path)
        return Decision("copy", at_this_path(twin))

    def put(self, record: VideoRecord) -> None:
        """Take a record in, in the place of one with the same path."""
        self.remove(record.path)
        self._records[record.path] = record
        if record.whole:
            self._by_content[record.video_id] = record

    def remove(self, path: str) -> None:
        """Forget a path, and its content unless another path is known to have it."""
        old = self._records.pop(path, None)
        if old is not None and (owner := self._by_content.get(old.video_id)) is not None and owner.path == path:
            del self._by_content[old.video_id]

    def missing(
        self, paths: Sequence[Path], seen: Collection[str], unreadable: Collection[str]
    ) -> Iterator[VideoRecord]:
        """Files at or under ``paths`` that were not seen because they are gone, not because a folder is unreadable."""
        roots = [str(placed(path)) for path in paths]
        for record in list(self._records.values()):
            if record.path in seen or not under(record.path, roots):
                continue
            if _is_gone(record.path) or (_is_another(record) and not under(record.path, unreadable)):
                yield record


def _is_current(record: VideoRecord) -> bool:
    """Whether a file's segments are there and current: earlier versions indexed a picture, where given, as a video."""
    return record.whole and (record.kind == "picture" or not is_picture(Path(record.path)))


def _is_gone(path: str) -> bool:
    """Not a path that cannot be looked at for another reason: a folder without permission, a disk without answer."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP
    return False


def _is_another(record: VideoRecord) -> bool:
    """Whether a path has become a second name of another file, which is found under its first name."""
    try:
        status = os.stat(record.path)
        link = os.path.islink(record.path) or status.st_nlink > 1
    except OSError:
        return False
    return link and (status.st_size, status.st_mtime_ns) != (record.size, record.modified)
