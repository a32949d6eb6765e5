"""Cached frames → pictures at the encoder's size, on whatever device they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prota.experiment import TrainConfig

__all__ = ["Augmentation", "to_pictures"]


@dataclass(frozen=True)
class Augmentation:
    """What is done to the pictures of one batch."""

    side: int
    top: int
    left: int
    mirrored: tuple[bool, ...]
    """Which videos."""

    @classmethod
    def draw(cls, config: TrainConfig, size: int, videos: int, step: int) -> Augmentation:
        """One crop for the whole batch, a mirror for each video; the same for the same step, on however many ranks."""
        generator = np.random.default_rng([config.seed, step])
        side = round(size * generator.uniform(config.crop, 1.0))
        top, left = generator.integers(size - side + 1, size=2)
        mirrored = generator.random(videos) < (0.5 if config.flip else 0.0)
        return cls(side, int(top), int(left), tuple(bool(value) for value in mirrored))


def to_pictures(frames: Tensor, size: int, augmentation: Augmentation | None = None) -> Tensor:
    """uint8 [B, M, S, S, 3] → uint8 [B, M, 3, size, size]; features [B, M, C] are past being pictures and stay."""
    if frames.dim() == 3:
        return frames
    pictures = frames.permute(0, 1, 4, 2, 3)
    if augmentation is not None:
        top, left, side = augmentation.top, augmentation.left, augmentation.side
        pictures = pictures[..., top : top + side, left : left + side]
    if pictures.shape[-1] != size:
        flat = pictures.flatten(0, 1).float()
        flat = F.interpolate(flat, size=(size, size), mode="bicubic", antialias=True)
        pictures = flat.round().clamp(0, 255).to(torch.uint8).view(*pictures.shape[:2], 3, size, size)
    if augmentation is not None and any(augmentation.mirrored):
        mirrored = torch.tensor(augmentation.mirrored, device=pictures.device)[:, None, None, None, None]
        pictures = torch.where(mirrored, pictures.flip(-1), pictures)
    return pictures.contiguous()
