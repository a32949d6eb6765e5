"""What indexing does with files that are new, known, moved, changed, doubled, broken and gone."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prota.errors import UsageError
from prota.library import manage
from prota.library.indexing import IndexReport, executor, pipeline
from prota.library.indexing.reading import ReadRequest, read_video
from prota.library.library import Library
from prota.library.records import LibraryError
from prota.library.search.clips import clip_query
from prota.library.search.queries import ClipRange
from prota.library.segments import SegmentPlan
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import encode_video, stored_tokens
from prota.model.prota import ProTA
from prota.video.transforms import Extent
from tests.library.worlds import broken_model, toy_model, write_clips, write_picture
from tests.processes import LIMIT, python
from tests.small_world import write_colour_clip
from tests.video.clips import write_clip
from tests.workers.jobs import double, hang

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def model() -> ProTA:
    return toy_model()


def index(folder: Path, model: ProTA, *paths: Path, **options: Any) -> IndexReport:
    return Library(folder, model).index(list(paths), frames=4, timeout=LIMIT, **options)


def records(folder: Path) -> dict[str, str]:
    store = Snapshot.open(folder)
    return {Path(record.path).name: record.state for record in store.videos()}


def write_broken_film(path: Path) -> Path:
    """A film whose last parts cannot be decoded."""
    path.parent.mkdir()
    write_clip(path, 30, noise=True, stamps=range(0, 900, 30))
    data = bytearray(path.read_bytes())
    # Near the end of the pictures; the header lies behind them.
    place = int(0.9 * data.rindex(b"moov"))
    data[place : place + 400] = bytes(400)
    path.write_bytes(bytes(data))
    return path


def test_new_files_are_indexed_once(tmp_path: Path, model: ProTA) -> None:
    write_clips(tmp_path / "v", "red-left", "blue-top", "green-right")
    first = index(tmp_path / "lib", model, tmp_path / "v")
    assert (first.indexed, first.segments, first.bad, first.finished) == (3, 3, {}, True)
    second = index(tmp_path / "lib", model, tmp_path / "v")
    assert (second.indexed, second.unchanged, second.segments) == (0, 3, 0)
    assert manage.verify(tmp_path / "lib") == []


def test_moved_touched_doubled_changed_and_gone(tmp_path: Path, model: ProTA) -> None:
    paths = write_clips(tmp_path / "v", "red-left", "blue-top", "green-right", "pink-left")
    index(tmp_path / "lib", model, tmp_path / "v")
    paths["red-left"].rename(tmp_path / "v" / "moved.mp4")
    os.utime(paths["blue-top"])
    shutil.copy(paths["blue-top"], tmp_path / "v" / "copy.mp4")
    write_colour_clip(paths["green-right"], "black", "bottom")
    paths["pink-left"].unlink()
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert (report.moved, report.unchanged, report.duplicates, report.indexed, report.gone) == (1, 1, 1, 1, 1)
    assert records(tmp_path / "lib") == {
        "moved.mp4": "indexed",
        "blue-top.mp4": "indexed",
        "copy.mp4": "indexed",
        "green-right.mp4": "indexed",
        "pink-left.mp4": "gone",
    }
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 4, "a copy adds no segments"
    assert manage.verify(tmp_path / "lib") == []
    pruned = index(tmp_path / "lib", model, tmp_path / "v", prune=True)
    assert pruned.gone == 1
    assert "pink-left.mp4" not in records(tmp_path / "lib")
    assert manage.verify(tmp_path / "lib") == []


def test_copies_that_come_together_are_read_once_and_all_recorded(tmp_path: Path, model: ProTA) -> None:
    paths = write_clips(tmp_path / "v", "red-left", "blue-top")
    for name in ("a.mp4", "z.mp4"):
        shutil.copy(paths["red-left"], tmp_path / "v" / name)
    report = index(tmp_path / "lib", model, tmp_path / "v", workers=2)
    assert (report.indexed, report.duplicates, report.found, report.done) == (2, 2, 4, 4)
    assert report.bytes_done == pytest.approx(report.bytes_new)
    assert set(records(tmp_path / "lib")) == {"red-left.mp4", "blue-top.mp4", "a.mp4", "z.mp4"}
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 2
    assert manage.verify(tmp_path / "lib") == []


def test_a_moved_file_whose_name_a_new_one_took(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "COMMIT_VIDEOS", 1)
    paths = write_clips(tmp_path / "v", "red-left")
    index(tmp_path / "lib", model, tmp_path / "v")
    # When the old content is looked at, its segments may have left with the name they had.
    (tmp_path / "v" / "z").mkdir()
    paths["red-left"].rename(tmp_path / "v" / "z" / "moved.mp4")
    write_colour_clip(paths["red-left"], "blue", "top")
    write_clips(tmp_path / "v", "white-top", "black-top")
    index(tmp_path / "lib", model, tmp_path / "v")
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 4
    assert manage.verify(tmp_path / "lib") == []


def test_what_is_gone_is_seen_through_a_link_and_two_dots(tmp_path: Path, model: ProTA) -> None:
    """Which lead to what lies beside the link's target, and not beside the link."""
    paths = write_clips(tmp_path / "far" / "v", "red-left", "blue-top")
    (tmp_path / "far" / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "other")
    through = tmp_path / "link" / ".." / "v"
    assert index(tmp_path / "lib", model, through).indexed == 2
    paths["red-left"].unlink()
    assert index(tmp_path / "lib", model, through).gone == 1


@pytest.mark.parametrize("kind", ["link", "hard link", "link to nowhere", "link to itself"])
def test_a_path_that_becomes_another_name_of_a_file_is_gone(tmp_path: Path, model: ProTA, kind: str) -> None:
    first, second = write_clips(tmp_path / "v", "red-left", "blue-top").values()
    index(tmp_path / "lib", model, tmp_path / "v")
    first.unlink()
    if kind == "hard link":
        os.link(second, first)
    else:
        first.symlink_to({"link": second.name, "link to nowhere": "nowhere.mp4", "link to itself": first.name}[kind])
    for gone in (1, 0):
        assert index(tmp_path / "lib", model, tmp_path / "v").gone == gone
        assert records(tmp_path / "lib") == {first.name: "gone", second.name: "indexed"}
    assert manage.verify(tmp_path / "lib", deep=True) == []


def test_a_file_that_comes_back_is_not_read_again(tmp_path: Path, model: ProTA) -> None:
    paths = write_clips(tmp_path / "v", "red-left")
    index(tmp_path / "lib", model, tmp_path / "v")
    paths["red-left"].rename(tmp_path / "away.mp4")
    assert index(tmp_path / "lib", model, tmp_path / "v").gone == 1
    (tmp_path / "away.mp4").rename(paths["red-left"])
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert (report.unchanged, report.still_bad, report.indexed) == (1, 0, 0)
    assert records(tmp_path / "lib") == {"red-left.mp4": "indexed"}


def test_bad_files_are_reported_remembered_and_tried_again_when_told(tmp_path: Path, model: ProTA) -> None:
    write_clips(tmp_path / "v", "red-left")
    (tmp_path / "v" / "broken.mp4").write_bytes(b"not a video at all")
    (tmp_path / "v" / "empty.mp4").touch()
    odd = tmp_path / "v" / "two  spaces\nand a line.mp4"
    odd.touch()
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert report.indexed == 1
    assert {Path(path).name for path in report.bad} == {"broken.mp4", "empty.mp4", odd.name}
    assert all(reason and "\n" not in reason and "/" not in reason for reason in report.bad.values()), report.bad
    odd.unlink()
    index(tmp_path / "lib", model, tmp_path / "v")
    again = index(tmp_path / "lib", model, tmp_path / "v")
    assert (again.unchanged, again.still_bad, again.bad) == (3, 2, {})
    assert len(index(tmp_path / "lib", model, tmp_path / "v", retry=True).bad) == 2
    write_colour_clip(tmp_path / "v" / "broken.mp4", "blue", "top")
    assert index(tmp_path / "lib", model, tmp_path / "v").indexed == 1
    assert records(tmp_path / "lib") == {"broken.mp4": "indexed", "empty.mp4": "bad", "red-left.mp4": "indexed"}
    assert manage.verify(tmp_path / "lib") == []


def test_a_good_file_that_breaks_loses_its_segments(tmp_path: Path, model: ProTA) -> None:
    paths = write_clips(tmp_path / "v", "red-left")
    index(tmp_path / "lib", model, tmp_path / "v")
    paths["red-left"].write_bytes(b"overwritten")
    assert len(index(tmp_path / "lib", model, tmp_path / "v").bad) == 1
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 0
    assert manage.verify(tmp_path / "lib") == []


def test_a_bad_file_that_is_away_for_a_while_is_still_bad(tmp_path: Path, model: ProTA) -> None:
    paths = write_clips(tmp_path / "v", "red-left")
    broken = tmp_path / "v" / "broken.mp4"
    broken.write_bytes(b"not a video at all")
    index(tmp_path / "lib", model, tmp_path / "v")
    broken.rename(tmp_path / "away.mp4")
    assert index(tmp_path / "lib", model, tmp_path / "v").gone == 1
    assert records(tmp_path / "lib") == {"red-left.mp4": "indexed"}
    (tmp_path / "away.mp4").rename(broken)
    assert list(index(tmp_path / "lib", model, tmp_path / "v").bad) == [str(broken)]
    # What an earlier prota made of it: nothing is there, and it looks fine.
    with Writer.open(tmp_path / "lib") as store:
        (bad,) = (record for record in store.snapshot.videos() if record.state == "bad")
        shutil.copy(paths["red-left"], broken)
        found = broken.stat()
        store.commit([replace(bad, state="indexed", size=found.st_size, modified=found.st_mtime_ns)])
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert (report.unchanged, report.duplicates) == (1, 1)
    assert manage.verify(tmp_path / "lib") == []


def test_a_bad_long_video_that_is_gone_leaves_the_library_usable(
    tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_broken_film(tmp_path / "v" / "long.mp4")
    monkeypatch.setattr(pipeline, "PART", 3)
    assert list(index(tmp_path / "lib", model, tmp_path / "v").bad) == [str(path)]
    path.unlink()
    write_clips(tmp_path / "v", "blue-top")
    assert index(tmp_path / "lib", model, tmp_path / "v").indexed == 1
    assert records(tmp_path / "lib") == {"blue-top.mp4": "indexed"}


def test_what_cannot_be_looked_at_is_not_gone(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clips(tmp_path / "v" / "one", "red-left")
    write_clips(tmp_path / "v" / "two", "blue-top")
    index(tmp_path / "lib", model, tmp_path / "v")
    scan = os.scandir

    def refused(path: str | Path) -> object:
        if Path(path).name == "two":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    look = os.lstat
    for error in (PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file or directory")):
        # The second: what lies below a folder that could not be read is not gone, whatever the system says.

        def hidden(path: str | Path, error: OSError = error, **rest: object) -> os.stat_result:
            if "two" in Path(path).parts:
                raise error
            return look(path, **rest)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "lstat", hidden)
        report = index(tmp_path / "lib", model, tmp_path / "v", prune=True)
        assert (report.gone, len(report.bad)) == (0, 1)
    monkeypatch.undo()
    assert records(tmp_path / "lib") == {"red-left.mp4": "indexed", "blue-top.mp4": "indexed"}


@pytest.mark.parametrize("by", [1, 3])
def test_names_that_go_round(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    made = write_clips(tmp_path / "made", "red-left", "blue-top", "green-right", "pink-left", "white-top", "black-top")
    contents = [path.read_bytes() for path in made.values()]
    paths = [tmp_path / "v" / f"{number}.mp4" for number in range(4)]
    (tmp_path / "v").mkdir()
    for path, content in zip(paths, contents, strict=False):
        path.write_bytes(content)
    index(tmp_path / "lib", model, tmp_path / "v")
    for path, content in zip(paths, contents[by:4] + contents[:by], strict=True):
        path.write_bytes(content)
    # Between them new ones are read, and what was found so far is committed.
    for name, content in zip(("0a.mp4", "2a.mp4"), contents[4:], strict=True):
        (tmp_path / "v" / name).write_bytes(content)
    monkeypatch.setattr(pipeline, "COMMIT_SECONDS", 0.0)
    assert index(tmp_path / "lib", model, tmp_path / "v", workers=1).finished
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 6
    assert manage.verify(tmp_path / "lib") == []


def test_long_videos_come_in_parts(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v").mkdir()
    write_colour_clip(tmp_path / "v" / "long.mp4", "red", "left", frames=150)
    whole = Library(tmp_path / "whole", model).index(tmp_path / "v", frames=4, fps=4.0)
    monkeypatch.setattr(pipeline, "PART", 7)
    parts = Library(tmp_path / "parts", model).index(tmp_path / "v", frames=4, fps=4.0)
    assert whole.segments == parts.segments > 20
    tables = []
    for name in ("whole", "parts"):
        store = Snapshot.open(tmp_path / name)
        tables.append(store.segments(["index", "start", "end", "times", "weight"]).to_pydict())
    assert tables[0] == tables[1]
    assert manage.verify(tmp_path / "parts") == []


def test_stopping_keeps_what_was_finished(tmp_path: Path, model: ProTA) -> None:
    write_clips(tmp_path / "v", "red-left", "blue-top", "green-right", "pink-left", "white-top")
    done: list[int] = []
    library = Library(tmp_path / "lib", model)
    report = library.index(
        tmp_path / "v", frames=4,
        report=lambda now: done.append(now.indexed), should_stop=lambda: bool(done) and done[-1] >= 2,
    )  # fmt: skip
    assert not report.finished
    store = Snapshot.open(tmp_path / "lib")
    kept = store.count()
    assert kept >= 2
    assert manage.verify(tmp_path / "lib") == []
    rest = library.index(tmp_path / "v", frames=4)
    assert (rest.unchanged, rest.indexed) == (kept, 5 - kept)


def test_another_model_is_refused_with_the_sentence_that_helps(tmp_path: Path, model: ProTA) -> None:
    write_clips(tmp_path / "v", "red-left")
    index(tmp_path / "lib", model, tmp_path / "v")
    with pytest.raises(LibraryError, match="the model has changed: index into another folder"):
        index(tmp_path / "lib", toy_model(seed=1), tmp_path / "v")
    toy_model(seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(LibraryError, match="open with --model given in Python, or index into another folder"):
        Library(tmp_path / "lib", tmp_path / "other").index(tmp_path / "v")
    with pytest.raises(LibraryError, match="no such file or folder"):
        index(tmp_path / "lib", model, tmp_path / "nowhere")


KILLED = """
import sys
import time
import torch
torch.set_num_threads(1)
from prota.library.indexing import pipeline
from prota.library.library import Library
from tests.library.worlds import toy_model
pipeline.COMMIT_VIDEOS = 2


def slowly(*_):
    print("ready", flush=True)
    time.sleep(0.1)


model = toy_model()
model.video_encoder.register_forward_pre_hook(slowly)
Library(sys.argv[1], model).index(sys.argv[2], frames=4)
print("done", flush=True)
"""


def test_killed_at_any_moment_nothing_committed_is_lost_or_doubled(tmp_path: Path, model: ProTA) -> None:
    sides = ("left", "right", "top", "bottom")
    write_clips(tmp_path / "v", *(f"{c}-{s}" for c in ("red", "green", "blue") for s in sides))
    kept = 0
    # Killed when so many videos have begun to be encoded: by the fourth, two are committed, however slow the machine.
    for begun in (1, 4, 6):
        with python("-c", KILLED, tmp_path / "lib", tmp_path / "v") as process:
            assert process.stdout is not None
            for _ in range(begun):
                assert process.stdout.readline() == "ready\n"
        if (tmp_path / "lib" / "library.json").exists():
            assert manage.verify(tmp_path / "lib") == []
            store = Snapshot.open(tmp_path / "lib")
            now = store.count()
            assert now >= kept
            kept = now
    assert 0 < kept < 12, "the kills must come in the middle"
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert report.indexed == 12 - kept
    assert report.unchanged == kept
    assert manage.verify(tmp_path / "lib") == []
    store = Snapshot.open(tmp_path / "lib")
    assert store.count() == 12


def test_progress_counts_files_and_bytes(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clips(tmp_path / "v", "red-left", "blue-top")
    write_colour_clip(tmp_path / "v" / "a-long-one.mp4", "red", "left", frames=150)
    (tmp_path / "v" / "broken.mp4").write_bytes(b"not a video at all")
    (tmp_path / "v" / "nowhere.mp4").symlink_to(tmp_path / "gone.mp4")
    monkeypatch.setattr(pipeline, "PART", 7)
    seen: list[tuple[int, int, int, float]] = []

    def note(now: IndexReport) -> None:
        seen.append((now.found, now.done, now.bytes_new, now.bytes_done))

    report = Library(tmp_path / "lib", model).index(tmp_path / "v", frames=4, fps=4.0, report=note)
    size = sum(path.stat().st_size for path in (tmp_path / "v").glob("*.mp4") if path.exists())
    assert (report.found, report.done, report.bytes_new) == (5, 5, size)
    assert report.bytes_done == pytest.approx(size)
    assert report.seconds == pytest.approx(2 * 1.2 + 150 / 5, abs=0.2)
    # All is found before anything is read, so that the time left can be told from then on.
    assert {(found, new) for found, _, new, done in seen if done} == {(5, size)}
    # A long video counts part by part.
    assert len({done for _, _, _, done in seen}) > 5
    again = Library(tmp_path / "lib", model).index(tmp_path / "v")
    assert (again.found, again.done, again.bytes_new) == (5, 5, 0)


def test_a_long_video_that_breaks_off_is_bad_as_a_whole(
    tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_broken_film(tmp_path / "v" / "long.mp4")
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.setattr(pipeline, "PART", 3)
    amounts: list[float] = []
    report = Library(tmp_path / "lib", model).index(
        tmp_path / "v", frames=4, fps=4.0, report=lambda now: amounts.append(now.bytes_done)
    )
    assert list(report.bad) == [str(path)]
    assert len(amounts) > 6, "its first parts were read"
    assert (report.indexed, report.done) == (1, 2)
    assert report.bytes_done == pytest.approx(report.bytes_new)
    assert report.seconds == pytest.approx(1.2, abs=0.1)
    assert manage.verify(tmp_path / "lib") == []


def test_segments_may_have_fewer_frames_than_the_model_takes_but_not_more(tmp_path: Path, model: ProTA) -> None:
    write_clips(tmp_path / "v", "red-left")
    library = Library(tmp_path / "lib", model)
    assert library.index(tmp_path / "v", frames=2).indexed == 1
    assert manage.verify(tmp_path / "lib") == []
    store = Snapshot.open(tmp_path / "lib")
    assert store.tokens().mask.tolist() == [[True, True, False, False]]
    assert len(library.search("red").hits) == 1
    with pytest.raises(UsageError, match=r"frames=8 .* up to 4"):
        Library(tmp_path / "other", model).index(tmp_path / "v", frames=8)


def test_the_model_says_what_of_a_frame_is_looked_at(tmp_path: Path) -> None:
    """The same weights with the centre of a wide picture and with all of it; so do clips that are asked with."""
    film = write_clip(tmp_path / "film.mp4", size=(96, 48), corner=True)
    sides: tuple[Extent, Extent] = ("centre", "whole")
    for extent, other in (sides, sides[::-1]):
        model = toy_model(0, f"encoder.picture={extent}")
        index(tmp_path / extent, model, film)
        content = read_video(ReadRequest(film, SegmentPlan(frames=4), model.config.encoder.image_size, extent))
        expected = encode_video(model, "", content)
        store = Snapshot.open(tmp_path / extent)
        stored = store.tokens([0])
        np.testing.assert_array_equal(stored.direction, expected.direction)
        asked = clip_query(model, ClipRange(film)).tokens
        assert torch.equal(asked.direction, stored_tokens(stored, torch.device("cpu")).direction)
        differing = read_video(ReadRequest(film, SegmentPlan(frames=4), model.config.encoder.image_size, other))
        assert not np.array_equal(encode_video(model, "", differing).direction, expected.direction)


def test_a_picture_is_one_segment_of_one_frame_that_lasts_no_time(tmp_path: Path, model: ProTA) -> None:
    for kind in ("jpg", "png", "webp"):
        write_picture(tmp_path / "v" / f"photo.{kind}", size=(60, 40))
    write_clips(tmp_path / "v", "red-left")
    report = index(tmp_path / "lib", model, tmp_path / "v", workers=2)
    assert (report.indexed, report.pictures, report.segments, report.bad) == (4, 3, 4, {})
    assert report.seconds == pytest.approx(1.2, abs=0.1), "of video"
    store = Snapshot.open(tmp_path / "lib")
    found = {Path(record.path).name: record for record in store.videos()}
    photo = found["photo.png"]
    assert (photo.kind, photo.duration, photo.width, photo.height, photo.codec) == ("picture", 0.0, 60, 40, "png")
    assert found["red-left.mp4"].kind == "video"
    table = store.segments(["start", "end", "times"], where="kind = 'picture'").to_pydict()
    assert table["start"] == table["end"] == [0.0] * 3
    assert all(times[0] == 0 and np.isnan(times[1:]).all() for times in table["times"])
    assert store.tokens(table["row"]).mask.sum(axis=1).tolist() == [1] * 3
    assert all(picture[:2] == b"\xff\xd8" for picture in store.thumbnails(table["row"]))
    assert manage.verify(tmp_path / "lib", deep=True) == []


def test_pictures_are_kept_up_to_date_as_videos_are(tmp_path: Path, model: ProTA) -> None:
    paths = {colour: write_picture(tmp_path / "v" / f"{colour}.png", colour) for colour in ("red", "blue", "green")}
    (tmp_path / "v" / "broken.jpg").write_bytes(paths["red"].read_bytes()[:80])
    (tmp_path / "v" / "empty.webp").touch()
    first = index(tmp_path / "lib", model, tmp_path / "v")
    assert (first.indexed, len(first.bad)) == (3, 2)
    assert all("\n" not in reason and "/" not in reason for reason in first.bad.values())
    paths["red"].rename(tmp_path / "v" / "moved.png")
    shutil.copy(paths["blue"], tmp_path / "v" / "copy.png")
    write_picture(paths["green"], "white")
    second = index(tmp_path / "lib", model, tmp_path / "v")
    assert (second.moved, second.duplicates, second.indexed, second.unchanged, second.still_bad) == (1, 1, 1, 3, 2)
    paths["green"].unlink()
    write_picture(tmp_path / "v" / "broken.jpg", "pink")
    third = index(tmp_path / "lib", model, tmp_path / "v", prune=True, retry=True)
    assert (third.gone, third.indexed, len(third.bad)) == (1, 1, 1)
    expected = {"moved.png", "blue.png", "copy.png", "broken.jpg", "empty.webp"}
    assert set(records(tmp_path / "lib")) == expected
    # Leaving pictures out takes none away.
    write_picture(tmp_path / "v" / "new.png", "black")
    assert index(tmp_path / "lib", model, tmp_path / "v", prune=True, pictures=False).found == 0
    assert set(records(tmp_path / "lib")) == expected
    assert manage.info(tmp_path / "lib")["pictures"] == 4
    assert manage.verify(tmp_path / "lib", deep=True) == []
    manage.merge(_filled(tmp_path / "other", model, tmp_path / "v" / "new.png"), [tmp_path / "lib"])
    assert manage.info(tmp_path / "other")["pictures"] == 5
    manage.export(tmp_path / "other", tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["picture"] * 4


def _filled(folder: Path, model: ProTA, *paths: Path) -> Path:
    index(folder, model, *paths)
    return folder


def test_a_picture_that_an_earlier_version_took_for_a_video_is_read_again(tmp_path: Path, model: ProTA) -> None:
    """Any file that was named was taken for a video, and a picture for one that ends after a frame."""
    photo = write_picture(tmp_path / "v" / "photo.png")
    copy = Path(shutil.copy(photo, tmp_path / "v" / "copy.png"))
    index(tmp_path / "lib", model, photo, copy)
    with Writer.open(tmp_path / "lib") as writer:
        writer.commit([replace(record, duration=0.04) for record in writer.snapshot.videos()])
    store = Snapshot.open(tmp_path / "lib")
    assert [(record.kind, record.duration > 0) for record in store.videos()] == [("video", True)] * 2
    report = index(tmp_path / "lib", model, tmp_path / "v")
    assert (report.indexed, report.duplicates, report.pictures) == (1, 1, 1)
    store = Snapshot.open(tmp_path / "lib")
    assert {record.kind for record in store.videos()} == {"picture"}
    assert store.count() == 1
    assert index(tmp_path / "lib", model, tmp_path / "v").unchanged == 2
    assert manage.verify(tmp_path / "lib", deep=True) == []


def test_an_error_of_the_model_stops_the_run_and_marks_no_file(tmp_path: Path) -> None:
    write_clips(tmp_path / "v", "red-left", "blue-top")
    model = broken_model()
    with pytest.raises(LibraryError, match="cannot be stored"):
        index(tmp_path / "lib", model, tmp_path / "v")
    assert records(tmp_path / "lib") == {}


def test_a_bug_in_a_worker_stops_the_run_with_its_traceback(
    tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.setattr(executor, "read_video", double)
    with pytest.raises(RuntimeError, match=r"red-left\.mp4 because of a bug:\nTraceback") as caught:
        index(tmp_path / "lib", model, tmp_path / "v")
    assert "TypeError" in str(caught.value)
    assert records(tmp_path / "lib") == {}


def test_a_run_is_cancelled_while_a_worker_hangs(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.setattr(executor, "read_video", hang)
    seen = 0

    def stop() -> bool:
        nonlocal seen
        seen += 1
        return seen > 20

    report = Library(tmp_path / "lib", model).index(tmp_path / "v", frames=4, timeout=1e6, should_stop=stop)
    assert not report.finished
    assert records(tmp_path / "lib") == {}
