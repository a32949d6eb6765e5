"""Segments, frames and thumbnails of generated clips, in one part or in many."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prota.library.indexing import reading
from prota.library.indexing.reading import PART, ReadRequest, VideoContent, read_video, remaining
from prota.library.segments import SegmentPlan
from prota.video import pyav
from prota.video.completeness import Packets
from prota.video.decode import DecodeError
from prota.video.transforms import Extent, to_square
from prota.workers.process_pool import DecodePool
from tests.conftest import imported
from tests.processes import LIMIT
from tests.video.clips import decode_frames, write_clip

SMALL = SegmentPlan(frames=4, fps=2.0)
COLOURS = [(200, 40, 40), (40, 180, 60), (50, 60, 210)]


def write_frames(path: Path, frames: Iterable[np.ndarray[Any, Any]], rate: int = 10, name: str = "libx264") -> Path:
    """Frames of 96 × 64."""
    import av

    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(name, rate=rate, options={"g": "12"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode(None))
    return path


def write_scenes(path: Path, scenes: Sequence[tuple[int, int]], rate: int = 10, name: str = "libx264") -> Path:
    """One shot after the other: a colour, and for how many frames, with two white bars that move through it."""

    def frames() -> Iterator[np.ndarray[Any, Any]]:
        for colour, count in scenes:
            for number in range(count):
                picture = np.full((64, 96, 3), COLOURS[colour], dtype=np.uint8)
                picture[:, number % 90 : number % 90 + 6] = 240
                picture[number % 60 : number % 60 + 4] = 240
                yield picture

    return write_frames(path, frames(), rate, name)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shots, of 4.3, 2.5 and 5.2 seconds."""
    return write_scenes(tmp_path_factory.mktemp("film") / "film.mp4", [(0, 43), (1, 25), (2, 52)])


def read(path: Path, plan: SegmentPlan = SMALL, **settings: Any) -> VideoContent:
    return read_video(ReadRequest(path, plan, 32, **settings))


def colour_of(frame: np.ndarray[Any, Any]) -> int:
    return int(np.argmin([np.abs(np.median(frame, axis=(0, 1)) - colour).sum() for colour in COLOURS]))


def test_a_video_is_read_with_what_the_library_keeps_of_it(film: Path) -> None:
    content = read(film)
    assert (content.duration, content.width, content.height, content.fps) == (pytest.approx(12.0), 96, 64, 10.0)
    assert (content.codec, content.first, content.total, content.cuts) == ("h264", 0, 11, None)
    assert len(content) == 11
    np.testing.assert_allclose(content.starts, np.arange(11))
    np.testing.assert_allclose(content.ends, np.arange(11) + 2)
    np.testing.assert_allclose(content.times, content.starts[:, None] + [0.2, 0.7, 1.2, 1.7], atol=1e-6)
    assert content.mask.all()
    assert content.mask.dtype == bool
    # Half of each segment is the next one's too, and is kept once.
    assert content.frames.shape == (24, 32, 32, 3)
    assert content.frames.dtype == np.uint8
    assert content.index.tolist() == [[2 * n, 2 * n + 1, 2 * n + 2, 2 * n + 3] for n in range(11)]


@pytest.mark.parametrize("extent", ["centre", "whole"])
def test_the_pictures_are_those_of_their_times(film: Path, extent: Extent) -> None:
    content = read(film, extent=extent)
    timeline, frames = decode_frames(film, range(120))
    for segment in range(len(content)):
        for place in range(4):
            number = int(np.argmin(np.abs(timeline.times - content.times[segment, place])))
            picture = content.frames[content.index[segment, place]]
            np.testing.assert_array_equal(picture, to_square(frames[number], 32, extent))


def test_a_short_clip_is_one_segment_with_few_frames(tmp_path: Path) -> None:
    content = read(write_clip(tmp_path / "clip.mp4", 5), SegmentPlan())
    assert (len(content), content.total) == (1, 1)
    assert content.starts.tolist() == [0]
    assert content.ends == pytest.approx(0.2)
    assert (content.index[0] >= 0).tolist() == content.mask[0].tolist()
    assert content.mask.tolist() == [[True] * 5 + [False] * 7]
    np.testing.assert_allclose(content.times[0], [*np.arange(5) / 25, *[np.nan] * 7], atol=1e-6)
    assert content.frames.shape[1:] == (32, 32, 3)


def test_parts_together_are_the_whole(film: Path) -> None:
    whole = read(film)
    request = ReadRequest(film, SMALL, 32, count=4)
    first = read_video(request)
    later = remaining(request, first)
    assert [part.first for part in later] == [4, 8]
    parts = [first, *(read_video(part) for part in reversed(later))]
    parts.sort(key=lambda part: part.first)
    assert [len(part) for part in parts] == [4, 4, 3]
    assert {part.total for part in parts} == {11}
    for name in ("starts", "ends", "times", "mask"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name))
    assert sum((part.thumbnails for part in parts), ()) == whole.thumbnails
    pictures = np.concatenate([part.frames[part.index] for part in parts])
    np.testing.assert_array_equal(pictures, whole.frames[whole.index])
    assert max(len(part.frames) for part in parts) == 10
    assert remaining(later[1], parts[2]) == []
    with pytest.raises(DecodeError, match=r"film\.mp4: has no segment 11, only 11"):
        read(film, first=11)


def test_frames_that_show_the_same_are_sent_once(tmp_path: Path) -> None:
    """A still camera for 3 seconds, a small object that appears, and a slow fade, whose small steps add up."""
    path = tmp_path / "still.mp4"
    still = np.full((64, 96, 3), 90, dtype=np.uint8)
    still[20:40, 30:60] = (200, 60, 40)
    changed = still.copy()
    changed[48:56, 6:12] = 240
    fade = [np.clip(changed.astype(int) + 2 * number, 0, 255).astype(np.uint8) for number in range(1, 21)]
    write_frames(path, [still] * 30 + [changed] * 10 + fade)
    content = read(path, SegmentPlan(frames=12, fps=10.0))
    assert content.times[content.mask].max() == pytest.approx(5.9)
    kept = len(content.frames)
    assert 2 + 40 // 12 <= kept <= 2 + 40 // 4
    first = content.index[0]
    assert (first == 0).all()
    # What stands for a frame looks like it.
    _, frames = decode_frames(path, range(60))
    for time, place in zip(content.times[content.mask], content.index[content.mask], strict=True):
        own = to_square(frames[round(time * 10)], 32).astype(int)
        assert np.abs(own - content.frames[place].astype(int)).mean() < 10


@pytest.mark.parametrize("counted", [False, True])
def test_parts_have_one_timeline_whoever_reads_them(counted: bool, film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets are announced that are never shown. Workers that meet none must not count otherwise."""
    real = pyav._packets

    def with_ghosts(*arguments: Any) -> Packets:
        found: Packets = real(*arguments)
        between = [(before + after) // 2 for before, after in itertools.pairwise(sorted(found.stamps))]
        # In the first part, or only in later ones; too few to look like damage.
        found.stamps += between[5:20:2] if counted else between[60:100:4]
        return found

    monkeypatch.setattr(pyav, "_packets", with_ghosts)
    monkeypatch.setattr(pyav, "_last", {})
    every = SegmentPlan(frames=10, fps=10.0)
    request = ReadRequest(film, every, 32, count=4)
    parts, met = list[VideoContent](), False
    first = read_video(request)
    assert first.counted == counted
    for part in remaining(request, first):
        # Each in a worker of its own.
        monkeypatch.setattr(pyav, "_last", {})
        parts.append(read_video(part))
        met |= any(name == "_counted_index" for _, name in pyav._last)
    assert met
    assert {part.total for part in parts} == {first.total}
    starts = np.concatenate([first.starts, *(part.starts for part in parts)])
    assert len(starts) == first.total
    assert (np.diff(starts) > 0).all()
    for part in parts:
        for segment in range(len(part)):
            here = part.times[segment][part.mask[segment]]
            colours = [colour_of(part.frames[place]) for place in part.index[segment][part.mask[segment]]]
            expected = np.searchsorted([4.3, 6.8], here + 1e-3)
            assert colours == expected.tolist()


def test_a_file_that_changes_between_two_parts_is_refused(film: Path, tmp_path: Path) -> None:
    path = tmp_path / "growing.mp4"
    path.write_bytes(film.read_bytes())
    request = ReadRequest(path, SMALL, 32, count=4)
    later = remaining(request, read_video(request))
    write_scenes(path, [(0, 60)])
    with pytest.raises(DecodeError, match=r"growing\.mp4: the file changed while"):
        read_video(later[0])


def test_a_part_is_bounded_by_default(tmp_path: Path) -> None:
    path = write_scenes(tmp_path / "long.mp4", [(0, 80), (1, 80)], rate=2)
    content = read(path, SegmentPlan(frames=2, fps=2.0))
    assert (len(content), content.total) == (PART, 159)


def test_thumbnails_are_small_jpegs_of_the_middle(film: Path) -> None:
    content = read(film)
    assert len(content.thumbnails) == len(content)
    for jpeg in content.thumbnails:
        image = Image.open(io.BytesIO(jpeg))
        assert (image.format, image.size, image.mode) == ("JPEG", (96, 64), "RGB")
    middles = [colour_of(np.asarray(Image.open(io.BytesIO(jpeg)))) for jpeg in content.thumbnails]
    # Of segment n the third frame, at n + 1.2 s.
    assert middles == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2]


def test_a_thumbnail_is_not_black_where_the_segment_shows_something(tmp_path: Path) -> None:
    path = tmp_path / "fade.mp4"
    dark, bright = np.zeros((64, 96, 3), dtype=np.uint8), np.zeros((64, 96, 3), dtype=np.uint8)
    bright[16:48, 24:72] = 220
    write_frames(path, [dark if 4 < n < 36 else bright for n in range(40)])
    (jpeg,) = read(path, SegmentPlan(frames=8, fps=2.0)).thumbnails
    assert np.asarray(Image.open(io.BytesIO(jpeg))).max() > 180
    write_frames(path, [dark] * 40)
    (jpeg,) = read(path, SegmentPlan(frames=8, fps=2.0)).thumbnails
    assert np.asarray(Image.open(io.BytesIO(jpeg))).max() < 20


def test_a_wide_picture_has_a_wide_thumbnail(tmp_path: Path) -> None:
    content = read(write_clip(tmp_path / "clip.mp4", 2, size=(640, 64)))
    assert Image.open(io.BytesIO(content.thumbnails[0])).size == (160, 16)


@pytest.mark.parametrize("rotation", [90, 180, -90])
def test_rotated_clips_are_upright(rotation: int, tmp_path: Path) -> None:
    content = read(write_clip(tmp_path / "clip.mp4", 3, rotation=rotation, corner=True))
    upright = (64, 48) if rotation == 180 else (48, 64)
    assert (content.width, content.height) == upright
    thumbnail = np.asarray(Image.open(io.BytesIO(content.thumbnails[0])))
    assert thumbnail.shape == (*upright[::-1], 3)
    for picture in (thumbnail, content.frames[0]):
        bright = np.argwhere(picture[..., 0] > 128).mean(axis=0) > np.array(picture.shape[:2]) / 2
        assert bright.tolist() == {90: [True, False], 180: [True, True], -90: [False, True]}[rotation]


@pytest.mark.parametrize("container", ["mp4", "avi", "mkv"])
def test_shots_are_found_to_the_frame(container: str, tmp_path: Path) -> None:
    codec = "mpeg4" if container == "avi" else "libx264"
    path = write_scenes(tmp_path / f"film.{container}", [(0, 43), (1, 25), (2, 52)], name=codec)
    content = read(path, SegmentPlan(shots=True))
    assert content.cuts == pytest.approx((4.3, 6.8), abs=2e-3)
    np.testing.assert_allclose(content.starts, [0, 4.3, 6.8], atol=2e-3)
    np.testing.assert_allclose(content.ends, [4.3, 6.8, 12.0], atol=2e-3)
    for segment, colour in enumerate((0, 1, 2)):
        assert {colour_of(content.frames[place]) for place in content.index[segment]} == {colour}
    assert not set(content.index[0]) & set(content.index[1])


def test_shots_are_looked_for_once(film: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(SMALL, shots=True)
    whole = read(film, plan)
    request = ReadRequest(film, plan, 32, count=3)
    first = read_video(request)
    monkeypatch.setattr(reading, "shot_boundaries", lambda path: pytest.fail("looked again"))
    parts = [first, *(read_video(part) for part in remaining(request, first))]
    np.testing.assert_array_equal(np.concatenate([part.starts for part in parts]), whole.starts)
    assert {part.cuts for part in parts} == {whole.cuts}
    # Known cuts are taken as they are; without `shots` they do not count.
    assert read(film, plan, cuts=()).cuts == ()
    assert read(film, SMALL, cuts=(3.0,)).total == 11


def test_a_clip_of_one_shot_has_no_cuts(tmp_path: Path) -> None:
    assert read(write_clip(tmp_path / "clip.mp4", 30), replace(SMALL, shots=True)).cuts == ()


def test_what_goes_wrong_is_one_line(film: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two\nlines.mp4").write_bytes(b"not a video" * 100)
    for path in (tmp_path / "gone.mp4", tmp_path, tmp_path / "two\nlines.mp4", tmp_path / "a\0b.mp4"):
        with pytest.raises(DecodeError) as caught:
            read(path)
        assert "\n" not in str(caught.value)
    for error, text in (
        (PermissionError(13, "Permission denied"), "film.mp4: cannot read the file: Permission denied"),
        (MemoryError(), "film.mp4: out of memory"),
        (ValueError("two\nlines"), "film.mp4: two lines"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(reading, "decode_chosen", fail)
        with pytest.raises(DecodeError) as caught:
            read(film)
        assert text in str(caught.value)


def test_a_worker_needs_no_torch() -> None:
    assert imported("import prota.library.indexing.reading", ("torch", "transformers")) == []


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        yield pool


@pytest.mark.process
def test_it_is_a_job_for_a_worker(film: Path, pool: DecodePool) -> None:
    outcomes = dict(
        pool.run(read_video, [("film", ReadRequest(film, SMALL, 32)), ("gone", ReadRequest("x", SMALL, 32))])
    )
    np.testing.assert_array_equal(outcomes["film"].value.frames, read(film).frames)
    assert outcomes["gone"].value is None
    assert outcomes["gone"].error == "x: no such file"


@pytest.mark.process
@pytest.mark.parametrize("shots", [False, True])
def test_files_that_decoders_trip_over(shots: bool, shared: Path, pool: DecodePool) -> None:
    folder = shared / "data" / "decode_tests"
    with (folder / "manifest.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    requests = [(name, ReadRequest(folder / name, SegmentPlan(shots=shots), 32)) for name in rows]
    bad = 0
    for name, outcome in pool.run(read_video, requests):
        if outcome.value is None:
            bad += 1
            assert name in outcome.error
            assert "\n" not in outcome.error
            continue
        content = outcome.value
        assert len(content) == content.total == len(content.thumbnails) >= 1, name
        assert content.ends[-1] == content.duration, name
        assert content.mask.sum() >= min(12, int(rows[name]["nframes"])), name
        assert sorted(set(content.index[content.mask].tolist())) == list(range(len(content.frames))), name
        shape = Image.open(io.BytesIO(content.thumbnails[0])).size
        assert shape[0] / shape[1] == pytest.approx(content.width / content.height, rel=0.02), name
    assert bad == 8
