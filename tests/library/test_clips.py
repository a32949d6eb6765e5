"""Clips as queries: moments like them, and captions that describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.library.clips import ClipRange, like_query, match_captions, parse_clip
from prota.library.indexing import IndexOptions
from prota.library.library import Library
from prota.library.records import LibraryError
from prota.library.segments import SegmentPlan
from tests.library.worlds import toy_model, write_clips
from tests.small_world import write_colour_clip


def test_clips_and_stretches_are_told_apart(tmp_path: Path) -> None:
    assert parse_clip("a.mp4") == ClipRange(Path("a.mp4"))
    assert parse_clip("a b@c.mp4@12-20.5") == ClipRange(Path("a b@c.mp4"), 12, 20.5)
    odd = tmp_path / "x@1-2"
    odd.touch()
    assert parse_clip(str(odd)) == ClipRange(odd)
    with pytest.raises(LibraryError, match="ends before it starts"):
        parse_clip("a.mp4@5-5")


def test_what_looks_like_a_clip_is_found_and_the_clip_itself_is_not(tmp_path: Path) -> None:
    paths = write_clips(tmp_path / "v", "red-left", "blue-top", "green-right")
    write_colour_clip(tmp_path / "v" / "twin.mp4", "red", "left", frames=7)
    library = Library.open(tmp_path / "lib", toy_model())
    library.index(tmp_path / "v", IndexOptions(SegmentPlan(frames=4)))
    hits = library.searcher.search(like_query(library.model, ClipRange(paths["red-left"])), 10)
    assert Path(hits[0].video.path).stem == "twin"
    assert "red-left" not in {Path(hit.video.path).stem for hit in hits}
    with pytest.raises(LibraryError, match="it is shorter"):
        like_query(library.model, ClipRange(paths["red-left"], 50, 60))
    with pytest.raises(LibraryError, match="no such file"):
        like_query(library.model, ClipRange(tmp_path / "nowhere.mp4"))


def test_captions_come_best_first_with_the_models_scores(tmp_path: Path) -> None:
    paths = write_clips(tmp_path, "red-left")
    model = toy_model()
    captions = ["red on the left", "", "blue", "a green thing on top"]
    found = match_captions(model, paths["red-left"], captions)
    assert {match.caption for match in found} == {caption for caption in captions if caption}
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
    assert all(0 <= match.start < match.end for match in found)
    with pytest.raises(LibraryError, match="no captions"):
        match_captions(model, paths["red-left"], ["", " "])
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(LibraryError, match="broken"):
        match_captions(model, tmp_path / "broken.mp4", captions)
