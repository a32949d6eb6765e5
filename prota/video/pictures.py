"""Pictures as videos of one frame, read by Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.opening import opened
from prota.video.timeline import DecodeError, Picture, Timeline, TooLargeError

__all__ = ["PICTURE_EXTENSIONS", "is_picture", "picture_size", "read_picture"]

PICTURE_EXTENSIONS = ("jpg", "jpeg", "png", "webp")
# Accepted formats, whatever the extension: those that browsers display. Pillow runs external programs for some others,
# such as EPS.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")


def is_picture(path: Path) -> bool:
    """Whether a file has the extension of a picture."""
    return path.suffix[1:].lower() in PICTURE_EXTENSIONS


def read_picture(path: Path) -> tuple[Timeline, Picture]:
    """Read a picture: a timeline of one frame without duration, and the frame, RGB uint8 [height, width, 3], upright.

    Animations give their first frame. Transparent areas become white.
    """
    from PIL import ImageOps

    with _stored(path) as stored:
        codec = (stored.format or "").lower()
        frame = np.asarray(_to_rgb(ImageOps.exif_transpose(stored)))
    height, width = frame.shape[:2]
    return Timeline(np.zeros(1), 0.0, width, height, 0.0, codec, 0), frame


def picture_size(path: Path) -> tuple[int, int]:
    """Width and height as stored, from the header."""
    with _stored(path) as stored:
        return stored.width, stored.height


@contextmanager
def _stored(path: Path) -> Iterator[Any]:
    """A picture of Pillow, not yet decoded; its errors inside become DecodeErrors."""
    from PIL import Image, UnidentifiedImageError

    with opened(path) as file:
        try:
            # Pillow warns of corrupt metadata, and of large pictures that it accepts.
            with warnings.catch_warnings(action="ignore"), Image.open(file, formats=_FORMATS) as stored:
                yield stored
        except Image.DecompressionBombError as error:
            raise TooLargeError(f"{path}: cannot read: {error}") from None
        except (OSError, ValueError, SyntaxError) as error:
            # Pillow raises many types of errors for truncated, corrupt and other files.
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "not a JPEG, PNG, WebP, GIF or BMP file" if unknown else str(error)
            raise DecodeError(f"{path}: cannot read: {reason}") from None


def _to_rgb(picture: Any) -> Any:
    from PIL import Image

    if picture.mode.startswith("I;16") or picture.mode == "I":
        # Pillow would clip 16 bits at 255.
        return Image.fromarray((np.asarray(picture) // 256).clip(0, 255).astype(np.uint8)).convert("RGB")
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")
