"""How PyAV is asked for frames: what packets announce, where seeks land, and how often a file is scanned."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from prota.video import pyav
from prota.video.completeness import Packets
from prota.video.decode import DecodeError, decode_chosen, read_timeline
from tests.video.clips import decode_frames, number_of, write_clip


def announce_a_ghost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet more than there are frames."""
    real = pyav._packets

    def with_a_ghost(*arguments: Any) -> Packets:
        found: Packets = real(*arguments)
        found.stamps.append(found.stamps[0] + 1)
        return found

    monkeypatch.setattr(pyav, "_packets", with_a_ghost)


def test_packets_that_are_never_shown_do_not_shift_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    announce_a_ghost(monkeypatch)
    assert len(read_timeline(path).times) == 31
    timeline, chosen, frames = decode_chosen(path, lambda timeline: [1, len(timeline.times) - 1])
    assert len(timeline.times) == 30
    assert chosen == [1, 29] == [number_of(frame) for frame in frames]


def test_a_frame_that_is_never_shown_is_the_one_seen_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    announce_a_ghost(monkeypatch)
    timeline, chosen, frames = decode_chosen(path, lambda timeline: [0, 1, 2, 30], counted=False)
    assert (len(timeline.times), timeline.counted, chosen) == (31, False, [0, 1, 2, 30])
    assert [number_of(frame) for frame in frames] == [0, 0, 1, 29]
    timeline, _, frames = decode_chosen(path, lambda timeline: [0, 1, 2], counted=True)
    assert (len(timeline.times), timeline.counted) == (30, True)
    assert [number_of(frame) for frame in frames] == [0, 1, 2]


def test_packets_without_their_pictures_are_not_painted_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    real = pyav._packets

    def twice_as_long(*arguments: Any) -> Packets:
        found: Packets = real(*arguments)
        found.stamps += [found.stamps[-1] + found.stamps[1] + stamp for stamp in found.stamps]
        return found

    monkeypatch.setattr(pyav, "_packets", twice_as_long)
    for counted in (None, False):
        with pytest.raises(DecodeError, match="only 30 of 60 frames"):
            decode_chosen(path, lambda timeline: [55], counted=counted)


QUARTERS = np.zeros((48, 64, 3), dtype=np.uint8)
QUARTERS[:24, :32], QUARTERS[:24, 32:], QUARTERS[24:, :32] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
ONE = 1 << 16


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ((-ONE, 0, 0, ONE), QUARTERS[:, ::-1]),
        ((ONE, 0, 0, -ONE), QUARTERS[::-1]),
        ((-ONE, 0, 0, -ONE), QUARTERS[::-1, ::-1]),
        ((0, ONE, ONE, 0), QUARTERS.transpose(1, 0, 2)),
    ],
)
def test_mirrored_clips_come_upright(
    matrix: tuple[int, int, int, int], expected: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """As players show them: the matrix in the track's header, rows of two and a third that stays."""
    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=5, options={"crf": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(3):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(QUARTERS, format="rgb24")))
        file.mux(stream.encode(None))
    written = path.read_bytes()
    plain = struct.pack(">9i", ONE, 0, 0, 0, ONE, 0, 0, 0, 1 << 30)
    place = written.index(plain, written.index(b"tkhd"))
    a, b, c, d = matrix
    other = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(written[:place] + other + written[place + len(other) :])
    timeline, (frame,) = decode_frames(path, [0])
    assert frame.shape == expected.shape == (timeline.height, timeline.width, 3)
    assert np.abs(frame.astype(int) - expected).mean() < 25


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp"])
def test_photographs_come_upright(orientation: int, extension: str, tmp_path: Path) -> None:
    picture = Image.fromarray(QUARTERS)
    exif = picture.getexif()
    exif[0x112] = orientation
    path = tmp_path / f"picture.{extension}"
    picture.save(path, exif=exif, quality=95)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))
    _, (frame,) = decode_frames(path, [0])
    assert frame.shape == expected.shape
    assert np.abs(frame.astype(int) - expected).mean() < 20


def test_a_seek_that_lands_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4", options={"g": "4"})
    seeks = []

    class Astray:
        """A container whose seek goes too far."""

        def __init__(self, container: Any) -> None:
            self.container = container

        def __getattr__(self, name: str) -> Any:
            return getattr(self.container, name)

        def seek(self, stamp: int, stream: Any) -> None:
            seeks.append(stamp)
            self.container.seek(2 * stamp, stream=stream)

    real = pyav.open_video

    @contextmanager
    def opened(*arguments: Any) -> Iterator[tuple[Any, Any]]:
        with real(*arguments) as (container, stream):
            yield Astray(container), stream

    monkeypatch.setattr(pyav, "open_video", opened)
    _, frames = decode_frames(path, [2, 13, 25])
    assert seeks
    assert [number_of(frame) for frame in frames] == [2, 13, 25]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are scanned, by their packets or by decoding them."""
    names: list[str] = []

    def watched(make: Callable[..., pyav.Index]) -> Callable[..., pyav.Index]:
        def noted(path: Path, *packets: Packets) -> pyav.Index:
            names.append(path.name)
            return make(path, *packets)

        return noted

    for name in ("_scanned_index", "_decoded_index"):
        monkeypatch.setattr(pyav, name, watched(getattr(pyav, name)))
    return names


def test_parts_of_one_file_scan_it_once(tmp_path: Path, scans: list[str]) -> None:
    first, second = write_clip(tmp_path / "first.mp4"), write_clip(tmp_path / "second.mp4")
    for start in (0, 10, 20):
        _, frames = decode_frames(first, range(start, start + 10))
        assert [number_of(frame) for frame in frames] == list(range(start, start + 10))
    assert scans == ["first.mp4"]
    read_timeline(second)
    read_timeline(first)
    assert scans == ["first.mp4", "second.mp4", "first.mp4"], "one is kept, not all"


def test_a_file_that_changed_is_scanned_again(tmp_path: Path, scans: list[str]) -> None:
    path = write_clip(tmp_path / "clip.mp4", 30)
    assert len(read_timeline(path).times) == 30
    write_clip(path, 20)
    assert len(read_timeline(path).times) == 20
    os.utime(path, ns=(0, 0))
    read_timeline(path)
    assert len(scans) == 3
    path.write_bytes(b"no video any more")
    for _ in range(2):
        with pytest.raises(DecodeError, match="cannot open"):
            read_timeline(path)


def test_a_timeline_that_came_from_decoding_is_kept_too(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    announce_a_ghost(monkeypatch)
    for _ in range(2):
        timeline, chosen, _ = decode_chosen(path, lambda timeline: [1, len(timeline.times) - 1])
        assert chosen == [1, 29]
    assert len(scans) == 2, "packets, then pictures, and no third time"
    with pytest.raises(ValueError, match="read-only"):
        timeline.times += np.float64(1.0)


def damage(path: Path, number: int) -> Path:
    """Zeros in the middle of one packet."""
    with av.open(str(path)) as file:
        packets = [packet for packet in file.demux(file.streams.video[0]) if packet.size]
        start = packets[number].pos + packets[number].size // 2
    data = bytearray(path.read_bytes())
    data[start : start + 12] = bytes(12)
    path.write_bytes(data)
    return path


def test_a_broken_frame_on_the_way_to_another_is_an_error(tmp_path: Path) -> None:
    """It may be made of the damaged one, which the decoder would paint over in silence."""
    options = {"g": "30", "bf": "0", "sc_threshold": "1000000000"}
    path = damage(write_clip(tmp_path / "clip.mkv", codec="mpeg2video", noise=True, options=options), 12)
    decode_frames(path, [3])
    with pytest.raises(DecodeError, match="are readable"):
        decode_frames(path, [20])


def test_after_a_jump_only_what_is_shown_before_the_keyframe_may_be_broken(tmp_path: Path) -> None:
    """What comes after it would be built on the broken one; from the start of a file it is the start that may be."""

    def packet(pts: int, *frames: str) -> SimpleNamespace:
        def decode() -> list[str]:
            if not frames:
                raise av.error.InvalidDataError(1, "broken")
            return list(frames)

        return SimpleNamespace(pts=pts, decode=decode)

    def shown(packets: list[SimpleNamespace], since: int | None) -> list[str]:
        container = SimpleNamespace(demux=lambda _: iter(packets))
        return list(pyav._pictures(tmp_path / "clip.mp4", container, SimpleNamespace(frames=30), since))

    leading = [packet(90), packet(95), packet(100, "key"), packet(105, "next")]
    assert shown(leading, 100) == shown(leading, None) == ["key", "next"]
    broken = [packet(90), packet(105), packet(100, "key"), packet(110, "next")]
    assert shown(broken, None) == ["key", "next"]
    with pytest.raises(DecodeError, match="only 0 of 30 frames are readable: broken"):
        shown(broken, 100)
    with pytest.raises(DecodeError, match="only 1 of 30 frames are readable: broken"):
        shown([packet(100, "key"), packet(105)], None)


def test_a_frame_that_the_decoder_calls_damaged_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what comes after it; the next keyframe begins anew."""
    path = write_clip(tmp_path / "clip.mp4", options={"g": "8", "bf": "0", "sc_threshold": "0"})
    index = pyav.frame_index(path)
    assert index.pts is not None
    assert index.keyframes.tolist() == [0, 8, 16, 24]
    stamp, real = index.pts[5], pyav._pictures

    def pictures(*arguments: Any) -> Iterator[Any]:
        for frame in real(*arguments):
            yield SimpleNamespace(pts=stamp, is_corrupt=True, key_frame=False) if frame.pts == stamp else frame

    monkeypatch.setattr(pyav, "_pictures", pictures)
    decode_frames(path, [3, 4])
    for wanted in ([4, 5], [4, 6], [7]):
        with pytest.raises(DecodeError, match="corrupt frame at"):
            decode_frames(path, wanted)
    monkeypatch.setattr(pyav, "_walk", partial(_from_the_start, pyav._walk))
    decode_frames(path, [4, 8, 20])


def _from_the_start(walk: Callable[..., Any], *arguments: Any, threads: int, seek: bool) -> Any:
    return walk(*arguments, threads=threads, seek=False)
