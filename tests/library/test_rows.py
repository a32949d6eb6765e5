"""Finding rows: in all of a library or in a stretch of it, all scored or the nearest, by whatever scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from prota.kernels import dispatch
from prota.kernels.search import VideoBank
from prota.library.records import LibraryError
from prota.library.search import rows as rows_module
from prota.library.search.rows import Coverage, RowFinder
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from tests.cluster.made_up import CPU, NAMES, fill, head, queries
from tests.library.small_library import STAMP, content, segments, video

STRETCHES = [range(0, 60), range(0, 1), range(59, 60), range(13, 47)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rows in four files."""
    return fill(tmp_path_factory.mktemp("finding") / "library")


@pytest.mark.parametrize("stretch", STRETCHES, ids=str)
def test_a_stretch_of_rows_is_read_as_single_rows_are(folder: Path, stretch: range) -> None:
    store = Snapshot.open(folder)
    together, single = store.tokens(stretch), store.tokens(list(stretch))
    for name in ("direction", "spread", "weight", "mask"):
        assert np.array_equal(getattr(together, name), getattr(single, name))
    assert store.segments(["start"], within=stretch)["row"].to_pylist() == list(stretch)
    short = set(store.segments(["row"], "duration < 30")["row"].to_pylist())
    within = store.segments(["row"], "duration < 30 OR duration < 20", within=stretch)["row"].to_pylist()
    assert within == sorted(short & set(stretch))
    vector = np.ones(store.stamp.width, np.float32)
    near = store.nearest(vector, 60).tolist()
    assert store.nearest(vector, 60, within=stretch).tolist() == [row for row in near if row in stretch]
    filtered = store.nearest(vector, 60, "duration < 30 OR duration < 20", within=stretch).tolist()
    assert filtered == [row for row in near if row in stretch and row in short]
    with pytest.raises(LibraryError, match="cannot filter by 'length < 3'"):
        store.segments(["row"], "length < 3", within=stretch)


def test_stretches_where_rows_were_removed_and_indexed(tmp_path: Path) -> None:
    folder = fill(tmp_path / "library")
    with Writer.open(folder) as store:
        store.commit([], [], remove=["/films/n1.mp4", "/films/n7.mp4"])
        store.build_index()
        assert (store.snapshot.count(), store.snapshot.partitions > 1) == (50, True)
        stretch = range(3, 31)
        assert np.array_equal(store.snapshot.tokens(stretch).direction, store.snapshot.tokens(list(stretch)).direction)
        vector = np.ones(store.stamp.width, np.float32)
        near = store.snapshot.nearest(vector, 50, "index >= 0").tolist()
        some = store.snapshot.nearest(vector, 50, "index >= 0", within=stretch).tolist()
        assert some == [row for row in near if row in stretch]


def test_a_version_of_before_can_be_opened_until_it_is_cleaned_up(tmp_path: Path) -> None:
    folder = fill(tmp_path / "library")
    store = Snapshot.open(folder)
    before, place, stamp = store.head, store.location, store.stamp
    with Writer.open(folder) as store:
        store.commit([], [], remove=["/films/n0.mp4"])
        assert Snapshot(place, stamp, before).count() == 60
        assert (Snapshot(place, stamp).count(), Snapshot(place, stamp, store.snapshot.head).count()) == (55, 55)
        store.compact(grace=0)
    with pytest.raises(LibraryError, match=f"version {before.version} of .* was deleted"):
        Snapshot(place, stamp, before)


def test_contents_whose_files_are_gone(tmp_path: Path) -> None:
    records = [
        video("a", 1),
        video("a", 1, path="/copy/a.mp4", state="gone"),
        video("a", 1, path="/other/a.mp4"),
        video("b", 1, state="gone"),
        video("b", 1, path="/copy/b.mp4", state="gone"),
        video("c", 0, state="bad", reason="empty"),
    ]
    with Writer.create(tmp_path / "library", STAMP) as writer:
        empty = writer.snapshot
        writer.commit(records, [segments("a", 1), segments("b", 1)])
    snapshot = Snapshot.open(tmp_path / "library")
    assert snapshot.hidden == {content("b")}
    assert {video_id: record.path for video_id, record in snapshot.shown.items()} == {content("a"): "/films/a.mp4"}
    assert (empty.hidden, empty.shown) == (frozenset(), {})


def test_hidden_contents_are_not_found(folder: Path) -> None:
    store = Snapshot.open(folder)
    hidden = {content(name) for name in NAMES[1:]}
    for rows in (None, range(0, 60), range(2, 60)):
        finder = RowFinder(store, head(), CPU, hidden=hidden, rows=rows)
        # What is known of the rows from the first search serves the second.
        for found in (finder.find(queries(store, [0]), 60), finder.find(queries(store, [0]), 60)):
            assert sorted(found.ranked[0][0].tolist()) == list(range(2 if rows == range(2, 60) else 0, 5))
    empty = RowFinder(store, head(), CPU, hidden=hidden, rows=range(30, 40)).find(queries(store, [0, 1]), 5)
    assert [len(rows) for rows, _ in empty.ranked] == [0, 0]
    assert empty.coverage == Coverage(1, 1)


def test_hidden_contents_leave_room_for_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where candidates come first, those that are hidden are not among them."""
    monkeypatch.setattr(rows_module, "CANDIDATES", 4)
    monkeypatch.setattr(rows_module, "FILTERED_CANDIDATES", 4)
    store = Snapshot.open(folder)
    hidden = {content(name) for name in NAMES[1:]}
    for rows in (None, range(2, 60)):
        found = RowFinder(store, head(), CPU, hidden=hidden, exact_segments=1, rows=rows).find(queries(store, [30]), 2)
        assert set(found.ranked[0][0].tolist()) <= set(range(5)) - set(range(rows.start if rows else 0))
        assert len(found.ranked[0][0]) == 2
    two = RowFinder(store, head(), CPU, hidden=hidden, exact_segments=1).find(
        queries(store, [30]), 2, where="duration < 0"
    )
    assert len(two.ranked[0][0]) == 0


def test_nothing_is_read_ahead_where_candidates_come_first(folder: Path) -> None:
    store = Snapshot.open(folder)
    tokens = queries(store, [0])
    staged, warm = (RowFinder(store, head(), CPU, exact_segments=number) for number in (59, 60))
    staged.warm()
    warm.warm()
    assert staged._tokens is None
    assert warm._tokens is not None
    for one, other in zip(staged.find(tokens, 9).ranked, warm.find(tokens, 9).ranked, strict=True):
        assert one[0].tolist() == other[0].tolist()
    assert staged.tokens([7, 3]).direction.equal(warm.tokens([7, 3]).direction)


@pytest.mark.interpreter
def test_the_fused_kernels_search_a_bank(folder: Path) -> None:
    pytest.importorskip("triton")
    store = Snapshot.open(folder)
    tokens, stretch = queries(store, [0, 7]), range(13, 47)
    expected = RowFinder(store, head(), CPU, rows=stretch).find(tokens, 6, "duration < 30")
    with dispatch.using("triton"), dispatch.recorded() as ran:
        finder = RowFinder(store, head(), CPU, rows=stretch)
        found = finder.find(tokens, 6, "duration < 30")
        assert finder.tokens([20]).direction.equal(queries(store, [20]).direction)
    assert isinstance(finder._tokens, VideoBank)
    assert finder._tokens.videos.direction.dtype == torch.float16, "no larger than what is stored"
    assert ran == ["triton"]
    for ours, theirs in zip(found.ranked, expected.ranked, strict=True):
        assert ours[1] == pytest.approx(theirs[1], abs=1e-4)
        assert set(ours[0].tolist()) <= set(stretch)
