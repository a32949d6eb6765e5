"""Training batches, the frames of their videos, and reading ahead.

All random choices depend on (seed, epoch, video) alone, so that resuming a run or another number of processes changes
nothing.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.data.frame_cache import CachePlan, FrameCache
from prota.data.splits import DataError, Split

__all__ = ["Array", "ClipReader", "Clips", "FrameBatch", "Pair"]
__all__ += ["count_batches", "epoch_batches", "open_cache", "read_ahead"]

T = TypeVar("T")
Array = np.ndarray[Any, Any]

# Items that `read_ahead` computes in advance.
_AHEAD = 3


@dataclass(frozen=True)
class Pair:
    """A video of a batch with its captions."""

    video_id: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class FrameBatch:
    """Frames of several videos."""

    frames: Tensor
    """uint8 pictures [B, M, S, S, 3], or features [B, M, C] of a frozen tower."""
    mask: Tensor
    """bool [B, M]."""


def open_cache(experiment: Experiment) -> FrameCache:
    """Open the frame cache of an experiment; other settings than it was filled with are an error."""
    if not experiment.data.cache:
        raise ConfigError("data.cache is not set: set it in the config file or with -s data.cache=…")
    cache = FrameCache.open(Path(experiment.data.cache).expanduser())
    for name, cached, wanted in (
        ("encoder.frames", cache.plan.frames, experiment.encoder.frames),
        ("data.cache_size", cache.plan.size, experiment.data.cache_size),
        ("max_seconds", cache.plan.max_seconds, experiment.data.max_seconds),
        ("encoder.picture", cache.plan.extent, experiment.encoder.picture),
    ):
        if cached != wanted:
            raise DataError(
                f"{name}={wanted}, but the frame cache {experiment.data.cache} was filled with {cached}; "
                f"allowed: {cached}, or another data.cache and `prota data prepare`"
            )
    return cache


def epoch_batches(split: Split, batch_size: int, *, per_video: int, seed: int, epoch: int) -> list[list[Pair]]:
    """The batches of an epoch, each of distinct videos; an incomplete last batch is dropped.

    Every video is shown once with ``per_video`` random captions, repeated only where it has fewer; ``per_video = 0``
    shows every caption once.
    """
    counts, rounds = _rounds(split, batch_size, per_video)
    orders, batches = _draw(counts, rounds, batch_size, seed=seed, epoch=epoch)
    shown = [itertools.cycle(order) for order in orders]

    def pair(place: int) -> Pair:
        item, numbers = split.items[place], itertools.islice(shown[place], max(1, per_video))
        return Pair(item.video_id, tuple(item.captions[number] for number in numbers))

    return [[pair(place) for place in batch] for batch in batches]


def count_batches(split: Split, batch_size: int, *, per_video: int, seed: int, epoch: int) -> int:
    """Number of batches of `epoch_batches`, without creating them."""
    counts, rounds = _rounds(split, batch_size, per_video)
    if rounds == 1:
        return int(np.count_nonzero(counts)) // batch_size
    # With several captions per video the number depends on their order, as a batch holds distinct videos.
    return len(_draw(counts, rounds, batch_size, seed=seed, epoch=epoch)[1])


def _rounds(split: Split, batch_size: int, per_video: int) -> tuple[Array, int]:
    """Number of captions of each video, and of passes of an epoch over the videos."""
    if len(split) < batch_size:
        raise DataError(
            f"train.batch_size={batch_size} exceeds the {len(split)} training videos, which a batch contains "
            f"once each; set it to at most {len(split)}"
        )
    counts = np.array([len(item.captions) for item in split.items])
    return counts, 1 if per_video else int(counts.max())


def _draw(counts: Array, rounds: int, size: int, *, seed: int, epoch: int) -> tuple[list[Array], list[Array]]:
    """The order of each video's captions, and batches of videos as indices into the split."""
    generator = np.random.default_rng([seed, epoch])
    orders = [generator.permutation(count) for count in counts]
    batches: list[Array] = []
    waiting = np.zeros(0, dtype=np.int64)
    for turn in range(rounds):
        order = generator.permutation(len(counts))
        waiting = _fill(batches, np.concatenate([waiting, order[counts[order] > turn]]), size)
    return orders, batches


def _fill(batches: list[Array], waiting: Array, size: int) -> Array:
    """Move videos into batches of distinct videos; returns the rest, which waits for the next pass."""
    while True:
        # First occurrence of each video.
        first = np.sort(np.unique(waiting, return_index=True)[1])
        if len(first) < size:
            return waiting
        if len(first) == len(waiting):
            whole = len(waiting) // size * size
            batches += np.split(waiting[:whole], whole // size)
            return waiting[whole:]
        batches.append(waiting[first[:size]])
        waiting = np.delete(waiting, first[:size])


class Clips(Protocol):
    """Source of frames: the frame cache, or features of its frames."""

    @property
    def plan(self) -> CachePlan: ...

    def __contains__(self, video_id: object) -> bool: ...

    def frames(self, video_id: str) -> Array: ...


class ClipReader:
    """Frames of videos from the cache, for testing or for training."""

    def __init__(self, cache: Clips, experiment: Experiment, split: Split) -> None:
        self.cache = cache
        self.count = experiment.encoder.frames
        self.train = experiment.train
        self.others = [item.video_id for item in split.items if item.video_id in cache]
        self.dilution = experiment.data.dilution
        # Dilution applies to tests too, mixing to training only.
        mixes = self.train.mixing > 0 and split.name == "train"
        if max(self.dilution, int(mixes)) >= len(self.others):
            name = f"data.dilution={self.dilution}" if self.dilution else f"train.mixing={self.train.mixing}"
            raise DataError(f"{name} needs more videos than the {len(self.others)} of the split")

    def read(self, video_ids: Sequence[str], epoch: int | None = None, pin: bool = False) -> FrameBatch:
        """Uniform frames of these videos, or with ``epoch`` those that training draws in it.

        ``pin``: in pinned memory, for faster copies to a GPU.
        """
        clips = [self._mixed(video_id, epoch) for video_id in video_ids]
        lengths = torch.tensor([len(clip) for clip in clips])
        shape = (len(clips), int(lengths.max()), *clips[0].shape[1:])
        kind = torch.from_numpy(np.empty(0, clips[0].dtype)).dtype
        # Filled directly: this is the only copy in host memory.
        frames = torch.empty(shape, dtype=kind, pin_memory=pin)
        rows = frames.numpy()
        for row, clip in zip(rows, clips, strict=True):
            row[: len(clip)] = clip
            row[len(clip) :] = 0
        mask = torch.arange(shape[1])[None] < lengths[:, None]
        return FrameBatch(frames, mask.pin_memory() if pin else mask)

    def _mixed(self, video_id: str, epoch: int | None) -> Array:
        """A video's frames, mixed in equal parts with those of unrelated videos if the data is diluted."""
        if not self.dilution:
            clip = self._clip(video_id, epoch, self.count)
            return clip if epoch is None or not self.train.mixing else self._disturbed(video_id, epoch, clip)
        generator = np.random.default_rng(_number(video_id, "dilution"))
        others = self._unrelated(generator, video_id, self.dilution)
        parts = [self._clip(name, epoch, self.count // (self.dilution + 1)) for name in (video_id, *others)]
        return np.concatenate([parts[place] for place in generator.permutation(len(parts))])

    def _disturbed(self, video_id: str, epoch: int, clip: Array) -> Array:
        """With probability `train.mixing`, add another video's frames, half as many, before or after its own."""
        generator = np.random.default_rng([self.train.seed, epoch, _number(video_id, "mixing")])
        if generator.random() >= self.train.mixing or self.count == 1:
            return clip
        (other,) = self._unrelated(generator, video_id, 1)
        own = clip[_spread(np.arange(len(clip)), self.count - max(1, self.count // 3))]
        parts = [own, self._clip(other, epoch, max(1, min(len(own) // 2, self.count - len(own))))]
        return np.concatenate([parts[place] for place in generator.permutation(2)])

    def _unrelated(self, generator: np.random.Generator, video_id: str, count: int) -> list[str]:
        chosen: list[str] = []
        while len(chosen) < count:
            other = self.others[generator.integers(len(self.others))]
            if other != video_id and other not in chosen:
                chosen.append(other)
        return chosen

    def _clip(self, video_id: str, epoch: int | None, count: int) -> Array:
        cached = self.cache.frames(video_id)
        if len(cached) == 1:
            return cached
        chosen = np.arange(len(cached))
        if epoch is not None and self.train.frames and len(chosen) > self.train.frames:
            generator = np.random.default_rng([self.train.seed, epoch, _number(video_id, "frames")])
            chosen = np.sort(generator.choice(chosen, self.train.frames, replace=False))
        return np.asarray(cached[_spread(chosen, count)])


def _spread(chosen: Array, count: int) -> Array:
    """At most ``count`` evenly spaced indices of these."""
    if len(chosen) <= count:
        return chosen
    spread: Array = chosen[((np.arange(count) + 0.5) * len(chosen) / count).astype(int)]
    return spread


def _number(video_id: str, purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{purpose}:{video_id}".encode()).digest()[:8], "little")


def read_ahead(make: Callable[[int], T], start: int, stop: int) -> Generator[T]:
    """``make`` of consecutive numbers, computed in a thread, a few ahead of the iteration; close it to stop early."""
    pool, waiting = ThreadPoolExecutor(1), deque[Future[T]]()
    try:
        for number in range(start, stop + _AHEAD):
            if number < stop:
                waiting.append(pool.submit(make, number))
            if number >= start + _AHEAD:
                yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
