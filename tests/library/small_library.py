"""Libraries with tiny widths, and what must hold for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from prota.library.records import ModelStamp, SegmentBatch, VideoRecord
from prota.library.storage.location import Location, Where
from prota.library.storage.reader import Snapshot
from prota.library.storage.versions import DATASETS, dataset, read_head, write_head
from prota.library.storage.writer import Writer

M, D = 3, 4
Named = TypeVar("Named", str, Path)
STAMP = ModelStamp(name="tiny", fingerprint="ab" * 32, width=D, frames=M, spread=True)


def content(name: str) -> str:
    """An id that looks like one."""
    return (name.encode().hex() * 64)[:64]


def segments(name: str, count: int, seed: int = 0, spread: bool = True) -> SegmentBatch:
    """Segments that `verify` has nothing against; the last frame of the last one is missing."""
    rng = np.random.default_rng([seed, *name.encode()])
    direction = rng.normal(size=(count, M, D))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    pooled = direction.sum(1)
    mask = np.ones((count, M), dtype=bool)
    times = np.arange(count * M, dtype=np.float32).reshape(count, M)
    mask[-1:, -1], times[-1:, -1] = False, np.nan
    return SegmentBatch(
        video_id=content(name),
        start=np.arange(count) * 6.0,
        end=np.arange(count) * 6.0 + 12.0,
        times=times,
        direction=direction.astype(np.float16),
        spread=rng.uniform(size=(count, M, D)).astype(np.float16) if spread else None,
        weight=rng.uniform(size=(count, M)).astype(np.float32),
        mask=mask,
        pooled=(pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(np.float32),
        thumbnails=tuple(rng.bytes(5) for _ in range(count)),
    )


def video(name: str, count: int, path: str | None = None, **values: Any) -> VideoRecord:
    """A record that fits `segments(name, count)`."""
    given: dict[str, Any] = {"state": "indexed", "duration": 10.0 * count, "codec": "h264", "modified": 10**18}
    given |= {"size": 7, "width": 320, "height": 240, "fps": 25.0, "segments": count}
    return VideoRecord(video_id=content(name), path=path or f"/films/{name}.mp4", **given | values)


def fill(folder: Named, names: Sequence[str] = ("a", "b"), count: int = 3, stamp: ModelStamp = STAMP) -> Named:
    """A library with a video of each name, in one commit each."""
    with Writer.create(folder, stamp) as store:
        for name in names:
            store.commit([video(name, count)], [segments(name, count, spread=stamp.spread)])
    return folder


def name_newest(folder: Path) -> None:
    """The head names the newest versions, whoever made them."""
    location = Location.of(folder)
    write_head(location, read_head(location), *(dataset(location, name) for name in DATASETS))


def seen(folder: Where) -> dict[str, int]:
    """Numbers of segments by path, counted from the segments themselves."""
    store = Snapshot.open(folder)
    ids = store.segments(["video_id"]).column("video_id").to_pylist()
    return {record.path: ids.count(record.video_id) for record in store.videos()}
