"""Pictures as videos of one frame: upright, opaque, 8 bits a channel, and one line where they cannot be read."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prota.data.frame_cache import CachePlan, FrameCache, fill_cache
from prota.data.videos import find_videos
from prota.video.decode import DecodeError, read_timeline
from tests.video.clips import decode_frames

RED, BLUE = (250, 10, 10), (10, 10, 250)


def halves(width: int = 40, height: int = 20) -> np.ndarray:
    """Left red, right blue."""
    array = np.zeros((height, width, 3), dtype=np.uint8)
    array[:, : width // 2], array[:, width // 2 :] = RED, BLUE
    return array


def first(path: Path) -> np.ndarray:
    return decode_frames(path, [0])[1][0]


@pytest.mark.parametrize("kind", ["png", "jpg", "jpeg", "webp", "PNG"])
def test_a_picture_is_a_video_of_one_frame(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"halves.{kind}"
    Image.fromarray(halves()).save(path, quality=95)
    timeline = read_timeline(path)
    assert (timeline.times.tolist(), timeline.duration, timeline.width, timeline.height) == ([0.0], 0.0, 40, 20)
    frame = first(path)
    assert frame.dtype == np.uint8
    assert np.abs(frame[10, 5].astype(int) - RED).max() < 30
    assert np.abs(frame[10, 35].astype(int) - BLUE).max() < 30


def test_a_photograph_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    # Turned by 90 degrees, clockwise: what was left is on top.
    exif[0x112] = 6
    Image.fromarray(halves()).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    frame = first(tmp_path / "turned.jpg")
    assert frame.shape == (40, 20, 3)
    assert np.abs(frame[5, 10].astype(int) - RED).max() < 30


def test_other_modes_become_rgb(tmp_path: Path) -> None:
    clear = np.dstack([halves(), np.full((20, 40), 255, dtype=np.uint8)])
    clear[:, :20, 3] = 0
    Image.fromarray(clear).save(tmp_path / "clear.png")
    frame = first(tmp_path / "clear.png")
    assert frame[10, 5].tolist() == [255, 255, 255]
    assert frame[10, 35].tolist() == list(BLUE)
    Image.fromarray(np.full((4, 4), 200 * 256, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert first(tmp_path / "deep.png").max() == first(tmp_path / "deep.png").min() == 200
    Image.fromarray(halves()).convert("P").save(tmp_path / "few.png")
    assert np.abs(first(tmp_path / "few.png")[10, 5].astype(int) - RED).max() < 60
    Image.fromarray(np.full((4, 4), 7, dtype=np.uint8)).save(tmp_path / "grey.png")
    assert first(tmp_path / "grey.png").tolist() == [[[7] * 3] * 4] * 4
    moving = [Image.fromarray(np.full((8, 8, 3), value, dtype=np.uint8)) for value in (50, 200)]
    moving[0].save(tmp_path / "moving.webp", save_all=True, append_images=moving[1:], lossless=True)
    assert first(tmp_path / "moving.webp").max() == 50


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_what_cannot_be_read_is_one_line(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": whole[: len(whole) // 2], "text": b"no picture"}[damage])
    with pytest.raises(DecodeError) as caught:
        first(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_too_large_a_picture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(halves()).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DecodeError):
        first(tmp_path / "bomb.png")


def test_the_cache_takes_pictures_beside_videos(tmp_path: Path, world_config: Path) -> None:
    Image.fromarray(halves()).save(tmp_path / "halves.png")
    clip = world_config.parent / "clips" / "red-left.mp4"
    videos = {"picture": tmp_path / "halves.png", "clip": clip}
    report = fill_cache(tmp_path / "cache", videos, CachePlan(4, 16, extent="whole"), workers=2)
    assert (report.decoded, report.quarantined) == (2, {})
    cache = FrameCache.open(tmp_path / "cache")
    assert cache.frames("picture").shape == (1, 16, 16, 3)
    assert cache.entry("picture").duration == 0
    assert len(cache.frames("clip")) > 1


def test_a_preview_beside_a_video_is_not_taken_for_it(tmp_path: Path, world_config: Path) -> None:
    (tmp_path / "clip.mp4").write_bytes((world_config.parent / "clips" / "red-left.mp4").read_bytes())
    for name in ("clip.jpg", "alone.png"):
        Image.fromarray(halves()).save(tmp_path / name)
    found = find_videos(tmp_path, ["clip", "alone", "clip.jpg"])
    names = {video: path.name for video, path in found.paths.items()}
    assert names == {"clip": "clip.mp4", "alone": "alone.png", "clip.jpg": "clip.jpg"}
    assert not found.duplicated


def test_of_what_pillow_reads_only_what_browsers_show_is_opened(tmp_path: Path) -> None:
    """A picture may go by another's name, and a hostile one be of a kind that starts another program."""
    for kind in ("GIF", "BMP", "PNG"):
        Image.fromarray(halves()).save(tmp_path / "other.jpg", kind)
        assert read_timeline(tmp_path / "other.jpg").codec == kind.lower()
    for kind in ("EPS", "TIFF", "PCX"):
        Image.fromarray(halves()).save(tmp_path / "odd.jpg", kind)
        with pytest.raises(DecodeError):
            first(tmp_path / "odd.jpg")


def test_what_pillow_minds_but_reads_is_not_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(halves()).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert first(tmp_path / "large.png").shape == (20, 40, 3)
    assert heard == []
