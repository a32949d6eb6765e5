"""Frames and parts of clips in formats that browsers play, and in others."""

from __future__ import annotations

import gc
import io
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from prota.video import showing, source
from prota.video.decode import DecodeError, decode_chosen, read_timeline
from prota.video.showing import SHIFT, FrameRequest, Part, PartRequest, frame_jpeg, playing, video_part
from tests.processes import posix
from tests.video.clips import number_of, write_clip

# Name and codec of a clip, and how it plays.
CLIPS = [
    ("a.mp4", "libx264", "original"), ("a.mov", "libx264", "original"), ("a.webm", "libvpx", "original"),
    ("a.mkv", "libx264", "remuxed"), ("a.ts", "libx264", "remuxed"), ("b.mkv", "libvpx-vp9", "original"),
    ("a.avi", "mpeg4", "transcoded"), ("b.mp4", "mpeg4", "transcoded"), ("a.mpg", "mpeg2video", "transcoded"),
    ("b.avi", "libx264", "transcoded"), ("a.wmv", "wmv2", "transcoded"), ("c.mp4", "libx265", "transcoded"),
    ("a.h264", "libx264", "transcoded"),
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """As in a worker process, garbage collections look at new objects alone."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> float:
    """Parts of less than half a second."""
    monkeypatch.setattr(showing, "PART", 0.44)
    return 0.44


def clip(folder: Path, name: str, codec: str, **options: Any) -> Path:
    group = {"g": "8", "keyint_min": "8"} | ({"bf": "2"} if codec.startswith("libx26") else {})
    return write_clip(folder / name, codec=codec, options=group | options)


def parts(path: Path) -> list[Part]:
    way, duration = playing(path).plays, read_timeline(path).duration
    plays = "remuxed" if way == "remuxed" else "transcoded"
    count = round(duration / showing.PART + 0.4999)
    return [video_part(PartRequest(path, number, plays, duration)) for number in range(count)]


def frames_of(found: list[Part]) -> Iterator[tuple[float, np.ndarray[Any, Any]]]:
    for part in found:
        if part.data:
            with av.open(io.BytesIO(part.data)) as file:
                for frame in file.decode(file.streams.video[0]):
                    assert frame.time is not None
                    yield frame.time - SHIFT, frame.to_ndarray(format="rgb24")


@pytest.mark.parametrize(("name", "codec", "plays"), CLIPS)
def test_every_frame_is_found_at_its_time(tmp_path: Path, name: str, codec: str, plays: str) -> None:
    path = clip(tmp_path, name, codec)
    assert playing(path).plays == plays
    timeline = read_timeline(path)
    wanted = range(len(timeline.times))
    decoded = decode_chosen(path, lambda _: wanted)[2]
    for number, (time, frame) in enumerate(zip(timeline.times, decoded, strict=True)):
        # As the API rounds it.
        jpeg = frame_jpeg(FrameRequest(path, round(float(time), 3), 640))
        assert number_of(np.asarray(Image.open(io.BytesIO(jpeg)))) == number_of(frame), number
    assert number_of(np.asarray(Image.open(io.BytesIO(frame_jpeg(FrameRequest(path, 99.0, 640)))))) == number_of(frame)


@pytest.mark.parametrize(("name", "codec", "plays"), CLIPS)
def test_parts_have_every_frame_once(short: float, tmp_path: Path, name: str, codec: str, plays: str) -> None:
    path = clip(tmp_path, name, codec)
    timeline = read_timeline(path)
    numbers = [number_of(frame) for frame in decode_chosen(path, lambda times: range(len(times.times)))[2]]
    shown = list(frames_of(parts(path)))
    # A part that is encoded begins with the frame that is seen then, which may be the last one of the part before.
    repeated = [n for n in range(1, len(shown)) if number_of(shown[n][1]) == number_of(shown[n - 1][1])]
    assert all(abs(shown[n][0] % short) < 2e-3 or abs(shown[n][0] % short - short) < 2e-3 for n in repeated)
    once = [pair for n, pair in enumerate(shown) if n not in repeated]
    assert [number_of(frame) for _, frame in once] == numbers
    assert np.allclose([time for time, _ in once], timeline.times, atol=2e-3)


def test_a_part_without_a_key_frame_is_empty(short: float, tmp_path: Path) -> None:
    path = clip(tmp_path, "a.mkv", "libx264", g="22", keyint_min="22")
    assert [bool(part.data) for part in parts(path)] == [False, True, True]
    assert [number_of(frame) for _, frame in frames_of(parts(path))] == list(range(30))


def test_long_groups_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path, "a.mkv", "libx264", g="22")
    assert playing(path).plays == "remuxed"
    monkeypatch.setattr(source, "LONGEST_GROUP", 0.5)
    assert playing(path).plays == "transcoded"


def test_a_part_that_is_too_large_is_encoded(short: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clip(tmp_path, "a.mkv", "libx264")
    monkeypatch.setattr(showing, "LARGEST", 100)
    assert len({number_of(frame) for _, frame in frames_of(parts(path))}) == 30


@pytest.mark.parametrize("rotation", [90, 180, -90])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_frames_and_parts_are_upright(tmp_path: Path, rotation: int, codec: str) -> None:
    path = write_clip(tmp_path / "a.mp4", 3, codec, rotation=rotation, corner=True, options={})
    upright = decode_chosen(path, lambda _: [1])[2][0]
    jpeg = np.asarray(Image.open(io.BytesIO(frame_jpeg(FrameRequest(path, 0.04, 640)))))
    assert np.abs(jpeg.astype(int) - upright).mean() < 4
    (part,) = parts(path)
    frames = dict(frames_of([part]))
    assert np.abs(frames[min(frames, key=lambda time: abs(time - 0.04))].astype(int) - upright).mean() < 4


def test_large_frames_are_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "a.avi", 2, "mpeg4", size=(640, 360), options={})
    assert Image.open(io.BytesIO(frame_jpeg(FrameRequest(path, 0, 320)))).size == (320, 180)
    assert Image.open(io.BytesIO(frame_jpeg(FrameRequest(path, 0, 1280)))).size == (640, 360)
    monkeypatch.setattr(showing, "SIDE", 100)
    ((_, frame), *_) = frames_of(parts(path))
    assert frame.shape == (56, 100, 3)


def test_too_many_frames_a_second_are_left_out(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mkv", 30, "mpeg4", stamps=range(30), options={})
    times = [time for time, _ in frames_of(parts(path))]
    assert len(times) == 8
    assert min(np.diff(times)) > 0.03


def write_sounding(path: Path, sound: str, rate: int, late: float, seconds: float = 3.0) -> list[float]:
    """A clip with clicks; returns their times."""
    clicks = [0.3, 0.9, 1.31, 2.2, 2.7]
    wave = np.zeros(int(seconds * rate), dtype=np.float32)
    for time in clicks:
        wave[int(time * rate) : int(time * rate) + 40] = 0.9
    with av.open(str(path), "w") as file:
        video: Any = file.add_stream("mpeg4" if path.suffix == ".avi" else "libx264", rate=25, options={"g": "8"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio: Any = file.add_stream(sound, rate=rate, layout="mono")
        for number in range(int(25 * seconds)):
            picture = np.full((48, 64, 3), 3 * number, dtype=np.uint8)
            file.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(video.encode(None))
        resampler = av.AudioResampler(format=audio.codec_context.format.name, layout="mono", rate=rate)
        size = audio.codec_context.frame_size or 1024
        for begin in range(int(late * rate) // size * size, len(wave) // size * size, size):
            frame = av.AudioFrame.from_ndarray(wave[None, begin : begin + size], format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, begin, Fraction(1, rate)
            for one in resampler.resample(frame):
                file.mux(audio.encode(one))
        file.mux(audio.encode(None))
    # The packet in which the sound begins is not heard in full.
    return [time for time in clicks if time > late + 0.5]


def heard(found: list[Part]) -> tuple[np.ndarray[Any, Any], int, list[float]]:
    """The samples of all parts from 0 on, their rate, and the times at which packets do not join.

    As in a browser, one decoder gets the packets of all parts.
    """
    pieces, gaps, place, rate, decoder = list[Any](), list[float](), 0.0, 0, None
    for part in found:
        with av.open(io.BytesIO(part.data)) as file:
            (sound,) = file.streams.audio
            if decoder is None or rate != sound.codec_context.sample_rate:
                decoder, rate = av.CodecContext.create("aac", "r"), sound.codec_context.sample_rate
                decoder.extradata = sound.codec_context.extradata
            for packet in file.demux(sound):
                for frame in decoder.decode(packet) if packet.size else ():
                    time = float(frame.pts * sound.time_base) - SHIFT
                    if abs(time - place) > 1e-3:
                        gaps.append(round(time, 3))
                    place = time + frame.samples / rate
                    pieces.append((time, frame.to_ndarray().mean(axis=0)))
    samples = np.zeros(round((place + 1) * 48_000), dtype=np.float32)
    for time, piece in pieces:
        begin = round(time * 48_000)
        repeated = np.interp(np.arange(0, len(piece), rate / 48_000), np.arange(len(piece)), piece)
        samples[begin : begin + len(repeated)] = repeated
    return samples, 48_000, gaps[1:]


@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.avi"])
@pytest.mark.parametrize("sound", ["aac", "libmp3lame", "libopus", "ac3"])
@pytest.mark.parametrize("late", [0.0, 1.0])
def test_sound_comes_along(short: float, tmp_path: Path, name: str, sound: str, late: float) -> None:
    if name == "a.avi" and (late or sound == "libopus"):
        pytest.skip("AVI has no Opus, and no times of sound")
    clicks = write_sounding(tmp_path / name, sound, 48_000 if sound == "libopus" else 44_100, late)
    found = parts(tmp_path / name)
    assert all("mp4a" in part.codecs for part in found)
    samples, rate, gaps = heard(found)
    loud = np.flatnonzero(np.abs(samples) > 0.25) / rate
    times = loud[np.flatnonzero(np.diff(loud, prepend=-1) > 0.05)]
    assert np.allclose(times[-len(clicks) :], clicks, atol=0.03)
    # Between silence and copied packets there may be less than a packet.
    assert len(gaps) <= bool(late)


def test_what_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"\0\0\0\x18ftypisom" + bytes(5000))
    for work in (lambda: playing(path), lambda: frame_jpeg(FrameRequest(path, 0, 640)),
                 lambda: video_part(PartRequest(path, 0, "transcoded", 5.0))):  # fmt: skip
        with pytest.raises(DecodeError):
            work()


@posix
def test_the_last_frame_lasts_to_the_end(short: float, tmp_path: Path) -> None:
    """Of frames that are long, in a container that does not say how long."""
    path = write_clip(tmp_path / "a.mkv", 5, stamps=[50 * number for number in range(5)], options={"g": "2", "bf": "0"})
    assert playing(path).plays == "remuxed"
    duration = read_timeline(path).duration
    (*_, last) = (part for part in parts(path) if part.data)
    with av.open(io.BytesIO(last.data)) as file:
        (*_, packet) = (packet for packet in file.demux(video=0) if packet.size)
        assert packet.pts is not None
        assert packet.duration is not None
        assert float((packet.pts + packet.duration) * packet.time_base) - SHIFT == pytest.approx(duration, abs=2e-3)


@posix
def test_decoders_and_encoders_end_with_their_threads(tmp_path: Path) -> None:
    path = clip(tmp_path, "a.avi", "mpeg4")
    counts = []
    for _ in range(4):
        parts(path)
        frame_jpeg(FrameRequest(path, 0.5, 640))
        counts.append(len(os.listdir("/proc/self/task")))
    assert max(counts) <= counts[0]
