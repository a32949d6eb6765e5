"""Clips are decoded again and hold what the CSV says; a stopped run leaves nothing half."""

from __future__ import annotations

import csv
import itertools
import os
import shutil
import signal
from collections import defaultdict
from pathlib import Path

import av
import numpy as np
import pytest

from prota.data.videos import find_videos
from prota.files import hold
from prota.frames.decode import decode_chosen, read_timeline
from prota.samples import making
from prota.samples.camera import View, between, look
from prota.samples.making import Look, make_samples, moments
from prota.samples.scenes import CLIPS, SCENES, Clip
from prota.samples.sources import SamplesError, open_picture
from tests.processes import python

SMALL = Look(width=80, height=60, fps=4)
FEW = [clip for clip in CLIPS if clip.name in ("cat", "three-scenes-1", "three-scenes-4")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole set, small."""
    path = tmp_path_factory.mktemp("samples") / "new" / "folder"
    result = make_samples(path, SMALL)
    assert result.made == [clip.name for clip in CLIPS]
    assert result.kept == []
    return path


def rows(folder: Path) -> dict[str, list[tuple[float, float, str]]]:
    found = defaultdict(list)
    with (folder / "samples.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["video"]].append((float(row["start"]), float(row["end"]), row["caption"]))
    return found


def test_the_csv_knows_every_clip_and_its_length(folder: Path) -> None:
    table = rows(folder)
    assert set(table) == {path.name for path in folder.glob("*.mp4")}
    assert find_videos(folder, table).missing == []
    for name, found in table.items():
        timeline = read_timeline(folder / name)
        assert (timeline.width, timeline.height, timeline.fps) == (80, 60, 4)
        assert timeline.codec == "h264"
        ends = sorted({(start, end) for start, end, _ in found})
        assert ends[0][0] == 0
        assert ends[-1][1] == pytest.approx(timeline.duration, abs=0.01)
        assert all(first[1] == second[0] for first, second in itertools.pairwise(ends))


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: clip.name)
def test_every_moment_shows_its_scene_from_its_first_to_its_last_frame(folder: Path, clip: Clip) -> None:
    table = rows(folder)[f"{clip.name}.mp4"]
    for number, (scene, start, end) in enumerate(moments(clip, SMALL)):
        assert {caption for *when, caption in table if when == [start, end]} == set(SCENES[scene].captions)
        first, last = round(start * SMALL.fps), round(end * SMALL.fps) - 1
        _, _, frames = decode_chosen(folder / f"{clip.name}.mp4", lambda _, ends=(first, last): ends)
        for frame, view in zip(frames, (SCENES[scene].start, SCENES[scene].end), strict=True):
            distances = [distance(frame, other, view) for other, _ in clip.cuts]
            assert distances[number] < 12
            assert distances[number] == min(distances)


def distance(frame: np.ndarray, scene: str, view: View) -> float:
    seen = np.asarray(look(open_picture(SCENES[scene].picture), view, (80, 60)))
    return float(np.abs(frame.astype(float) - seen).mean())


def test_the_camera_moves(folder: Path) -> None:
    for clip in CLIPS:
        for scene, _, _ in moments(clip, SMALL):
            picture, start, end = open_picture(SCENES[scene].picture), SCENES[scene].start, SCENES[scene].end
            seen = [np.asarray(look(picture, between(start, end, part), (80, 60)), dtype=float) for part in (0, 0.5, 1)]
            assert all(np.abs(first - second).mean() > 3 for first, second in itertools.pairwise(seen)), scene


def test_a_second_run_makes_nothing_and_touches_nothing(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"}
    shown: list[tuple[int, int, str]] = []
    result = make_samples(folder, SMALL, show=lambda *values: shown.append(values))
    assert result.made == []
    assert len(result.kept) == len(CLIPS)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert shown[-1] == (len(CLIPS), len(CLIPS), "")


def test_the_same_bytes_again_and_other_settings_are_made_anew(folder: Path, tmp_path: Path) -> None:
    make_samples(tmp_path, SMALL, FEW)
    for clip in FEW:
        assert (tmp_path / f"{clip.name}.mp4").read_bytes() == (folder / f"{clip.name}.mp4").read_bytes()
    (tmp_path / "cat.mp4").unlink()
    assert make_samples(tmp_path, SMALL, FEW).made == ["cat"]
    assert len(make_samples(tmp_path, Look(80, 60, 3), FEW).made) == 3
    assert read_timeline(tmp_path / "cat.mp4").fps == 3


def test_clips_of_an_earlier_version_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    make_samples(tmp_path, SMALL, FEW)
    (tmp_path / "mine.mp4").write_bytes(b"my holiday")
    # Somebody's own copy has our mark too, but is in no table.
    shutil.copy(tmp_path / "cat.mp4", tmp_path / "copy.mp4")
    with (tmp_path / "samples.csv").open("a", encoding="utf-8") as file:
        file.write("mine.mp4,my holiday,0,1\nlost.mp4,gone long ago,0,1\n")
    result = make_samples(tmp_path, SMALL, FEW[1:])
    assert (result.made, result.kept, result.dropped) == ([], [clip.name for clip in FEW[1:]], ["cat"])
    assert {path.name for path in tmp_path.glob("*.mp4")} == {
        "mine.mp4", "copy.mp4", "three-scenes-1.mp4", "three-scenes-4.mp4",
    }  # fmt: skip
    assert "cat.mp4" not in rows(tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("fill", [1, 85])
def test_bytes_do_not_depend_on_what_was_in_memory(folder: Path, tmp_path: Path, fill: int) -> None:
    """x264 reads memory that it did not fill; glibc fills what it hands out with this byte."""
    code = (
        "import sys; from pathlib import Path; from prota.samples.making import Look, make_samples; "
        "from prota.samples.scenes import CLIPS; "
        "make_samples(Path(sys.argv[1]), Look(80, 60, 4), [one for one in CLIPS if one.name == 'three-scenes-1'])"
    )
    with python("-c", code, tmp_path, env=os.environ | {"MALLOC_PERTURB_": str(fill)}) as process:
        assert process.wait() == 0
    assert (tmp_path / "three-scenes-1.mp4").read_bytes() == (folder / "three-scenes-1.mp4").read_bytes()


def test_clips_and_list_name_the_makers_of_the_photographs(folder: Path) -> None:
    credit = "danielbuechele on Flickr, 6061409035, CC BY 2.0"
    with av.open(str(folder / "pagoda.mp4")) as file:
        assert credit in file.metadata["copyright"]
    lines = (folder / "sources.txt").read_text(encoding="utf-8").splitlines()
    assert "cropped" in lines[0]
    assert [line.split(".mp4: ")[0] for line in lines if credit in line] == [
        "pagoda", "three-scenes-2",
    ]  # fmt: skip


def test_mpeg4_where_there_is_no_h264(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = {"libnothing": {}, "mpeg4": making.ENCODERS["mpeg4"]}
    monkeypatch.setattr(making, "ENCODERS", encoders)
    make_samples(tmp_path, SMALL, FEW[:1])
    assert read_timeline(tmp_path / "cat.mp4").codec == "mpeg4"
    monkeypatch.setattr(making, "ENCODERS", {"libnothing": {}})
    with pytest.raises(SamplesError, match="none of the encoders libnothing"):
        make_samples(tmp_path, SMALL, FEW[:1])


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_run_that_fails_in_a_clip_leaves_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    calls = itertools.count()

    def failing(*arguments: object) -> object:
        if next(calls) == 40:
            raise error
        return look(*arguments)

    monkeypatch.setattr(making, "look", failing)
    with pytest.raises(type(error)):
        make_samples(tmp_path, SMALL, FEW)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "cat.mp4"}
    assert make_samples(tmp_path, SMALL, FEW).kept == ["cat"]


KILLED = """
import os, signal, sys
from pathlib import Path
from prota.samples import making, scenes
folder, look = Path(sys.argv[1]), making.look

def killed_in_the_second_clip(*arguments):
    if list(folder.glob("*.mp4")) and list(folder.glob(".*.tmp")):
        os.kill(os.getpid(), signal.SIGKILL)
    return look(*arguments)

making.look = killed_in_the_second_clip
making.make_samples(folder, making.Look(80, 60, 4), scenes.CLIPS[2:5])
"""


@pytest.mark.process
def test_a_killed_run_leaves_whole_clips_and_the_next_goes_on(tmp_path: Path) -> None:
    with python("-c", KILLED, tmp_path) as process:
        assert process.wait() == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["cat.mp4"]
    assert list(tmp_path.glob(".*.tmp"))
    assert read_timeline(tmp_path / "cat.mp4").duration == pytest.approx(8)
    assert make_samples(tmp_path, SMALL, CLIPS[2:4]).kept == ["cat"]
    assert not list(tmp_path.glob(".*.tmp"))


def test_somebody_elses_files_and_runs_are_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "three-scenes-4.mp4").write_bytes(b"my holiday")
    with pytest.raises(SamplesError, match=r"three-scenes-4\.mp4 is not a clip of `prota samples`: move it away"):
        make_samples(tmp_path, SMALL, FEW)
    assert not (tmp_path / "cat.mp4").exists()
    assert (tmp_path / "three-scenes-4.mp4").read_bytes() == b"my holiday"
    (tmp_path / "three-scenes-4.mp4").unlink()
    for name in ("samples.csv", "sources.txt"):
        (tmp_path / name).write_text("my own notes")
        with pytest.raises(SamplesError, match=rf"{name} is not of `prota samples`: move it away"):
            make_samples(tmp_path, SMALL, FEW)
        assert (tmp_path / name).read_text() == "my own notes"
        (tmp_path / name).unlink()
    with hold(folder / ".lock"), pytest.raises(SamplesError, match="another process is making samples in"):
        make_samples(folder, SMALL)
