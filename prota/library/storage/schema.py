"""The Arrow schemas of the two tables of a library, conversion between rows and records, and planned changes."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from prota.library.records import Bools, ModelStamp, SegmentBatch, VideoRecord

__all__ = ["CHECK", "FILTERABLE", "OF_CONTENT", "OF_FILE", "OF_SEGMENT", "VIDEO_SCHEMA", "Catalogue", "Group"]
__all__ += ["as_stored", "block", "checked_groups", "damaged_rows", "damaged_videos", "filter_table", "number_columns"]
__all__ += ["one_of", "original", "segment_rows", "segment_schema", "stored", "video_records", "video_table"]
__all__ += ["with_checks"]

OF_SEGMENT = ("index", "start", "end")
OF_CONTENT = ("duration", "width", "height", "fps", "codec")
"""Properties of a video's content: its segments repeat them, so that filters on them are fast."""
OF_FILE = ("path", "modified")
"""Properties of a file, which change when it is moved or copied: only its record has them."""
FILTERABLE = ("video_id", *OF_SEGMENT, *OF_CONTENT, *OF_FILE)

# File names may contain bytes that are not UTF-8. Python maps them to lone surrogates, which Arrow cannot store; they
# are stored as characters at the end of the last private plane.
TO_STORED = {0xDC80 + byte: 0x10FF00 + byte for byte in range(0x80)}
TO_ORIGINAL = {value: key for key, value in TO_STORED.items()}

VIDEO_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.int64()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("duration", pa.float64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("fps", pa.float64()),
        ("codec", pa.string()),
        ("segments", pa.int32()),
        ("metadata", pa.string()),
        ("check", pa.uint32()),
    ]
)

Group = Literal["place", "content", "tokens", "pooled", "thumbnail"]
"""Columns of a segment that are read together, and therefore have a checksum of their own."""
CHECK = "check"
CHECK_FIELD = pa.field(CHECK, pa.list_(pa.uint32(), len(get_args(Group))))


def checked_groups(stamp: ModelStamp) -> dict[Group, tuple[str, ...]]:
    """The columns of each group; the list in `CHECK` has a checksum of each, in this order."""
    return {
        "place": ("video_id", *OF_SEGMENT, "times"),
        "content": OF_CONTENT,
        "tokens": tuple(name for name in ("direction", "spread", "weight", "mask") if name in number_columns(stamp)),
        "pooled": ("pooled",),
        "thumbnail": ("thumbnail",),
    }


def number_columns(stamp: ModelStamp) -> dict[str, tuple[type[np.generic], tuple[int, ...]]]:
    """The types and the shapes per row of the numbers in a segment; `SegmentBatch` has fields of these names."""
    M, D = stamp.frames, stamp.width
    return {
        "start": (np.float32, ()),
        "end": (np.float32, ()),
        "times": (np.float32, (M,)),
        "direction": (np.float16, (M, D)),
        **({"spread": (np.float16, (M, D))} if stamp.spread else {}),
        "weight": (np.float32, (M,)),
        "mask": (np.uint8, (M,)),
        "pooled": (np.float32, (D,)),
    }


def segment_schema(stamp: ModelStamp) -> pa.Schema:
    """The columns of a model's segments; lists have fixed lengths, so that a column is one block of numbers."""
    columns = [pa.field("video_id", pa.string()), pa.field("index", pa.int32())]
    for name, (dtype, shape) in number_columns(stamp).items():
        kind = pa.from_numpy_dtype(dtype)
        columns.append(pa.field(name, pa.list_(kind, math.prod(shape)) if shape else kind))
    columns += [pa.field("thumbnail", pa.binary()), *(VIDEO_SCHEMA.field(name) for name in OF_CONTENT)]
    return pa.schema([*columns, CHECK_FIELD])


def stored(text: str) -> str:
    """Convert text to what Arrow can store."""
    # Surrogates that are no bytes of a file name are escaped.
    return text.translate(TO_STORED).encode("utf-8", "backslashreplace").decode("utf-8")


def original(text: str) -> str:
    """Undo `stored`."""
    return text.translate(TO_ORIGINAL)


def one_of(column: str, values: Iterable[str]) -> str:
    """An SQL condition: the column equals one of these texts."""
    quoted = ", ".join("'" + stored(value).replace("'", "''") + "'" for value in sorted(values))
    return f"{column} IN ({quoted})"


def video_table(videos: Sequence[VideoRecord]) -> pa.Table:
    """Convert records to rows."""
    names = [name for name in VIDEO_SCHEMA.names if name != CHECK]
    rows: dict[str, list[Any]] = {name: [getattr(video, name) for video in videos] for name in names}
    rows["metadata"] = [json.dumps(metadata, sort_keys=True) for metadata in rows["metadata"]]
    for name in names:
        if VIDEO_SCHEMA.field(name).type == pa.string():
            rows[name] = [stored(value) for value in rows[name]]
    table = pa.table(rows, schema=VIDEO_SCHEMA.remove(len(names)))
    return table.append_column(VIDEO_SCHEMA.field(CHECK), pa.array(_video_checks(table), pa.uint32()))


def _video_checks(table: pa.Table) -> list[int]:
    """A checksum of each row of videos."""
    columns = (table.column(name).to_pylist() for name in VIDEO_SCHEMA.names if name != CHECK)
    return [zlib.crc32(json.dumps(row).encode()) for row in zip(*columns, strict=True)]


def video_records(table: pa.Table) -> Iterator[VideoRecord]:
    """Convert rows to records."""
    for values in table.to_pylist():
        row = {name: original(value) if isinstance(value, str) else value for name, value in values.items()}
        row.pop(CHECK, None)
        yield VideoRecord(**row | {"metadata": json.loads(row["metadata"])})


def damaged_videos(table: pa.Table) -> Bools:
    """The rows of videos that differ from their checksums; none in a library of an older schema."""
    if CHECK not in table.column_names or not len(table):
        return np.zeros(len(table), dtype=bool)
    wrong: Bools = np.array(table.column(CHECK).to_pylist()) != np.array(_video_checks(table))
    return wrong


def block(table: pa.Table | pa.RecordBatch, name: str, *shape: int) -> Any:
    """A column of fixed-size lists as one array, without a copy if it is one chunk."""
    return _joined(table, name).flatten().to_numpy(zero_copy_only=True).reshape(-1, *shape)


def _joined(table: pa.Table | pa.RecordBatch, name: str) -> Any:
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def with_checks(batch: pa.RecordBatch, stamp: ModelStamp) -> pa.RecordBatch:
    """Rows of segments with their checksums, as `segment_schema` has them."""
    schema = segment_schema(stamp)
    checks = np.stack([_checks(batch, columns, place) for place, columns in enumerate(checked_groups(stamp).values())])
    flat = pa.array(np.ascontiguousarray(checks.T).reshape(-1))
    columns = {CHECK: pa.FixedSizeListArray.from_arrays(flat, len(checks))}
    columns |= {name: batch.column(name) for name in schema.names if name != CHECK}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def damaged_rows(table: pa.Table | pa.RecordBatch, stamp: ModelStamp, groups: Iterable[Group]) -> dict[Group, Bools]:
    """Which rows of segments differ from their checksums, by group; ``table`` has the columns of these and `CHECK`."""
    all_groups = checked_groups(stamp)
    expected = block(table, CHECK, len(all_groups))
    places = {group: place for place, group in enumerate(all_groups)}
    return {group: _checks(table, all_groups[group], places[group]) != expected[:, places[group]] for group in groups}


def _checks(table: pa.Table | pa.RecordBatch, columns: Sequence[str], seed: int) -> Any:
    """[rows] checksums of these columns; the seed makes that of nothing differ from zero."""
    if not table.num_rows:
        return np.zeros(0, dtype=np.uint32)
    parts: list[Any] = []
    numbers: list[Any] = []
    for name in columns:
        column = _joined(table, name)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            parts.append([_bytes_of(value) for value in column.to_pylist()])
            continue
        if pa.types.is_fixed_size_list(column.type):
            column = column.flatten()
        numbers.append(column.to_numpy(zero_copy_only=False).reshape(table.num_rows, -1).view(np.uint8))
    # Large blocks as they are; small ones joined, because a call takes longer than their bytes.
    parts += [block for block in numbers if block.shape[1] > 256]
    if small := [block for block in numbers if block.shape[1] <= 256]:
        parts.append(np.ascontiguousarray(np.concatenate(small, axis=1)))
    found = [seed + 1] * table.num_rows
    for part in parts:
        found = list(map(zlib.crc32, part, found))
    return np.array(found, dtype=np.uint32)


def _bytes_of(value: str | bytes | None) -> bytes:
    """With its length: what follows it in a checksum must not pass for a part of it."""
    given = value.encode() if isinstance(value, str) else value or b""
    return len(given).to_bytes(4, "little") + given


def segment_rows(batch: SegmentBatch, video: VideoRecord, stamp: ModelStamp) -> pa.RecordBatch:
    """Convert the segments of a video to rows; ValueError if they do not fit the model."""
    count, schema = len(batch), segment_schema(stamp)
    if (batch.spread is not None) != stamp.spread or len(batch.thumbnails) != count:
        raise ValueError(f"segments of {batch.video_id} have missing or unexpected spreads or thumbnails")
    columns = {
        name: pa.array([as_stored(getattr(video, name))] * count, schema.field(name).type) for name in OF_CONTENT
    }
    columns["video_id"] = pa.array([batch.video_id] * count, pa.string())
    columns["index"] = pa.array(np.arange(batch.first, batch.first + count, dtype=np.int32))
    columns["thumbnail"] = pa.array(batch.thumbnails, pa.binary())
    for name, (dtype, shape) in number_columns(stamp).items():
        given = getattr(batch, name)
        if given.shape != (count, *shape):
            raise ValueError(f"segments of {batch.video_id}: {name} must be {(count, *shape)}, got {given.shape}")
        flat = pa.array(np.ascontiguousarray(given, dtype=dtype).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(flat, math.prod(shape)) if shape else flat
    return with_checks(pa.RecordBatch.from_pydict(columns), stamp)


def filter_table(videos: Iterable[VideoRecord]) -> pa.Table:
    """The columns of videos that filters may use; ``modified`` is a timestamp, which compares with dates."""
    names = ("video_id", *OF_CONTENT, *OF_FILE)
    owners = list(videos)
    columns = {name: [as_stored(getattr(video, name)) for video in owners] for name in names}
    columns["modified"] = [nanoseconds // 1000 for nanoseconds in columns["modified"]]
    types = {name: pa.timestamp("us") if name == "modified" else VIDEO_SCHEMA.field(name).type for name in names}
    return pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})


def as_stored(value: Any) -> Any:
    return stored(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Change:
    """The effect of a commit on the two tables."""

    paths: set[str]
    """Rows of videos to delete."""
    videos: list[VideoRecord]
    """Rows of videos to add."""
    dropped: set[str]
    """Contents whose segments are deleted."""


class Catalogue:
    """All records by path and by content. Copies of a file have their own records and share segments."""

    def __init__(self, records: Iterable[VideoRecord]) -> None:
        self.records: dict[str, VideoRecord] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        self.replace(records, ())

    def replace(self, videos: Iterable[VideoRecord], remove: Iterable[str]) -> None:
        """Remove records by path, then add others or replace those with the same path."""
        for path in remove:
            video_id = self.records.pop(path).video_id
            if others := tuple(other for other in self._paths[video_id] if other != path):
                self._paths[video_id] = others
            else:
                del self._paths[video_id]
        for video in videos:
            if video.path in self.records:
                self.replace((), (video.path,))
            self.records[video.path] = video
            self._paths[video.video_id] = (*self._paths.get(video.video_id, ()), video.path)

    def owner(
        self, video_id: str, without: Collection[str] = (), plus: Iterable[VideoRecord] = ()
    ) -> VideoRecord | None:
        """The record that represents a content; optionally without some paths and with more records.

        Of several copies, one whose file exists comes first, then the first by path. None without segments.
        """
        candidates = [self.records[path] for path in self._paths.get(video_id, ()) if path not in without]
        candidates += [video for video in plus if video.video_id == video_id]
        candidates = [video for video in candidates if video.whole]
        return min(candidates, key=lambda video: (video.state == "gone", video.path), default=None)

    def owners(self) -> Iterator[VideoRecord]:
        """The record of each content that has segments."""
        return (owner for video_id in self._paths if (owner := self.owner(video_id)) is not None)

    def change(self, videos: Sequence[VideoRecord], remove: Collection[str], fresh: Collection[str]) -> Change | None:
        """Plan a commit: remove these paths, add these records, with new segments of the `fresh` contents.

        None if nothing changes; ValueError for a record without segments, or segments without a record.
        """
        new = {video.path: video for video in videos}
        if len(new) < len(videos):
            raise ValueError("two records have the same path")
        new |= self._recounted(new, remove, fresh)
        changed = [video for path, video in new.items() if self.records.get(path) != video]
        paths = ({video.path for video in changed} | (set(remove) - new.keys())) & self.records.keys()
        plus: dict[str, list[VideoRecord]] = {}
        for video in changed:
            plus.setdefault(video.video_id, []).append(video)
        dropped = set()
        for video_id in {self.records[path].video_id for path in paths} | plus.keys() | set(fresh):
            old, now = self.owner(video_id), self.owner(video_id, paths, plus.get(video_id, ()))
            if old is not None and (now is None or video_id in fresh):
                dropped.add(video_id)
            if now is not None and video_id not in fresh:
                segments = 0 if old is None else old.segments
                for video in plus.get(video_id, ()):
                    if video.state != "bad" and video.segments != segments:
                        raise ValueError(f"{video.path} lacks its {video.segments} segments")
        return Change(paths, changed, dropped) if paths or changed or fresh else None

    def _recounted(
        self, new: Mapping[str, VideoRecord], remove: Collection[str], fresh: Collection[str]
    ) -> dict[str, VideoRecord]:
        """The other records of contents with new segments, with the new properties of the content."""
        fields = ("segments", *OF_CONTENT)
        found = {
            video.video_id: {name: getattr(video, name) for name in fields}
            for video in new.values()
            if video.state != "bad"
        }
        if without := set(fresh) - found.keys():
            raise ValueError(f"segments of {', '.join(sorted(without))} have no record")
        copies = {path for video_id in fresh for path in self._paths.get(video_id, ())} - new.keys() - set(remove)
        records = (self.records[path] for path in copies)
        return {video.path: replace(video, **found[video.video_id]) for video in records if video.state != "bad"}
