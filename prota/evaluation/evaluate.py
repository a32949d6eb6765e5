"""A model on a split: encode, score in blocks, rank.

Texts are encoded and scored block by block against all videos, so that of the texts' tokens only one block exists at a
time; what is kept is the score matrix [texts, videos].
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
from prota.model import ProTA
from prota.types import PreparedTokens

__all__ = ["ScoredSplit", "autocast_for", "encode_videos", "score_split", "score_texts"]

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ScoredSplit:
    """Scores of every caption with every video of a split."""

    scores: Tensor
    """[texts, videos] fp32, on the CPU."""
    video_of_text: Tensor
    """[texts]."""
    videos: PreparedTokens


def autocast_for(device: torch.device, precision: str) -> Callable[[], AbstractContextManager[object]]:
    """How encoders run: bf16 on a GPU where asked for, fp32 elsewhere."""
    if device.type == "cuda" and precision == "bf16":
        return lambda: torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext


@torch.inference_mode()
def encode_videos(
    model: ProTA,
    reader: ClipReader,
    video_ids: Sequence[str],
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    batch: int = 32,
    progress: Progress | None = None,
) -> PreparedTokens:
    """All videos, prepared, on the model's device."""
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
    return PreparedTokens.cat(parts)


@torch.inference_mode()
def score_texts(
    model: ProTA,
    texts: Sequence[str],
    videos: PreparedTokens,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    batch: int = 256,
    progress: Progress | None = None,
) -> Tensor:
    """Scores [texts, videos] of texts with prepared videos, on the CPU."""
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
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    progress: Progress | None = None,
) -> ScoredSplit:
    """Every caption of a split with every video of it."""
    was_training = model.training
    model.eval()
    videos = encode_videos(model, reader, split.video_ids, autocast, progress=progress)
    texts = [caption for _, caption in split.pairs]
    owners = [place for place, item in enumerate(split.items) for _ in item.captions]
    scores = score_texts(model, texts, videos, autocast, progress=progress)
    model.train(was_training)
    return ScoredSplit(scores, torch.tensor(owners), videos)
