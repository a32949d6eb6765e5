"""Read one version of a library: its videos and segments."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import serialize_row_addrs

from prota.library.records import (
    EXACT_SEGMENTS,
    Bools,
    DamagedError,
    Floats,
    LibraryError,
    ModelStamp,
    SegmentTokens,
    VideoRecord,
)
from prota.library.storage.location import Location, Where, contained, short
from prota.library.storage.schema import (
    CHECK,
    FILTERABLE,
    OF_FILE,
    OF_SEGMENT,
    Catalogue,
    Group,
    block,
    checked_groups,
    damaged_rows,
    damaged_videos,
    filter_table,
    number_columns,
    one_of,
    segment_schema,
    video_records,
)
from prota.library.storage.versions import Head, index_checks, model_stamp, open_at_head, read_library

__all__ = ["Rows", "Snapshot"]

DESCRIBING = tuple(name for name in FILTERABLE if name not in OF_FILE)

Rows = Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]]
_CHECKED_AT_ONCE = 4096
# Filters on `kind` use the duration. Lance accepts CASE only as a function's argument.
KIND = "lower(CASE WHEN duration = 0 THEN 'picture' ELSE 'video' END)"
# Quoted text and words of an SQL condition.
QUOTED_OR_WORD = re.compile(r"'(?:[^']|'')*'|\b[a-z_]+\b", re.IGNORECASE)


class Snapshot:
    """A pinned version of a library."""

    def __init__(self, location: Location, stamp: ModelStamp, at: Head | None = None) -> None:
        """The current version, or an earlier one that still exists."""
        self.location, self.stamp = location, stamp
        self.head, self._videos, self._segments = open_at_head(location, at)
        self._kept_by = lru_cache(maxsize=32)(self._find_kept)
        self._known: dict[Group, np.ndarray[Any, np.dtype[np.int8]]] = {}
        """By row: 1 if it agrees with its checksum, -1 if it does not, 0 if it was not read yet."""
        self._corrupt: set[int] = set()

    @classmethod
    def open(cls, where: Where) -> Snapshot:
        """The current version of an existing library."""
        location = Location.of(where)
        return cls(location, model_stamp(location, read_library(location)))

    @property
    def datasets(self) -> tuple[lance.LanceDataset, lance.LanceDataset]:
        """Videos and segments."""
        return self._videos, self._segments

    @property
    def version(self) -> int:
        """Increases with each commit; within a version, rows keep their numbers."""
        return self.head.version

    @property
    def columns(self) -> list[str]:
        """The columns of the segments."""
        return [name for name in segment_schema(self.stamp).names if name != CHECK or self.has_checks]

    @property
    def partitions(self) -> int:
        """The partitions of the vector index; 0 without one."""
        return self.head.partitions

    def check_model(self, stamp: ModelStamp) -> None:
        """LibraryError unless this model made the library."""
        if replace(stamp, name="") != replace(self.stamp, name=""):
            remedy = f"open with --model {self.stamp.name}, or index into another folder"
            if stamp.name == self.stamp.name:
                remedy = "the model has changed: index into another folder, or restore its earlier version"
            raise LibraryError(
                f"{self.location} was made with model {self.stamp.name} (fingerprint {self.stamp.fingerprint[:12]}); "
                f"you gave {stamp.name} (fingerprint {stamp.fingerprint[:12]}): {remedy}"
            )

    @cached_property
    def catalogue(self) -> Catalogue:
        """All records; read-only. DamagedError if one of them differs from its checksum."""
        with self._reading():
            table = self._videos.to_table()
        if wrong := int(damaged_videos(table).sum()):
            raise DamagedError.at(
                self.location, f"{self.location}: {wrong} of {len(table)} records of files are corrupt"
            )
        return Catalogue(video_records(table))

    def videos(self) -> list[VideoRecord]:
        """All records, sorted by path."""
        records = self.catalogue.records
        return [records[path] for path in sorted(records)]

    @cached_property
    def shown(self) -> dict[str, VideoRecord]:
        """The videos that a search can return, by content; of several copies the first whose file exists."""
        return {owner.video_id: owner for owner in self.catalogue.owners() if owner.state == "indexed"}

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Contents without an existing file, which a search must not return."""
        return frozenset(owner.video_id for owner in self.catalogue.owners() if owner.state == "gone")

    def count(self) -> int:
        """The number of segments; their rows are 0 to count - 1."""
        return int(self._segments.count_rows())

    def segments(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        *,
        rows: Rows | None = None,
        within: range | None = None,
        hidden: Collection[str] = (),
    ) -> pa.Table:
        """Columns of all segments, of those that pass an SQL filter, or of some rows in the order given; and `row`.

        `within`: limits a filter to a range of rows; `hidden`: contents to leave out. `columns` default to video_id,
        index, start, end and the properties of the video.
        """
        names = [name for name in (DESCRIBING if columns is None else columns) if name != "row"]
        if unknown := set(names) - set(self.columns):
            raise ValueError(f"segments have no column {', '.join(sorted(unknown))}")
        if rows is not None:
            if where is not None:
                raise ValueError("give rows or a filter, not both")
            numbers = np.asarray(rows, dtype=np.int64)
            return self._take(names, numbers).append_column("row", pa.array(numbers))
        with self._reading(where):
            limits = self._limits(where, within, hidden)
            table = self._segments.scanner(columns=names, with_row_id=True, **limits).to_table()
        numbers = self._numbers(table.column("_rowid"))
        return table.drop_columns("_rowid").append_column("row", pa.array(numbers))

    @property
    def has_checks(self) -> bool:
        """Whether segments have checksums; not in libraries of older schemas."""
        return CHECK in self._segments.schema.names

    def damaged(self, rows: Rows, *groups: Group) -> Bools:
        """Which of these rows differ from their checksums; each row is read once, and remembered."""
        numbers = self._existing(rows)
        found = np.zeros(len(numbers), dtype=bool)
        if not self.has_checks:
            return found
        known = [self._known_of(group) for group in groups]
        new = np.unique(numbers[np.any([state[numbers] == 0 for state in known], axis=0)])
        for start in range(0, len(new), _CHECKED_AT_ONCE):
            some = new[start : start + _CHECKED_AT_ONCE]
            self._remember(self._take(self._checked_columns(*groups), some), some, groups)
        for state in known:
            found |= state[numbers] < 0
        return found

    def places(self, rows: Rows) -> tuple[pa.Table, Bools]:
        """video_id, start and end of the sound ones of these rows in the order given, and which they are."""
        numbers = self._existing(rows)
        if self.count() <= EXACT_SEGMENTS:
            table = self._places.take(numbers)
        else:
            table = self._take(self._checked_columns("place"), numbers)
            if self.has_checks:
                self._remember(table, numbers, ["place"])
        sound = np.array([number not in self._corrupt for number in numbers.tolist()], dtype=bool)
        return table.select(["video_id", "start", "end"]).filter(sound), sound

    @cached_property
    def _places(self) -> pa.Table:
        with self._reading():
            table = self._segments.to_table(columns=self._checked_columns("place")).combine_chunks()
        if self.has_checks:
            self._remember(table, np.arange(len(table)), ["place"])
        return table.select(["video_id", "start", "end"])

    def _checked_columns(self, *groups: Group) -> list[str]:
        """The columns of groups, with the checksums if there are any."""
        names = [name for group in groups for name in checked_groups(self.stamp)[group]]
        return [*names, CHECK] if self.has_checks else names

    def require(self, rows: Rows, *groups: Group) -> None:
        """DamagedError if one of these rows differs from its checksum."""
        if wrong := int(self.damaged(rows, *groups).sum()):
            raise DamagedError.at(self.location, f"{self.location}: {wrong} of {len(rows)} segments are corrupt")

    @property
    def damage(self) -> int:
        """The number of rows that were found to be corrupt so far."""
        return len(self._corrupt)

    def _known_of(self, group: Group) -> np.ndarray[Any, np.dtype[np.int8]]:
        if group not in self._known:
            self._known[group] = np.zeros(self.count(), dtype=np.int8)
        return self._known[group]

    def _remember(self, table: pa.Table | pa.RecordBatch, rows: Any, groups: Collection[Group]) -> None:
        for group, wrong in damaged_rows(table, self.stamp, groups).items():
            self._known_of(group)[rows] = np.where(wrong, -1, 1)
            self._corrupt.update(rows[wrong].tolist())

    def tokens(self, rows: Rows | None = None, *, check: bool = True) -> SegmentTokens:
        """The tokens of these rows in the order given, or of all; `damaged` then knows which are corrupt.

        ``check``: whether to compare rows with their checksums.
        """
        numbers = number_columns(self.stamp)
        columns = {name: numbers[name] for name in checked_groups(self.stamp)["tokens"]}
        within = range(self.count()) if rows is None else rows
        if not isinstance(within, range) or within.step != 1:
            check = check and self.has_checks
            table = self._take(self._checked_columns("tokens") if check else list(columns), within)
            if check:
                self._remember(table, self._existing(within), ["tokens"])
            arrays = {name: block(table, name, *shape) for name, (_, shape) in columns.items()}
        else:
            arrays = {name: np.empty((len(within), *shape), dtype) for name, (dtype, shape) in columns.items()}
            filled = 0
            # In batches: a table of all rows would take the memory twice.
            for batch in self.batches(self._checked_columns("tokens"), within=within):
                end = filled + batch.num_rows
                for name, (_, shape) in columns.items():
                    arrays[name][filled:end] = block(batch, name, *shape)
                if self.has_checks:
                    self._remember(batch, np.arange(within.start + filled, within.start + end), ["tokens"])
                filled = end
        mask = arrays["mask"].view(np.bool_)
        return SegmentTokens(arrays["direction"], arrays.get("spread"), arrays["weight"], mask)

    def thumbnails(self, rows: Rows) -> list[bytes]:
        """The thumbnails of these rows, as JPEG files; DamagedError if one differs from its checksum."""
        self.require(rows, "thumbnail")
        return list(self._take(["thumbnail"], rows).column("thumbnail").to_pylist())

    def batches(
        self, columns: Sequence[str], of: Collection[str] | None = None, within: range | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of all segments, of some contents, or of a range of rows, in the order of rows."""
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
        *,
        within: range | None = None,
        hidden: Collection[str] = (),
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The rows whose pooled vectors are nearest to this one [D], best first.

        With an index, a quarter of its partitions is searched or more, and all of them under a filter; rows that are
        newer than the index are always searched. `within`: a range of rows; `hidden`: contents to leave out.
        """
        if not self.index_is_whole:
            raise DamagedError.at(self.location, f"{self.location}: the vector index is corrupt")
        query = {"column": "pooled", "q": np.asarray(vector, np.float32), "k": count, "metric": "cosine"}
        if self.partitions:
            rows = self.count() if within is None else len(within)
            # Twice the partitions that would hold so many segments if all had the same size.
            some = max(math.ceil(self.partitions / 4), math.ceil(2 * count * self.partitions / max(rows, 1)))
            query["nprobes"] = self.partitions if where or hidden else min(some, self.partitions)
        with self._reading(where):
            limits = self._limits(where, within, hidden) | {"prefilter": True, "with_row_id": True}
            table = self._segments.scanner(columns=["_distance"], nearest=query, **limits).to_table()
        return self._numbers(table.column("_rowid"))

    @cached_property
    def index_is_whole(self) -> bool:
        """Whether the files of the index agree with their checksums: one look at each."""
        with self._reading():
            return not self.head.indices or index_checks(self.location, self._segments) == self.head.indices

    def _limits(self, where: str | None, within: range | None, hidden: Collection[str]) -> dict[str, Any]:
        """Options of a scan limited by a filter, a range of rows and hidden contents."""
        limits: dict[str, Any] = {}
        parts = []
        if where is not None and not _words(where).isdisjoint(OF_FILE):
            limits["row_addr_allowlist"] = self._kept_by(where)
        elif where is not None:
            parts.append(f"({_with_kind(where)})")
        if within is not None:
            first, last = self._addresses[[within.start, within.stop - 1]]
            parts.append(f"_rowid >= {first} AND _rowid <= {last}")
        if hidden:
            parts.append(f"NOT ({one_of('video_id', hidden)})")
        return limits | ({"filter": " AND ".join(parts)} if parts else {})

    def _find_kept(self, where: str) -> bytes:
        """The rows that pass a filter on properties of files, as a row mask for Lance.

        Segments lack these properties, and SQL lists of contents are slow: 50,000 take Lance half a second.
        """
        owners, owner_of_row = self._files
        if _words(where).isdisjoint(OF_SEGMENT):
            table = owners.append_column("place", pa.array(np.arange(len(owners))))
        else:
            table = owners.take(owner_of_row).append_column("place", pa.array(np.arange(self.count())))
            for name, column in zip(OF_SEGMENT, self._segments.to_table(columns=list(OF_SEGMENT)).columns, strict=True):
                table = table.append_column(name, column)
        # Lance evaluates its SQL only on datasets; this one is in memory.
        asked = lance.write_dataset(table, "memory://")
        rows = asked.to_table(columns=["place"], filter=_with_kind(where)).column("place").to_numpy()
        if _words(where).isdisjoint(OF_SEGMENT):
            rows = np.flatnonzero(np.isin(owner_of_row.fill_null(-1).to_numpy(), rows))
        return bytes(serialize_row_addrs(self._addresses[rows].tolist()))

    @cached_property
    def _files(self) -> tuple[pa.Table, pa.ChunkedArray]:
        """A row of `filter_table` for each content, and which of them each segment belongs to."""
        owners = filter_table(self.catalogue.owners())
        contents = self._segments.to_table(columns=["video_id"]).column("video_id")
        return owners, pc.index_in(contents, value_set=owners.column("video_id").combine_chunks())

    def _take(self, columns: list[str], rows: Rows) -> pa.Table:
        with self._reading():
            return self._segments.take(pa.array(self._existing(rows)), columns=columns)

    def _existing(self, rows: Rows) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row numbers as an array; IndexError for those that do not exist."""
        numbers = np.asarray(rows, dtype=np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self.count():
            raise IndexError(f"rows are 0 to {self.count() - 1}")
        return numbers

    def _numbers(self, addresses: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Convert Lance's row addresses to row numbers."""
        numbers: np.ndarray[Any, np.dtype[np.int64]] = np.searchsorted(self._addresses, addresses.to_numpy())
        return numbers

    @cached_property
    def _addresses(self) -> Any:
        """Lance's row addresses, in the order of rows."""
        with self._reading():
            return self._segments.to_table(columns=[], with_row_id=True).column("_rowid").to_numpy()

    @contextmanager
    def _reading(self, where: str | None = None) -> Iterator[None]:
        """Translate errors of Lance: an invalid filter, or missing or corrupt files."""
        try:
            with contained():
                yield
        except (ValueError, OSError, RuntimeError) as error:
            if isinstance(error, LibraryError):
                raise
            if where is None or not isinstance(error, ValueError) or "LanceError(IO)" in str(error):
                if not self.location.exclusive and (problem := self.location.problem(error)) is not error:
                    raise problem from error
                raise DamagedError.at(
                    self.location,
                    f"cannot read {self.location} ({short(error)}): open it again if it was compacted meanwhile; "
                    "otherwise it is corrupt",
                ) from error
            raise LibraryError(
                f"cannot filter by {where!r}: {_filter_problem(error)}",
                hint=f"give an SQL condition over kind, {', '.join(FILTERABLE)}, "
                "such as kind = 'video' AND duration < 60",
            ) from error


def _filter_problem(error: Exception) -> str:
    """What is wrong with a filter, without the internal columns and the query that Lance reports."""
    text = str(error)
    if unknown := re.search(r"(No field named|Invalid function) \W?(\w+)", text):
        return f"no {'column' if unknown[1].startswith('No') else 'function'} {unknown[2]!r}"
    if "SELECT 1" in text:
        return "not valid SQL"
    if re.search(r"convert|coerce|cast", text, re.IGNORECASE):
        return "a value has the wrong type"
    return "not a condition" if "boolean" in text else short(error)


def _words(where: str) -> set[str]:
    """The unquoted words of an SQL condition."""
    return {found.lower() for found in QUOTED_OR_WORD.findall(where)}


def _with_kind(where: str) -> str:
    """Replace `kind` in an SQL condition by its definition."""
    return QUOTED_OR_WORD.sub(lambda found: KIND if found[0].lower() == "kind" else found[0], where)
