"""A library's videos and segments, on Lance: two datasets that are read and written as one.

A reader sees the state at which it was opened, whatever is written meanwhile. A commit becomes visible all at once or
not at all, also if its process is killed; see `folder` for how.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import lance
import numpy as np
import pyarrow as pa

from prota.library.folder import (
    Head,
    create_folder,
    files_of,
    forget_versions,
    lock_folder,
    model_stamp,
    open_at_head,
    read_library,
    settle,
    short,
    take_back,
    upgrade,
    write_head,
)
from prota.library.records import Bools, Floats, LibraryError, ModelStamp, SegmentBatch, VideoRecord
from prota.library.tables import (
    FILTERABLE,
    VIDEO_SCHEMA,
    Catalogue,
    Change,
    block,
    one_of,
    recopied,
    segment_rows,
    segment_schema,
    video_records,
    video_table,
)

__all__ = ["Rows", "SegmentTokens", "Store"]

# Every version lists all fragments, so many small commits would cost more and more.
MANY_FRAGMENTS = 200
# About 400 MB of M = 12, D = 512: a fragment that large is not written again because small ones came.
FRAGMENT_ROWS = 16384
# Below, comparing with every pooled vector takes no longer.
INDEX_FROM = 20_000
# Seconds for which readers may go on with a version after it was replaced.
GRACE = 3600.0

Rows = Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]]


@dataclass(frozen=True)
class SegmentTokens:
    """The tokens of some segments; read-only where nothing was copied."""

    direction: Floats
    """[S, M, D] fp16."""
    spread: Floats | None
    """[S, M, D] fp16."""
    weight: Floats
    """[S, M] fp32."""
    mask: Bools
    """[S, M]."""

    def __len__(self) -> int:
        return len(self.direction)


def small_fragments(dataset: lance.LanceDataset) -> int:
    return sum(fragment.physical_rows < FRAGMENT_ROWS // 2 for fragment in dataset.get_fragments())


class Store:
    """A library, opened for reading (by anyone) or for writing (by one at a time)."""

    def __init__(self, folder: Path, stamp: ModelStamp, lock: TextIO | None) -> None:
        self.folder = folder
        self.stamp = stamp
        self._lock = lock
        self._schema = segment_schema(stamp)
        if lock is not None:
            take_back(folder)
        self._settled = files_of(folder) if lock is not None else set()
        self._see()

    def _see(self) -> None:
        """Look at the library as its head says it is now."""
        self._head, self._videos, self._segments = open_at_head(self.folder)
        self._known: Catalogue | None = None
        self._addresses: Any = None

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

    @property
    def version(self) -> int:
        """Grows with each commit; within one, rows keep their numbers."""
        return self._head.version

    @property
    def columns(self) -> list[str]:
        """Of the segments."""
        return list(self._schema.names)

    @property
    def partitions(self) -> int:
        """Of the vector index; 0 where there is none."""
        return self._head.partitions

    def check_model(self, stamp: ModelStamp) -> None:
        """LibraryError unless this model made the library: tokens of two models cannot be compared."""
        if replace(stamp, name="") != replace(self.stamp, name=""):
            raise LibraryError(
                f"{self.folder} was made with model {self.stamp.name} (fingerprint {self.stamp.fingerprint[:12]}); "
                f"you gave {stamp.name} (fingerprint {stamp.fingerprint[:12]}): "
                f"open with --model {self.stamp.name}, or index anew"
            )

    @property
    def _catalogue(self) -> Catalogue:
        if self._known is None:
            with self._reading():
                self._known = Catalogue(video_records(self._videos.to_table()))
        return self._known

    def videos(self) -> list[VideoRecord]:
        """All records, by path."""
        records = self._catalogue.records
        return [records[path] for path in sorted(records)]

    def count(self) -> int:
        """How many segments there are; their rows are 0 to count - 1."""
        return int(self._segments.count_rows())

    def segments(
        self, columns: Sequence[str] | None = None, where: str | None = None, rows: Rows | None = None
    ) -> pa.Table:
        """Columns of all segments, of those that fit an SQL filter, or of some rows in the order given; and `row`.

        Without `columns` it gives those that a filter can use: video_id, index, start, end and what segments repeat of
        the first path of their video. `modified` is a time in UTC there.
        """
        names = [name for name in (FILTERABLE if columns is None else columns) if name != "row"]
        if unknown := set(names) - set(self._schema.names):
            raise ValueError(f"segments have no column {', '.join(sorted(unknown))}")
        if rows is not None:
            if where is not None:
                raise ValueError("give rows or a filter, not both")
            numbers = np.asarray(rows, dtype=np.int64)
            return self._take(names, numbers).append_column("row", pa.array(numbers))
        with self._reading(where):
            table = self._segments.to_table(columns=names, filter=where, with_row_id=True)
        numbers = self._numbers(table.column("_rowid"))
        return table.drop_columns("_rowid").append_column("row", pa.array(numbers))

    def tokens(self, rows: Rows | None = None) -> SegmentTokens:
        """The tokens of these rows in the order given, or of all."""
        M, D = self.stamp.frames, self.stamp.width
        shapes = {"direction": (M, D), "spread": (M, D), "weight": (M,), "mask": (M,)}
        if not self.stamp.spread:
            del shapes["spread"]
        if rows is not None:
            table = self._take(list(shapes), rows)
            arrays = {name: block(table, name, *shape) for name, shape in shapes.items()}
        else:
            kinds = {"direction": np.float16, "spread": np.float16, "weight": np.float32, "mask": np.uint8}
            arrays = {name: np.empty((self.count(), *shape), kinds[name]) for name, shape in shapes.items()}
            filled = 0
            # Batch by batch into their place: all at once would need the memory twice.
            for batch in self.batches(list(shapes)):
                for name, shape in shapes.items():
                    arrays[name][filled : filled + batch.num_rows] = block(batch, name, *shape)
                filled += batch.num_rows
        mask = arrays["mask"].view(np.bool_)
        return SegmentTokens(arrays["direction"], arrays.get("spread"), arrays["weight"], mask)

    def thumbnails(self, rows: Rows) -> list[bytes]:
        """The small pictures of these rows, as JPEG files."""
        return list(self._take(["thumbnail"], rows).column("thumbnail").to_pylist())

    def batches(self, columns: Sequence[str], of: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All segments, or those of some contents, in the order of their rows, some at a time."""
        where = None if of is None else one_of("video_id", of)
        with self._reading():
            yield from self._segments.to_batches(columns=list(columns), filter=where, batch_size=512)

    def nearest(
        self, vector: Floats, count: int, where: str | None = None, probes: int | None = None
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows whose pooled vectors are nearest to this one [D], best first.

        Where there is an index, `probes` of its partitions are searched, by default a quarter; all under a filter, as
        what a filter leaves may lie in any. What came after the index was built is always searched.
        """
        query = {"column": "pooled", "q": np.asarray(vector, np.float32), "k": count, "metric": "cosine"}
        if self.partitions:
            query["nprobes"] = self.partitions if where else min(probes or self._probes(count), self.partitions)
        with self._reading(where):
            table = self._segments.to_table(
                columns=["_distance"], nearest=query, filter=where, prefilter=True, with_row_id=True
            )
        return self._numbers(table.column("_rowid"))

    def _probes(self, count: int) -> int:
        # Twice the partitions that would hold that many segments if all were of one size, and at least a quarter.
        return max(math.ceil(self.partitions / 4), math.ceil(2 * count * self.partitions / max(self.count(), 1)))

    def _take(self, columns: list[str], rows: Rows) -> pa.Table:
        numbers = np.asarray(rows, dtype=np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count():
            raise IndexError(f"rows are 0 to {self.count() - 1}")
        with self._reading():
            return self._segments.take(pa.array(numbers), columns=columns)

    def _numbers(self, addresses: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Places in the order of the segments, of what Lance calls row ids."""
        if self._addresses is None:
            with self._reading():
                table = self._segments.to_table(columns=[], with_row_id=True)
            self._addresses = table.column("_rowid").to_numpy()
        numbers: np.ndarray[Any, np.dtype[np.int64]] = np.searchsorted(self._addresses, addresses.to_numpy())
        return numbers

    @contextmanager
    def _reading(self, where: str | None = None) -> Iterator[None]:
        """Tell errors of Lance in the user's terms: a filter that is none, or files that are not there."""
        try:
            yield
        except (ValueError, OSError) as error:
            if isinstance(error, LibraryError):
                raise
            if where is None or isinstance(error, OSError) or "LanceError(IO)" in str(error):
                raise LibraryError(
                    f"{self.folder} cannot be read ({short(error)}): open it again if it was compacted meanwhile; "
                    f"otherwise it is damaged, see `prota library verify {self.folder}`"
                ) from error
            raise LibraryError(
                f"cannot filter by {where!r} ({short(error)}): "
                f"write an SQL condition over {', '.join(FILTERABLE)}, such as duration < 60"
            ) from error

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
        for video in videos:
            if video.state != "bad" and lengths.get(video.video_id, video.segments) != video.segments:
                raise ValueError(f"{video.path}: {video.segments} segments expected, {lengths[video.video_id]} given")
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
            segment_set = lance.write_dataset(self._incoming(change, rows), segment_set, mode="append")
        if change.paths:
            video_set.delete(one_of("path", change.paths))
        if change.videos:
            video_set = lance.write_dataset(video_table(change.videos), video_set, mode="append")
        self._publish(head, video_set, segment_set)
        self._catalogue.replace(change.videos, change.paths)
        if max(small_fragments(video_set), small_fragments(segment_set)) > MANY_FRAGMENTS:
            self._join_files()
            self._forget(GRACE)

    def _incoming(self, change: Change, rows: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """All rows that a change brings to the segments."""
        if change.rewritten:
            rows = chain(rows, self.batches(self.columns, change.rewritten))
        return pa.RecordBatchReader.from_batches(
            self._schema, (recopied(batch, change.owners, self._schema) for batch in rows)
        )

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
        self._forget(grace)

    def _join_files(self) -> None:
        head, videos, segments = take_back(self.folder)
        videos.optimize.compact_files()
        # Lance reads many rows at once, which here are large.
        segments.optimize.compact_files(target_rows_per_fragment=FRAGMENT_ROWS, batch_size=256)
        if head.partitions:
            segments.optimize.optimize_indices()
        if (videos.version, segments.version) != (head.videos, head.segments):
            self._publish(head, videos, segments)

    def _forget(self, grace: float) -> None:
        for dataset in (self._videos, self._segments):
            forget_versions(dataset, grace)
        self._settled &= files_of(self.folder)
