"""What a library stores of a model's output: encoded segments, pooled vectors, and the stamp of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from prota.data.pictures import to_pictures
from prota.encoders.video import JointTower
from prota.library.indexing.reading import VideoContent
from prota.library.records import LibraryError, ModelStamp, SegmentBatch, SegmentTokens
from prota.library.storage.location import Folder, Location
from prota.library.storage.reader import Snapshot
from prota.model.prota import ProTA
from prota.model.relevance import Relevance
from prota.runtime import autocast_for
from prota.scoring.score import pooled
from prota.types import PreparedTokens, Tokens

__all__ = ["encode_video", "encode_videos", "one_segment_each", "pooled_vectors", "stamp_of"]
__all__ += ["stored_relevance", "stored_tokens"]

# By encoders that take their frames together.
_SEGMENTS_AT_ONCE = 4


def stamp_of(model: ProTA, name: str, expected: ModelStamp | None = None) -> ModelStamp:
    """What a library remembers of its model; the weights are hashed again where another is ``expected``."""
    identity = model.identity()
    if expected is not None and identity != expected.fingerprint:
        identity = model.identity(saved=False)
    encoder = model.config.encoder
    spread = model.config.score.probabilistic
    return ModelStamp(name, identity, encoder.width, encoder.tokens, spread)


def pooled_vectors(items: PreparedTokens) -> Tensor:
    """[S, D] unit vectors: weighted means of tokens, compared by the candidate stage of a search."""
    return torch.nn.functional.normalize(pooled(items), dim=-1)


def stored_tokens(tokens: SegmentTokens, device: torch.device, as_stored: bool = False) -> PreparedTokens:
    """Segments ready to be scored, in fp32; ``as_stored``: in the fp16 that they are stored in."""

    def tensor(values: np.ndarray) -> Tensor:
        # Arrays from files are read-only, which torch does not accept.
        return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(device)

    direction, spread = tensor(tokens.direction), None if tokens.spread is None else tensor(tokens.spread)
    if not as_stored:
        direction, spread = direction.float(), None if spread is None else spread.float()
    return PreparedTokens(direction, spread, tensor(tokens.weight).float(), tensor(tokens.mask).bool())


def stored_relevance(location: Location) -> Relevance | None:
    """What `prota calibrate --library` stored in a library's folder."""
    return Relevance.load(location.path) if isinstance(location, Folder) else None


def one_segment_each(snapshot: Snapshot, most: int) -> list[int]:
    """The middle segment of each of at most ``most`` videos, spread over the library."""
    rows: dict[str, list[int]] = {}
    table = snapshot.segments(["row", "video_id"]).to_pydict()
    for row, video_id in zip(table["row"], table["video_id"], strict=True):
        rows.setdefault(video_id, []).append(row)
    middles = [places[len(places) // 2] for places in rows.values()]
    return [middles[place] for place in np.unique(np.linspace(0, len(middles) - 1, most).astype(int))]


def _padded(content: VideoContent, frames: int) -> VideoContent:
    """Pad segments to the frames of the model: all segments of a library have one width."""
    missing = frames - content.mask.shape[1]
    if not missing:
        return content
    room = ((0, 0), (0, missing))
    return replace(
        content,
        mask=np.pad(content.mask, room),
        index=np.pad(content.index, room, constant_values=-1),
        times=np.pad(content.times, room, constant_values=np.nan),
    )


def _together(model: ProTA, frames: Tensor, place: Tensor, mask: Tensor) -> Tokens:
    """Encode the frames of segments together, a few segments at a time."""
    size, parts = model.config.encoder.image_size, []
    for start in range(0, len(place), _SEGMENTS_AT_ONCE):
        some = slice(start, start + _SEGMENTS_AT_ONCE)
        pictures = to_pictures(frames[place[some]].to(model.logit_scale.device), size)
        parts.append(model.video_encoder(pictures, mask[some]))
    return Tokens(torch.cat([part.embeddings for part in parts]), torch.cat([part.mask for part in parts]))


def _of_one_token(content: VideoContent) -> VideoContent:
    """Segments whose one token stands for all frames; its time is that of the middle one."""
    rows = np.arange(len(content))
    middle = content.times[rows, content.mask.sum(axis=1) // 2]
    return replace(content, times=middle[:, None], mask=np.ones((len(content), 1), dtype=bool))


def encode_video(model: ProTA, video_id: str, content: VideoContent) -> SegmentBatch:
    """Encode the segments that were read of a video."""
    return encode_videos(model, [(video_id, content)])[0]


@torch.inference_mode()
def encode_videos(model: ProTA, videos: Sequence[tuple[str, VideoContent]], batch: int = 64) -> list[SegmentBatch]:
    """Encode several videos in one pass. A frame that segments share is encoded once.

    On a GPU the encoder runs in bf16, as in training.
    """
    device, size = model.logit_scale.device, model.config.encoder.image_size
    contents = [_padded(content, model.config.encoder.frames) for _, content in videos]
    frames = torch.from_numpy(np.concatenate([content.frames for content in contents]))
    place, mask = torch.from_numpy(_places(contents)), torch.from_numpy(np.concatenate([c.mask for c in contents]))
    with autocast_for(device)():
        if isinstance(model.video_encoder.tower, JointTower):
            tokens = _together(model, frames, place, mask)
            contents = [_of_one_token(content) for content in contents]
        else:
            features = []
            for start in range(0, len(frames), batch):
                pictures = to_pictures(frames[None, start : start + batch].to(device), size)
                features.append(model.video_encoder.tower.features(pictures[0]).float())
            tokens = model.video_encoder(torch.cat(features)[place.to(device)], mask.to(device))
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
    """[S, M] positions in the frames of all videos; padding points to the first frame of its video."""
    starts = np.cumsum([0, *(len(content.frames) for content in contents[:-1])])
    return np.concatenate([content.index.clip(min=0) + start for content, start in zip(contents, starts, strict=True)])


def _stored(tensor: Tensor, dtype: torch.dtype) -> np.ndarray:
    stored = tensor.to(dtype)
    if not stored.isfinite().all():
        raise LibraryError("the model's output cannot be stored: values are not finite, or a variance is above 65,504")
    return stored.cpu().numpy()
