"""Writing a library: commits of videos with their segments, by one process or with the help of workers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Self

import lance
import pyarrow as pa

from prota.library.records import EXACT_SEGMENTS, ModelStamp, SegmentBatch, VideoRecord
from prota.library.storage import maintenance
from prota.library.storage.location import ConflictError, Location, Release, Where, flush
from prota.library.storage.reader import Snapshot
from prota.library.storage.schema import (
    VIDEO_SCHEMA,
    Catalogue,
    Change,
    one_of,
    segment_rows,
    segment_schema,
    video_table,
)
from prota.library.storage.versions import Draft, Head, model_stamp, publish, read_library, retried, roll_back

__all__ = ["GRACE", "Writer", "write_segments"]

# Seconds for which readers may use a version after it was replaced.
GRACE = 3600.0

Bring = Callable[[Draft, Change], None]
"""Adds the new segments of a change."""


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
        """A new library; with ``wait`` also the one that another writer made in the meantime."""
        location = Location.of(where)
        location.prepare()
        release = location.lock(wait, should_stop)
        try:
            if not wait or not location.exists("library.json"):
                schemas = {"videos": VIDEO_SCHEMA, "segments": segment_schema(stamp)}
                retried(location, lambda: maintenance.create_files(location, stamp, schemas))
            return cls._locked(location, release)
        except BaseException:
            release()
            raise

    @classmethod
    def open(cls, where: Where, wait: float = 0.0, should_stop: Callable[[], bool] = lambda: False) -> Self:
        """An existing library; ``wait``: the most seconds to wait for another writer of a folder."""
        location = Location.of(where)
        read_library(location)
        release = location.lock(wait, should_stop)
        try:
            return cls._locked(location, release)
        except BaseException:
            release()
            raise

    @classmethod
    def _locked(cls, location: Location, release: Release) -> Self:
        retried(location, lambda: maintenance.upgrade(location))
        return cls(location, model_stamp(location, read_library(location)), release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock."""
        release, self._release = self._release, lambda: None
        release()

    @property
    def snapshot(self) -> Snapshot:
        """The library as of the last commit of this writer."""
        if self._snapshot.head != self._head:
            self._snapshot = Snapshot(self.location, self.stamp, self._head)
        return self._snapshot

    def commit(
        self, videos: Sequence[VideoRecord], segments: Sequence[SegmentBatch], remove: Collection[str] = ()
    ) -> None:
        """Remove the videos at these paths, add or replace others with their segments: all at once or not at all.

        A long video may come in several batches, in their order.

        Segments belong to a content: copies share them, they stay while a record that is not bad has that content, and
        given again they are replaced. A record whose content is known needs no segments, so a move is one record under
        a new path and the old path removed.
        """
        lengths: dict[str, int] = {}
        for batch in segments:
            if batch.first != lengths.get(batch.video_id, 0):
                raise ValueError(f"segments of {batch.video_id} come twice, or not in their order")
            lengths[batch.video_id] = batch.first + len(batch)
        _check_lengths(videos, lengths)
        records = {video.video_id: video for video in videos if video.state != "bad"}
        if without := lengths.keys() - records.keys():
            raise ValueError(f"segments of {', '.join(sorted(without))} come without a record")
        rows = [segment_rows(batch, records[batch.video_id], self.stamp) for batch in segments if len(batch)]
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
        """Like `commit`, with the segments of the `fresh` contents as a stream of rows.

        `rows` is called again where a commit is repeated.
        """

        def bring(segments: Draft, change: Change) -> None:
            batches = iter(rows())
            # Lance would make a version of no rows, too.
            if (first := next(batches, None)) is not None:
                schema = segment_schema(self.stamp)
                segments.append(pa.RecordBatchReader.from_batches(schema, chain([first], batches)))

        self._transact(videos, fresh, remove, bring)

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
        written = Written.read(fragments)
        if missing := set(fresh) - written.lengths.keys():
            raise ValueError(f"no fragment has the segments of {', '.join(sorted(missing))}")
        _check_lengths(videos, written.lengths)
        unwanted = written.lengths.keys() - set(fresh)

        def bring(segments: Draft, change: Change) -> None:
            known = max((fragment.fragment_id for fragment in segments.dataset.get_fragments()), default=-1)
            segments.adopt(written.fragments)
            if unwanted:
                # Only in what was adopted: the library may have these contents already.
                segments.delete(f"{one_of('video_id', unwanted)} AND _rowid >= {(known + 1) << 32}")

        self._transact(videos, fresh, remove, bring)

    def _transact(
        self, videos: Sequence[VideoRecord], fresh: Collection[str], remove: Collection[str], bring: Bring
    ) -> None:
        retried(self.location, lambda: self._change(videos, fresh, remove, bring))
        if maintenance.scattered(*self.snapshot.datasets):
            # The commit stands; a writer that conflicts with this will come here, too.
            with suppress(ConflictError):
                self._maintain(maintenance.join_files)
            # Workers may have written fragments that are still to be adopted.
            self._forget(GRACE, orphans=False)

    def _change(
        self, videos: Sequence[VideoRecord], fresh: Collection[str], remove: Collection[str], bring: Bring
    ) -> None:
        """One attempt at a commit, planned with the records at its beginning."""
        head, video_set, segment_set = roll_back(self.location)
        if head.version != self._head.version:
            # Another writer's commit, or one of this writer's that was interrupted when it was complete.
            self._catalogue = Catalogue(Snapshot(self.location, self.stamp, head).videos())
        self._head = head
        change = self._catalogue.change(videos, remove, fresh)
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
        self._head = publish(self.location, head, video_set, segment_set)
        self._catalogue.replace(change.videos, change.paths)

    def build_index(self) -> None:
        """Index the pooled vectors, so that `Snapshot.nearest` need not compare all of them."""
        self._maintain(maintenance.build_index)

    def compact(self, grace: float = GRACE) -> None:
        """Join small files, index a large library, and delete versions that were replaced `grace` seconds ago."""
        self._maintain(maintenance.join_files)
        count, partitions = self.snapshot.count(), self.snapshot.partitions
        fits = partitions and 0.5 < math.sqrt(count) / partitions < 2
        if count >= EXACT_SEGMENTS and not fits:
            self.build_index()
        # Under a lock, files that no version names are a dead writer's.
        self._forget(grace, orphans=self.location.exclusive)

    def _maintain(self, work: Callable[[Location], Head]) -> None:
        before = self._head.version
        self._head = retried(self.location, lambda: work(self.location))
        if self._head.version != before:
            # Another writer may have committed first.
            self._catalogue = Catalogue(self.snapshot.videos())

    def _forget(self, grace: float, orphans: bool) -> None:
        for dataset in self.snapshot.datasets:
            retried(self.location, partial(maintenance.forget_versions, dataset, grace, orphans))


def _check_lengths(videos: Iterable[VideoRecord], lengths: Mapping[str, int]) -> None:
    for video in videos:
        if video.state != "bad" and lengths.get(video.video_id, video.segments) != video.segments:
            raise ValueError(f"{video.path}: {video.segments} segments expected, {lengths[video.video_id]} given")


def write_segments(where: Where, stamp: ModelStamp, videos: Sequence[tuple[VideoRecord, SegmentBatch]]) -> list[str]:
    """Write the segments of some videos without a lock, for `Writer.adopt`; returns the fragments as JSON.

    A fragment is a file in the library's folder that no version names: readers do not see it, and if it is never
    adopted it only takes space.
    """
    given = [(video, batch) for video, batch in videos if len(batch)]
    if not given:
        return []
    # A list: rows that do not fit raise their own error before Lance begins.
    rows = [segment_rows(batch, video, stamp) for video, batch in given]
    location = Location.of(where)
    reader = pa.RecordBatchReader.from_batches(segment_schema(stamp), rows)
    target = location.dataset("segments")
    try:
        fragments = lance.fragment.write_fragments(reader, target, mode="append", storage_options=location.options)
    except (ValueError, OSError) as error:
        raise location.problem(error) from error
    if location.exclusive:
        # On a file system that several machines share, only the machine that wrote a file can flush it.
        files = [f"{target}/data/{file.path}" for fragment in fragments for file in fragment.files]
        flush([*files, f"{target}/data", target])
    parts = [{"video_id": video.video_id, "first": batch.first, "segments": len(batch)} for video, batch in given]
    return [json.dumps({"fragments": [fragment.to_json() for fragment in fragments], "videos": parts})]


@dataclass(frozen=True)
class Written:
    """Fragments of `write_segments`."""

    fragments: list[lance.fragment.FragmentMetadata]
    lengths: dict[str, int]
    """Segments of each content."""

    @classmethod
    def read(cls, texts: Iterable[str]) -> Written:
        """Of one call or more; a long video comes in parts."""
        written = cls([], {})
        parts: set[tuple[str, int]] = set()
        for values in map(json.loads, texts):
            for part in values["videos"]:
                video_id = part["video_id"]
                if (video_id, part["first"]) in parts:
                    raise ValueError(f"segments of {video_id} come twice")
                parts.add((video_id, part["first"]))
                written.lengths[video_id] = written.lengths.get(video_id, 0) + part["segments"]
            written.fragments.extend(
                lance.fragment.FragmentMetadata.from_json(json.dumps(fragment)) for fragment in values["fragments"]
            )
        return written
