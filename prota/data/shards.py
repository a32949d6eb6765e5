"""Shards of decoded frames on disk, written atomically.

A shard is `shard-00000.npy` [F, size, size, 3] with an index `shard-00000.json`. A shard exists if its index does; this
is renamed into place after the frames have been flushed.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from prota.errors import ProtaError
from prota.files import publish, write_atomically
from prota.video.transforms import Extent

__all__ = ["CacheError", "CachePlan", "Entry", "ShardWriter", "claim", "read_plan", "read_quarantine", "read_shards"]
__all__ += ["refuse_foreign", "shard_problem", "tidy", "write_quarantine"]

FORMAT = 1
SHARD_VIDEOS = 64
SHARD_BYTES = 256 * 2**20

Pictures = np.ndarray[Any, np.dtype[np.uint8]]
Source = tuple[int, int]
"""Size and modification time (ns) of a video file; (-1, -1) if there is none."""


class CacheError(ProtaError, ValueError):
    """A folder that cannot be used as a frame cache."""

    code = "frame-cache"


@dataclass(frozen=True)
class CachePlan:
    """What the cache stores of each video: up to `frames` frames, as squares of `size` pixels."""

    frames: int
    size: int
    max_seconds: float = 0.0
    """Only this much of the beginning of a video is sampled; 0: all of it."""
    extent: Extent = "centre"
    """Part of a frame; caches of earlier versions have the centre."""

    def __post_init__(self) -> None:
        if self.frames < 1 or self.size < 1:
            raise ValueError(f"frames = {self.frames} and size = {self.size} must be at least 1")
        if not 0 <= self.max_seconds < math.inf:
            raise ValueError(f"max_seconds = {self.max_seconds} must be finite and at least 0")
        if self.extent not in get_args(Extent):
            raise ValueError(f"extent = {self.extent!r} must be one of {', '.join(get_args(Extent))}")


@dataclass(frozen=True)
class Entry:
    """A video in the index of a shard."""

    shard: str
    id: str
    offset: int
    count: int
    times: list[float]
    """Of its frames, in seconds."""
    duration: float
    """Of the whole video, in seconds."""
    crc32: int
    source: Source


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CacheError(f"{path} is corrupt ({error}): delete it and run `prota data prepare` again") from error


def read_plan(folder: Path) -> CachePlan:
    record = _read_json(folder / "cache.json")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CacheError(f"{folder} is not a frame cache of this version (format {FORMAT}): use another folder")
    try:
        plan = dict(record["plan"])
        if plan.pop("jitter", 1) != 1:
            raise ValueError("plan.jitter must be 1")
        return CachePlan(**plan)
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError(
            f"{folder / 'cache.json'} is corrupt ({error}): delete the folder and run `prota data prepare` again"
        ) from error


def _read_shard(index: Path, size: int) -> list[Entry]:
    record = _read_json(index)
    try:
        entries = [Entry(shard=index.stem, source=tuple(video.pop("source")), **video) for video in record["videos"]]
        if record["shape"] != [sum(entry.count for entry in entries), size, size, 3]:
            raise ValueError("its shape does not match its videos")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CacheError(f"{index} is corrupt ({error}): delete it and run `prota data prepare` again") from error
    return entries


def read_shards(folder: Path, size: int) -> tuple[dict[str, Entry], dict[str, int]]:
    """The newest entry of each video, and the number of frames of each shard."""
    entries: dict[str, Entry] = {}
    lengths: dict[str, int] = {}
    for index in sorted(folder.glob("shard-*.json")):
        shard = _read_shard(index, size)
        lengths[index.stem] = sum(entry.count for entry in shard)
        # Later shards are newer.
        entries.update((entry.id, entry) for entry in shard)
    return entries, lengths


def shard_problem(folder: Path, shard: str, frames: int, size: int) -> str | None:
    """Whether the file of a shard is missing or has the wrong size."""
    path = folder / f"{shard}.npy"
    remedy = "run `prota data prepare` again"
    try:
        array = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        return f"{path.name} is missing: {remedy}"
    except (EOFError, OSError, ValueError):
        return f"{path.name} is corrupt or truncated: {remedy}"
    if array.shape != (frames, size, size, 3) or array.dtype != np.uint8:
        return f"{path.name} is {array.dtype} {list(array.shape)}, unlike its index: {remedy}"
    return None


def read_quarantine(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / "quarantine.json"
    record = _read_json(path) if path.exists() else {}
    if not isinstance(record, dict) or not all(
        isinstance(entry, dict) and "reason" in entry for entry in record.values()
    ):
        raise CacheError(f"{path} is corrupt: delete it and run `prota data prepare` again")
    return record


def write_quarantine(folder: Path, quarantine: dict[str, dict[str, Any]]) -> None:
    """Save the videos that failed: id → reason, source (size and mtime of the file)."""
    write_atomically(folder / "quarantine.json", json.dumps(quarantine, indent=1))


def refuse_foreign(folder: Path) -> None:
    """Check that the folder is a cache, does not exist, or has only leftovers of an interrupted writer."""
    if folder.exists() and not folder.is_dir():
        raise CacheError(f"{folder} is a file, not a folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    there = {name for name in names if name != "lock" and not name.endswith(".tmp")}
    if there and "cache.json" not in there:
        raise CacheError(f"{folder} is neither empty nor a frame cache: use another folder")


def claim(folder: Path, plan: CachePlan) -> None:
    """Create a cache with this plan, or check that the existing one has it."""
    if not (folder / "cache.json").exists():
        write_atomically(folder / "cache.json", json.dumps({"format": FORMAT, "plan": asdict(plan)}))
    there, asked = asdict(read_plan(folder)), asdict(plan)
    differing = [f"{name} = {there[name]}, not {asked[name]}" for name in asked if there[name] != asked[name]]
    if differing:
        raise CacheError(f"the frame cache in {folder} was made with {'; '.join(differing)}: use another folder")


def tidy(folder: Path, size: int) -> None:
    """Remove leftovers of interrupted writers, and shards with missing or truncated files."""
    for index in folder.glob("shard-*.json"):
        frames = sum(entry.count for entry in _read_shard(index, size))
        if shard_problem(folder, index.stem, frames, size):
            index.unlink()
    for path in (*folder.glob("*.tmp"), *folder.glob("shard-*.npy")):
        if path.suffix == ".tmp" or not path.with_suffix(".json").exists():
            path.unlink()


@dataclass
class ShardWriter:
    """Collects decoded videos and writes them in shards."""

    folder: Path
    size: int
    number: int
    videos: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Pictures] = field(default_factory=list)

    def add(self, video_id: str, value: tuple[Pictures, list[float], float], source: Source) -> None:
        pictures, times, duration = value
        held = sum(array.nbytes for array in self.pictures)
        if self.videos and (len(self.videos) >= SHARD_VIDEOS or held + pictures.nbytes > SHARD_BYTES):
            self.flush()
        offset = sum(len(array) for array in self.pictures)
        record = {"id": video_id, "offset": offset, "count": len(pictures), "times": times, "duration": duration}
        self.videos.append(record | {"crc32": zlib.crc32(pictures.data), "source": list(source)})
        self.pictures.append(pictures)

    def flush(self) -> None:
        if not self.videos:
            return
        name = f"shard-{self.number:05d}"
        shape = (sum(len(array) for array in self.pictures), self.size, self.size, 3)
        temporary = self.folder / f"{name}.npy.tmp"
        try:
            with temporary.open("wb") as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for array in self.pictures:
                    file.write(array.data)
                file.flush()
                os.fsync(file.fileno())
            publish(temporary, self.folder / f"{name}.npy")
            index = json.dumps({"format": FORMAT, "shape": shape, "videos": self.videos})
            write_atomically(self.folder / f"{name}.json", index)
        except OSError as error:
            raise CacheError(f"{self.folder} cannot be written: {error.strerror}; complete shards are kept") from error
        self.number += 1
        self.videos, self.pictures = [], []
