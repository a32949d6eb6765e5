"""The store: what goes in comes out, whole or not at all, whoever else reads, writes or dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

from prota.library import folder as folder_module
from prota.library import place as place_module
from prota.library import store as store_module
from prota.library.place import Folder
from prota.library.records import LibraryError, VideoRecord
from prota.library.store import Store
from prota.library.upkeep import verify
from tests.library.small_library import STAMP, D, M, content, fill, seen, segments, video
from tests.processes import LIMIT, python


class TestRoundTrip:
    def test_everything_comes_back(self, tmp_path: Path) -> None:
        given = [segments("a", 3), segments("b", 2)]
        records = [video("a", 3, metadata={"who": "I"}), video("b", 2), video("c", 0, state="bad", reason="no frames")]
        with Store.create(tmp_path, STAMP) as store:
            store.commit(records, given)
        with Store.open(tmp_path) as store:
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
        with Store.open(fill(tmp_path, "abc")) as store:
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
        with Store.open(tmp_path, write=True) as store:
            store.commit([], [], remove=["/films/b.mp4"])
            table = store.segments(["video_id"], where="path >= '/films/c'")
            assert table["row"].to_pylist() == [3, 4, 5, 6, 7, 8]
            assert store.segments(["video_id"], rows=[3])["video_id"].to_pylist() == [content("c")]
            np.testing.assert_array_equal(store.tokens([6]).direction[0], segments("d", 3).direction[0])
            assert store.nearest(segments("d", 3).pooled[1], 1).tolist() == [7]

    def test_tokens_without_spread(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path, "a", stamp=replace(STAMP, spread=False))) as store:
            assert store.tokens().spread is None
            assert store.tokens([1]).spread is None

    def test_an_empty_library_answers(self, tmp_path: Path) -> None:
        with Store.create(tmp_path, STAMP) as store:
            assert store.videos() == []
            assert store.count() == len(store.tokens()) == len(store.segments(where="duration < 3")) == 0
            assert store.nearest(np.ones(D, np.float32), 5).tolist() == []
            store.build_index()
            assert store.partitions == 0

    def test_names_that_are_no_unicode_and_quotes(self, tmp_path: Path) -> None:
        paths = [os.fsdecode(b"/films/\xff\xfe.mp4"), "/films/it's ''.mp4", "/films/映画\n.mp4"]
        records = [video(str(i), 1, path=path, reason=f"\ud800{path}") for i, path in enumerate(paths)]
        with Store.create(tmp_path, STAMP) as store:
            store.commit(records, [segments(str(i), 1) for i in range(3)])
        with Store.open(tmp_path, write=True) as store:
            assert {record.path for record in store.videos()} == set(paths)
            store.commit([], [], remove=paths)
            assert store.videos() == []
            assert store.count() == 0

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
        with Store.create(tmp_path, STAMP) as store:
            with pytest.raises(ValueError, match=f"segments of {content('a')}"):
                store.commit([video("a", 2)], [replace(segments("a", 2), **change)])
            assert store.count() == 0
            store.commit([video("a", 2)], [segments("a", 2)])
            assert store.count() == 2

    def test_records_and_segments_must_belong_together(self, tmp_path: Path) -> None:
        with Store.create(tmp_path, STAMP) as store:
            for videos, batches, message in (
                ([video("a", 2)], [], "comes without its 2 segments"),
                ([], [segments("a", 2)], "come without a record"),
                ([video("a", 3)], [segments("a", 2)], "3 segments expected, 2 given"),
                ([video("a", 2), video("b", 2, path="/films/a.mp4")], [segments("a", 2)], "the same path"),
                ([video("a", 2)], [segments("a", 2), segments("a", 2)], "in one batch"),
            ):
                with pytest.raises(ValueError, match=message):
                    store.commit(videos, batches)
            store.commit([video("a", 2)], [segments("a", 2)])
            with pytest.raises(ValueError, match="comes without its 3 segments"):
                store.update([video("a", 3, path="/copy.mp4")])
        assert seen(tmp_path) == {"/films/a.mp4": 2}


class TestKeys:
    def test_copies_share_segments_until_the_last_is_gone(self, tmp_path: Path) -> None:
        copy = video("a", 3, path="/films/copy.mp4")
        with Store.create(tmp_path, STAMP) as store:
            store.commit([video("a", 3), copy], [segments("a", 3)])
            assert store.count() == 3
            store.commit([], [], remove=["/films/a.mp4"])
            assert store.videos() == [copy]
            assert store.count() == 3
            assert set(store.segments(["path"])["path"].to_pylist()) == {"/films/copy.mp4"}
            assert verify(tmp_path) == []
            store.commit([], [], remove=["/films/copy.mp4"])
            assert store.count() == 0

    def test_a_copy_that_comes_later_needs_no_segments(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path, "a"), write=True) as store:
            store.update([video("a", 3, path="/films/0.mp4")])
            assert store.count() == 3
        assert verify(tmp_path) == []

    def test_a_move_keeps_the_segments_and_tells_them(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            before = store.tokens(store.segments(where="path LIKE '%/a.mp4'")["row"].to_pylist())
            store.commit([video("a", 3, path="/new/a.mp4")], [], remove=["/films/a.mp4"])
            rows = store.segments(where="path = '/new/a.mp4'")["row"].to_pylist()
            np.testing.assert_array_equal(store.tokens(rows).direction, before.direction)
        assert seen(tmp_path) == {"/films/b.mp4": 3, "/new/a.mp4": 3}
        assert verify(tmp_path) == []

    def test_changed_content_replaces_the_old(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            store.commit([video("x", 2, path="/films/a.mp4")], [segments("x", 2)])
        assert seen(tmp_path) == {"/films/a.mp4": 2, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_segments_given_again_replace_those_of_all_copies(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            store.update([video("a", 3, path="/films/0.mp4")])
            store.commit([video("a", 5)], [segments("a", 5, seed=1)])
        assert seen(tmp_path) == {"/films/0.mp4": 5, "/films/a.mp4": 5, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_a_file_that_turns_bad_takes_its_segments_along(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            store.update([video("x", 0, path="/films/a.mp4", state="bad", reason="torn")])
        assert seen(tmp_path) == {"/films/a.mp4": 0, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_a_file_that_is_gone_leaves_them(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            store.update([video("a", 3, state="gone", metadata={"seen": "yesterday"})])
            assert store.videos()[0].metadata == {"seen": "yesterday"}
        assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        assert verify(tmp_path) == []

    def test_what_changes_nothing_writes_nothing(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True) as store:
            version = store.version
            store.update([video("a", 3)])
            store.commit([], [], remove=["/nowhere.mp4"])
            assert store.version == version
            store.update([video("a", 3, fps=30.0)])
            assert store.version == version + 1


class TestFilters:
    @pytest.mark.parametrize(
        ("where", "names"),
        [
            ("duration < 25", "b"),
            ("duration < 25 OR codec = 'vp9'", "bc"),
            ("path LIKE '%/a.mp4'", "a"),
            ("index = 2", "ac"),
            ("end > 20 AND start >= 12", "ac"),
            ("width >= 1920 AND fps > 24.5", "a"),
            ("modified > timestamp '2002-01-01'", "c"),
            ("height = 7", ""),
        ],
    )
    def test_over_segments_and_their_videos(self, tmp_path: Path, where: str, names: str) -> None:
        with Store.create(tmp_path, STAMP) as store:
            records = [video("a", 3, width=1920), video("b", 2), video("c", 3, codec="vp9", modified=2 * 10**18)]
            store.commit(records, [segments("a", 3), segments("b", 2), segments("c", 3)])
            ids = set(store.segments(where=where)["video_id"].to_pylist())
            assert ids == {content(name) for name in names}
            everything = store.segments(["video_id"])["video_id"].to_pylist()
            for count in (1, 20):
                rows = store.nearest(segments("b", 2).pooled[0], count, where).tolist()
                assert {everything[row] for row in rows} <= ids
                assert len(rows) == min(count, len(store.segments(where=where)))

    @pytest.mark.parametrize(
        "where",
        ["", "duration <", "length < 3", "duration < 'long'", "duration", "cast(path as int) > 3", "index/0 = 1", "'"],
    )
    def test_what_is_no_filter_is_told(self, tmp_path: Path, where: str) -> None:
        with Store.open(fill(tmp_path)) as store:
            for ask in (lambda: store.segments(where=where), lambda: store.nearest(np.ones(D), 2, where)):
                with pytest.raises(
                    LibraryError, match=r"cannot filter by .* over video_id, index, .*, modified"
                ) as told:
                    ask()
                assert ".rs:" not in str(told.value)

    def test_unknown_columns_and_two_choices_are_refused(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path)) as store:
            with pytest.raises(ValueError, match="no column colour"):
                store.segments(["colour"])
            with pytest.raises(ValueError, match="not both"):
                store.segments(where="index = 1", rows=[1])


class TestNearest:
    @pytest.mark.parametrize("index", [False, True])
    def test_it_finds_what_comparing_all_finds(self, tmp_path: Path, index: bool) -> None:
        with Store.open(fill(tmp_path, "abcdef", count=20), write=True) as store:
            if index:
                store.build_index()
                assert store.partitions == 11
            # Rows that the index does not know.
            store.commit([video("g", 9)], [segments("g", 9)], remove=["/films/b.mp4"])
            pooled = np.array(store.segments(["pooled"])["pooled"].to_pylist(), np.float32)
            paths = np.array(store.segments(["path"])["path"].to_pylist())
            for seed in range(5):
                query = np.random.default_rng(seed).normal(size=D).astype(np.float32)
                order = np.argsort(-(pooled @ query), kind="stable")
                assert store.nearest(query, 7, probes=store.partitions).tolist() == order[:7].tolist()
                kept = [row for row in order if paths[row] in ("/films/g.mp4", "/films/c.mp4")]
                found = store.nearest(query, 7, "path IN ('/films/g.mp4', '/films/c.mp4')")
                assert found.tolist() == kept[:7]


class TestOpening:
    def test_a_library_that_is_there_is_not_made_again(self, tmp_path: Path) -> None:
        fill(tmp_path)
        with pytest.raises(LibraryError, match="holds a library already"):
            Store.create(tmp_path, STAMP)
        assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}

    def test_who_waits_gets_the_library_that_another_made_meanwhile(self, tmp_path: Path) -> None:
        making = Store.create(tmp_path, STAMP)
        with pytest.raises(LibraryError, match="is being written by"):
            Store.create(tmp_path, STAMP)
        ender = threading.Timer(0.3, making.close)
        ender.start()
        with Store.create(tmp_path, STAMP, wait=LIMIT) as store:
            store.commit([video("a", 3)], [segments("a", 3)])
        ender.join()
        assert seen(tmp_path) == {"/films/a.mp4": 3}

    @pytest.mark.parametrize("write", [False, True])
    def test_what_is_no_library_is_told_with_its_remedy(self, tmp_path: Path, write: bool) -> None:
        with pytest.raises(LibraryError, match=r"no library at .*: make one with `prota index"):
            Store.open(tmp_path / "none", write=write)
        assert not (tmp_path / "none").exists()
        fill(tmp_path)
        whole = {name: (tmp_path / name).read_text() for name in ("library.json", "head.json")}
        for name, text, message in (
            ("library.json", "{", "library.json cannot be read"),
            ("library.json", "[]", "library.json is damaged"),
            ("library.json", '{"format": "other"}', "does not describe a library"),
            ("library.json", '{"format": "prota-library", "schema": 1, "model": {}}', "library.json is damaged"),
            ("library.json", None, "has lost its library.json"),
            ("head.json", '{"version": 1}', "head.json is damaged"),
            ("head.json", '{"version": "x", "videos": 1, "segments": 1}', "head.json is damaged"),
            ("head.json", '{"version": 9, "videos": 99, "segments": 1}', "lacks what its head.json names"),
            ("head.json", None, "has lost its head.json"),
        ):
            (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
            with pytest.raises(LibraryError, match=message):
                Store.open(tmp_path, write=write)
            (tmp_path / name).write_text(whole[name])
        Store.open(tmp_path, write=write).close()

    def test_a_library_without_its_description_is_not_overwritten(self, tmp_path: Path) -> None:
        (fill(tmp_path) / "library.json").unlink()
        with pytest.raises(LibraryError, match=r"lost its library\.json"):
            Store.create(tmp_path, STAMP)

    def test_the_wrong_model_is_refused_with_the_sentence_that_mends_it(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path)) as store:
            store.check_model(replace(STAMP, name="the same, elsewhere"))
            for change in ({"fingerprint": "cd" * 32}, {"width": 8}, {"frames": 8}, {"spread": False}):
                with pytest.raises(LibraryError, match=r"made with model tiny .*you gave big .*--model tiny"):
                    store.check_model(replace(STAMP, name="big", **change))

    def test_a_newer_schema_is_refused(self, tmp_path: Path) -> None:
        path = fill(tmp_path) / "library.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
        with pytest.raises(LibraryError, match=r"newer prota .*schema 99.*update prota"):
            Store.open(tmp_path)

    def test_older_schemas_are_upgraded_step_by_step(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(tmp_path)
        done: list[int] = []

        def step_to_3(folder: Path) -> None:
            done.append(3)
            if len(done) == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(folder_module, "SCHEMA", 3)
        monkeypatch.setattr(folder_module, "STEPS", {1: lambda folder: done.append(2), 2: step_to_3})
        with pytest.raises(LibraryError, match="older prota: upgrade it with `prota library compact"):
            Store.open(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            Store.open(tmp_path, write=True)
        with Store.open(tmp_path, write=True) as store:
            assert store.count() == 6
        assert done == [2, 3, 3]
        with Store.open(tmp_path, write=True), Store.open(tmp_path) as store:
            assert store.count() == 6
        assert done == [2, 3, 3]


class TestWriters:
    def test_a_second_one_is_told_who_writes(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path), write=True):
            with pytest.raises(LibraryError, match=f"being written by process {os.getpid()} on .*: try again"):
                Store.open(tmp_path, write=True)
            with pytest.raises(LibraryError, match="being written by process"):
                Store.open(tmp_path, write=True, wait=0.1)
        Store.open(tmp_path, write=True).close()

    def test_a_second_one_waits(self, tmp_path: Path) -> None:
        first = Store.open(fill(tmp_path), write=True)
        timer = threading.Timer(0.2, first.close)
        timer.start()
        with Store.open(tmp_path, write=True, wait=LIMIT) as second:
            second.commit([video("c", 1)], [segments("c", 1)])
        timer.join()
        assert seen(tmp_path)["/films/c.mp4"] == 1

    def test_readers_cannot_write(self, tmp_path: Path) -> None:
        with Store.open(fill(tmp_path)) as store:
            for act in (lambda: store.update([video("a", 3, fps=1.0)]), store.compact, store.build_index):
                with pytest.raises(LibraryError, match="opened for reading"):
                    act()

    def test_readers_keep_what_they_opened(self, tmp_path: Path) -> None:
        reader = Store.open(fill(tmp_path))
        with Store.open(tmp_path, write=True) as writer:
            writer.commit([video("c", 4)], [segments("c", 4)], remove=["/films/a.mp4"])
            writer.compact()
            assert Store.open(tmp_path).count() == 7
            assert len(writer.videos()) == 2
        assert reader.count() == 6
        assert [record.path for record in reader.videos()] == ["/films/a.mp4", "/films/b.mp4"]
        np.testing.assert_array_equal(reader.tokens([0]).direction[0], segments("a", 3).direction[0])
        assert reader.segments(where="path = '/films/a.mp4'")["row"].to_pylist() == [0, 1, 2]

    def test_many_small_commits_are_joined_by_themselves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_module, "MANY_FRAGMENTS", 4)
        fill(tmp_path, "abcdefghijkl")
        assert len(lance.dataset(str(tmp_path / "segments.lance")).get_fragments()) <= 5
        assert len(lance.dataset(str(tmp_path / "videos.lance")).get_fragments()) <= 5
        assert len(seen(tmp_path)) == 12
        assert verify(tmp_path) == []


class Died(BaseException):
    """Stands for a power cut."""


def dying(real: Callable[..., Any], moment: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if moment == "before":
            raise Died
        real(*arguments, **named)
        raise Died

    return call


def dying_at(nth: int, real: Callable[..., Any], moment: str) -> Callable[..., Any]:
    """Dying at the n-th call."""
    calls = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return (dying(real, moment) if calls == nth else real)(*arguments, **named)

    return counted


STEPS_OF_A_COMMIT = [
    (store_module, "take_back", 1),
    (lance.LanceDataset, "delete", 1),
    (lance.LanceDataset, "delete", 2),
    (store_module.lance, "write_dataset", 1),
    (store_module.lance, "write_dataset", 2),
    (Folder, "settle", 1),
    (store_module, "write_head", 1),
]
NEW = [video("x", 2, path="/films/a.mp4"), video("c", 4)]
BEFORE = {"/films/a.mp4": 3, "/films/b.mp4": 3}
AFTER = {"/films/a.mp4": 2, "/films/c.mp4": 4}


class TestCrashes:
    """A commit that replaces, removes and adds, cut off at each of its steps."""

    def commit(self, store: Store) -> None:
        store.commit(NEW, [segments("x", 2), segments("c", 4)], remove=["/films/b.mp4"])

    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize(("place", "name", "nth"), STEPS_OF_A_COMMIT, ids=lambda value: str(value)[:15])
    @pytest.mark.parametrize("reopen", [True, False])
    def test_all_or_nothing(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        place: Any,
        name: str,
        nth: int,
        moment: str,
        reopen: bool,
    ) -> None:
        store = Store.open(fill(tmp_path), write=True)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, dying_at(nth, getattr(place, name), moment))
            with pytest.raises(Died):
                self.commit(store)
        whole = name == "write_head" and moment == "after"
        assert seen(tmp_path) == (AFTER if whole else BEFORE)
        assert verify(tmp_path) == []
        if reopen:
            store.close()
            store = Store.open(tmp_path, write=True)
            assert {record.path for record in store.videos()} == set(AFTER if whole else BEFORE)
        # Whoever goes on, the new process or the old one, comes to the same end.
        self.commit(store)
        assert seen(tmp_path) == AFTER
        assert store.count() == 6
        assert verify(tmp_path) == []
        store.close()

    @pytest.mark.parametrize(("place", "name"), [(place_module, "write_atomically"), (Folder, "settle")])
    def test_going_back_can_be_cut_off_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
    ) -> None:
        store = Store.open(fill(tmp_path), write=True)
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "write_head", dying(store_module.write_head, "before"))
            with pytest.raises(Died):
                self.commit(store)
        store.close()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, dying(getattr(place, name), "before"))
            with pytest.raises(Died):
                Store.open(tmp_path, write=True)
        assert seen(tmp_path) == BEFORE
        with Store.open(tmp_path, write=True) as store:
            assert store.count() == 6
        assert verify(tmp_path) == []

    @pytest.mark.parametrize("nth", [1, 2, 3, 4])
    def test_creating_can_be_cut_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        real = [folder_module.lance.write_dataset, place_module.write_atomically]
        calls = 0

        def counted(which: int) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == nth:
                    raise Died
                return real[which](*arguments, **named)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(folder_module.lance, "write_dataset", counted(0))
            patch.setattr(place_module, "write_atomically", counted(1))
            with pytest.raises(Died):
                Store.create(tmp_path, STAMP)
        if nth == 4:
            # The library is there; only its head was not written yet.
            with Store.open(tmp_path) as store:
                assert (store.count(), store.version) == (0, 0)
            assert verify(tmp_path) == []
            with Store.open(tmp_path, write=True) as store:
                store.commit([video("a", 2)], [segments("a", 2)])
        else:
            with pytest.raises(LibraryError, match="no library at"):
                Store.open(tmp_path)
            # Another model may be tried after all.
            with Store.create(tmp_path, replace(STAMP, spread=False)) as store:
                store.commit([video("a", 2)], [segments("a", 2, spread=False)])
        assert verify(tmp_path) == []

    def test_compacting_can_be_cut_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = Store.open(fill(tmp_path), write=True)
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "write_head", dying(store_module.write_head, "before"))
            with pytest.raises(Died):
                store.compact()
        store.close()
        assert seen(tmp_path) == BEFORE
        with Store.open(tmp_path, write=True) as store:
            store.compact(grace=0)
        assert seen(tmp_path) == BEFORE
        assert verify(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from prota.library.store import Store
from tests.library.small_library import segments, video
with Store.open(Path(sys.argv[1]), write=True) as store:
    for round in range(100000):
        path, old = f"/films/{round}.mp4", f"/films/{round - 3}.mp4"
        store.commit([video(f"k{round}", 4, path=path)], [segments(f"k{round}", 4)], remove=[old])
        print(round, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.009])
def test_kill_9_in_the_middle_loses_nothing(tmp_path: Path, delay: float) -> None:
    Store.create(tmp_path, STAMP).close()
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
        with Store.open(tmp_path, write=True) as store:
            assert {record.path for record in store.videos()} == set(counts)
            store.commit([], [], remove=list(counts))


@pytest.mark.process
def test_readers_see_whole_commits_while_another_process_writes(tmp_path: Path) -> None:
    Store.create(tmp_path, STAMP).close()
    with python("-c", WRITER, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        versions = set()
        for _ in range(25):
            with Store.open(tmp_path) as store:
                versions.add(store.version)
                records: list[VideoRecord] = store.videos()
                assert store.count() == sum(record.segments for record in records) == len(store.tokens())
            # The pipe must not fill up, and the writer should have moved on.
            process.stdout.readline()
    assert len(versions) > 5
    assert verify(tmp_path) == []
