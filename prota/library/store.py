"""A library's videos and segments, on Lance: two datasets that are read and written as one.

A reader sees the state at which it was opened, whatever is written meanwhile. A commit becomes visible all at once or
not at all, also if its process is killed; see `folder` for how.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import lance
import pyarrow as pa

from prota.library.folder import (
    Draft,
    Head,
    create_library,
    forget_versions,
    model_stamp,
    read_library,
    take_back,
    upgrade,
    write_head,
)
from prota.library.fragments import Written, append
from prota.library.place import Lock, Place, Where
from prota.library.problems import DisturbedError, UnreachableError
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


# How often a commit to an object store is tried, and seconds before the second time; each pause may be twice as long.
TRIES, PAUSE = 6, 0.5

Result = TypeVar("Result")


def small_fragments(dataset: lance.LanceDataset) -> int:
    return sum(fragment.physical_rows < FRAGMENT_ROWS // 2 for fragment in dataset.get_fragments())


def tried(place: Place, work: Callable[[], Result]) -> Result:
    """Do what begins at the newest head and ends with one of its own, which can be done again from the beginning.

    With a lock, once is enough. Without, another writer may come between, or the answer to a request that no client may
    repeat gets lost. Of two who disturb each other, chance lets one go first.
    """
    tries = 1 if place.exclusive else TRIES
    for attempt in range(1, tries + 1):
        try:
            return work()
        except (DisturbedError, UnreachableError, OSError, RuntimeError) as error:
            problem = place.problem(error)
        if attempt == tries or not isinstance(problem, DisturbedError | UnreachableError):
            break
        time.sleep(random.uniform(0, PAUSE * 2**attempt))
    raise problem


class Store(Snapshot):
    """A library, opened for reading (by anyone) or for writing (by one at a time)."""

    def __init__(self, folder: Place, stamp: ModelStamp, lock: Lock | None) -> None:
        self._lock = lock
        if lock is not None:
            tried(folder, lambda: take_back(folder))
        self._settled = folder.files() if lock is not None else set()
        super().__init__(folder, stamp)

    @classmethod
    def create(
        cls, where: Where, stamp: ModelStamp, wait: float = 0.0, should_stop: Callable[[], bool] = lambda: False
    ) -> Store:
        """A new library, opened for writing; the one that another writer made while this one waited for it."""
        place = Place.of(where)
        place.prepare()
        lock = place.lock(wait, should_stop)
        try:
            if wait and place.exists("library.json"):
                return cls._locked(place, lock)
            schemas = {"videos": VIDEO_SCHEMA, "segments": segment_schema(stamp)}
            tried(place, lambda: create_library(place, stamp, schemas))
            return cls(place, stamp, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(
        cls, where: Where, write: bool = False, wait: float = 0.0, should_stop: Callable[[], bool] = lambda: False
    ) -> Store:
        """A library that is there; ``wait``: seconds for another writer of a folder, or until it is to stop."""
        place = Place.of(where)
        library = read_library(place)
        if not write:
            return cls(place, model_stamp(place, upgrade(place, library, write=False)), None)
        lock = place.lock(wait, should_stop)
        try:
            # Read again: another writer may have upgraded it meanwhile.
            return cls._locked(place, lock)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def _locked(cls, place: Place, lock: Lock) -> Store:
        """A library that is there and whose lock is held."""
        return cls(place, model_stamp(place, upgrade(place, read_library(place), write=True)), lock)

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
        self.transact(videos, {video_id for video_id, length in lengths.items() if length}, lambda: rows, remove)

    def update(self, videos: Sequence[VideoRecord]) -> None:
        """Change or add records (gone, bad, metadata) whose segments, if they have any, are known."""
        self.commit(videos, ())

    def transact(
        self,
        videos: Sequence[VideoRecord],
        fresh: Collection[str],
        rows: Callable[[], Iterable[pa.RecordBatch]],
        remove: Collection[str] = (),
    ) -> None:
        """What `commit` does, with the segments of the `fresh` contents as a stream of rows of any length.

        `rows` gives the stream, from its beginning each time.
        """
        self._transact(videos, fresh, remove, lambda segments, change: self._write(segments, change, rows()))

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

        def bring(segments: Draft, change: Change) -> None:
            owners = {video_id: owner for video_id, owner in change.owners.items() if video_id in fresh}
            self._write(segments, change, append(segments, written, owners))

        self._transact(videos, fresh, remove, bring)

    def _transact(
        self,
        videos: Sequence[VideoRecord],
        fresh: Collection[str],
        remove: Collection[str],
        bring: Callable[[Draft, Change], None],
    ) -> None:
        """One commit; `bring` adds to the segments what the change has for them."""
        self._must_write()
        tried(self.folder, lambda: self._change(lambda: self._catalogue.change(videos, remove, fresh), bring))
        if max(small_fragments(self._videos), small_fragments(self._segments)) > MANY_FRAGMENTS:
            # The commit stands; who disturbs this will come here, too.
            with suppress(DisturbedError):
                tried(self.folder, self._join_files)
            # Workers may have written what is still to be adopted.
            self._forget(GRACE, orphans=False)

    def _change(self, plan: Callable[[], Change | None], bring: Callable[[Draft, Change], None]) -> None:
        """One try at a commit, planned with the records that are there when it begins."""
        head, video_set, segment_set = take_back(self.folder)
        if head.version != self.version:
            # A commit was interrupted when all of it was written, or is another writer's.
            self._see()
        change = plan()
        if change is None:
            return
        if change.dropped:
            segment_set.delete(one_of("video_id", change.dropped))
        if change.owners:
            bring(segment_set, change)
        if change.paths:
            video_set.delete(one_of("path", change.paths))
        if change.videos:
            video_set.append(video_table(change.videos))
        self._publish(head, video_set, segment_set)
        self._catalogue.replace(change.videos, change.paths)

    def _write(self, segments: Draft, change: Change, rows: Iterable[pa.RecordBatch]) -> None:
        """Add these rows and those that a change rewrites, all as their owners have it."""
        if change.rewritten:
            rows = chain(rows, self.batches(self.columns, change.rewritten))
        batches = iter(rows)
        first = next(batches, None)
        # Of nothing, too, Lance would make a version.
        if first is not None:
            incoming = (recopied(batch, change.owners, self._schema) for batch in chain([first], batches))
            segments.append(pa.RecordBatchReader.from_batches(self._schema, incoming))

    def _must_write(self) -> None:
        if self._lock is None:
            raise LibraryError(f"{self.folder} was opened for reading: open it for writing")

    def _publish(self, head: Head, videos: Draft, segments: Draft) -> None:
        """Make these datasets the library."""
        self.folder.settle(self._settled)
        head = replace(head, version=head.version + 1, videos=videos.version, segments=segments.version)
        self._head = write_head(self.folder, head)
        self._videos, self._segments, self._addresses = videos.dataset, segments.dataset, None

    def build_index(self) -> None:
        """Index the pooled vectors, so that `nearest` need not compare all of them."""
        self._must_write()
        tried(self.folder, self._build_index)

    def _build_index(self) -> None:
        head, videos, segments = take_back(self.folder)
        if rows := segments.dataset.count_rows():
            partitions = max(round(math.sqrt(rows)), 1)
            how = {"metric": "cosine", "num_partitions": partitions, "replace": True}
            segments.tidy(lambda dataset: dataset.create_index("pooled", "IVF_FLAT", **how))
            self._publish(replace(head, partitions=partitions), videos, segments)

    def compact(self, grace: float = GRACE) -> None:
        """Join small files, index what is large enough, and free the disk of what nobody reads any more.

        Readers may go on with a version for `grace` seconds after it was replaced.
        """
        self._must_write()
        tried(self.folder, self._join_files)
        fits = self.partitions and 0.5 < math.sqrt(self.count()) / self.partitions < 2
        if self.count() >= INDEX_FROM and not fits:
            self.build_index()
        # Where a lock says that nobody else writes, files that no version names are a dead writer's.
        self._forget(grace, orphans=self.folder.exclusive)

    def _join_files(self) -> None:
        head, videos, segments = take_back(self.folder)
        videos.tidy(lambda dataset: dataset.optimize.compact_files())
        # Lance reads many rows at once, which here are large.
        how = {"target_rows_per_fragment": FRAGMENT_ROWS, "batch_size": 256}
        segments.tidy(lambda dataset: dataset.optimize.compact_files(**how))
        if head.partitions:
            segments.tidy(lambda dataset: dataset.optimize.optimize_indices())
        if (videos.version, segments.version) != (head.videos, head.segments):
            self._publish(head, videos, segments)

    def _forget(self, grace: float, orphans: bool) -> None:
        for dataset in (self._videos, self._segments):
            tried(self.folder, partial(forget_versions, dataset, grace, orphans))
        self._settled &= self.folder.files()


def _check_lengths(videos: Iterable[VideoRecord], lengths: Mapping[str, int]) -> None:
    for video in videos:
        if video.state != "bad" and lengths.get(video.video_id, video.segments) != video.segments:
            raise ValueError(f"{video.path}: {video.segments} segments expected, {lengths[video.video_id]} given")
