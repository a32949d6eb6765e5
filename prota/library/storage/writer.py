"""Writing a library: commits of videos with their segments, by one process or with the help of workers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any, Self

import lance
import pyarrow as pa

from prota.library.records import EXACT_SEGMENTS, LibraryError, ModelStamp, SegmentBatch, VideoRecord
from prota.library.storage.location import ConflictError, Location, Release, Where, contained, flush
from prota.library.storage.reader import Snapshot
from prota.library.storage.schema import Catalogue, one_of, segment_rows, segment_schema, video_table
from prota.library.storage.versions import (
    Draft,
    Head,
    create_files,
    model_stamp,
    publish,
    read_library,
    retried,
    roll_back,
    upgrade,
)

__all__ = ["FRAGMENT_ROWS", "GRACE", "Writer", "build_index", "write_rows", "write_segments"]

# Seconds for which readers may use a version after it was replaced.
GRACE = 3600.0
# Every version lists all fragments, so the cost of many small commits would grow.
MANY_FRAGMENTS = 200
# About 400 MB at M = 12, D = 512: larger fragments are not joined with small ones.
FRAGMENT_ROWS = 16384

Fragments = list[lance.fragment.FragmentMetadata]


class Writer:
    """A library opened for writing, in a folder by one process at a time."""

    def __init__(self, location: Location, stamp: ModelStamp, release: Release) -> None:
        self.location, self.stamp, self._release = location, stamp, release
        self._head, *_ = retried(location, lambda: roll_back(location))
        self._snapshot = Snapshot(location, stamp, self._head)
        self._catalogue = Catalogue(self._snapshot.videos())

    @classmethod
    def create(
        cls, where: Where, stamp: ModelStamp, wait: float = 0.0, should_stop: Callable[[], bool] = lambda: False
    ) -> Self:
        """A new library; with ``wait`` also one that another writer created in the meantime."""
        location = Location.of(where)
        location.prepare()

        def create() -> None:
            if not wait or not location.exists("library.json"):
                retried(location, lambda: create_files(location, stamp))

        return cls._locked(location, wait, should_stop, create)

    @classmethod
    def open(cls, where: Where, wait: float = 0.0, should_stop: Callable[[], bool] = lambda: False) -> Self:
        """An existing library; ``wait``: seconds to wait for another writer of a folder."""
        location = Location.of(where)
        read_library(location)
        return cls._locked(location, wait, should_stop)

    @classmethod
    def _locked(
        cls,
        location: Location,
        wait: float,
        should_stop: Callable[[], bool],
        prepare: Callable[[], None] = lambda: None,
    ) -> Self:
        release = location.lock(wait, should_stop)
        try:
            prepare()
            retried(location, lambda: upgrade(location))
            return cls(location, model_stamp(location, read_library(location)), release)
        except BaseException:
            release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        release, self._release = self._release, lambda: None
        release()

    @property
    def snapshot(self) -> Snapshot:
        """The library as of the last commit of this writer."""
        if self._snapshot.head != self._head:
            self._snapshot = Snapshot(self.location, self.stamp, self._head)
        return self._snapshot

    def commit(
        self, videos: Sequence[VideoRecord], segments: Sequence[SegmentBatch] = (), remove: Collection[str] = ()
    ) -> None:
        """Remove the videos at these paths, and add or replace others with their segments: all or nothing.

        Long videos may come in several batches, in order. Segments belong to a content: copies share them, they stay
        while any record that is not bad has that content, and new ones replace them. A record of a known content needs
        no segments: a move is a record with the new path, and the old path removed.
        """
        lengths: dict[str, int] = {}
        for batch in segments:
            if batch.first != lengths.get(batch.video_id, 0):
                raise ValueError(f"segments of {batch.video_id} are repeated or out of order")
            lengths[batch.video_id] = batch.first + len(batch)
        _check_lengths(videos, lengths)
        records = {video.video_id: video for video in videos if video.state != "bad"}
        if without := lengths.keys() - records.keys():
            raise ValueError(f"segments of {', '.join(sorted(without))} have no record")
        # A list: rows that do not fit raise their own error before Lance begins.
        rows = [segment_rows(batch, records[batch.video_id], self.stamp) for batch in segments if len(batch)]
        self.commit_rows(videos, {video_id for video_id, length in lengths.items() if length}, lambda: rows, remove)

    def commit_rows(
        self,
        videos: Sequence[VideoRecord],
        fresh: Collection[str],
        rows: Callable[[], Iterable[pa.RecordBatch]],
        remove: Collection[str] = (),
    ) -> None:
        """Like `commit`, with the segments of the `fresh` contents as a stream, called again on a retry."""
        written = _Written()
        if fresh:
            schema = segment_schema(self.stamp)
            written.fragments.extend(retried(self.location, lambda: write_rows(self.location, schema, rows())))
        self._transact(videos, fresh, remove, written)

    def adopt(
        self,
        videos: Sequence[VideoRecord],
        fragments: Sequence[str],
        fresh: Collection[str],
        remove: Collection[str] = (),
    ) -> None:
        """Like `commit`, with the segments of the `fresh` contents in fragments from `write_segments`.

        Rows of other contents in the fragments are left out.
        """
        written = _Written.read(fragments)
        if missing := set(fresh) - written.lengths.keys():
            raise ValueError(f"no fragment has the segments of {', '.join(sorted(missing))}")
        _check_lengths(videos, written.lengths)
        self._transact(videos, fresh, remove, written)

    def _transact(
        self, videos: Sequence[VideoRecord], fresh: Collection[str], remove: Collection[str], written: _Written
    ) -> None:
        def attempt() -> None:
            """Plan the change with the newest records, and commit it."""
            head, video_set, segment_set = roll_back(self.location)
            if head.version != self._head.version:
                # A commit of another writer, or of this one, interrupted when it was complete.
                self._catalogue = Catalogue(Snapshot(self.location, self.stamp, head).videos())
            self._head = head
            change = self._catalogue.change(videos, remove, fresh)
            if change is None:
                return
            if change.dropped:
                segment_set.delete(one_of("video_id", change.dropped))
            if fresh and written.fragments:
                known = max((fragment.fragment_id for fragment in segment_set.dataset.get_fragments()), default=-1)
                segment_set.adopt(written.fragments)
                if unwanted := written.lengths.keys() - set(fresh):
                    # Only in the new fragments: the library may have these contents already.
                    segment_set.delete(f"{one_of('video_id', unwanted)} AND _rowid >= {(known + 1) << 32}")
            if change.paths:
                video_set.delete(one_of("path", change.paths))
            if change.videos:
                video_set.append(video_table(change.videos))
            self._head = publish(self.location, head, video_set, segment_set)
            self._catalogue.replace(change.videos, change.paths)

        retried(self.location, attempt)
        if self._scattered():
            # The commit stands. On a conflict, the other writer joins the files.
            with suppress(ConflictError):
                self._maintain(_join_files)
            # Workers may have written fragments for the next commit.
            self._sweep(GRACE, orphans=False)

    def _scattered(self) -> bool:
        """Whether small commits have left too many small fragments."""
        return any(
            sum(fragment.physical_rows < FRAGMENT_ROWS // 2 for fragment in dataset.get_fragments()) > MANY_FRAGMENTS
            for dataset in self.snapshot.datasets
        )

    def build_index(self) -> None:
        """Index the pooled vectors, so that `Snapshot.nearest` need not compare all of them."""
        self._maintain(build_index)

    def compact(self, grace: float = GRACE) -> None:
        """Join small files, index a large library, and delete versions that were replaced `grace` seconds ago."""
        self._maintain(_join_files)
        count, partitions = self.snapshot.count(), self.snapshot.partitions
        fits = partitions and 0.5 < math.sqrt(count) / partitions < 2
        if count >= EXACT_SEGMENTS and not fits:
            self.build_index()
        # Under a lock, unreferenced files are a dead writer's.
        self._sweep(grace, orphans=self.location.exclusive)

    def _maintain(self, work: Callable[[Head, Draft, Draft], Head]) -> None:
        """Publish the result of work that changes no rows."""

        def commit() -> Head:
            head, videos, segments = roll_back(self.location)
            new = work(head, videos, segments)
            if (videos.version, segments.version) == (head.videos, head.segments):
                return head
            return publish(self.location, new, videos, segments)

        before = self._head.version
        self._head = retried(self.location, commit)
        if self._head.version != before:
            # Another writer may have committed first.
            self._catalogue = Catalogue(self.snapshot.videos())

    def _sweep(self, grace: float, orphans: bool) -> None:
        for dataset in self.snapshot.datasets:
            retried(self.location, partial(_sweep, dataset, grace, orphans))


def _join_files(head: Head, videos: Draft, segments: Draft) -> Head:
    """Join small files into larger ones, and update the index."""
    videos.tidy(lambda dataset: dataset.optimize.compact_files())
    # By default Lance reads more rows at once, which here are large.
    how = {"target_rows_per_fragment": FRAGMENT_ROWS, "batch_size": 256}
    segments.tidy(lambda dataset: dataset.optimize.compact_files(**how))
    if head.partitions:
        segments.tidy(lambda dataset: dataset.optimize.optimize_indices())
    return head


def build_index(head: Head, _: Draft, segments: Draft) -> Head:
    rows = segments.dataset.count_rows()
    if not rows:
        return head
    partitions = max(round(math.sqrt(rows)), 1)
    how = {"metric": "cosine", "num_partitions": partitions, "replace": True}
    segments.tidy(lambda dataset: dataset.create_index("pooled", "IVF_FLAT", **how))
    return replace(head, partitions=partitions)


def _sweep(present: lance.LanceDataset, grace: float, orphans: bool) -> None:
    """Delete versions that were replaced more than `grace` seconds ago, and unreferenced files.

    The age of a version does not count: readers may open it until it is replaced. Without `orphans`, unreferenced files
    stay for a week: a worker may have written them for a later commit.
    """
    versions = sorted(present.versions(), key=lambda version: int(version["version"]))
    before = time.time() - grace
    replaced = [int(old["version"]) for old, new in pairwise(versions) if new["timestamp"].timestamp() <= before]
    # Newer versions may be another writer's unfinished commit.
    replaced = [version for version in replaced if version < present.version]
    which: dict[str, Any] = {"versions": replaced} if replaced else {"older_than": timedelta(days=36500)}
    with contained():
        present.cleanup_old_versions(**which, delete_unverified=orphans)


def _check_lengths(videos: Iterable[VideoRecord], lengths: Mapping[str, int]) -> None:
    for video in videos:
        if video.state != "bad" and lengths.get(video.video_id, video.segments) != video.segments:
            raise ValueError(f"{video.path}: {video.segments} segments expected, {lengths[video.video_id]} given")


def write_rows(location: Location, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> Fragments:
    """Write fragments that no version references yet."""
    problems: list[LibraryError] = []

    def watched() -> Iterator[pa.RecordBatch]:
        # An error of the rows, which passes through Lance, comes back as another type.
        try:
            yield from rows
        except LibraryError as error:
            problems.append(error)
            raise

    reader = pa.RecordBatchReader.from_batches(schema, watched())
    target = location.dataset("segments")
    try:
        return list(lance.fragment.write_fragments(reader, target, mode="append", storage_options=location.options))
    except (ValueError, OSError) as error:
        raise (problems[0] if problems else location.problem(error)) from error


def write_segments(where: Where, stamp: ModelStamp, videos: Sequence[tuple[VideoRecord, SegmentBatch]]) -> list[str]:
    """Write the segments of some videos without a lock, for `Writer.adopt`; returns the fragments as JSON.

    A fragment is a file that no version references: readers do not see it, and if it is never adopted it only takes
    space.
    """
    given = [(video, batch) for video, batch in videos if len(batch)]
    if not given:
        return []
    location = Location.of(where)
    # A list: rows that do not fit raise their own error before Lance begins.
    fragments = write_rows(
        location, segment_schema(stamp), [segment_rows(batch, video, stamp) for video, batch in given]
    )
    if location.exclusive:
        # On a shared file system, only the machine that wrote a file can flush it.
        target = location.dataset("segments")
        files = [f"{target}/data/{file.path}" for fragment in fragments for file in fragment.files]
        flush([*files, f"{target}/data", target])
    parts = [{"video_id": video.video_id, "first": batch.first, "segments": len(batch)} for video, batch in given]
    return [json.dumps({"fragments": [fragment.to_json() for fragment in fragments], "videos": parts})]


@dataclass(frozen=True)
class _Written:
    """Fragments of `write_segments`."""

    fragments: Fragments = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    """Segments of each content."""

    @classmethod
    def read(cls, texts: Iterable[str]) -> _Written:
        """The results of one or more calls; a long video comes in parts."""
        written = cls()
        parts: set[tuple[str, int]] = set()
        for values in map(json.loads, texts):
            for part in values["videos"]:
                video_id = part["video_id"]
                if (video_id, part["first"]) in parts:
                    raise ValueError(f"segments of {video_id} are given twice")
                parts.add((video_id, part["first"]))
                written.lengths[video_id] = written.lengths.get(video_id, 0) + part["segments"]
            written.fragments.extend(
                lance.fragment.FragmentMetadata.from_json(json.dumps(fragment)) for fragment in values["fragments"]
            )
        return written
