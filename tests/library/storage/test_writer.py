"""Commits are whole or not at all, whoever else reads, writes or dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from prota.library.manage import compact, verify
from prota.library.records import LibraryError, ModelStamp, SegmentBatch, VideoRecord
from prota.library.storage import writer as module
from prota.library.storage import writer as writer_module
from prota.library.storage.location import Where
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer, write_segments
from tests.library.small_library import STAMP, D, M, content, fill, seen, segments, video
from tests.library.storage import works
from tests.library.storage.faults import POINTS, cut_power, die_at_changes
from tests.processes import LIMIT, python


class TestRoundTrip:
    def test_everything_comes_back(self, tmp_path: Path) -> None:
        given = [segments("a", 3), segments("b", 2)]
        records = [video("a", 3, metadata={"who": "I"}), video("b", 2), video("c", 0, state="bad", reason="no frames")]
        with Writer.create(tmp_path, STAMP) as store:
            store.commit(records, given)
        store = Snapshot.open(tmp_path)
        assert store.videos() == records
        assert store.count() == 5
        assert store.stamp == STAMP
        tokens = store.tokens()
        for name in ("direction", "spread", "weight", "mask"):
            expected = np.concatenate([getattr(batch, name) for batch in given])
            found = getattr(tokens, name)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
        table = store.segments(["video_id", "index", "start", "end", "times", "pooled"])
        assert table["row"].to_pylist() == [0, 1, 2, 3, 4]
        assert table["video_id"].to_pylist() == [content("a")] * 3 + [content("b")] * 2
        assert table["index"].to_pylist() == [0, 1, 2, 0, 1]
        assert table["end"].to_pylist() == [12, 18, 24, 12, 18]
        times = np.array(table["times"].to_pylist(), np.float32)
        np.testing.assert_array_equal(times, np.concatenate([batch.times for batch in given]))
        assert store.thumbnails([4, 0]) == [given[1].thumbnails[1], given[0].thumbnails[0]]

    def test_rows_come_in_the_order_asked_for(self, tmp_path: Path) -> None:
        store = Snapshot.open(fill(tmp_path, "abc"))
        everything, rows = store.tokens(), [7, 0, 7, 3]
        some = store.tokens(rows)
        assert len(some) == 4
        for name in ("direction", "spread", "weight", "mask"):
            np.testing.assert_array_equal(getattr(some, name), getattr(everything, name)[rows])
        assert store.segments(["index"], rows=rows).to_pydict() == {"index": [1, 0, 1, 0], "row": rows}
        assert store.segments(["row"], rows=np.array(rows)).to_pydict() == {"row": rows}
        assert store.tokens([]).direction.shape == (0, M, D)
        for bad in ([9], [-1]):
            with pytest.raises(IndexError, match="rows are 0 to 8"):
                store.tokens(bad)

    def test_rows_count_what_is_there_after_removals(self, tmp_path: Path) -> None:
        fill(tmp_path, "abcd")
        with Writer.open(tmp_path) as store:
            store.commit([], [], remove=["/films/b.mp4"])
            table = store.snapshot.segments(["video_id"], where="path >= '/films/c'")
            assert table["row"].to_pylist() == [3, 4, 5, 6, 7, 8]
            assert store.snapshot.segments(["video_id"], rows=[3])["video_id"].to_pylist() == [content("c")]
            np.testing.assert_array_equal(store.snapshot.tokens([6]).direction[0], segments("d", 3).direction[0])
            assert store.snapshot.nearest(segments("d", 3).pooled[1], 1).tolist() == [7]

    def test_tokens_without_spread(self, tmp_path: Path) -> None:
        store = Snapshot.open(fill(tmp_path, "a", stamp=replace(STAMP, spread=False)))
        assert store.tokens().spread is None
        assert store.tokens([1]).spread is None

    def test_an_empty_library_answers(self, tmp_path: Path) -> None:
        with Writer.create(tmp_path, STAMP) as store:
            assert store.snapshot.videos() == []
            assert (
                store.snapshot.count()
                == len(store.snapshot.tokens())
                == len(store.snapshot.segments(where="duration < 3"))
                == 0
            )
            assert store.snapshot.nearest(np.ones(D, np.float32), 5).tolist() == []
            store.build_index()
            assert store.snapshot.partitions == 0

    def test_names_that_are_no_unicode_and_quotes(self, tmp_path: Path) -> None:
        paths = [os.fsdecode(b"/films/\xff\xfe.mp4"), "/films/it's ''.mp4", "/films/映画\n.mp4"]
        records = [video(str(i), 1, path=path, reason=f"\ud800{path}") for i, path in enumerate(paths)]
        with Writer.create(tmp_path, STAMP) as store:
            store.commit(records, [segments(str(i), 1) for i in range(3)])
        with Writer.open(tmp_path) as store:
            assert {record.path for record in store.snapshot.videos()} == set(paths)
            store.commit([], [], remove=paths)
            assert store.snapshot.videos() == []
            assert store.snapshot.count() == 0

    @pytest.mark.parametrize(
        "change",
        [
            {"direction": np.zeros((2, M, D + 1))},
            {"mask": np.ones((2, M + 1), bool)},
            {"spread": None},
            {"thumbnails": ()},
            {"pooled": np.ones((3, D))},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_segments_that_do_not_fit_the_model_are_refused(self, tmp_path: Path, change: dict[str, Any]) -> None:
        with Writer.create(tmp_path, STAMP) as store:
            with pytest.raises(ValueError, match=f"segments of {content('a')}"):
                store.commit([video("a", 2)], [replace(segments("a", 2), **change)])
            assert store.snapshot.count() == 0
            store.commit([video("a", 2)], [segments("a", 2)])
            assert store.snapshot.count() == 2

    def test_records_and_segments_must_belong_together(self, tmp_path: Path) -> None:
        with Writer.create(tmp_path, STAMP) as store:
            for videos, batches, message in (
                ([video("a", 2)], [], "lacks its 2 segments"),
                ([], [segments("a", 2)], "have no record"),
                ([video("a", 3)], [segments("a", 2)], "3 segments expected, 2 given"),
                ([video("a", 2), video("b", 2, path="/films/a.mp4")], [segments("a", 2)], "the same path"),
                ([video("a", 2)], [segments("a", 2), segments("a", 2)], "are repeated"),
            ):
                with pytest.raises(ValueError, match=message):
                    store.commit(videos, batches)
            store.commit([video("a", 2)], [segments("a", 2)])
            with pytest.raises(ValueError, match="lacks its 3 segments"):
                store.commit([video("a", 3, path="/copy.mp4")])
        assert seen(tmp_path) == {"/films/a.mp4": 2}


class TestKeys:
    def test_copies_share_segments_until_the_last_is_gone(self, tmp_path: Path) -> None:
        copy = video("a", 3, path="/films/copy.mp4")
        with Writer.create(tmp_path, STAMP) as store:
            store.commit([video("a", 3), copy], [segments("a", 3)])
            assert store.snapshot.count() == 3
            store.commit([], [], remove=["/films/a.mp4"])
            assert store.snapshot.videos() == [copy]
            assert store.snapshot.count() == 3
            assert len(store.snapshot.segments(where="path = '/films/copy.mp4'")) == 3
            assert verify(tmp_path) == []
            store.commit([], [], remove=["/films/copy.mp4"])
            assert store.snapshot.count() == 0

    def test_a_copy_that_comes_later_needs_no_segments(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path, "a")) as store:
            store.commit([video("a", 3, path="/films/0.mp4")])
            assert store.snapshot.count() == 3
        assert verify(tmp_path) == []

    def test_a_move_keeps_the_segments_and_tells_them(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            before = store.snapshot.tokens(store.snapshot.segments(where="path LIKE '%/a.mp4'")["row"].to_pylist())
            store.commit([video("a", 3, path="/new/a.mp4")], [], remove=["/films/a.mp4"])
            rows = store.snapshot.segments(where="path = '/new/a.mp4'")["row"].to_pylist()
            np.testing.assert_array_equal(store.snapshot.tokens(rows).direction, before.direction)
        assert seen(tmp_path) == {"/films/b.mp4": 3, "/new/a.mp4": 3}
        assert verify(tmp_path) == []

    def test_changed_content_replaces_the_old(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            store.commit([video("x", 2, path="/films/a.mp4")], [segments("x", 2)])
        assert seen(tmp_path) == {"/films/a.mp4": 2, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_segments_given_again_replace_those_of_all_copies(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            store.commit([video("a", 3, path="/films/0.mp4")])
            store.commit([video("a", 5)], [segments("a", 5, seed=1)])
        assert seen(tmp_path) == {"/films/0.mp4": 5, "/films/a.mp4": 5, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_a_file_that_turns_bad_takes_its_segments_along(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            store.commit([video("x", 0, path="/films/a.mp4", state="bad", reason="torn")])
        assert seen(tmp_path) == {"/films/a.mp4": 0, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_a_file_that_is_gone_leaves_them(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            store.commit([video("a", 3, state="gone", metadata={"seen": "yesterday"})])
            assert store.snapshot.videos()[0].metadata == {"seen": "yesterday"}
        assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_what_changes_nothing_writes_nothing(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as store:
            version = store.snapshot.version
            store.commit([video("a", 3)])
            store.commit([], [], remove=["/nowhere.mp4"])
            assert store.snapshot.version == version
            store.commit([video("a", 3, fps=30.0)])
            assert store.snapshot.version == version + 1


class TestWriters:
    def test_a_second_one_is_told_who_writes(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)):
            with pytest.raises(LibraryError, match=f"locked by process {os.getpid()} on "):
                Writer.open(tmp_path)
            with pytest.raises(LibraryError, match="locked by process"):
                Writer.open(tmp_path, wait=0.1)
        Writer.open(tmp_path).close()

    def test_a_second_one_waits(self, tmp_path: Path) -> None:
        first = Writer.open(fill(tmp_path))
        timer = threading.Timer(0.2, first.close)
        timer.start()
        with Writer.open(tmp_path, wait=LIMIT) as second:
            second.commit([video("c", 1)], [segments("c", 1)])
        timer.join()
        assert seen(tmp_path)["/films/c.mp4"] == 1

    def test_readers_keep_what_they_opened(self, tmp_path: Path) -> None:
        reader = Snapshot.open(fill(tmp_path))
        with Writer.open(tmp_path) as writer:
            writer.commit([video("c", 4)], [segments("c", 4)], remove=["/films/a.mp4"])
            writer.compact()
            assert Snapshot.open(tmp_path).count() == 7
            assert len(writer.snapshot.videos()) == 2
        assert reader.count() == 6
        assert [record.path for record in reader.videos()] == ["/films/a.mp4", "/films/b.mp4"]
        np.testing.assert_array_equal(reader.tokens([0]).direction[0], segments("a", 3).direction[0])
        assert reader.segments(where="path = '/films/a.mp4'")["row"].to_pylist() == [0, 1, 2]

    def test_many_small_commits_are_joined_by_themselves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer_module, "MANY_FRAGMENTS", 4)
        fill(tmp_path, "abcdefghijkl")
        assert len(lance.dataset(str(tmp_path / "segments.lance")).get_fragments()) <= 5
        assert len(lance.dataset(str(tmp_path / "videos.lance")).get_fragments()) <= 5
        assert len(seen(tmp_path)) == 12
        assert verify(tmp_path) == []


@pytest.mark.process
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize(
    ("work", "after"),
    [
        (works.commit, works.AFTER),
        (works.adopt, works.AFTER),
        (works.compact, works.BEFORE),
        (works.merge, works.BEFORE | {"/films/c.mp4": 3}),
        (works.remove, {"/films/a.mp4": 3}),
    ],
    ids=lambda work: getattr(work, "__name__", ""),
)
def test_all_or_nothing_whenever_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], None], after: dict[str, int], power: bool
) -> None:
    fill(tmp_path / "template")
    monkeypatch.setenv("PROTA_TEST_OTHER", str(fill(tmp_path / "other", "bc")))
    (tmp_path / "runs").mkdir()
    outcomes = []
    for folder in die_at_changes(work, tmp_path / "template", tmp_path / "runs", points=POINTS):
        if power:
            cut_power(folder)
        assert verify(folder) == []
        outcomes.append(seen(folder))
        # The next writer comes to the same end. What was removed cannot be removed again.
        with pytest.raises(LibraryError) if work is works.remove and outcomes[-1] == after else nullcontext():
            work(folder)
        assert seen(folder) == after
        assert verify(folder) == []
    assert len(outcomes) == POINTS + 1 or not POINTS
    done = outcomes.index(after)
    assert outcomes == [works.BEFORE] * done + [after] * (len(outcomes) - done)


@pytest.mark.process
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_creating_is_all_or_nothing(tmp_path: Path, power: bool) -> None:
    (tmp_path / "runs").mkdir()
    created = []
    for folder in die_at_changes(works.create, tmp_path / "nothing", tmp_path / "runs", points=POINTS):
        if power:
            cut_power(folder)
        try:
            created.append(Snapshot.open(folder).count() == 0)
        except LibraryError:
            created.append(False)
            # Another model may be tried instead.
            Writer.create(folder, replace(STAMP, spread=False)).close()
        with Writer.open(folder) as writer:
            writer.commit([video("a", 2)], [segments("a", 2, spread=writer.stamp.spread)])
        assert seen(folder) == {"/films/a.mp4": 2}
        assert verify(folder) == []
    assert created == sorted(created)
    assert created[-1]
    assert not created[0]


def test_a_move_writes_no_tokens(tmp_path: Path) -> None:
    """Moving a folder of videos writes less than a hundredth of what their tokens take."""
    stamp = replace(STAMP, width=64, frames=12)
    names = [f"n{number}" for number in range(20)]
    with Writer.create(tmp_path, stamp) as writer:
        for name in names:
            writer.commit([video(name, 30)], [wide(name, 30, stamp)])
        writer.compact(grace=0)
        before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
        moved = [video(name, 30, path=f"/moved/{name}.mp4") for name in names]
        writer.commit(moved, [], remove=[f"/films/{name}.mp4" for name in names])
        tokens = writer.snapshot.tokens()
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path not in before)
    assert tokens.spread is not None
    assert written < 0.01 * (tokens.direction.nbytes + tokens.spread.nbytes)
    assert seen(tmp_path) == {f"/moved/{name}.mp4": 30 for name in names}
    assert verify(tmp_path) == []


def wide(name: str, count: int, stamp: ModelStamp) -> SegmentBatch:
    """Segments of a larger model."""
    rng = np.random.default_rng([*name.encode()])
    direction = rng.normal(size=(count, stamp.frames, stamp.width))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    pooled = direction.sum(1)
    return replace(
        segments(name, count),
        times=np.arange(count * stamp.frames, dtype=np.float32).reshape(count, -1),
        direction=direction.astype(np.float16),
        spread=rng.uniform(size=direction.shape).astype(np.float16),
        weight=rng.uniform(size=direction.shape[:2]).astype(np.float32),
        mask=np.ones(direction.shape[:2], dtype=bool),
        pooled=(pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(np.float32),
    )


def rows_of(folder: Where) -> tuple[list[VideoRecord], list[str]]:
    """All that a library holds, to the last bit, in an order that says nothing of how it came."""
    store = Snapshot.open(folder)
    rows = [row for batch in store.batches(store.columns) for row in batch.to_pylist()]
    return store.videos(), sorted(repr(sorted(row.items())) for row in rows)


def by_workers(folder: Where, *works: Sequence[tuple[VideoRecord, SegmentBatch]]) -> list[str]:
    return [text for work in works for text in write_segments(folder, STAMP, work)]


def test_the_library_is_the_same_as_by_a_commit(tmp_path: Path) -> None:
    videos = [video("c", 3), video("d", 1), video("e", 5), video("none", 0)]
    given = [(record, segments(record.path[7:-4], record.segments)) for record in videos]
    bad = video("bad", 0, state="bad", reason="torn")
    with Writer.open(fill(tmp_path / "plain")) as store:
        store.commit([*videos, bad], [batch for _, batch in given], remove=["/films/a.mp4"])
    with Writer.open(fill(tmp_path / "workers")) as store:
        texts = by_workers(store.location, given[:2], given[2:3], given[3:])
        assert len(texts) == 2
        assert seen(store.location) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        store.adopt([*videos, bad], texts, {content(name) for name in "cde"}, remove=["/films/a.mp4"])
        assert store.snapshot.count() == 12
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "plain")
    assert verify(tmp_path / "workers") == []


def test_a_long_video_comes_in_parts_that_anyone_wrote(tmp_path: Path) -> None:
    whole, record = segments("c", 5), video("c", 5)
    with Writer.open(fill(tmp_path / "plain")) as store:
        store.commit([record], [whole])
    with Writer.open(fill(tmp_path / "workers")) as store:
        parts = [(record, some(whole, first, end)) for first, end in ((3, 5), (0, 3))]
        texts = by_workers(store.location, *([part] for part in parts))
        with pytest.raises(ValueError, match="5 segments expected, 2 given"):
            store.adopt([record], texts[:1], {content("c")})
        store.adopt([record], texts, {content("c")})
    assert rows_of(tmp_path / "workers") == rows_of(tmp_path / "plain")
    assert verify(tmp_path / "workers") == []


def some(batch: SegmentBatch, first: int, end: int) -> SegmentBatch:
    """The segments from one number to before another."""
    values = {name: value[first:end] for name, value in vars(batch).items() if name not in ("video_id", "first")}
    return replace(batch, first=first, **values)


def test_known_contents_are_replaced_beside_a_new_copy(tmp_path: Path) -> None:
    # The content of a.mp4 is cut anew; b.mp4 gets a copy that owns its segments.
    copy = video("b", 3, path="/films/0.mp4")
    with Writer.open(fill(tmp_path)) as store:
        texts = by_workers(tmp_path, [(video("a", 5), segments("a", 5, seed=1))])
        store.adopt([video("a", 5), copy], texts, {content("a")})
    assert seen(tmp_path) == {"/films/0.mp4": 3, "/films/a.mp4": 5, "/films/b.mp4": 3}
    assert verify(tmp_path) == []


def test_what_is_not_asked_for_is_left_out(tmp_path: Path) -> None:
    with Writer.open(fill(tmp_path)) as store:
        texts = by_workers(tmp_path, [(video(name, 2), segments(name, 2)) for name in "cd"])
        # A worker encoded what another had committed meanwhile: that stays.
        texts += by_workers(tmp_path, [(video("a", 3), segments("a", 3, seed=1))])
        store.adopt([video("d", 2)], texts, {content("d")})
        version = store.snapshot.version
        store.adopt([], texts, ())
        assert store.snapshot.version == version
        row = store.snapshot.segments(where=f"video_id = '{content('a')}'")["row"].to_pylist()[0]
        np.testing.assert_array_equal(store.snapshot.tokens([row]).direction[0], segments("a", 3).direction[0])
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/d.mp4": 2}
    assert verify(tmp_path) == []


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    with Writer.open(fill(tmp_path)) as store:
        texts = by_workers(tmp_path, [(video("c", 2), segments("c", 2))])
        for videos, told, fresh, message in (
            ([video("c", 2)], texts * 2, {content("c")}, "are given twice"),
            ([video("d", 2)], texts, {content("d")}, "no fragment has"),
            ([video("c", 3)], texts, {content("c")}, "3 segments expected, 2 given"),
            ([], texts, {content("c")}, "have no record"),
        ):
            with pytest.raises(ValueError, match=message):
                store.adopt(videos, told, fresh)
    with pytest.raises(ValueError, match="direction must be"):
        write_segments(tmp_path, replace(STAMP, width=9), [(video("c", 2), segments("c", 2))])
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}


def test_joining_files_leaves_what_is_not_adopted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MANY_FRAGMENTS", 3)
    monkeypatch.setattr(module, "GRACE", 0.0)
    with Writer.open(fill(tmp_path)) as store:
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


WRITER = """
import sys
from pathlib import Path
from prota.library.storage.writer import Writer
from tests.library.small_library import segments, video
with Writer.open(Path(sys.argv[1])) as store:
    for round in range(100000):
        path, old = f"/films/{round}.mp4", f"/films/{round - 3}.mp4"
        store.commit([video(f"k{round}", 4, path=path)], [segments(f"k{round}", 4)], remove=[old])
        print(round, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.009])
def test_kill_9_in_the_middle_loses_nothing(tmp_path: Path, delay: float) -> None:
    Writer.create(tmp_path, STAMP).close()
    acknowledged = -1
    for _ in range(3):
        with python("-c", WRITER, tmp_path) as process:
            assert process.stdout is not None
            for _ in range(4):
                acknowledged = int(process.stdout.readline())
            # Not at the same place of the loop each time.
            threading.Event().wait(delay)
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
            acknowledged = int(rest[-1]) if rest else acknowledged
        assert verify(tmp_path) == []
        counts = seen(tmp_path)
        assert set(counts.values()) == {4}
        # What was acknowledged is there; the commit after it may be, if only its word was lost.
        assert f"/films/{acknowledged}.mp4" in counts
        assert all(acknowledged - 3 < int(Path(path).stem) <= acknowledged + 1 for path in counts)
        with Writer.open(tmp_path) as store:
            assert {record.path for record in store.snapshot.videos()} == set(counts)
            store.commit([], [], remove=list(counts))


@pytest.mark.process
def test_readers_see_whole_commits_while_another_process_writes(tmp_path: Path) -> None:
    Writer.create(tmp_path, STAMP).close()
    with python("-c", WRITER, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        versions = set()
        for _ in range(25):
            store = Snapshot.open(tmp_path)
            versions.add(store.version)
            records: list[VideoRecord] = store.videos()
            assert store.count() == sum(record.segments for record in records) == len(store.tokens())
            # The pipe must not fill up, and the writer should have moved on.
            process.stdout.readline()
    assert len(versions) > 5
    assert verify(tmp_path) == []
