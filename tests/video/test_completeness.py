"""A file that announces more frames, or another length, than it has is damaged; uncommon but whole ones are not."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prota.video.completeness import Packets, check_frames, check_times, missing
from prota.video.decode import DecodeError, read_timeline
from tests.video.clips import decode_frames, number_of, write_clip

CLUSTER = b"\x1f\x43\xb6\x75"
# An entry of a sample table or a header in a clip of 30 frames: box, offset in it, new value, numbers in the reason.
DAMAGE: dict[str, tuple[bytes, int, int, tuple[str, ...]]] = {
    "one frame of 30 in the table of sizes": (b"stsz", 12, 1, ("1", "30")),
    "12 of 30 in the table of sizes": (b"stsz", 12, 12, ("12", "30")),
    "frames of hours": (b"stts", 16, 0x7FFFFFF, ("30",)),
    "frames of 10 s": (b"stts", 16, 5_120_000, ("30",)),
    "a third of the frames in the table of times": (b"stts", 12, 300, ("30", "300")),
    "all of the frames in no time": (b"mdhd", 16, 2**31 - 1, ("30",)),
    "an edit list that hides most frames": (b"elst", 12, 200, ("9", "30")),
}


def patched(movie: bytes, box: bytes, offset: int, value: int) -> bytes:
    place = movie.index(box) + offset
    return movie[:place] + struct.pack(">I", value) + movie[place + 4 :]


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_tables_are_noticed(name: str, tmp_path: Path) -> None:
    box, offset, value, numbers = DAMAGE[name]
    whole = write_clip(tmp_path / "whole.mp4", 30, options={"g": "8", "bf": "0"}).read_bytes()
    path = tmp_path / "damaged.mp4"
    path.write_bytes(patched(whole, box, offset, value))
    with pytest.raises(DecodeError) as caught:
        read_timeline(path)
    reason = str(caught.value).removeprefix(str(path))
    assert all(number in reason for number in numbers), reason


def test_a_keyframe_that_is_lost_with_all_that_needs_it_is_noticed(tmp_path: Path) -> None:
    """Errors before the first frame are ignored, because recordings start anywhere; not that of a keyframe."""
    data = bytearray(write_clip(tmp_path / "whole.mp4", 30, noise=True, options={"g": "15", "bf": "0"}).read_bytes())
    start = data.index(b"mdat") + 4
    data[start : start + 20_000] = bytes(20_000)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(data)
    with pytest.raises(DecodeError):
        read_timeline(path)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_group_of_packets_that_is_lost_is_noticed(lost: int, tmp_path: Path) -> None:
    """A reader goes on with the next; the first frames are missing, or some in the middle."""
    path = write_clip(tmp_path / "clip.mkv", 30, noise=True, container={"cluster_time_limit": "400"})
    assert len(read_timeline(path).times) == 30
    groups = path.read_bytes().split(CLUSTER)
    assert len(groups) > 3
    damaged = CLUSTER.join(groups[: lost + 1]) + bytes(4) + CLUSTER.join(groups[lost + 1 :])
    path.write_bytes(damaged)
    with pytest.raises(DecodeError):
        read_timeline(path)


UNCOMMON: dict[str, list[int]] = {
    "steady": list(range(0, 120, 4)),
    "uneven": [0, 4, 8, 50, 54, 150, 151, 300, 304, 308],
    "slides": [0, 500, 1000, 9000],
    "late": [360_000 + 4 * number for number in range(30)],
}
KINDS = [
    *(("mp4", "libx264"), ("mov", "libx265"), ("mkv", "libx264"), ("webm", "libvpx-vp9"), ("webm", "libvpx")),
    *(("flv", "libx264"), ("wmv", "wmv2"), ("nut", "mpeg4"), ("ts", "libx264"), ("mpg", "mpeg2video")),
]


@pytest.mark.parametrize("uncommon", UNCOMMON)
@pytest.mark.parametrize(("extension", "codec"), KINDS)
def test_whole_files_are_not_taken_for_damaged_ones(extension: str, codec: str, uncommon: str, tmp_path: Path) -> None:
    stamps = UNCOMMON[uncommon]
    path = write_clip(tmp_path / f"clip.{extension}", len(stamps), codec, stamps=stamps, options={})
    assert len(read_timeline(path).times) == len(stamps)


def test_a_recording_in_fragments_has_no_length_in_its_header(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 30, container={"movflags": "frag_keyframe+empty_moov"})
    assert len(read_timeline(path).times) == 30


def test_frames_that_an_avi_left_out_keep_their_time(tmp_path: Path) -> None:
    stamps = UNCOMMON["uneven"]
    timeline, frames = decode_frames(
        write_clip(tmp_path / "clip.avi", 10, "mpeg4", stamps=stamps, options={}), range(10)
    )
    assert timeline.times == pytest.approx([stamp / 100 for stamp in stamps])
    assert [number_of(frame) for frame in frames] == list(range(10))


def packets(kinds: str) -> Packets:
    """Packets of one stream: K a keyframe, any other letter another frame."""
    found = Packets()
    for number, kind in enumerate(kinds):
        packet: Any = SimpleNamespace(
            pts=number,
            dts=number,
            duration=1,
            size=1,
            pos=number,
            stream_index=0,
            is_discard=False,
            is_keyframe=kind == "K",
        )
        found.add(packet, 0)
    return found


@pytest.mark.parametrize(("shown", "halved", "whole"), [(20, False, True), (17, False, False), (10, True, True)])
def test_frames_before_the_first_keyframe_are_not_expected(shown: int, halved: bool, whole: bool) -> None:
    found = packets("......" + "K........." * 2)
    if whole:
        check_frames(Path("x"), shown, found, halved=halved)
    else:
        with pytest.raises(DecodeError, match="17 of 20"):
            check_frames(Path("x"), shown, found, halved=halved)


def test_times_that_no_camera_makes_are_rejected() -> None:
    import numpy as np

    day = np.array([0.0, 0.04, 0.08, 86_400.0])
    for times in (np.arange(300) / 1e5, day):
        with pytest.raises(DecodeError, match="damaged"):
            check_times(Path("x"), times, float(times[-1]) + 0.001)
    for times in (np.zeros(1), np.arange(3) * 1800.0, np.arange(100_000) / 25, np.arange(240) / 240):
        check_times(Path("x"), times, float(times[-1]) + 1)


def test_a_tenth_may_be_missing() -> None:
    assert [missing(found, 100) for found in (100, 90, 89, 0)] == [False, False, True, True]
    assert [missing(found, 3) for found in (3, 2, 1)] == [False, False, True]
    assert not missing(10, 0)
