"""Features of a frozen vision tower, computed once instead of in every epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from prota.data.batches import Array, Clips
from prota.data.frame_cache import CachePlan
from prota.data.pictures import to_pictures
from prota.encoders.video import FrameTower
from prota.model.prota import ProTA
from prota.runtime import autocast_for

__all__ = ["FeatureClips", "feature_key"]

# Few enough for the progress bar to move on a CPU.
VIDEOS_AT_ONCE = 4


class FeatureClips:
    """Features of all cached frames of videos, in memory."""

    def __init__(
        self,
        model: ProTA,
        cache: Clips,
        video_ids: list[str],
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """``progress(done, total)`` counts videos."""
        self.plan: CachePlan = cache.plan
        self.key = feature_key(model, cache)
        device, size = model.logit_scale.device, model.config.encoder.image_size
        autocast, tower = autocast_for(device), model.video_encoder.tower
        assert isinstance(tower, FrameTower)
        self._features: dict[str, Array] = {}
        progress(0, len(video_ids))
        for start in range(0, len(video_ids), VIDEOS_AT_ONCE):
            some = video_ids[start : start + VIDEOS_AT_ONCE]
            clips = [cache.frames(video_id) for video_id in some]
            frames = torch.from_numpy(np.concatenate(clips))[None].to(device)
            with torch.inference_mode(), autocast():
                features = tower.features(to_pictures(frames, size)[0])
            ends = np.cumsum([len(clip) for clip in clips])
            self._features |= zip(some, np.split(features.float().cpu().numpy(), ends[:-1]), strict=True)
            progress(start + len(some), len(video_ids))

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._features

    def frames(self, video_id: str) -> Array:
        return self._features[video_id]


def feature_key(model: ProTA, cache: Clips) -> str:
    """A hash of everything that features depend on: weights and settings of the tower, and the cached frames."""
    encoder = model.config.encoder
    taken = (encoder.image_size, encoder.frame_feature, encoder.frame_layers)
    digest = hashlib.sha256(repr((cache.plan, *taken)).encode())
    for name, value in model.video_encoder.tower.model.state_dict().items():
        digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
