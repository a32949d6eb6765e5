"""What happens to a picture before a backbone sees it; mean and deviation are the backbone's own affair."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from PIL import Image

__all__ = ["Extent", "to_square"]

# No ordinary picture is longer than this many times its shorter side.
LONGEST = 8

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Extent = Literal["centre", "whole"]
"""What of a frame a square shows: its centre, or all of it, squeezed."""


def to_square(frame: Picture, size: int, extent: Extent = "centre") -> Picture:
    """Resized (bicubic, antialiased): uint8 [size, size, 3].

    ``centre``: the shorter side becomes `size`, and the longer one loses its ends. Sizes and offsets are rounded as
    torchvision rounds them, which is what CLIP and its successors were trained with. ``whole``: both sides become
    `size`; nothing is lost, but a wide picture is squeezed.
    """
    if size < 1:
        raise ValueError(f"size = {size} is not allowed; allowed: 1 or more")
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
        raise ValueError(f"a frame must be uint8 [height, width, 3]; got {frame.dtype} {list(frame.shape)}")
    shorter = min(frame.shape[:2])
    # A strip of 10,000 × 10 would become a huge picture, of which only the centre is wanted.
    frame = _centre(frame, min(frame.shape[0], LONGEST * shorter), min(frame.shape[1], LONGEST * shorter))
    if extent == "whole":
        return np.asarray(Image.fromarray(frame).resize((size, size), Image.Resampling.BICUBIC)).copy()
    height, width = frame.shape[:2]
    wide, high = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    resized = Image.fromarray(frame).resize((wide, high), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(_centre(np.asarray(resized), size, size))


def _centre(frame: Picture, height: int, width: int) -> Picture:
    top, left = round((frame.shape[0] - height) / 2), round((frame.shape[1] - width) / 2)
    return frame[top : top + height, left : left + width]
