"""What happens to a picture before a backbone sees it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from prota.frames.transforms import resize_crop


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(192, 256), (256, 192), (240, 427), (100, 100), (31, 57), (720, 1280)])
@pytest.mark.parametrize("size", [64, 65, 224])
def test_it_is_a_resize_followed_by_a_centre_crop(height: int, width: int, size: int) -> None:
    frame = picture(height, width)
    # As torchvision's Resize and CenterCrop do it, written out.
    wide, high = (size, int(size * height / width)) if width <= height else (int(size * width / height), size)
    resized = np.asarray(Image.fromarray(frame).resize((wide, high), Image.Resampling.BICUBIC))
    left, top = round((wide - size) / 2), round((high - size) / 2)
    expected = resized[top : top + size, left : left + size]
    np.testing.assert_array_equal(resize_crop(frame, size), expected)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (5000, 1), (3, 2), (10, 20000), (2, 1)])
def test_extreme_pictures_become_squares(height: int, width: int) -> None:
    frame = np.full((height, width, 3), (10, 120, 240), dtype=np.uint8)
    result = resize_crop(frame, 224)
    assert result.shape == (224, 224, 3)
    assert result.dtype == np.uint8
    assert np.abs(result.astype(int) - frame[0, 0]).max() <= 1


def test_the_centre_is_kept() -> None:
    frame = np.zeros((60, 180, 3), dtype=np.uint8)
    frame[:, 60:120] = 255
    assert resize_crop(frame, 30)[:, 2:-2].min() > 250


def test_bad_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        resize_crop(np.zeros((4, 4, 3)), 2)
    with pytest.raises(ValueError, match=r"\[4, 4\]"):
        resize_crop(np.zeros((4, 4), dtype=np.uint8), 2)
    with pytest.raises(ValueError, match="size = 0"):
        resize_crop(picture(4, 4), 0)
