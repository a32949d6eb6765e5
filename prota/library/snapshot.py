"""A library as it was when it was opened: what readers ask of its videos and segments."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from prota.library.folder import Head, open_at_head
from prota.library.place import Place
from prota.library.problems import short
from prota.library.records import Bools, Floats, LibraryError, ModelStamp, VideoRecord
from prota.library.tables import FILTERABLE, Catalogue, block, one_of, segment_schema, video_records, with_kind

__all__ = ["Rows", "SegmentTokens", "Snapshot"]

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


class Snapshot:
    """One version of a library, to be read."""

    def __init__(self, folder: Place, stamp: ModelStamp, at: Head | None = None) -> None:
        """The present version, or one of before, if nobody has cleaned that up yet."""
        self.folder = folder
        self.stamp = stamp
        self._schema = segment_schema(stamp)
        self._see(at)

    def _see(self, at: Head | None = None) -> None:
        """Look at the library as its head says it is now, or as it was."""
        self._head, self._videos, self._segments = open_at_head(self.folder, at)
        self._known: Catalogue | None = None
        self._addresses: Any = None

    @property
    def head(self) -> Head:
        """What is seen of the library; others can open the same by it."""
        return self._head

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
            remedy = f"open with --model {self.stamp.name}, or index into another folder"
            if stamp.name == self.stamp.name:
                remedy = "it has changed since, so index into another folder, or go back to the version that made this"
            raise LibraryError(
                f"{self.folder} was made with model {self.stamp.name} (fingerprint {self.stamp.fingerprint[:12]}); "
                f"you gave {stamp.name} (fingerprint {stamp.fingerprint[:12]}): {remedy}"
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
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        rows: Rows | None = None,
        within: range | None = None,
        hidden: Collection[str] = (),
    ) -> pa.Table:
        """Columns of all segments, of those that fit an SQL filter, or of some rows in the order given; and `row`.

        `within`: neighbouring rows that a filter keeps to; `hidden`: contents that it leaves out.
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
            limited = self._limited(where, within, hidden)
            table = self._segments.to_table(columns=names, filter=limited, with_row_id=True)
        numbers = self._numbers(table.column("_rowid"))
        return table.drop_columns("_rowid").append_column("row", pa.array(numbers))

    def tokens(self, rows: Rows | None = None) -> SegmentTokens:
        """The tokens of these rows in the order given, or of all. A range of neighbours is read in one go."""
        M, D = self.stamp.frames, self.stamp.width
        shapes = {"direction": (M, D), "spread": (M, D), "weight": (M,), "mask": (M,)}
        if not self.stamp.spread:
            del shapes["spread"]
        within = range(self.count()) if rows is None else rows
        if not isinstance(within, range) or within.step != 1:
            table = self._take(list(shapes), within)
            arrays = {name: block(table, name, *shape) for name, shape in shapes.items()}
        else:
            kinds = {"direction": np.float16, "spread": np.float16, "weight": np.float32, "mask": np.uint8}
            arrays = {name: np.empty((len(within), *shape), kinds[name]) for name, shape in shapes.items()}
            filled = 0
            # Batch by batch into their place: all at once would need the memory twice.
            for batch in self.batches(list(shapes), within=within):
                for name, shape in shapes.items():
                    arrays[name][filled : filled + batch.num_rows] = block(batch, name, *shape)
                filled += batch.num_rows
        mask = arrays["mask"].view(np.bool_)
        return SegmentTokens(arrays["direction"], arrays.get("spread"), arrays["weight"], mask)

    def thumbnails(self, rows: Rows) -> list[bytes]:
        """The small pictures of these rows, as JPEG files."""
        return list(self._take(["thumbnail"], rows).column("thumbnail").to_pylist())

    def batches(
        self, columns: Sequence[str], of: Collection[str] | None = None, within: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All segments, those of some contents or neighbours, in the order of their rows, some at a time."""
        some: dict[str, Any] = {} if of is None else {"filter": one_of("video_id", of)}
        if within is not None:
            some |= {"offset": within.start, "limit": len(within)}
        with self._reading():
            yield from self._segments.to_batches(columns=list(columns), batch_size=512, **some)

    def nearest(
        self,
        vector: Floats,
        count: int,
        where: str | None = None,
        probes: int | None = None,
        within: range | None = None,
        hidden: Collection[str] = (),
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows whose pooled vectors are nearest to this one [D], best first.

        Where there is an index, `probes` of its partitions are searched, by default a quarter; all under a filter, as
        what a filter leaves may lie in any. What came after the index was built is always searched. `within`:
        neighbouring rows to keep to; `hidden`: contents to leave out.
        """
        query = {"column": "pooled", "q": np.asarray(vector, np.float32), "k": count, "metric": "cosine"}
        if self.partitions:
            rows = self.count() if within is None else len(within)
            some = min(probes or self._probes(count, rows), self.partitions)
            query["nprobes"] = self.partitions if where or hidden else some
        with self._reading(where):
            limited = self._limited(where, within, hidden)
            table = self._segments.to_table(
                columns=["_distance"], nearest=query, filter=limited, prefilter=True, with_row_id=True
            )
        return self._numbers(table.column("_rowid"))

    def _probes(self, count: int, rows: int) -> int:
        # Twice the partitions that would hold that many segments if all were of one size, and at least a quarter.
        return max(math.ceil(self.partitions / 4), math.ceil(2 * count * self.partitions / max(rows, 1)))

    def _limited(self, where: str | None, within: range | None, hidden: Collection[str]) -> str | None:
        """A filter that also keeps to neighbouring rows and leaves out some contents, where it is to."""
        parts = [] if where is None else [f"({with_kind(where)})"]
        if within is not None:
            first, last = self._all_addresses()[[within.start, within.stop - 1]]
            parts.append(f"_rowid >= {first} AND _rowid <= {last}")
        if hidden:
            parts.append(f"NOT ({one_of('video_id', hidden)})")
        return " AND ".join(parts) or None

    def _take(self, columns: list[str], rows: Rows) -> pa.Table:
        numbers = np.asarray(rows, dtype=np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count():
            raise IndexError(f"rows are 0 to {self.count() - 1}")
        with self._reading():
            return self._segments.take(pa.array(numbers), columns=columns)

    def _numbers(self, addresses: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Places in the order of the segments, of what Lance calls row ids."""
        numbers: np.ndarray[Any, np.dtype[np.int64]] = np.searchsorted(self._all_addresses(), addresses.to_numpy())
        return numbers

    def _all_addresses(self) -> Any:
        """What Lance calls the rows, in their order."""
        if self._addresses is None:
            with self._reading():
                table = self._segments.to_table(columns=[], with_row_id=True)
            self._addresses = table.column("_rowid").to_numpy()
        return self._addresses

    @contextmanager
    def _reading(self, where: str | None = None) -> Iterator[None]:
        """Tell errors of Lance in the user's terms: a filter that is none, or files that are not there."""
        try:
            yield
        except (ValueError, OSError) as error:
            if isinstance(error, LibraryError):
                raise
            if where is None or isinstance(error, OSError) or "LanceError(IO)" in str(error):
                if (problem := self.folder.problem(error)) is not error:
                    raise problem from error
                raise LibraryError(
                    f"{self.folder} cannot be read ({short(error)}): open it again if it was compacted meanwhile; "
                    f"otherwise it is damaged, see `prota library verify --library {self.folder}`"
                ) from error
            raise LibraryError(
                f"cannot filter by {where!r} ({short(error)}): "
                f"write an SQL condition over kind, {', '.join(FILTERABLE)}, such as kind = 'video' AND duration < 60"
            ) from error
