"""Finding videos: any depth, any extension, one walk, no hanging, no wrong file in silence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prota.data.splits import DataError
from prota.data.videos import find_videos
from tests.processes import not_root


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found(folder: Path, *ids: str) -> dict[str, str]:
    paths = find_videos(folder, ids).paths
    return {video: path.relative_to(folder).as_posix() for video, path in paths.items()}


def test_by_name_or_relative_path_with_or_without_extension(tmp_path: Path) -> None:
    put(tmp_path, "a.mp4", "deep/er/b.WebM", "deep/c.AVI", "deep/notes.txt", "d")
    assert found(tmp_path, "a", "b", "c", "deep/er/b", "deep/c.AVI", "deep/c.avi", "a.mp4", "./a.mp4", "er/b") == {
        "a": "a.mp4",
        "b": "deep/er/b.WebM",
        "c": "deep/c.AVI",
        "deep/er/b": "deep/er/b.WebM",
        "deep/c.AVI": "deep/c.AVI",
        "deep/c.avi": "deep/c.AVI",
        "a.mp4": "a.mp4",
        "./a.mp4": "a.mp4",
    }
    assert find_videos(tmp_path, ["notes", "d", "z", "z", "er/b"]).missing == ["notes", "d", "z", "er/b"]


def test_ids_with_dots_are_not_cut(tmp_path: Path) -> None:
    clip = "3086_UGLY_TRUTH_00.23.23.000-00.23.28.886"
    put(tmp_path, f"3086/{clip}.avi", "3086/3086_UGLY_TRUTH_00.avi")
    result = find_videos(tmp_path, [clip])
    assert result.paths == {clip: tmp_path / f"3086/{clip}.avi"}
    assert not result.duplicated


def test_converted_and_oddly_named_videos(tmp_path: Path) -> None:
    put(tmp_path, "12@N00_a.mov.mp4", "12@N00_b.", "12@N00_c.null", "12@N00_d.mp4")
    assert found(tmp_path, "12@N00_a", "12@N00_a.mov", "12@N00_b", "12@N00_b.", "12@N00_c", "12@N00_d.3gp") == {
        "12@N00_a": "12@N00_a.mov.mp4",
        "12@N00_a.mov": "12@N00_a.mov.mp4",
        "12@N00_b": "12@N00_b.",
        "12@N00_b.": "12@N00_b.",
        "12@N00_c": "12@N00_c.null",
        "12@N00_d.3gp": "12@N00_d.mp4",
    }


def test_several_files_are_reported_and_mp4_is_used(tmp_path: Path) -> None:
    put(tmp_path, "a/x.avi", "b/x.mp4", "c/x.MP4", "y.mkv", "y.mp4")
    result = find_videos(tmp_path, ["x", "y"])
    assert result.paths == {"x": tmp_path / "b/x.mp4", "y": tmp_path / "y.mp4"}
    assert result.duplicated == {
        "x": [tmp_path / "b/x.mp4", tmp_path / "c/x.MP4", tmp_path / "a/x.avi"],
        "y": [tmp_path / "y.mp4", tmp_path / "y.mkv"],
    }


def test_a_relative_path_is_never_taken_for_another_folders_file(tmp_path: Path) -> None:
    put(tmp_path, "a/x.mp4", "x.mp4", "x.mov")
    result = find_videos(tmp_path, ["x.mp4", "a/x.mp4", "x.mov"])
    assert result.paths == {video: tmp_path / video for video in ("x.mp4", "a/x.mp4", "x.mov")}
    assert not result.duplicated
    assert found(tmp_path, "x", "a/x") == {"x": "x.mp4", "a/x": "a/x.mp4"}
    assert find_videos(tmp_path, ["x"]).duplicated["x"][-1] == tmp_path / "a/x.mp4"


def test_hidden_files_folders_and_folders_named_like_videos_are_skipped(tmp_path: Path) -> None:
    put(tmp_path, ".a.mp4", ".trash/b.mp4", ".mp4", "c.mp4/inside.mp4")
    result = find_videos(tmp_path, ["a", ".a", "b", "c", "inside", ""])
    assert result.missing == ["a", ".a", "b", "c", ""]
    assert set(result.paths) == {"inside"}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    put(elsewhere, "far.mp4")
    put(folder, "sub/near.mp4")
    (folder / "sub/loop").symlink_to(folder)
    # First and last of its neighbours: the real name wins over both.
    for link in ("a_link", "z_link"):
        (folder / link).symlink_to(folder / "sub")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "again.mp4").symlink_to(folder / "sub/near.mp4")
    (folder / "sub/again.mkv").symlink_to(folder / "sub/near.mp4")
    (folder / "broken.mp4").symlink_to(folder / "nothing.mp4")
    (folder / "self.mp4").symlink_to(folder / "self.mp4")
    result = find_videos(folder, ["near", "far", "again", "broken", "self"])
    assert result.paths["near"] == folder / "sub/near.mp4"
    assert result.paths["far"] == folder / "linked/far.mp4"
    # Two names of one file are not two files.
    assert not result.duplicated
    assert result.missing == ["broken", "self"]


def test_accents_are_found_however_they_are_written(tmp_path: Path) -> None:
    put(tmp_path, "cafe\u0301.mp4")
    assert find_videos(tmp_path, ["caf\u00e9"]).missing == []


def test_one_walk_whatever_the_number_of_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, *(f"{i % 10}/video{i}.mp4" for i in range(100)))
    walked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (walked.append(str(path)), scandir(path))[1])
    assert len(find_videos(tmp_path, [f"video{i}" for i in range(100)]).paths) == 100
    assert len(walked) == 11


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a folder; set data\.videos"):
        find_videos(tmp_path / "nothing", ["a"])


@not_root
def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    with pytest.raises(DataError, match="locked cannot be read: Permission denied"):
        find_videos(tmp_path, ["a"])


def test_the_subset_is_all_there(shared: Path) -> None:
    clips = shared / "data" / "msrvtt_clips"
    if not clips.is_dir():
        pytest.skip(f"needs {clips}")
    ids = [line.split(",")[0] for line in (clips / "clips.csv").read_text().splitlines()[1:]]
    result = find_videos(clips, ids)
    assert len(result.paths) == 5_259
    assert not result.missing
    assert not result.duplicated
