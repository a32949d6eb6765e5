"""Scores of a model on a split.

Texts are encoded and scored in blocks against all videos, so that only one block of text tokens is in memory.

Several processes share the batches of videos and the blocks of texts, which are the same as in one process, so that
scores are equal to the last bit. The first process has the whole matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from prota.data.batches import ClipReader, ReadAhead
from prota.data.pictures import to_pictures
from prota.data.splits import Split
from prota.model.prota import ProTA
from prota.runtime import ALONE, World
from prota.types import PreparedTokens

__all__ = ["ScoredSplit", "encode_videos", "score_split", "score_texts"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ScoredSplit:
    """Scores of every caption with every video of a split."""

    scores: Tensor
    """[texts, videos] fp32, on the CPU; with several processes, empty in all but the first."""
    video_of_text: Tensor
    """[texts]."""
    videos: PreparedTokens


@torch.inference_mode()
def encode_videos(
    model: ProTA,
    reader: ClipReader,
    video_ids: Sequence[str],
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    batch: int = 32,
    progress: Progress | None = None,
    world: World = ALONE,
) -> PreparedTokens:
    """Encode videos; each process encodes some and returns all."""
    own = video_ids[_own(len(video_ids), batch, world)]
    parts = world.together(lambda: _encode(model, reader, own, autocast=autocast, batch=batch, progress=progress))
    if world.size > 1:
        slim = [part.without_source().to("cpu") for part in parts]
        parts = [part.to(model.logit_scale.device) for ones in world.exchange(slim) for part in ones]
    return PreparedTokens.cat(parts)


def _own(count: int, batch: int, world: World) -> slice:
    """This process's items of ``count`` that are worked on in batches: whole batches, the same as one process has."""
    batches = world.part(-(-count // batch))
    return slice(batches.start * batch, batches.stop * batch)


def _encode(
    model: ProTA,
    reader: ClipReader,
    video_ids: Sequence[str],
    *,
    autocast: Callable[[], AbstractContextManager[object]],
    batch: int,
    progress: Progress | None,
) -> list[PreparedTokens]:
    starts = range(0, len(video_ids), batch)
    ahead = ReadAhead(lambda index: reader.read(video_ids[starts[index] : starts[index] + batch]), 0, len(starts))
    parts, device = [], model.logit_scale.device
    try:
        for done, clips in enumerate(ahead, start=1):
            frames = to_pictures(clips.frames.to(device), model.config.encoder.image_size)
            with autocast():
                parts.append(model.encode_video(frames, clips.mask))
            if progress:
                progress("videos", min(done * batch, len(video_ids)), len(video_ids))
    finally:
        ahead.close()
    return parts


@torch.inference_mode()
def score_texts(
    model: ProTA,
    texts: Sequence[str],
    videos: PreparedTokens,
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    batch: int = 256,
    progress: Progress | None = None,
    world: World = ALONE,
) -> Tensor:
    """Scores [texts, videos] of texts with prepared videos, on the CPU.

    Each process scores some texts; the first returns all scores, the others none.
    """
    own = texts[_own(len(texts), batch, world)]
    rows = world.together(lambda: _score(model, own, videos, autocast=autocast, batch=batch, progress=progress))
    if world.size > 1:
        rows = torch.cat(world.collect(rows) or [torch.empty(0, len(videos))])
    return rows


def _score(
    model: ProTA,
    texts: Sequence[str],
    videos: PreparedTokens,
    *,
    autocast: Callable[[], AbstractContextManager[object]],
    batch: int,
    progress: Progress | None,
) -> Tensor:
    rows = torch.empty(len(texts), len(videos))
    for start in range(0, len(texts), batch):
        with autocast():
            block = model.encode_text(texts[start : start + batch])
        rows[start : start + batch] = model.score(block, videos).float().cpu()
        if progress:
            progress("texts", min(start + batch, len(texts)), len(texts))
    return rows


def score_split(
    model: ProTA,
    reader: ClipReader,
    split: Split,
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Progress | None = None,
    world: World = ALONE,
) -> ScoredSplit:
    """Score every caption of a split with every video."""
    was_training = model.training
    model.eval()
    try:
        videos = encode_videos(model, reader, split.video_ids, autocast=autocast, progress=progress, world=world)
        texts = [caption for _, caption in split.pairs]
        owners = [place for place, item in enumerate(split.items) for _ in item.captions]
        scores = score_texts(model, texts, videos, autocast=autocast, progress=progress, world=world)
    finally:
        model.train(was_training)
    return ScoredSplit(scores, torch.tensor(owners), videos)
