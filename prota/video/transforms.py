"""Resizing and cropping of frames; backbones normalise them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from PIL import Image

__all__ = ["Extent", "to_square"]

# Pictures with a larger aspect ratio are cropped first.
LONGEST = 8

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Extent = Literal["centre", "whole", "centre-bilinear", "whole-bilinear"]
"""The part of a frame that is kept: the centre, or the whole frame, squeezed; and resampling other than bicubic."""


def to_square(frame: Picture, size: int, extent: Extent = "centre") -> Picture:
    """Resize a frame to uint8 [size, size, 3] (bicubic unless ``extent`` says otherwise, antialiased).

    ``centre``: resize the shorter side to ``size`` and crop the longer one. Sizes and offsets are rounded like
    torchvision's, which CLIP and its successors were trained with. ``whole``: resize both sides; wide frames are
    squeezed.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise ValueError(f"a frame must be uint8 [height, width, 3]; got {frame.dtype} {list(frame.shape)}")
    shorter = min(frame.shape[:2])
    # A strip of 10,000 × 10 would be resized to a huge picture, only to be cropped.
    frame = _centre(frame, min(frame.shape[0], LONGEST * shorter), min(frame.shape[1], LONGEST * shorter))
    part, _, other = extent.partition("-")
    resampling = Image.Resampling.BILINEAR if other else Image.Resampling.BICUBIC
    if part == "whole":
        return np.asarray(Image.fromarray(frame).resize((size, size), resampling)).copy()
    height, width = frame.shape[:2]
    wide, high = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    resized = Image.fromarray(frame).resize((wide, high), resampling)
    return np.ascontiguousarray(_centre(np.asarray(resized), size, size))


def _centre(frame: Picture, height: int, width: int) -> Picture:
    top, left = round((frame.shape[0] - height) / 2), round((frame.shape[1] - width) / 2)
    return frame[top : top + height, left : left + width]
