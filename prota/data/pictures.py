"""Resize and augment cached frames, on any device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from prota.config.experiment import COLOUR, TrainConfig

__all__ = ["Augmentation", "to_pictures"]

# Luma weights of red, green and blue (Rec. 601).
_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augmentation:
    """Random changes to the frames of one batch: one entry a video, the same for all its frames."""

    boxes: tuple[tuple[int, int, int], ...]
    """Side, top and left of the square that is kept, in pixels."""
    mirrored: tuple[bool, ...]
    colours: tuple[tuple[float, float, float], ...]
    """Factors on brightness, contrast and saturation."""

    @classmethod
    def draw(cls, config: TrainConfig, size: int, videos: int, step: int) -> Augmentation:
        """Depends on the seed and the step alone, not on the number of ranks."""
        generator = np.random.default_rng([config.seed, step])

        def box() -> tuple[int, int, int]:
            side = round(size * generator.uniform(config.crop, 1.0))
            top, left = generator.integers(size - side + 1, size=2)
            return side, int(top), int(left)

        boxes = tuple(box() for _ in range(videos))
        mirrored = generator.random(videos) < 0.5
        factors = generator.uniform(1 - COLOUR, 1 + COLOUR, (videos, 3)).tolist()
        colours = tuple((bright, contrast, vivid) for bright, contrast, vivid in factors)
        return cls(boxes, tuple(bool(value) for value in mirrored), colours)

    def part(self, videos: slice) -> Augmentation:
        """The augmentation of some of the videos."""
        return Augmentation(self.boxes[videos], self.mirrored[videos], self.colours[videos])


def to_pictures(frames: Tensor, size: int, augmentation: Augmentation | None = None) -> Tensor:
    """uint8 [B, M, S, S, 3] → uint8 [B, M, 3, size, size]; features [B, M, C] are returned unchanged."""
    if frames.dim() == 3:
        return frames
    pictures = frames.permute(0, 1, 4, 2, 3)
    if augmentation is None:
        return _resized(pictures, size).contiguous()
    pictures = _cropped(pictures, size, augmentation.boxes)
    mirrored = torch.tensor(augmentation.mirrored, device=pictures.device)[:, None, None, None, None]
    pictures = torch.where(mirrored, pictures.flip(-1), pictures)
    return _coloured(pictures, torch.tensor(augmentation.colours, device=pictures.device)).contiguous()


def _resized(pictures: Tensor, size: int) -> Tensor:
    if pictures.shape[-1] == size:
        return pictures
    flat = F.interpolate(pictures.flatten(0, 1).float(), size=(size, size), mode="bicubic", antialias=True)
    return _to_bytes(flat).view(*pictures.shape[:2], 3, size, size)


def _cropped(pictures: Tensor, size: int, boxes: tuple[tuple[int, int, int], ...]) -> Tensor:
    """Crop a square of each video and resize it, bilinearly."""
    whole = pictures.shape[-1]
    side, top, left = torch.tensor(boxes, device=pictures.device, dtype=torch.float32).T
    # The square in coordinates from -1 to 1 over the picture.
    zero, scale = torch.zeros_like(side), side / whole
    rows = torch.stack([scale, zero, (2 * left + side) / whole - 1, zero, scale, (2 * top + side) / whole - 1], dim=-1)
    theta = rows.view(-1, 1, 2, 3).expand(-1, pictures.shape[1], 2, 3).flatten(0, 1)
    grid = F.affine_grid(theta, [len(theta), 3, size, size], align_corners=False)
    flat = F.grid_sample(pictures.flatten(0, 1).float(), grid, padding_mode="border", align_corners=False)
    return _to_bytes(flat).view(*pictures.shape[:2], 3, size, size)


def _coloured(pictures: Tensor, colours: Tensor) -> Tensor:
    bright, contrast, vivid = colours.view(-1, 3, 1, 1, 1, 1).unbind(dim=1)
    values = pictures.float() * bright
    grey = (values * values.new_tensor(_GREY).view(3, 1, 1)).sum(dim=2, keepdim=True)
    values = torch.lerp(grey.expand_as(values), values, vivid.expand_as(values))
    middle = grey.mean(dim=(-1, -2), keepdim=True)
    return _to_bytes(torch.lerp(middle.expand_as(values), values, contrast.expand_as(values)))


def _to_bytes(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)
