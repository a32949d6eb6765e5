"""A library's videos and segments, on Lance: two datasets that are read and written as one.

A reader sees the state at which it was opened, whatever is written meanwhile. A commit becomes visible all at once or
not at all, also if its process is killed; see `folder` for how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TextIO

import lance
import pyarrow as pa

from prota.library.folder import (
    Head,
    create_folder,
    files_of,
    forget_versions,
    lock_folder,
    model_stamp,
    read_library,
    settle,
    take_back,
    upgrade,
    write_head,
)
from prota.library.fragments import Written, append
from prota.library.records import LibraryError, ModelStamp, SegmentBatch, VideoRecord
from prota.library.snapshot import Snapshot
from prota.library.tables import VIDEO_SCHEMA, Change, one_of, recopied, segment_rows, segment_schema, video_table

__all__ = ["Store"]

# Every version lists all fragments, so many small commits would cost more and more.
MANY_FRAGMENTS = 200
# About 400 MB of M = 12, D = 512: a fragment that large is not written again because small ones came.
FRAGMENT_ROWS = 16384
# Below, comparing with every pooled vector takes no longer.
INDEX_FROM = 20_000
# Seconds for which readers may go on with a version after it was replaced.
GRACE = 3600.0


def small_fragments(dataset: lance.LanceDataset) -> int:
    return sum(fragment.physical_rows < FRAGMENT_ROWS // 2 for fragment in dataset.get_fragments())


class Store(Snapshot):
    """A library, opened for reading (by anyone) or for writing (by one at a time)."""

    def __init__(self, folder: Path, stamp: ModelStamp, lock: TextIO | None) -> None:
        self._lock = lock
        if lock is not None:
            take_back(folder)
        self._settled = files_of(folder) if lock is not None else set()
        super().__init__(folder, stamp)

    @classmethod
    def create(cls, folder: Path, stamp: ModelStamp) -> Store:
        """A new library, opened for writing."""
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder, 0.0)
        try:
            create_folder(folder, stamp, {"videos": VIDEO_SCHEMA, "segments": segment_schema(stamp)})
            return cls(folder, stamp, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, folder: Path, write: bool = False, wait: float = 0.0) -> Store:
        """A library that is there; `wait` is how many seconds to wait for another writer."""
        library = read_library(folder)
        if not write:
            return cls(folder, model_stamp(folder, upgrade(folder, library, write=False)), None)
        lock = lock_folder(folder, wait)
        try:
            # Read again: another writer may have upgraded it meanwhile.
            library = upgrade(folder, read_library(folder), write=True)
            return cls(folder, model_stamp(folder, library), lock)
        except BaseException:
            lock.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. What was opened stays readable."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def commit(
        self, videos: Sequence[VideoRecord], segments: Sequence[SegmentBatch], remove: Collection[str] = ()
    ) -> None:
        """Remove the videos at these paths, add or replace others with their segments: all at once or not at all.

        Segments belong to a content: copies share them, they stay while a record that is not bad has that content, and
        given again they are replaced. A record whose content is known needs no segments, so a move is one record under
        a new path and the old path removed.
        """
        lengths = {batch.video_id: len(batch) for batch in segments}
        if len(lengths) < len(segments):
            raise ValueError("the segments of a video come in one batch")
        _check_lengths(videos, lengths)
        rows = [segment_rows(batch, self.stamp) for batch in segments if len(batch)]
        self.transact(videos, {video_id for video_id, length in lengths.items() if length}, rows, remove)

    def update(self, videos: Sequence[VideoRecord]) -> None:
        """Change or add records (gone, bad, metadata) whose segments, if they have any, are known."""
        self.commit(videos, ())

    def transact(
        self,
        videos: Sequence[VideoRecord],
        fresh: Collection[str],
        rows: Iterable[pa.RecordBatch],
        remove: Collection[str] = (),
    ) -> None:
        """What `commit` does, with the segments of the `fresh` contents as a stream of rows of any length."""
        self._transact(videos, fresh, remove, lambda segments, change: self._write(segments, change, rows))

    def adopt(
        self,
        videos: Sequence[VideoRecord],
        fragments: Sequence[str],
        fresh: Collection[str],
        remove: Collection[str] = (),
    ) -> None:
        """What `commit` does, with the segments of the `fresh` contents as `write_segments` wrote and told them.

        Rows that the fragments hold of other contents are left out. Rows that repeat another record than the one that
        owns the content now, since a copy of the file came first by its path, are written again.
        """
        written = Written.read(fragments)
        if missing := set(fresh) - written.lengths.keys():
            raise ValueError(f"no fragment has the segments of {', '.join(sorted(missing))}")
        _check_lengths(videos, written.lengths)

        def bring(segments: lance.LanceDataset, change: Change) -> lance.LanceDataset:
            owners = {video_id: owner for video_id, owner in change.owners.items() if video_id in fresh}
            segments, again = append(segments, written, owners)
            return self._write(segments, change, again)

        self._transact(videos, fresh, remove, bring)

    def _transact(
        self,
        videos: Sequence[VideoRecord],
        fresh: Collection[str],
        remove: Collection[str],
        bring: Callable[[lance.LanceDataset, Change], lance.LanceDataset],
    ) -> None:
        """One commit; `bring` adds to the segments what the change has for them."""
        self._must_write()
        head, video_set, segment_set = take_back(self.folder)
        if head.version != self.version:
            # A commit was interrupted when all of it was written.
            self._see()
        change = self._catalogue.change(videos, remove, fresh)
        if change is None:
            return
        if change.dropped:
            segment_set.delete(one_of("video_id", change.dropped))
        if change.owners:
            segment_set = bring(segment_set, change)
        if change.paths:
            video_set.delete(one_of("path", change.paths))
        if change.videos:
            video_set = lance.write_dataset(video_table(change.videos), video_set, mode="append")
        self._publish(head, video_set, segment_set)
        self._catalogue.replace(change.videos, change.paths)
        if max(small_fragments(video_set), small_fragments(segment_set)) > MANY_FRAGMENTS:
            self._join_files()
            # Workers may have written what is still to be adopted.
            self._forget(GRACE, orphans=False)

    def _write(
        self, segments: lance.LanceDataset, change: Change, rows: Iterable[pa.RecordBatch]
    ) -> lance.LanceDataset:
        """The segments with these rows and those that a change rewrites, all as their owners have it."""
        if change.rewritten:
            rows = chain(rows, self.batches(self.columns, change.rewritten))
        batches = iter(rows)
        first = next(batches, None)
        if first is None:
            # Of nothing, too, Lance would make a version.
            return segments
        incoming = (recopied(batch, change.owners, self._schema) for batch in chain([first], batches))
        reader = pa.RecordBatchReader.from_batches(self._schema, incoming)
        return lance.write_dataset(reader, segments, mode="append")

    def _must_write(self) -> None:
        if self._lock is None:
            raise LibraryError(f"{self.folder} was opened for reading: open it for writing")

    def _publish(self, head: Head, videos: lance.LanceDataset, segments: lance.LanceDataset) -> None:
        """Make these datasets the library."""
        settle(self.folder, self._settled)
        head = replace(head, version=head.version + 1, videos=videos.version, segments=segments.version)
        write_head(self.folder, head)
        self._head, self._videos, self._segments, self._addresses = head, videos, segments, None

    def build_index(self) -> None:
        """Index the pooled vectors, so that `nearest` need not compare all of them."""
        self._must_write()
        head, videos, segments = take_back(self.folder)
        if rows := segments.count_rows():
            partitions = max(round(math.sqrt(rows)), 1)
            segments.create_index("pooled", "IVF_FLAT", metric="cosine", num_partitions=partitions, replace=True)
            self._publish(replace(head, partitions=partitions), videos, segments)

    def compact(self, grace: float = GRACE) -> None:
        """Join small files, index what is large enough, and free the disk of what nobody reads any more.

        Readers may go on with a version for `grace` seconds after it was replaced.
        """
        self._must_write()
        self._join_files()
        fits = self.partitions and 0.5 < math.sqrt(self.count()) / self.partitions < 2
        if self.count() >= INDEX_FROM and not fits:
            self.build_index()
        # The lock says that nobody else writes: files that no version names are a dead writer's.
        self._forget(grace, orphans=True)

    def _join_files(self) -> None:
        head, videos, segments = take_back(self.folder)
        videos.optimize.compact_files()
        # Lance reads many rows at once, which here are large.
        segments.optimize.compact_files(target_rows_per_fragment=FRAGMENT_ROWS, batch_size=256)
        if head.partitions:
            segments.optimize.optimize_indices()
        if (videos.version, segments.version) != (head.videos, head.segments):
            self._publish(head, videos, segments)

    def _forget(self, grace: float, orphans: bool) -> None:
        for dataset in (self._videos, self._segments):
            forget_versions(dataset, grace, orphans)
        self._settled &= files_of(self.folder)


def _check_lengths(videos: Iterable[VideoRecord], lengths: Mapping[str, int]) -> None:
    for video in videos:
        if video.state != "bad" and lengths.get(video.video_id, video.segments) != video.segments:
            raise ValueError(f"{video.path}: {video.segments} segments expected, {lengths[video.video_id]} given")
