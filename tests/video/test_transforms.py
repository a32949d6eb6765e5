"""What happens to a picture before a backbone sees it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from prota.video.transforms import Extent, to_square


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
    np.testing.assert_array_equal(to_square(frame, size), expected)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 5000), (5000, 1), (3, 2), (10, 20000), (2, 1)])
@pytest.mark.parametrize("extent", ["centre", "whole"])
def test_extreme_pictures_become_squares(height: int, width: int, extent: Extent) -> None:
    frame = np.full((height, width, 3), (10, 120, 240), dtype=np.uint8)
    result = to_square(frame, 224, extent)
    assert result.shape == (224, 224, 3)
    assert result.dtype == np.uint8
    assert np.abs(result.astype(int) - frame[0, 0]).max() <= 1


def test_the_centre_is_kept() -> None:
    frame = np.zeros((60, 180, 3), dtype=np.uint8)
    frame[:, 60:120] = 255
    assert to_square(frame, 30)[:, 2:-2].min() > 250


@pytest.mark.parametrize("wide", [True, False])
def test_the_whole_is_kept(wide: bool) -> None:
    frame = np.zeros((60, 180, 3), dtype=np.uint8)
    frame[:, :60], frame[:, 120:] = 255, 128
    result = to_square(frame if wide else frame.transpose(1, 0, 2), 30, "whole")
    assert (result.shape, result.dtype, result.flags.writeable) == ((30, 30, 3), np.uint8, True)
    for third, value in enumerate((255, 0, 128)):
        inside = slice(10 * third + 2, 10 * third + 8)
        part = result[:, inside] if wide else result[inside]
        assert np.abs(part.astype(int) - value).max() <= 1


def test_bad_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        to_square(np.zeros((4, 4, 3)), 2)
    with pytest.raises(ValueError, match=r"\[4, 4\]"):
        to_square(np.zeros((4, 4), dtype=np.uint8), 2)
    with pytest.raises(ValueError, match="size must be"):
        to_square(picture(4, 4), 0)
