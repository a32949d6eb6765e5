"""Segments that workers write and the writer adopts: the library is the one that a plain commit makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pytest

from prota.library import fragments as fragments_module
from prota.library import store as store_module
from prota.library.fragments import write_segments
from prota.library.place import Folder, Where
from prota.library.records import SegmentBatch, VideoRecord
from prota.library.store import Store
from prota.library.upkeep import compact, verify
from tests.library.small_library import STAMP, content, fill, seen, segments, video
from tests.library.test_store import Died, dying


def rows_of(folder: Where) -> tuple[list[VideoRecord], list[str]]:
    """All that a library holds, to the last bit, in an order that says nothing of how it came."""
    with Store.open(folder) as store:
        rows = [row for batch in store.batches(store.columns) for row in batch.to_pylist()]
        return store.videos(), sorted(repr(sorted(row.items())) for row in rows)


def by_workers(folder: Where, *works: Sequence[tuple[VideoRecord, SegmentBatch]]) -> list[str]:
    return [text for work in works for text in write_segments(folder, STAMP, work)]


def test_the_library_is_the_same_as_by_a_commit(tmp_path: Path) -> None:
    videos = [video("c", 3), video("d", 1), video("e", 5), video("none", 0)]
    given = [(record, segments(record.path[7:-4], record.segments)) for record in videos]
    bad = video("bad", 0, state="bad", reason="torn")
    with Store.open(fill(tmp_path / "plain"), write=True) as store:
        store.commit([*videos, bad], [batch for _, batch in given], remove=["/films/a.mp4"])
    with Store.open(fill(tmp_path / "workers"), write=True) as store:
        texts = by_workers(store.folder, given[:2], given[2:3], given[3:])
        assert len(texts) == 2
        assert seen(store.folder) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        store.adopt([*videos, bad], texts, {content(name) for name in "cde"}, remove=["/films/a.mp4"])
        assert store.count() == 12
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "plain")
    assert verify(tmp_path / "workers") == []


def test_a_long_video_comes_in_parts_that_anyone_wrote(tmp_path: Path) -> None:
    whole, record = segments("c", 5), video("c", 5)
    with Store.open(fill(tmp_path / "plain"), write=True) as store:
        store.commit([record], [whole])
    with Store.open(fill(tmp_path / "workers"), write=True) as store:
        parts = [(record, some(whole, first, end)) for first, end in ((3, 5), (0, 3))]
        texts = by_workers(store.folder, *([part] for part in parts))
        with pytest.raises(ValueError, match="5 segments expected, 2 given"):
            store.adopt([record], texts[:1], {content("c")})
        store.adopt([record], texts, {content("c")})
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "plain")
    assert verify(tmp_path / "workers") == []


def some(batch: SegmentBatch, first: int, end: int) -> SegmentBatch:
    """The segments from one number to before another."""
    values = {name: value[first:end] for name, value in vars(batch).items() if name not in ("video_id", "first")}
    return replace(batch, first=first, **values)


def test_rows_tell_of_the_copy_that_comes_first(tmp_path: Path) -> None:
    copy, plain = video("c", 3, path="/films/0.mp4", modified=5 * 10**17), video("d", 2)
    with Store.open(fill(tmp_path / "plain"), write=True) as store:
        store.commit([video("c", 3), copy, plain], [segments("c", 3), segments("d", 2)])
    with Store.open(fill(tmp_path / "workers"), write=True) as store:
        texts = by_workers(store.folder, [(video("c", 3), segments("c", 3)), (plain, segments("d", 2))])
        store.adopt([video("c", 3), copy, plain], texts, {content("c"), content("d")})
        assert set(store.segments(where="path = '/films/0.mp4'")["video_id"].to_pylist()) == {content("c")}
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "plain")
    assert verify(tmp_path / "workers") == []


def test_known_contents_are_replaced_and_others_rewritten_beside_them(tmp_path: Path) -> None:
    # The content of a.mp4 is cut anew; b.mp4 gets a copy that owns its segments.
    copy = video("b", 3, path="/films/0.mp4")
    with Store.open(fill(tmp_path), write=True) as store:
        texts = by_workers(tmp_path, [(video("a", 5), segments("a", 5, seed=1))])
        store.adopt([video("a", 5), copy], texts, {content("a")})
    assert seen(tmp_path) == {"/films/0.mp4": 3, "/films/a.mp4": 5, "/films/b.mp4": 3}
    assert verify(tmp_path) == []


def test_what_is_not_asked_for_is_left_out(tmp_path: Path) -> None:
    with Store.open(fill(tmp_path), write=True) as store:
        texts = by_workers(tmp_path, [(video(name, 2), segments(name, 2)) for name in "cd"])
        store.adopt([video("d", 2)], texts, {content("d")})
        version = store.version
        store.adopt([], texts, ())
        assert store.version == version
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/d.mp4": 2}
    assert verify(tmp_path) == []


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with Store.open(fill(tmp_path), write=True) as store:
        texts = by_workers(tmp_path, [(video("c", 2), segments("c", 2))])
        for videos, told, fresh, message in (
            ([video("c", 2)], texts * 2, {content("c")}, "come twice"),
            ([video("d", 2)], texts, {content("d")}, "no fragment has"),
            ([video("c", 3)], texts, {content("c")}, "3 segments expected, 2 given"),
            ([], texts, {content("c")}, "come without a record"),
        ):
            with pytest.raises(ValueError, match=message):
                store.adopt(videos, told, fresh)
    with pytest.raises(ValueError, match="direction is"):
        write_segments(tmp_path, replace(STAMP, width=9), [(video("c", 2), segments("c", 2))])
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}


def test_joining_files_leaves_what_is_not_adopted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MANY_FRAGMENTS", 3)
    monkeypatch.setattr(store_module, "GRACE", 0.0)
    with Store.open(fill(tmp_path), write=True) as store:
        early = by_workers(tmp_path, [(video("early", 2), segments("early", 2))])
        for name in "cdefgh":
            store.commit([video(name, 1)], [segments(name, 1)])
        assert len(lance.dataset(str(tmp_path / "segments.lance")).get_fragments()) <= 4
        store.adopt([video("early", 2)], early, {content("early")})
    assert seen(tmp_path)["/films/early.mp4"] == 2
    by_workers(tmp_path, [(video("never", 2), segments("never", 2))])
    # Who holds the lock knows that no worker's driver lives.
    compact(tmp_path, grace=0)
    assert len(list((tmp_path / "segments.lance" / "data").iterdir())) == 1
    assert verify(tmp_path) == []


def test_workers_see_to_it_that_their_files_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    flushed: list[str] = []
    monkeypatch.setattr(fragments_module, "flush", flushed.extend)
    data = tmp_path / "segments.lance" / "data"
    before = set(data.iterdir())
    by_workers(tmp_path, [(video("c", 2), segments("c", 2))])
    assert {str(path) for path in set(data.iterdir()) - before} < set(flushed)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lance.LanceDataset, "commit"),
        (lance.LanceDataset, "delete"),
        (store_module.lance, "write_dataset"),
        (Folder, "settle"),
        (store_module, "write_head"),
    ],
    ids=lambda value: str(value)[:15],
)
@pytest.mark.parametrize("reopen", [True, False])
def test_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, moment: str, reopen: bool
) -> None:
    videos = [video("x", 2, path="/films/a.mp4"), video("c", 4), video("c", 4, path="/films/0.mp4")]
    store = Store.open(fill(tmp_path), write=True)
    texts = by_workers(tmp_path, [(videos[0], segments("x", 2)), (videos[1], segments("c", 4))])

    def adopt() -> None:
        store.adopt(videos, texts, {content("x"), content("c")}, remove=["/films/b.mp4"])

    before = {"/films/a.mp4": 3, "/films/b.mp4": 3}
    after = {"/films/0.mp4": 4, "/films/a.mp4": 2, "/films/c.mp4": 4}
    with monkeypatch.context() as patch:
        patch.setattr(place, name, dying(getattr(place, name), moment))
        with pytest.raises(Died):
            adopt()
    assert seen(tmp_path) == (after if (name, moment) == ("write_head", "after") else before)
    assert verify(tmp_path) == []
    if reopen:
        store.close()
        store = Store.open(tmp_path, write=True)
    adopt()
    store.close()
    assert seen(tmp_path) == after
    assert verify(tmp_path) == []
