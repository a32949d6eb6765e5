"""A snapshot stays what it was when it was opened; filters and nearest neighbours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from prota.library.records import LibraryError
from prota.library.storage import writer as writer_module
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from tests.library.small_library import STAMP, D, content, fill, segments, video


def test_readers_keep_what_they_opened_while_many_small_commits_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MANY_FRAGMENTS", 4)
    reader = Snapshot.open(fill(tmp_path, "abc"))
    with Writer.open(tmp_path) as writer:
        for name in "defghi":
            writer.commit([video(name, 3)], [segments(name, 3)])
    assert reader.count() == 9
    assert [record.path for record in reader.videos()] == [f"/films/{name}.mp4" for name in "abc"]
    np.testing.assert_array_equal(reader.tokens([0]).direction[0], segments("a", 3).direction[0])
    assert reader.segments(where="path = '/films/c.mp4'")["row"].to_pylist() == [6, 7, 8]


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
            ("path LIKE '%/c.mp4' AND duration > 25", "c"),
            ("path >= '/films/b' AND index = 2", "c"),
            ("NOT (path LIKE '%/a.mp4' AND start < 12)", "abc"),
            ("modified > timestamp '2002-01-01' AND kind = 'video'", "c"),
            ("codec = 'path'", ""),
        ],
    )
    def test_over_segments_and_their_videos(self, tmp_path: Path, where: str, names: str) -> None:
        with Writer.create(tmp_path, STAMP) as store:
            records = [video("a", 3, width=1920), video("b", 2), video("c", 3, codec="vp9", modified=2 * 10**18)]
            store.commit(records, [segments("a", 3), segments("b", 2), segments("c", 3)])
            ids = set(store.snapshot.segments(where=where)["video_id"].to_pylist())
            assert ids == {content(name) for name in names}
            everything = store.snapshot.segments(["video_id"])["video_id"].to_pylist()
            for count in (1, 20):
                rows = store.snapshot.nearest(segments("b", 2).pooled[0], count, where).tolist()
                assert {everything[row] for row in rows} <= ids
                assert len(rows) == min(count, len(store.snapshot.segments(where=where)))

    @pytest.mark.parametrize(
        "where",
        ["", "duration <", "length < 3", "duration < 'long'", "duration", "cast(path as int) > 3", "index/0 = 1", "'"],
    )
    def test_what_is_no_filter_is_told(self, tmp_path: Path, where: str) -> None:
        store = Snapshot.open(fill(tmp_path))
        for ask in (lambda: store.segments(where=where), lambda: store.nearest(np.ones(D), 2, where)):
            with pytest.raises(LibraryError, match="cannot filter by") as told:
                ask()
            assert not {".rs:", "_rowid", "pooled", "SELECT"} & set(re.findall(r"\.rs:|\w+", str(told.value)))

    def test_unknown_columns_and_two_choices_are_refused(self, tmp_path: Path) -> None:
        store = Snapshot.open(fill(tmp_path))
        with pytest.raises(ValueError, match="no column colour"):
            store.segments(["colour"])
        with pytest.raises(ValueError, match="not both"):
            store.segments(where="index = 1", rows=[1])


class TestNearest:
    @pytest.mark.parametrize("index", [False, True])
    def test_it_finds_what_comparing_all_finds(self, tmp_path: Path, index: bool) -> None:
        with Writer.open(fill(tmp_path, "abcdef", count=20)) as store:
            if index:
                store.build_index()
                assert store.snapshot.partitions == 11
            # Rows that the index does not know.
            store.commit([video("g", 9)], [segments("g", 9)], remove=["/films/b.mp4"])
            pooled = np.array(store.snapshot.segments(["pooled"])["pooled"].to_pylist(), np.float32)
            ids = np.array(store.snapshot.segments(["video_id"])["video_id"].to_pylist())
            for seed in range(5):
                query = np.random.default_rng(seed).normal(size=D).astype(np.float32)
                order = np.argsort(-(pooled @ query), kind="stable")
                assert store.snapshot.nearest(query, 7, "index >= 0").tolist() == order[:7].tolist()
                kept = [row for row in order if ids[row] in (content("g"), content("c"))]
                found = store.snapshot.nearest(query, 7, "path IN ('/films/g.mp4', '/films/c.mp4')")
                assert found.tolist() == kept[:7]
