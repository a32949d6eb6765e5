"""Video files and pictures as a model takes them: decoded in worker processes, a few at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from prota.config.model import EncoderConfig
from prota.video.decode import DecodeError, read_clip
from prota.workers.process_pool import DecodePool

__all__ = ["read_clips"]

_BATCH = 16
# Seconds that a file may take to decode.
_TIMEOUT = 300.0


def read_clips(paths: Sequence[str | Path], config: EncoderConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of frames [B, M, 3, S, S] uint8 with their masks [B, M], in the order of ``paths``.

    Raises a DecodeError for a file that cannot be read.
    """
    size = config.image_size
    read = partial(read_clip, frames=config.frames, size=size, extent=config.picture)
    with DecodePool(max(1, min(len(paths), os.cpu_count() or 1)), _TIMEOUT) as pool:
        for start in range(0, len(paths), _BATCH):
            batch = [Path(path) for path in paths[start : start + _BATCH]]
            frames = torch.zeros(len(batch), config.frames, 3, size, size, dtype=torch.uint8)
            mask = torch.zeros(frames.shape[:2], dtype=torch.bool)
            for place, outcome in pool.run(read, list(enumerate(batch))):
                if outcome.bug:
                    raise RuntimeError(f"{batch[place]}: {outcome.bug}")
                if outcome.value is None:
                    path, reason = str(batch[place]), str(outcome.error)
                    raise DecodeError(reason if path in reason else f"{path}: {reason}")
                clip = torch.from_numpy(outcome.value[0]).permute(0, 3, 1, 2)
                frames[place, : len(clip)], mask[place, : len(clip)] = clip, True
            longest = int(mask.sum(dim=1).max())
            yield frames[:, :longest], mask[:, :longest]
