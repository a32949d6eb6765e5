"""The right frames, upright, or one clear error."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prota.video.decode import DecodeError, read_timeline
from prota.workers.process_pool import DecodePool
from tests.processes import LIMIT
from tests.video.clips import decode_frames, number_of, write_clip
from tests.workers.jobs import decode_all, decode_uniform

FLAVOURS: dict[str, tuple[str, dict[str, Any]]] = {
    "h264 with B-frames": ("clip.mp4", {}),
    "h264, all keyframes": ("clip.mp4", {"options": {"g": "1"}}),
    "h264, one keyframe": ("clip.mkv", {"options": {"g": "300", "bf": "3"}}),
    "h265, open groups": ("clip.mp4", {"codec": "libx265", "options": {"x265-params": "log-level=none:keyint=8"}}),
    "vp9": ("clip.webm", {"codec": "libvpx-vp9", "options": {"g": "8"}}),
    "vp8": ("clip.webm", {"codec": "libvpx", "options": {"g": "8", "auto-alt-ref": "1", "lag-in-frames": "10"}}),
    "mpeg4 in avi": ("clip.avi", {"codec": "mpeg4", "options": {"g": "8", "bf": "2"}}),
    "h264 in mpeg-ts": ("clip.ts", {}),
    "h264 without stamps": ("clip.h264", {}),
}


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_right_frames_come(flavour: str, tmp_path: Path) -> None:
    name, options = FLAVOURS[flavour]
    path = write_clip(tmp_path / name, 30, **options)
    timeline, frames = decode_frames(path, range(30))
    np.testing.assert_allclose(timeline.times, np.arange(30) / 25, atol=1e-3)
    assert timeline.duration == pytest.approx(1.2, abs=2e-3)
    assert (timeline.width, timeline.height, timeline.fps) == (64, 48, 25)
    assert [number_of(frame) for frame in frames] == list(range(30))
    # Sparse choices seek; what they find is, bit by bit, what decoding everything finds.
    for wanted in ([0], [29], [7, 8, 9], [3, 17, 18, 29], [5, 5, 5, 28, 28], []):
        _, sparse = decode_frames(path, wanted)
        assert len(sparse) == len(wanted)
        for number, frame in zip(wanted, sparse, strict=True):
            np.testing.assert_array_equal(frame, frames[number])


def test_variable_frame_rate_keeps_its_times(tmp_path: Path) -> None:
    stamps = [0, 4, 8, 50, 54, 150, 151, 300, 304, 308]
    path = write_clip(tmp_path / "clip.mp4", 10, stamps=stamps)
    timeline, frames = decode_frames(path, [0, 3, 7, 9])
    np.testing.assert_allclose(timeline.times, np.array(stamps) / 100, atol=1e-6)
    assert timeline.duration == pytest.approx(3.12)
    assert [number_of(frame) for frame in frames] == [0, 3, 7, 9]


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_rotated_clips_come_upright(rotation: int, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 3, rotation=rotation, corner=True)
    timeline, frames = decode_frames(path, [0])
    upright = (64, 48) if rotation == 180 else (48, 64)
    assert (timeline.width, timeline.height) == upright
    assert frames[0].shape == (*upright[::-1], 3)
    bright = np.argwhere(frames[0][..., 0] > 128).mean(axis=0) > np.array(frames[0].shape[:2]) / 2
    # Where the upper left corner goes: rotations are counterclockwise, as FFmpeg counts them.
    assert bright.tolist() == {90: [True, False], 180: [True, True], -90: [False, True]}[rotation]
    assert timeline.rotation == -rotation % 360


def test_the_transform_sees_only_kept_frames(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    seen: list[int] = []

    def transform(frame: np.ndarray) -> np.ndarray:
        seen.append(number_of(frame))
        return frame[:2, :2]

    _, frames = decode_frames(path, [4, 20], transform)
    assert seen == [4, 20]
    assert all(frame.shape == (2, 2, 3) for frame in frames)


def damaged(path: Path) -> bytes:
    """Zeros over a stretch in the middle: the decoder gives up on the way."""
    data = bytearray(write_clip(path, 30, noise=True, options={"g": "300"}).read_bytes())
    middle = len(data) // 4
    data[middle : middle * 3] = bytes(2 * middle)
    return bytes(data)


def test_broken_files_say_what_is_wrong(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mp4", noise=True, container={"movflags": "faststart"}).read_bytes()
    matroska = write_clip(tmp_path / "whole.mkv", stamps=range(0, 300, 10), noise=True).read_bytes()
    cases = {
        "missing.mp4": (None, "no such file"),
        "empty.mp4": (b"", "empty file"),
        "text.mp4": (b"this is not a video\n" * 50, "cannot open: Invalid data"),
        "half.mp4": (whole[: len(whole) * 6 // 10], "truncated: some of its 30 frames"),
        "headless.mp4": (whole[2000:], "cannot open"),
        "unheard-of.mp4": (whole.replace(b"avc1", b"zzzz"), "FFmpeg cannot decode this codec"),
        "half.mkv": (matroska[: len(matroska) // 2], "truncated: "),
    }
    for name, (data, reason) in cases.items():
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(DecodeError) as caught:
            read_timeline(path)
        message = str(caught.value)
        assert reason in message, message
        assert message.count(str(path)) == 1, message
        assert "\n" not in message


def test_a_stream_that_breaks_never_gives_fewer_or_other_frames(tmp_path: Path) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(damaged(tmp_path / "whole.mp4"))
    assert len(read_timeline(path).times) == 30
    decode_frames(path, [0])
    with pytest.raises(DecodeError, match=r"only \d+ of 30 frames are readable"):
        decode_frames(path, [0, 29])
    with pytest.raises(DecodeError, match="are readable"):
        decode_all(path)


def test_a_recording_that_starts_in_the_middle_gives_what_can_be_shown(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.ts", noise=True).read_bytes()
    packets = len(whole) // 188
    path = tmp_path / "tail.ts"
    # The tables at the start, then the stream from the middle of a group of pictures on.
    path.write_bytes(whole[: 3 * 188] + whole[packets // 6 * 188 :])
    timeline = read_timeline(path)
    _, frames = decode_frames(path, range(len(timeline.times)))
    numbers = [number_of(frame) for frame in frames]
    assert 15 <= len(numbers) < 30
    assert numbers == list(range(numbers[0], 30))


def test_indices_are_checked(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 5)
    with pytest.raises(DecodeError, match="no frame 5, only 5"):
        decode_frames(path, [5])
    for wrong in ([3, 2], [-1]):
        with pytest.raises(ValueError, match="ascending"):
            decode_frames(path, wrong)


# What the files of decode_tests that give no frames say.
REASONS = {
    "truncated_msrvtt_video1696.mp4": "cannot open",
    "zero_length.mp4": "empty file",
    "corrupted.mp4": "only 28 of 50 frames are readable",
    "invalid_userdata.mp4": "truncated",
    "afconvert-aac-0.5s.mp4": "no video stream",
    "bipbop_nonfragment_header.mp4": "truncated",
    "short-cenc.mp4": "cannot decode any frame",
    "zero_empty_stsc.mp4": "truncated",
}


@pytest.mark.process
def test_files_that_decoders_trip_over(shared: Path) -> None:
    folder = shared / "data" / "decode_tests"
    with (folder / "manifest.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    with DecodePool(workers=2, timeout=LIMIT) as workers:
        found = dict(workers.run(decode_uniform, ((name, folder / name) for name in rows)))
    assert found.keys() == rows.keys()
    failed = {Path(name).name: outcome.error for name, outcome in found.items() if outcome.value is None}
    assert failed.keys() == REASONS.keys(), json.dumps(failed)
    for name, reason in REASONS.items():
        assert reason in str(failed[name])
    for name, outcome in found.items():
        if outcome.value is not None:
            total, chosen, shapes, size = outcome.value
            assert total == int(rows[name]["nframes"]), name
            assert chosen == min(12, total), name
            assert shapes == [(*size, 3)], name


def test_real_rotated_files_are_upright(shared: Path) -> None:
    """Pictures of a keyboard, each readable after rotation (looked at once)."""
    folder = shared / "data" / "decode_tests" / "decord" / "tests" / "test_data"
    for turn, shape in ((0, (320, 568, 3)), (90, (568, 320, 3)), (180, (320, 568, 3))):
        timeline, frames = decode_all(folder / f"video_{turn}.mov")
        assert timeline.rotation == turn
        assert {frame.shape for frame in frames} == {shape}
