"""Folders as filters: copies count, wherever the path that segments carry leads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prota.library.indexing import IndexOptions
from prota.library.library import Library
from prota.library.segments import SegmentPlan
from prota.server import folders
from prota.server.folders import Folders
from tests.library.worlds import toy_model, write_clips


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Two clips in one folder, two in another, and a copy of the first in a third, with a name like any other."""
    base = tmp_path_factory.mktemp("folders")
    write_clips(base / "it's a" / "take", "red-left", "blue-top")
    write_clips(base / "b" / "take" / "deep", "green-right", "pink-left")
    opened = Library.open(base / "lib", toy_model())
    opened.index(base, IndexOptions(SegmentPlan(frames=4)))
    (base / "best").mkdir()
    shutil.copy(base / "it's a" / "take" / "red-left.mp4", base / "best" / "copy.mp4")
    opened.index(base, IndexOptions(SegmentPlan(frames=4)))
    return opened


def found(library: Library, name: str) -> set[str]:
    files = [record for record in library.searcher.store.videos() if record.state == "indexed"]
    names = {record.video_id: Path(record.path).stem for record in files if "copy" not in record.path}
    there = Folders((record.path, record.video_id) for record in files)
    assert there.names == ["best", "deep", "take"]
    return {names[hit.video.video_id] for hit in library.search("red", 20, there.condition(name), everything=True)}


@pytest.mark.parametrize(("videos", "tops"), [(500, 50), (0, 50), (0, 0)])
def test_what_lies_in_or_below_a_folder_of_that_name(
    library: Library, monkeypatch: pytest.MonkeyPatch, videos: int, tops: int
) -> None:
    """The same whether few videos, few folders or many of both are asked for."""
    monkeypatch.setattr(folders, "_FEW_VIDEOS", videos)
    monkeypatch.setattr(folders, "_FEW_FOLDERS", tops)
    assert found(library, "best") == {"red-left"}
    assert found(library, "take") == {"red-left", "blue-top", "green-right", "pink-left"}
    assert found(library, "deep") == {"green-right", "pink-left"}
    assert found(library, "it's a") == {"red-left", "blue-top"}
    assert found(library, "nowhere") == found(library, "") == set()


def test_a_folder_below_one_of_the_same_name_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_FEW_VIDEOS", 0)
    there = Folders([("/v/take/take/a.mp4", "1")])
    assert there.condition("take") == "(starts_with(path, '/v/take/'))"
