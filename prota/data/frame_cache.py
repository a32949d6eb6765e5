"""The cache of decoded frames for training, filled by worker processes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prota.data.shards import (
    CacheError,
    CachePlan,
    Entry,
    Pictures,
    ShardWriter,
    Source,
    claim,
    read_plan,
    read_quarantine,
    read_shards,
    refuse_foreign,
    shard_problem,
    tidy,
    write_quarantine,
)
from prota.files import hold
from prota.video.decode import read_clip
from prota.workers.process_pool import DecodePool

__all__ = ["CacheError", "CachePlan", "CacheReport", "FrameCache", "Progress", "fill_cache"]

NO_FILE: Source = (-1, -1)


@dataclass(frozen=True)
class Progress:
    """Progress of `fill_cache`: of `total` videos, `done` are finished, `failed` of them without frames."""

    done: int
    total: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class CacheReport:
    """The result of `fill_cache`."""

    decoded: int
    kept: int
    """Unchanged videos that were already in the cache."""
    quarantined: dict[str, str]
    """Videos that could not be decoded, now or earlier, each with the reason."""


class FrameCache:
    """The frames of a filled cache, by video id; cheap to open and to pickle."""

    def __init__(
        self,
        folder: Path,
        plan: CachePlan,
        *,
        entries: dict[str, Entry],
        lengths: dict[str, int],
        quarantined: dict[str, str],
    ) -> None:
        self.folder, self.plan, self.quarantined = folder, plan, quarantined
        self._entries, self._lengths = entries, lengths
        self._shards: dict[str, Pictures] = {}

    @classmethod
    def open(cls, folder: str | Path) -> FrameCache:
        """Open the cache in `folder`; missing or truncated shards are reported by `verify` or on first use."""
        folder = Path(folder)
        if not folder.is_dir() or not any(folder.iterdir()):
            raise CacheError(f"there is no frame cache in {folder}: run `prota data prepare` first")
        if not (folder / "cache.json").is_file():
            raise CacheError(f"{folder} is not a frame cache: it has no cache.json")
        plan = read_plan(folder)
        quarantined = {id: str(entry["reason"]) for id, entry in read_quarantine(folder).items()}
        entries, lengths = read_shards(folder, plan.size)
        # A quarantined video may have frames of an older file.
        entries = {id: entries[id] for id in sorted(entries) if id not in quarantined}
        if not entries:
            raise CacheError(
                f"the frame cache in {folder} has no videos ({len(quarantined)} failed): run `prota data prepare` first"
            )
        return cls(folder, plan, entries=entries, lengths=lengths, quarantined=quarantined)

    @property
    def ids(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        # Pickling a memory map would copy the shard.
        return self.__dict__ | {"_shards": {}}

    def frames(self, video_id: str) -> Pictures:
        """The frames of a video, a read-only view into the file, [n, size, size, 3]."""
        entry = self.entry(video_id)
        if entry.shard not in self._shards:
            problem = shard_problem(self.folder, entry.shard, self._lengths[entry.shard], self.plan.size)
            if problem:
                raise CacheError(f"{self.folder}: {problem}")
            self._shards[entry.shard] = np.load(self.folder / f"{entry.shard}.npy", mmap_mode="r")
        return self._shards[entry.shard][entry.offset : entry.offset + entry.count]

    def entry(self, video_id: str) -> Entry:
        """The record of a video in the index of its shard."""
        if video_id in self._entries:
            return self._entries[video_id]
        reason = self.quarantined.get(video_id)
        raise KeyError(f"{video_id} is not in the frame cache" + (f": {reason}" if reason else ""))

    def verify(self) -> list[str]:
        """Read all frames and compare checksums; one line per problem."""
        found = {
            shard: shard_problem(self.folder, shard, frames, self.plan.size) for shard, frames in self._lengths.items()
        }
        problems = [problem for problem in found.values() if problem]
        for entry in self._entries.values():
            if not found[entry.shard] and zlib.crc32(self.frames(entry.id).data) != entry.crc32:
                remedy = f"delete {entry.shard}.json and run `prota data prepare` again"
                problems.append(f"{entry.shard}.npy: the frames of {entry.id} are corrupt: {remedy}")
        return problems


@contextmanager
def _sole_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of the cache, which ends with the process: two writers would overwrite each other's shards."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = hold(folder / "lock")
    except BlockingIOError as error:
        raise CacheError(f"another process is filling {folder}: wait for it or use another folder") from error
    except OSError as error:
        raise CacheError(f"{folder} cannot be written: {error.strerror}") from error
    with lock:
        yield


def _stat(path: Path) -> Source:
    try:
        status = path.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


def fill_cache(
    folder: str | Path,
    videos: Mapping[str, Path],
    plan: CachePlan,
    *,
    workers: int,
    timeout: float = 60.0,
    on_progress: Callable[[Progress], None] | None = None,
    retry: bool = False,
) -> CacheReport:
    """Decode missing and changed videos in `workers` processes, with at most `timeout` seconds per video.

    Resumes an interrupted call. A video that fails is quarantined with the reason, and retried when its file changes or
    with `retry`. A video whose file was deleted keeps its frames.
    """
    folder = Path(folder)
    refuse_foreign(folder)
    with _sole_writer(folder):
        claim(folder, plan)
        tidy(folder, plan.size)
        entries, lengths = read_shards(folder, plan.size)
        quarantine = read_quarantine(folder)
        sources = {id: _stat(Path(path)) for id, path in videos.items()}

        def kept(id: str) -> bool:
            return id in entries and id not in quarantine and sources[id] in (entries[id].source, NO_FILE)

        def given_up(id: str) -> bool:
            return not retry and id in quarantine and tuple(quarantine[id]["source"]) == sources[id]

        unchanged = sum(map(kept, videos))
        todo = [id for id in videos if not kept(id) and not given_up(id)]
        waiting = set(todo)
        # Saved before decoding, so that the old quarantine cannot hide new frames after a kill.
        quarantine = {id: entry for id, entry in quarantine.items() if id not in waiting}
        write_quarantine(folder, quarantine)
        writer = ShardWriter(folder, plan.size, max((int(name.split("-")[1]) for name in lengths), default=-1) + 1)
        # Several workers keep the cores busy; more threads each would only decode frames that are not needed.
        threads = 0 if workers == 1 else 1
        read = partial(
            read_clip,
            frames=plan.frames,
            size=plan.size,
            extent=plan.extent,
            max_seconds=plan.max_seconds,
            threads=threads,
        )
        items = ((id, Path(videos[id])) for id in todo)
        failed, started = 0, time.monotonic()
        try:
            with DecodePool(max(1, min(workers, len(todo))), timeout) as pool:
                for done, (id, outcome) in enumerate(pool.run(read, items), start=1):
                    if outcome.value is not None:
                        writer.add(id, outcome.value, sources[id])
                    else:
                        failed += 1
                        quarantine[id] = {"reason": outcome.error, "source": list(sources[id])}
                        write_quarantine(folder, quarantine)
                    if on_progress is not None:
                        on_progress(Progress(done, len(todo), failed, time.monotonic() - started))
        except KeyboardInterrupt:
            writer.flush()
            raise
        writer.flush()
    reasons = {id: str(quarantine[id]["reason"]) for id in videos if id in quarantine}
    return CacheReport(decoded=len(todo) - failed, kept=unchanged, quarantined=reasons)
