"""The two tables of a library as Arrow sees them, and the way between them and the records."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from prota.library.records import ModelStamp, SegmentBatch, VideoRecord

__all__ = [
    "COPIED",
    "FILTERABLE",
    "VIDEO_SCHEMA",
    "Catalogue",
    "Change",
    "block",
    "copied",
    "one_of",
    "original",
    "recopied",
    "segment_rows",
    "segment_schema",
    "stored",
    "video_records",
    "video_table",
    "with_kind",
]

COPIED = ("path", "duration", "width", "height", "fps", "codec", "modified")
"""What every segment repeats of its video, so that one filter can ask for both."""
FILTERABLE = ("video_id", "index", "start", "end", *COPIED)
# `kind` in a filter. It is computed and not stored, so that libraries from before pictures have it, too. Lance accepts
# CASE only as a function's argument.
KIND = "lower(CASE WHEN duration = 0 THEN 'picture' ELSE 'video' END)"

# File names may hold bytes that are no UTF-8; Python shows them as lone surrogates, which Arrow cannot store. They are
# kept as characters at the end of the last private plane, where no one's names are.
TO_STORED = {0xDC80 + byte: 0x10FF00 + byte for byte in range(0x80)}
TO_ORIGINAL = {value: key for key, value in TO_STORED.items()}

COPIED_TYPES = {
    "path": pa.string(),
    "duration": pa.float64(),
    "width": pa.int32(),
    "height": pa.int32(),
    "fps": pa.float64(),
    "codec": pa.string(),
    # A time one can compare with a date, unlike the record's nanoseconds.
    "modified": pa.timestamp("us"),
}
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
    ]
)


def segment_schema(stamp: ModelStamp) -> pa.Schema:
    """The columns of segments of one model; fixed lengths, so that a column of many rows is one block of numbers."""
    tokens = pa.list_(pa.float16(), stamp.frames * stamp.width)
    return pa.schema(
        [
            ("video_id", pa.string()),
            ("index", pa.int32()),
            ("start", pa.float32()),
            ("end", pa.float32()),
            ("times", pa.list_(pa.float32(), stamp.frames)),
            ("direction", tokens),
            *([("spread", tokens)] if stamp.spread else []),
            ("weight", pa.list_(pa.float32(), stamp.frames)),
            ("mask", pa.list_(pa.uint8(), stamp.frames)),
            ("pooled", pa.list_(pa.float32(), stamp.width)),
            ("thumbnail", pa.binary()),
            *COPIED_TYPES.items(),
        ]
    )


def stored(text: str) -> str:
    """Text as Arrow can keep it."""
    # What is left after the translation came from no file name: it cannot be kept, so it is shown.
    return text.translate(TO_STORED).encode("utf-8", "backslashreplace").decode("utf-8")


def original(text: str) -> str:
    """Text as it was before `stored`."""
    return text.translate(TO_ORIGINAL)


def one_of(column: str, values: Iterable[str]) -> str:
    """An SQL condition: the column holds one of these texts."""
    quoted = ", ".join("'" + stored(value).replace("'", "''") + "'" for value in sorted(values))
    return f"{column} IN ({quoted})"


def with_kind(where: str) -> str:
    """An SQL condition with `kind`, outside of quoted text, replaced by what computes it."""
    return re.sub(r"'(?:[^']|'')*'|\bkind\b", lambda found: found[0] if found[0][0] == "'" else KIND, where, flags=re.I)


def video_table(videos: Sequence[VideoRecord]) -> pa.Table:
    """Records as rows."""
    rows: dict[str, list[Any]] = {name: [getattr(video, name) for video in videos] for name in VIDEO_SCHEMA.names}
    rows["metadata"] = [json.dumps(metadata, sort_keys=True) for metadata in rows["metadata"]]
    for name in VIDEO_SCHEMA.names:
        if VIDEO_SCHEMA.field(name).type == pa.string():
            rows[name] = [stored(value) for value in rows[name]]
    return pa.table(rows, schema=VIDEO_SCHEMA)


def video_records(table: pa.Table) -> Iterator[VideoRecord]:
    """Rows as records."""
    for values in table.to_pylist():
        row: dict[str, Any] = {
            name: original(value) if isinstance(value, str) else value for name, value in values.items()
        }
        row["metadata"] = json.loads(row["metadata"])
        yield VideoRecord(**{field.name: row[field.name] for field in fields(VideoRecord)})


def fixed_lists(values: Any, dtype: type[np.generic], length: int) -> pa.Array:
    flat = np.ascontiguousarray(values, dtype=dtype).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), length)


def block(table: pa.Table | pa.RecordBatch, name: str, *shape: int) -> Any:
    """A column of fixed lists as one array, not copied where Lance gave it in one piece."""
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=True).reshape(-1, *shape)


def segment_rows(batch: SegmentBatch, stamp: ModelStamp) -> pa.RecordBatch:
    """Segments as rows, without what they repeat of their video; ValueError where they do not fit the model."""
    count, M, D = len(batch), stamp.frames, stamp.width
    shapes: dict[str, tuple[int, ...]] = {"start": (), "end": (), "times": (M,), "direction": (M, D)}
    shapes |= {"spread": (M, D)} if stamp.spread else {}
    shapes |= {"weight": (M,), "mask": (M,), "pooled": (D,)}
    if (batch.spread is not None) != stamp.spread or len(batch.thumbnails) != count:
        raise ValueError(f"segments of {batch.video_id} lack spreads or thumbnails, or have too many")
    for name, shape in shapes.items():
        if (given := getattr(batch, name).shape) != (count, *shape):
            raise ValueError(f"segments of {batch.video_id}: {name} is {given}, not {(count, *shape)}")
    columns = {
        "video_id": pa.array([batch.video_id] * count, pa.string()),
        "index": pa.array(np.arange(batch.first, batch.first + count, dtype=np.int32)),
        "start": pa.array(np.asarray(batch.start, dtype=np.float32)),
        "end": pa.array(np.asarray(batch.end, dtype=np.float32)),
        "times": fixed_lists(batch.times, np.float32, M),
        "direction": fixed_lists(batch.direction, np.float16, M * D),
        "weight": fixed_lists(batch.weight, np.float32, M),
        "mask": fixed_lists(batch.mask, np.uint8, M),
        "pooled": fixed_lists(batch.pooled, np.float32, D),
        "thumbnail": pa.array(batch.thumbnails, pa.binary()),
    }
    if stamp.spread:
        columns["spread"] = fixed_lists(batch.spread, np.float16, M * D)
    names = [name for name in segment_schema(stamp).names if name in columns]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)


def copied(video: VideoRecord) -> dict[str, Any]:
    """What segments repeat of this video."""
    values = {name: getattr(video, name) for name in COPIED}
    return values | {
        "path": stored(video.path),
        "codec": stored(video.codec),
        "modified": video.modified // 1000,
    }


def recopied(batch: pa.RecordBatch, owners: Mapping[str, VideoRecord], schema: pa.Schema) -> pa.RecordBatch:
    """Segment rows with what they repeat of their videos taken from these records."""
    values = [copied(owners[video_id]) for video_id in batch.column("video_id").to_pylist()]
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= {name: pa.array([row[name] for row in values], kind) for name, kind in COPIED_TYPES.items()}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


@dataclass(frozen=True)
class Change:
    """What a commit has to do to the two tables."""

    paths: set[str]
    """Whose rows leave the videos."""
    videos: list[VideoRecord]
    """Rows that come to the videos."""
    dropped: set[str]
    """Contents whose rows leave the segments."""
    rewritten: set[str]
    """Those of them that come back, for what they repeat of their video has changed."""
    owners: dict[str, VideoRecord]
    """Of all contents whose rows come to the segments."""


class Catalogue:
    """All records by path and by content. Copies of a file are records of their own that share its segments."""

    def __init__(self, records: Iterable[VideoRecord]) -> None:
        self.records: dict[str, VideoRecord] = {}
        self._paths: dict[str, set[str]] = {}
        self.replace(records, ())

    def replace(self, videos: Iterable[VideoRecord], remove: Iterable[str]) -> None:
        """Take records out by path, and put others in, in the place of those with the same path."""
        for path in remove:
            record = self.records.pop(path)
            self._paths[record.video_id].discard(path)
            if not self._paths[record.video_id]:
                del self._paths[record.video_id]
        for video in videos:
            if video.path in self.records:
                self.replace((), (video.path,))
            self.records[video.path] = video
            self._paths.setdefault(video.video_id, set()).add(video.path)

    def owner(
        self, video_id: str, without: Collection[str] = (), plus: Iterable[VideoRecord] = ()
    ) -> VideoRecord | None:
        """The record whose segments these are, None if no one's; optionally after paths left and records came.

        Of several copies it is the one whose file is there, then the first by path.
        """
        candidates = [self.records[path] for path in self._paths.get(video_id, ()) if path not in without]
        candidates += [video for video in plus if video.video_id == video_id]
        candidates = [video for video in candidates if video.whole]
        return min(candidates, key=lambda video: (video.state == "gone", video.path), default=None)

    def change(self, videos: Sequence[VideoRecord], remove: Collection[str], fresh: Collection[str]) -> Change | None:
        """What it takes to remove these paths and add these records, with fresh segments of some contents.

        None if nothing is to be done; ValueError if a record would lack segments or segments a record.
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
        dropped, rewritten, owners = set(), set(), {}
        for video_id in {self.records[path].video_id for path in paths} | plus.keys() | set(fresh):
            old, now = self.owner(video_id), self.owner(video_id, paths, plus.get(video_id, ()))
            if old is not None and (now is None or video_id in fresh or copied(old) != copied(now)):
                dropped.add(video_id)
            if now is not None and video_id not in fresh:
                self._check_known(old, plus.get(video_id, ()))
                if video_id in dropped:
                    rewritten.add(video_id)
            if now is not None and (video_id in fresh or video_id in dropped):
                owners[video_id] = now
        return Change(paths, changed, dropped, rewritten, owners) if paths or changed or fresh else None

    def _recounted(
        self, new: Mapping[str, VideoRecord], remove: Collection[str], fresh: Collection[str]
    ) -> dict[str, VideoRecord]:
        """The copies that stay as they are of contents with fresh segments, with the number of those."""
        counts = {video.video_id: video.segments for video in new.values() if video.state != "bad"}
        if without := set(fresh) - counts.keys():
            raise ValueError(f"segments of {', '.join(sorted(without))} come without a record")
        copies = {path for video_id in fresh for path in self._paths.get(video_id, ())} - new.keys() - set(remove)
        records = (self.records[path] for path in copies)
        return {
            video.path: replace(video, segments=counts[video.video_id]) for video in records if video.state != "bad"
        }

    @staticmethod
    def _check_known(old: VideoRecord | None, videos: Iterable[VideoRecord]) -> None:
        for video in videos:
            if video.state != "bad" and video.segments != (old.segments if old is not None else 0):
                raise ValueError(f"{video.path} comes without its {video.segments} segments")
