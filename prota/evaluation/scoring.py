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

from prota.data.batches import ClipReader, read_ahead
from prota.data.pictures import to_pictures
from prota.data.splits import Split
from prota.model.prota import ProTA
from prota.runtime import ALONE, World
from prota.types import PreparedTokens

__all__ = ["ScoredSplit", "encode_videos", "score_split", "score_texts"]

Progress = Callable[[str, int, int], None]

VIDEOS_AT_ONCE, TEXTS_AT_ONCE = 32, 256


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
    progress: Progress | None = None,
    world: World = ALONE,
) -> PreparedTokens:
    """Encode videos; each process encodes some and returns all."""
    device = model.logit_scale.device
    own = _own(video_ids, VIDEOS_AT_ONCE, world)

    def encode() -> list[PreparedTokens]:
        parts = []
        ahead = read_ahead(lambda index: reader.read(own[index]), 0, len(own))
        try:
            for done, clips in enumerate(ahead, start=1):
                frames = to_pictures(clips.frames.to(device), model.config.encoder.image_size)
                with autocast():
                    parts.append(model.encode_video(frames, clips.mask))
                if progress:
                    progress("videos", sum(map(len, own[:done])), sum(map(len, own)))
        finally:
            ahead.close()
        return parts

    parts = world.together(encode)
    if world.size > 1:
        slim = [part.without_source().to("cpu") for part in parts]
        parts = [part.to(device) for ones in world.exchange(slim) for part in ones]
    return PreparedTokens.cat(parts)


def _own(items: Sequence[str], size: int, world: World) -> list[Sequence[str]]:
    """The batches of this process; together they are those of one process."""
    starts = range(0, len(items), size)
    return [items[starts[number] : starts[number] + size] for number in world.part(len(starts))]


@torch.inference_mode()
def score_texts(
    model: ProTA,
    texts: Sequence[str],
    videos: PreparedTokens,
    *,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Progress | None = None,
    world: World = ALONE,
) -> Tensor:
    """Scores [texts, videos] of texts with prepared videos, on the CPU.

    Each process scores some texts; the first returns all scores, the others none.
    """
    own = _own(texts, TEXTS_AT_ONCE, world)

    def score() -> Tensor:
        rows = torch.empty(sum(map(len, own)), len(videos))
        end = 0
        for block in own:
            with autocast():
                encoded = model.encode_text(block)
            start, end = end, end + len(block)
            rows[start:end] = model.score(encoded, videos).float().cpu()
            if progress:
                progress("texts", end, len(rows))
        return rows

    rows = world.together(score)
    if world.size > 1:
        rows = torch.cat(world.collect(rows) or [torch.empty(0, len(videos))])
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
