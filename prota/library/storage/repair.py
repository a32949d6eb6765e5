"""Repair a library: restore small files from their copies, fall back to whole versions, drop what is corrupt.

What is dropped can be made again from the videos: `Repaired.again` names the files. Each step leaves a library that the
next repair continues with, so a repair that is interrupted is repeated.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import lance
import numpy as np
import pyarrow as pa

from prota.files import write_atomically
from prota.library.records import DamagedError, LibraryError, ModelStamp, VideoRecord
from prota.library.storage.faults import row_faults
from prota.library.storage.location import LAST_VERSION, Folder, Location, Where, contained
from prota.library.storage.schema import (
    VIDEO_SCHEMA,
    Catalogue,
    damaged_videos,
    one_of,
    original,
    segment_schema,
    video_records,
    video_table,
)
from prota.library.storage.versions import (
    DATASETS,
    LIBRARY,
    Draft,
    Head,
    dataset,
    index_checks,
    is_whole,
    model_stamp,
    publish,
    read_head,
    read_library,
    retried,
    roll_back,
    upgrade,
    write_head,
)
from prota.library.storage.writer import build_index, write_rows

__all__ = ["Repaired", "corrupt_copies", "repair", "versions"]

# How Lance reports what it cannot read.
UNREADABLE = (ValueError, OSError, RuntimeError)
# Rows that are read together, and the least that are tried alone where they cannot be.
ROWS, FEWEST_ROWS = 512, 16
CORRUPT = "its part of the library was corrupt; index it again"

SMALL = (LIBRARY, "head.json")

T = TypeVar("T")


@dataclass
class Repaired:
    """What a repair did."""

    notes: list[str] = field(default_factory=list)
    """What was restored, a sentence each."""
    missing: list[str] = field(default_factory=list)
    """What is lost without a name: index the folders again."""
    again: list[str] = field(default_factory=list)
    """Videos and pictures whose segments were corrupt or missing: index them again."""
    lost: list[str] = field(default_factory=list)
    """Those whose files no longer exist: they were removed from the library."""

    @property
    def nothing(self) -> bool:
        """Whether the library was whole."""
        return not (self.notes or self.missing or self.again or self.lost)


def repair(where: Where, wait: float = 0.0) -> Repaired:
    """Make a library whole, without what is corrupt; LibraryError if too little of it is left."""
    location = Location.of(where)
    traces = (LIBRARY, "head.json", "spare", *(f"{name}.lance" for name in DATASETS))
    if location.exclusive and not any(map(location.exists, traces)):
        raise LibraryError(f"no library at {location}")
    release = location.lock(wait, lambda: False)
    try:
        done = Repaired()
        _restore(location, done)
        retried(location, lambda: _drop(location, done))
        retried(location, lambda: upgrade(location))
        return done
    finally:
        release()


def _attempt(read: Callable[[Location], T], location: Location) -> T | None:
    """None if it cannot be read."""
    try:
        return read(location)
    except DamagedError:
        return None


def _restore(location: Location, done: Repaired) -> None:
    """Make sure that the library has a description and a head, and that the versions can be opened that it names."""
    if not isinstance(location, Folder):
        # An object store keeps its files whole, or says that it cannot.
        read_head(location)
        return
    spare = Folder(location.path / "spare")
    for name in SMALL:
        if not _is_good(name, location) and _is_good(name, spare):
            location.write(name, spare.read(name).text, None)
            done.notes.append(f"{name}: restored from its copy")
    if not _is_good(LIBRARY, location):
        raise LibraryError(
            f"cannot repair {location}: neither {LIBRARY} nor its copy can be read",
            hint="restore it from a backup, or index into another folder",
        )
    library, head = read_library(location), _attempt(read_head, location)
    if head is None:
        done.missing.append("head.json: the newest versions were taken")
    for path in head.files if head is not None else ():
        if head is not None and not is_whole(location, head, path) and is_whole(spare, head, path):
            (location.path / path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(location.path / path, spare.content(path))
            done.notes.append(f"{path}: restored from its copy")
    stamp = model_stamp(location, library)
    whole = [_open_whole(location, name, head, done) for name in DATASETS]
    opened = [
        _empty(location, name, stamp, done) if present is None else present
        for name, present in zip(DATASETS, whole, strict=True)
    ]
    numbers = [int(present.version) for present in opened]
    if head is None or numbers != [head.videos, head.segments]:
        # Readers expect that the number grows; each commit makes a version of at least one dataset.
        last = Head(sum(numbers), 0, 0) if head is None else head
        write_head(location, replace(last, version=last.version + 1, read=None), *opened)
    elif head.files and (corrupt_copies(location) or _attempt(read_head, spare) != head):
        done.notes.append("spare: copied again")
        write_head(location, head, *opened)


def _is_good(name: str, location: Location) -> bool:
    """Whether one of the two small JSON files exists and is what it should be."""
    read: Callable[[Location], object] = read_library if name == LIBRARY else read_head
    return location.exists(name) and _attempt(read, location) is not None


def corrupt_copies(location: Location) -> list[str]:
    """The copies below ``spare`` that are corrupt or missing, of those that it says it has."""
    if not isinstance(location, Folder):
        return []
    spare = Folder(location.path / "spare")
    found = [name for name in SMALL if spare.exists("head.json") and not _is_good(name, spare)]
    head = None if "head.json" in found else _attempt(read_head, spare) if spare.exists("head.json") else None
    return found + [path for path in (head.files if head else ()) if head and not is_whole(spare, head, path)]


def versions(location: Location, name: str, head: Head | None) -> tuple[lance.LanceDataset | None, dict[int, Path]]:
    """The version of a dataset that the head names, else the newest whole one, and the manifests that are corrupt.

    Later versions are commits that were not finished: they are left out.
    """
    found: lance.LanceDataset | None = None
    corrupt: dict[int, Path] = {}
    wanted = LAST_VERSION if head is None else int(getattr(head, name))
    folder = location.path if isinstance(location, Folder) else None
    # Manifest names count down: the newest version comes first.
    for path in sorted(folder.glob(f"{name}.lance/_versions/*.manifest")) if folder else ():
        version = LAST_VERSION - int(path.stem)
        if version > wanted:
            continue
        present = None
        if head is None or version != wanted or _all_whole(location, head, name):
            present = _opened(location, name, version)
        if present is None:
            corrupt[version] = path
        # Not by its truth: a dataset without rows is false.
        found = present if found is None else found
    return found, corrupt


def _open_whole(location: Folder, name: str, head: Head | None, done: Repaired) -> lance.LanceDataset | None:
    """The version of a dataset that the head names, else the newest whole one before it; corrupt ones are deleted."""
    found, corrupt = versions(location, name, head)
    if found is None:
        # With a wrong checksum, but no other is there.
        again = (_opened(location, name, version) for version in corrupt)
        found = next((present for present in again if present is not None), None)
    for version, path in corrupt.items():
        if found is None or version != found.version:
            path.unlink()
            done.notes.append(f"version {version} of {name}: deleted, it was corrupt")
    if found is not None and head is not None and found.version != getattr(head, name):
        done.missing.append(f"{name}: back at version {found.version}, later ones are corrupt")
    return found


def _empty(location: Folder, name: str, stamp: ModelStamp, done: Repaired) -> lance.LanceDataset:
    """A new dataset without rows."""
    done.missing.append(f"{name}: no version can be read")
    location.discard(name, 0)
    schema = VIDEO_SCHEMA if name == "videos" else segment_schema(stamp)
    return lance.write_dataset(schema.empty_table(), location.dataset(name), mode="create")


def _all_whole(location: Location, head: Head, name: str) -> bool:
    """Whether the small files of one of the datasets agree with their checksums."""
    return all(is_whole(location, head, path) for path in head.files if path.startswith(f"{name}.lance/_"))


def _opened(location: Location, name: str, version: int) -> lance.LanceDataset | None:
    """A version of a dataset, if it can be opened."""
    try:
        present = dataset(location, name, version)
        with contained():
            present.count_rows()
    except UNREADABLE:
        return None
    return present


def _drop(location: Location, done: Repaired) -> None:
    """In one commit, drop corrupt rows, the rest of the contents that lost some, and records without segments."""
    head, videos, segments = roll_back(location)
    stamp = model_stamp(location, read_library(location))
    records, incomplete = _sound_records(videos.dataset, done)
    catalogue = Catalogue(records)
    damaged, indices = _sound_segments(segments.dataset, stamp, catalogue)
    whole = {
        owner.video_id
        for owner in catalogue.owners()
        if sorted(indices.get(owner.video_id, ())) == list(range(owner.segments))
    }
    judged = (_judged(video, whole, done) for video in records)
    kept = [video for video in judged if video is not None]
    if damaged:
        schema = segments.dataset.schema
        rows = _rows_of(damaged, schema.names, whole.__contains__, stamp=stamp, catalogue=catalogue)
        written = write_rows(location, schema, rows)
        segments.exchange([fragment.fragment_id for fragment in damaged], written)
    if unwanted := indices.keys() - whole:
        segments.delete(one_of("video_id", unwanted))
    if incomplete or kept != records:
        videos.overwrite(_as_before(video_table(kept), videos.dataset))
    head = _with_index(location, head, segments, done)
    if (videos.version, segments.version) != (head.videos, head.segments):
        publish(location, head, videos, segments)


def _as_before(table: pa.Table, before: lance.LanceDataset) -> pa.Table:
    """Without checksums in a library of an older schema: the upgrade adds them."""
    return table.select(before.schema.names)


def _judged(video: VideoRecord, whole: set[str], done: Repaired) -> VideoRecord | None:
    """A record as it stays; None if its segments and its file are lost."""
    unfinished = video.state == "bad" and video.size < 0
    if (video.whole and video.video_id not in whole) or unfinished:
        # Of no file: the next run of indexing reads it again.
        marked = replace(video, state="bad", reason=CORRUPT, size=-1, segments=0)
        return marked if _there(video.path, done) else None
    return video


def _there(path: str, done: Repaired) -> bool:
    """Note whether a file can be indexed again."""
    found = os.path.isfile(path)
    list_of = done.again if found else done.lost
    if path not in list_of:
        list_of.append(path)
    return found


def _sound_records(present: lance.LanceDataset, done: Repaired) -> tuple[list[VideoRecord], bool]:
    """The records that agree with their checksums, and whether there are others."""
    found: dict[str, VideoRecord] = {}
    rows, unread = 0, int(present.count_rows())
    for fragment in present.get_fragments():
        for batch in _readable(fragment, present.schema.names):
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            wrong = damaged_videos(table)
            rows, unread = rows + len(table) - int(wrong.sum()), unread - len(table)
            found |= {video.path: video for video in video_records(table.filter(~wrong))}
            for path in filter(None, table.filter(wrong).column("path").to_pylist()):
                done.missing.append(f"a record was corrupt, perhaps of {original(path)}")
                if os.path.isfile(original(path)):
                    _there(original(path), done)
    if unread > 0:
        done.missing.append(f"{unread} records of files could not be read")
    return list(found.values()), rows != present.count_rows()


def _sound_segments(
    present: lance.LanceDataset, stamp: ModelStamp, catalogue: Catalogue
) -> tuple[list[lance.LanceFragment], dict[str, list[int]]]:
    """The fragments with rows that are corrupt or cannot be read, and the numbers of all sound segments by content."""
    damaged, indices = [], defaultdict(list)
    for fragment in present.get_fragments():
        rows = 0
        for batch in _sound(fragment, present.schema.names, stamp, catalogue):
            rows += batch.num_rows
            columns = (batch.column(name).to_pylist() for name in ("video_id", "index"))
            for video_id, index in zip(*columns, strict=True):
                indices[video_id].append(index)
        if rows != _rows_in(fragment):
            damaged.append(fragment)
    return damaged, indices


def _rows_of(
    fragments: Iterable[lance.LanceFragment], columns: list[str], keep: Callable[[str], bool], *, stamp: ModelStamp,
    catalogue: Catalogue,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The sound rows of the contents to keep."""
    for fragment in fragments:
        for batch in _sound(fragment, columns, stamp, catalogue):
            chosen = batch.filter(pa.array(map(keep, batch.column("video_id").to_pylist()), pa.bool_()))
            if chosen.num_rows:
                yield from chosen.to_batches() if isinstance(chosen, pa.Table) else [chosen]


def _sound(
    fragment: lance.LanceFragment, columns: list[str], stamp: ModelStamp, catalogue: Catalogue
) -> Iterator[pa.RecordBatch | pa.Table]:
    for batch in _readable(fragment, columns):
        faults = row_faults(batch, stamp, catalogue)
        yield batch.filter(pa.array(~np.any(list(faults.values()), axis=0)))


def _rows_in(fragment: lance.LanceFragment) -> int:
    """Its number of rows; -1 if its list of deleted rows cannot be read."""
    try:
        with contained():
            return int(fragment.count_rows())
    except UNREADABLE:
        return -1


def _readable(fragment: lance.LanceFragment, columns: list[str]) -> Iterator[pa.RecordBatch | pa.Table]:
    """All rows of a fragment that can be read."""
    done = 0
    try:
        with contained():
            for batch in fragment.to_batches(columns=columns, batch_size=ROWS):
                yield batch
                done += batch.num_rows
        return
    except UNREADABLE:
        pass
    for first in range(done, _rows_in(fragment), ROWS):
        yield from _parts(fragment, columns, first, ROWS)


def _parts(fragment: lance.LanceFragment, columns: list[str], first: int, count: int) -> Iterator[pa.Table]:
    try:
        with contained():
            found = fragment.to_table(columns=columns, offset=first, limit=count)
    except UNREADABLE:
        if count > FEWEST_ROWS:
            yield from _parts(fragment, columns, first, count // 2)
            yield from _parts(fragment, columns, first + count // 2, count - count // 2)
        return
    if len(found):
        yield found


def _with_index(location: Location, head: Head, segments: Draft, done: Repaired) -> Head:
    """Build the vector index again if its files differ from their checksums."""
    if not segments.dataset.describe_indices():
        return replace(head, partitions=0)
    if head.partitions and (not head.indices or index_checks(location, segments.dataset) == head.indices):
        return head
    done.notes.append("the vector index was corrupt: built again")
    return build_index(replace(head, indices={}), segments, segments)
