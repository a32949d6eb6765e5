"""Decide whether a file is unchanged, moved, a copy or new, and which files of a library are gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prota.library.records import VideoRecord
from prota.library.storage.schema import Catalogue
from prota.video.pictures import is_picture
from prota.video.walk import FoundFile, placed, under

__all__ = ["Decision", "KnownFiles"]


@dataclass(frozen=True)
class Decision:
    """What to do with a file of this content."""

    kind: Literal["same", "moved", "copy", "new"]
    record: VideoRecord
    """To store, or, if new, to read."""
    old_path: str = ""
    """If moved."""


class KnownFiles:
    """The records of a library, updated by this run."""

    def __init__(self, records: Sequence[VideoRecord]) -> None:
        self._records = {record.path: record for record in records}
        self._whole = Catalogue(filter(_is_current, records))

    def known(self, found: FoundFile) -> VideoRecord | None:
        """The record of a file whose size and date are unchanged, and that need not be read again."""
        record = self._records.get(str(found.path))
        if record is None or (record.size, record.modified) != (found.size, found.modified):
            return None
        return record if record.state == "bad" or (record.state == "indexed" and _is_current(record)) else None

    def decide(self, record: VideoRecord) -> Decision:
        """Classify a file that looks new or changed."""
        twin = self._whole.records.get(record.path)
        kind: Literal["same", "moved", "copy"] = "same"
        if twin is None or twin.video_id != record.video_id:
            twin = self._whole.owner(record.video_id)
            if twin is None:
                return Decision("new", record)
            kind = "moved" if _is_gone(twin.path) else "copy"
        stored = replace(twin, path=record.path, size=record.size, modified=record.modified, state="indexed")
        return Decision(kind, stored, twin.path)

    def put(self, record: VideoRecord) -> None:
        """Add a record, or replace the one with the same path."""
        self.remove(record.path)
        self._records[record.path] = record
        if record.whole:
            self._whole.replace([record], ())

    def remove(self, path: str) -> None:
        """Forget a path; its content stays known while another path has it."""
        self._records.pop(path, None)
        if path in self._whole.records:
            self._whole.replace((), [path])

    def missing(
        self, paths: Sequence[Path], seen: Collection[str], unreadable: Collection[str]
    ) -> Iterator[VideoRecord]:
        """Records at or under ``paths`` whose files are gone; not those in unreadable folders."""
        roots = [str(placed(path)) for path in paths]
        for record in list(self._records.values()):
            if record.path in seen or not under(record.path, roots):
                continue
            if _is_gone(record.path) or (_is_another(record) and not under(record.path, unreadable)):
                yield record


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
