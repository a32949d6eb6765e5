"""From the frames of a video's segments to what a library stores of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from prota.data.pictures import to_pictures
from prota.library.indexing.reading import VideoContent
from prota.library.records import LibraryError, SegmentBatch
from prota.library.tokens import pooled_vectors
from prota.model.prota import ProTA
from prota.runtime import autocast_for

__all__ = ["encode_video", "encode_videos"]


def _padded(content: VideoContent, frames: int) -> VideoContent:
    """Segments of fewer frames than the model takes get places for the rest, because a library has one width."""
    missing = frames - content.mask.shape[1]
    if missing < 0:
        raise LibraryError(f"{content.mask.shape[1]} frames a segment are more than the model takes; allowed: {frames}")
    if not missing:
        return content
    room = ((0, 0), (0, missing))
    return replace(
        content,
        mask=np.pad(content.mask, room),
        index=np.pad(content.index, room, constant_values=-1),
        times=np.pad(content.times, room, constant_values=np.nan),
    )


def encode_video(model: ProTA, video_id: str, content: VideoContent) -> SegmentBatch:
    """All segments of what was read of a video."""
    return encode_videos(model, [(video_id, content)])[0]


@torch.inference_mode()
def encode_videos(model: ProTA, videos: Sequence[tuple[str, VideoContent]], batch: int = 64) -> list[SegmentBatch]:
    """The same of several videos at once. A frame that two segments share goes through the tower once.

    On a GPU the encoder runs in bf16, as in training.
    """
    tower, device = model.video_encoder.tower, model.logit_scale.device
    contents = [_padded(content, model.config.encoder.frames) for _, content in videos]
    frames = torch.from_numpy(np.concatenate([content.frames for content in contents]))
    features = []
    with autocast_for(device)():
        for start in range(0, len(frames), batch):
            pictures = to_pictures(frames[None, start : start + batch].to(device), model.config.encoder.image_size)
            features.append(tower.features(pictures[0]).float())
        mask = torch.from_numpy(np.concatenate([content.mask for content in contents])).to(device)
        place = torch.from_numpy(_places(contents)).to(device)
        tokens = model.video_encoder(torch.cat(features)[place], mask)
    items = model.head.prepare_videos(tokens).without_source()
    direction, weight = _stored(items.direction, torch.float16), _stored(items.weight, torch.float32)
    spread = None if items.spread is None else _stored(items.spread, torch.float16)
    pooled = _stored(pooled_vectors(items), torch.float32)
    batches, end = [], 0
    for (video_id, _), content in zip(videos, contents, strict=True):
        rows = slice(end, end := end + len(content))
        batches.append(
            SegmentBatch(
                video_id=video_id,
                start=content.starts,
                end=content.ends,
                times=content.times,
                direction=direction[rows],
                spread=None if spread is None else spread[rows],
                weight=weight[rows],
                mask=content.mask,
                pooled=pooled[rows],
                thumbnails=content.thumbnails,
                first=content.first,
            )
        )
    return batches


def _places(contents: Sequence[VideoContent]) -> np.ndarray:
    """[S, M] which of all frames each is; the first of its video, where there is none."""
    starts = np.cumsum([0, *(len(content.frames) for content in contents[:-1])])
    return np.concatenate([content.index.clip(min=0) + start for content, start in zip(contents, starts, strict=True)])


def _stored(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    stored = tensor.to(dtype)
    if not stored.isfinite().all():
        raise LibraryError("the model gave values that float16 cannot hold (not finite, or above 65,504)")
    return stored.cpu().numpy()
