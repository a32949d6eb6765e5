"""Clips begin and end with the right frames, keep sound and rotation, and are written whole or not at all."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prota.errors import ProtaError, UsageError
from prota.video.cut import Clip, CutError, CutRequest, Reel, cut_clip, join_clips
from prota.video.decode import read_timeline
from prota.workers import cutting
from prota.workers.cutting import Span, save_clip, save_reel
from tests.video.clips import decode_frames, number_of, write_clip

# 25 frames a second, or stamps in units of 1/100 s that are no whole number of frames.
ODD = [7 * number + number % 3 for number in range(30)]
KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {},
    "b-frames.mp4": {"options": {"g": "30", "bf": "3"}},
    "odd.mp4": {"stamps": ODD},
    "odd.mkv": {"stamps": ODD},
    "h264.mkv": {},
    "h264.ts": {},
    "h264.mov": {},
    "h264.avi": {},
    "h265.mp4": {"codec": "libx265", "options": {"x265-params": "keyint=10:bframes=3:log-level=none"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"g": "8"}},
    "vp8.webm": {"codec": "libvpx", "options": {"g": "8"}},
    "av1.mp4": {"codec": "libsvtav1", "options": {"g": "8"}, "size": (64, 64)},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "8"}},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"g": "8", "bf": "2"}},
    "mpeg2.ts": {"codec": "mpeg2video", "options": {"g": "8", "bf": "2"}},
    "mpeg2.mpg": {"codec": "mpeg2video", "options": {"g": "8"}},
    "msmpeg4.avi": {"codec": "msmpeg4v3", "options": {"g": "8"}},
    "ffv1.mkv": {"codec": "ffv1", "options": {}},
    "offset.mkv": {"stamps": [500 + 4 * number for number in range(30)]},
}


def numbers(content: bytes, path: Path) -> list[int]:
    """The numbers of all frames of a clip."""
    path.write_bytes(content)
    count = len(read_timeline(path).times)
    return [number_of(frame) for frame in decode_frames(path, range(count))[1]]


def ends(path: Path, start: float, end: float) -> list[int]:
    """Which frames are shown between two times."""
    times = read_timeline(path).times
    first = int(np.searchsorted(times, start + 1e-6, side="right")) - 1
    return list(range(first, max(first + 1, int(np.searchsorted(times, end - 1e-6)))))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.2), (0.41, 0.79), (0.5, 99.0)])
def test_the_first_and_the_last_frame_are_right(kind: str, start: float, end: float, tmp_path: Path) -> None:
    path = write_clip(tmp_path / kind, **KINDS[kind])
    clip = cut_clip(CutRequest(path, start, end))
    assert numbers(clip.content, tmp_path / "clip.mp4") == ends(path, start, end)
    made, source = read_timeline(tmp_path / "clip.mp4"), read_timeline(path)
    first = ends(path, start, end)[0]
    assert made.times == pytest.approx(source.times[first : first + len(made.times)] - source.times[first], abs=2e-3)
    assert (clip.frames, clip.sound) == (len(made.times), False)


@pytest.mark.parametrize("kind", ["h264.mp4", "b-frames.mp4", "odd.mkv", "h265.mp4", "h264.ts", "vp9.webm"])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_a_copy_begins_with_the_keyframe_before(kind: str, container: str, tmp_path: Path) -> None:
    path = write_clip(tmp_path / kind, **KINDS[kind])
    clip = cut_clip(CutRequest(path, 0.5, 0.9, exact=False, container=container))
    found = numbers(clip.content, tmp_path / f"clip.{'mp4' if container == 'mp4' else 'mkv'}")
    wanted = ends(path, 0.5, 0.9)
    first = int(np.searchsorted(read_timeline(path).times, clip.start))
    assert first <= wanted[0]
    assert found[: wanted[-1] + 1 - first] == list(range(first, wanted[-1] + 1))
    assert len(found) <= wanted[-1] + 1 - first + 4


def test_what_cannot_be_copied_says_so(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.avi", codec="mpeg4")
    with pytest.raises(CutError, match="cut it exactly"):
        cut_clip(CutRequest(path, 0, 1, exact=False))


@pytest.mark.parametrize("rotation", [90, 180, -90])
@pytest.mark.parametrize("exact", [True, False])
def test_a_clip_is_as_upright_as_its_video(rotation: int, exact: bool, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 10, rotation=rotation, corner=True)
    (tmp_path / "cut.mp4").write_bytes(cut_clip(CutRequest(path, 0, 0.2, exact)).content)
    (wanted,), (found,) = decode_frames(path, [3])[1], decode_frames(tmp_path / "cut.mp4", [3])[1]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).mean() < 6


def test_odd_sizes_become_even(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", 5, codec="ffv1", size=(63, 49), options={})
    assert cut_clip(CutRequest(path, 0, 1)).size == (62, 48)


def write_loud(path: Path, *, seconds: float = 4.0, late: float = 0.0) -> Path:
    """A clip with sound whose loudness grows by a tenth each second; ``late``: when the sound begins."""
    import av

    with av.open(str(path), "w") as file:
        video: Any = file.add_stream("libx264", rate=25, options={"g": "12", "bf": "2"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio: Any = file.add_stream("aac", rate=44_100, layout="mono")
        for number in range(round(25 * seconds)):
            file.mux(video.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), number % 30 * 8, np.uint8))))
        file.mux(video.encode(None))
        places = np.arange(round(late * 44_100), round(44_100 * seconds))
        tone = (np.sin(places / 20) * (1 + places // 44_100) / 10).astype(np.float32)
        for place in range(0, len(tone), 1024):
            frame = av.AudioFrame.from_ndarray(tone[None, place : place + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 44_100, place + int(places[0])
            file.mux(audio.encode(frame))
        file.mux(audio.encode(None))
    return path


def loudness(content: bytes) -> list[float]:
    """Peaks of each tenth of a second."""
    import av

    with av.open(io.BytesIO(content)) as file:
        parts = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
    sound = np.concatenate(parts)
    return [float(np.abs(sound[place : place + 4800]).max()) for place in range(0, len(sound) - 4799, 4800)]


@pytest.mark.parametrize("kind", ["clip.mp4", "clip.mkv"])
def test_the_sound_is_that_of_the_seconds(kind: str, tmp_path: Path) -> None:
    clip = cut_clip(CutRequest(write_loud(tmp_path / kind), 1.0, 3.0))
    assert clip.sound
    found = loudness(clip.content)
    assert len(found) == pytest.approx(20, abs=1)
    assert found[1:9] == pytest.approx([0.2] * 8, abs=0.04)
    assert found[12:19] == pytest.approx([0.3] * 7, abs=0.05)


def test_sound_that_begins_late_begins_late(tmp_path: Path) -> None:
    found = loudness(cut_clip(CutRequest(write_loud(tmp_path / "clip.mkv", late=2.0), 1.0, 3.0)).content)
    assert max(found[1:9]) < 0.02
    assert found[12:19] == pytest.approx([0.3] * 7, abs=0.05)


def test_a_copy_has_its_sound(tmp_path: Path) -> None:
    clip = cut_clip(CutRequest(write_loud(tmp_path / "clip.mp4"), 1.0, 3.0, exact=False))
    assert clip.sound
    # Windows of 4,800 samples, at 44,100 a second.
    assert len(loudness(clip.content)) == pytest.approx(9.19 * (clip.end - clip.start), abs=1)


def test_a_reel_shows_its_clips_one_after_the_other(tmp_path: Path) -> None:
    """Of other sizes, rates and sound."""
    paths = [
        write_clip(tmp_path / "a.mp4", size=(64, 48)),
        write_clip(tmp_path / "b.avi", codec="mpeg4", size=(48, 64)),
        write_loud(tmp_path / "c.mkv"),
    ]
    clips: list[Clip] = []
    for path in paths:
        size = clips[0].size if clips else None
        clips.append(cut_clip(CutRequest(path, 0.2, 0.6, reel=True, size=size)))
    content = join_clips(Reel("mp4", tuple(clips)))
    (tmp_path / "reel.mp4").write_bytes(content)
    timeline, frames = decode_frames(tmp_path / "reel.mp4", range(30))
    assert (len(timeline.times), timeline.width, timeline.height) == (30, 64, 48)
    assert np.diff(timeline.times) == pytest.approx([0.04] * 29, abs=2e-3)
    assert [number_of(frame) for frame in frames[:10]] == list(range(5, 15))
    assert [round(float(frame[:, 24:40].mean()) / 8) for frame in frames[10:20]] == list(range(5, 15))
    assert float(frames[15][:, :8].mean()) < 8, "black beside a narrow picture"
    assert [number_of(frame) for frame in frames[20:]] == list(range(5, 15))
    found = loudness(content)
    assert max(found[:7]) < 0.02
    assert found[9:11] == pytest.approx([0.1, 0.1], abs=0.03)


@pytest.mark.parametrize(
    ("start", "end", "out", "kind"),
    [
        (5.0, 6.0, "x.mp4", CutError),
        (1.0, 1.0, "x.mp4", UsageError),
        (-1.0, 1.0, "x.mp4", UsageError),
        (0.0, 1.0, "x.txt", UsageError),
        (0.0, 1.0, "clip.mp4", UsageError),
        (0.0, 1.0, "missing/x.mp4", UsageError),
    ],
)
def test_wrong_cuts_are_refused_and_leave_nothing(
    start: float, end: float, out: str, kind: type[ProtaError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "_run", lambda pool, job, argument: job(argument))
    path = write_clip(tmp_path / "clip.mp4")
    content = path.read_bytes()
    with pytest.raises(kind):
        save_clip(path, start, end, tmp_path / out)
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.mp4"]
    assert path.read_bytes() == content


def test_missing_files_pictures_and_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CutError, match=r"gone\.mp4"):
        save_clip(tmp_path / "gone.mp4", 0, 1, tmp_path / "x.mp4")
    (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(UsageError):
        save_clip(tmp_path / "x.png", 0, 1, tmp_path / "x.mp4")
    with pytest.raises(UsageError):
        save_reel([], tmp_path / "x.mp4")
    with pytest.raises(CutError):
        save_reel([Span(tmp_path / "gone.mp4", 0, 1)], tmp_path / "x.mp4")


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cutting, "_run", lambda pool, job, argument: job(argument))
    path = write_clip(tmp_path / "clip.mp4")
    (tmp_path / "out.mp4").write_bytes(b"before")
    monkeypatch.setattr("prota.files.os.fsync", full)
    with pytest.raises(CutError, match="No space left"):
        save_clip(path, 0, 1, tmp_path / "out.mp4")
    assert (tmp_path / "out.mp4").read_bytes() == b"before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["clip.mp4", "out.mp4"]


@pytest.mark.process
def test_clips_and_reels_are_cut_in_a_worker(tmp_path: Path) -> None:
    path = write_loud(tmp_path / "clip.mp4")
    clip = save_clip(path, 1.0, 2.0, tmp_path / "out.mkv")
    assert (tmp_path / "out.mkv").read_bytes() == clip.content
    assert save_reel([Span(path, 0, 1), Span(path, 2, 3)], tmp_path / "reel.mov") == pytest.approx(2)
    assert len(read_timeline(tmp_path / "reel.mov").times) == 50
    with pytest.raises(CutError, match="lasts"):
        save_clip(path, 9.0, 10.0, tmp_path / "none.mp4")
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    with pytest.raises(CutError, match=r"bad\.mp4"):
        save_clip(tmp_path / "bad.mp4", 0, 1, tmp_path / "none.mp4")
    assert not (tmp_path / "none.mp4").exists()
