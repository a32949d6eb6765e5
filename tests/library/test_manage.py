"""Upkeep: telling, checking, shrinking, joining, exporting and removing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow.parquet as parquet
import pytest

from prota.library.manage import compact, export, info, merge, remove, verify
from prota.library.records import LibraryError, SegmentBatch, VideoRecord
from prota.library.storage import writer as writer_module
from prota.library.storage.reader import Snapshot
from prota.library.storage.versions import SCHEMA, sealed
from prota.library.storage.writer import Writer
from tests.library.small_library import STAMP, content, fill, name_newest, seen, segments, video


def test_info_tells_what_is_there(tmp_path: Path) -> None:
    with Writer.open(fill(tmp_path)) as store:
        copy = video("a", 3, path="/copy.mp4")
        gone = video("b", 3, state="gone")
        store.commit([copy, gone, video("c", 0, state="bad", reason="empty")])
        version = store.snapshot.version
    told = info(tmp_path)
    json.dumps(told)
    assert told["videos"] == {"indexed": 2, "bad": 1, "gone": 1}
    assert told["bad"] == {"/films/c.mp4": "empty"}
    assert told["segments"] == 6
    assert told["hours"] == round(30 / 3600, 3)
    assert told["bytes"] == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert told["model"] == asdict(STAMP)
    assert told["schema"] == SCHEMA
    assert told["version"] == version
    assert datetime.fromisoformat(told["created"]).tzinfo is not None


def altered(change: str) -> SegmentBatch:
    """Segments of "a" with one thing wrong."""
    batch = segments("a", 3)
    arrays = {name: np.array(getattr(batch, name)) for name in ("direction", "spread", "weight", "mask", "pooled")}
    arrays |= {"times": batch.times.copy(), "start": batch.start.copy()}
    if change == "mask":
        arrays["mask"][1] = False
    elif change == "times":
        arrays["times"][1, 0] = np.nan
    elif change == "start":
        arrays["start"][1] = 99.0
    elif change in ("direction scale", "pooled scale"):
        arrays[change.split()[0]][1] *= 1.01
    else:
        arrays[change][1, 0] = np.inf
    return replace(batch, **arrays)


class TestVerify:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("mask", "no frames in 1 of 3"),
            ("times", "frames without a time in 1 of 3"),
            ("start", "times that run backwards in 1 of 3"),
            ("direction", "directions that are not finite in 1 of 3"),
            ("direction scale", "directions that are not unit vectors in 1 of 3"),
            ("spread", "spreads that are not finite in 1 of 3"),
            ("weight", "weights that are not finite in 1 of 3"),
            ("pooled", "a pooled vector that is not a unit vector in 1 of 3"),
            ("pooled scale", "a pooled vector that is not a unit vector in 1 of 3"),
        ],
    )
    def test_it_finds_wrong_numbers(self, tmp_path: Path, change: str, message: str) -> None:
        with Writer.open(fill(tmp_path)) as store:
            store.commit([video("a", 3)], [altered(change)])
        assert f"/films/a.mp4: {message} segments" in verify(tmp_path)
        assert all("/films/b.mp4" not in problem for problem in verify(tmp_path))

    @pytest.mark.parametrize(
        ("name", "action", "message"),
        [
            ("segments", "DELETE index = 1 AND video_id < '62'", "/films/a.mp4: has 2 segments instead of 3"),
            ("segments", "SET index = 7 WHERE index = 2", "/films/b.mp4: its segments are not numbered from 0 to 2"),
            (
                "segments",
                "SET codec = 'vp9' WHERE index = 2",
                "/films/a.mp4: another video's properties in 1 of 3",
            ),
            ("videos", "DELETE path = '/films/b.mp4'", f"content {content('b')[:12]}: 3 segments belong to no video"),
            ("videos", "SET segments = 4 WHERE true", "2 of 2 records of files are corrupt"),
        ],
    )
    def test_it_finds_rows_that_do_not_belong_together(
        self, tmp_path: Path, name: str, action: str, message: str
    ) -> None:
        dataset = lance.dataset(str(fill(tmp_path) / f"{name}.lance"))
        if action.startswith("DELETE"):
            dataset.delete(action.removeprefix("DELETE "))
        else:
            setting, where = action.removeprefix("SET ").split(" WHERE ")
            column, value = setting.split(" = ")
            dataset.update({column: value}, where=where)
        assert verify(tmp_path) == []
        name_newest(tmp_path)
        assert any(message in problem for problem in verify(tmp_path))

    def test_it_finds_missing_versions_files_and_bytes(self, tmp_path: Path) -> None:
        whole = fill(tmp_path / "whole")

        def damaged(name: str) -> Path:
            return Path(shutil.copytree(whole, tmp_path / name))

        folder = damaged("head")
        head = json.loads((folder / "head.json").read_text())
        (folder / "head.json").write_text(json.dumps(sealed(head | {"segments": 99})))
        assert "head.json refers to missing data" in verify(folder)[0]

        folder = damaged("files")
        for path in (folder / "segments.lance" / "data").iterdir():
            path.unlink()
        assert "cannot read" in verify(folder)[0]

        folder = damaged("bytes")
        for path in (folder / "videos.lance" / "data").iterdir():
            os.truncate(path, path.stat().st_size // 2)
        assert "is corrupt or missing" in verify(folder)[0]

        assert "no library at" in verify(tmp_path / "none")[0]

    def test_deep_reads_the_files_again(self, tmp_path: Path) -> None:
        records: list[VideoRecord] = []
        batches: list[SegmentBatch] = []
        for name in ("same", "changed", "missing", "gone"):
            path = tmp_path / f"{name}.mp4"
            path.write_bytes(name.encode())
            video_id = hashlib.sha256(name.encode()).hexdigest()
            state = "gone" if name == "gone" else "indexed"
            records.append(replace(video(name, 1, path=str(path), state=state), video_id=video_id))
            batches.append(replace(segments(name, 1), video_id=video_id))
        with Writer.create(tmp_path / "library", STAMP) as store:
            store.commit(records, batches)
        (tmp_path / "changed.mp4").write_bytes(b"other")
        (tmp_path / "missing.mp4").unlink()
        (tmp_path / "gone.mp4").unlink()
        assert verify(tmp_path / "library") == []
        changed, missing = verify(tmp_path / "library", deep=True)
        assert "changed.mp4: the file has changed" in changed
        assert "missing.mp4: cannot read" in missing


class TestCompact:
    def test_it_keeps_the_data_and_readers_alive(self, tmp_path: Path) -> None:
        fill(tmp_path, "abcdefgh")
        remove(tmp_path, ["/films/c.mp4"])
        reader = Snapshot.open(tmp_path)
        before = reader.tokens()
        compact(tmp_path)
        store = Snapshot.open(tmp_path)
        assert store.version == reader.version + 1
        np.testing.assert_array_equal(store.tokens().direction, before.direction)
        assert store.videos() == reader.videos()
        np.testing.assert_array_equal(reader.tokens().direction, before.direction)
        np.testing.assert_array_equal(reader.tokens([8]).weight, before.weight[[8]])
        assert verify(tmp_path) == []

    def test_it_frees_what_nobody_may_read_any_more(self, tmp_path: Path) -> None:
        fill(tmp_path, "abcdefgh")
        reader = Snapshot.open(tmp_path)
        remove(tmp_path, [f"/films/{name}.mp4" for name in "bcdefgh"])
        # What a dead writer left.
        orphan = tmp_path / "segments.lance" / "data" / "0000.lance"
        orphan.write_bytes(b"half")
        compact(tmp_path, grace=0)
        assert len(lance.dataset(str(tmp_path / "segments.lance")).versions()) == 1
        assert not orphan.exists()
        assert len(list(orphan.parent.iterdir())) == 1
        with pytest.raises(LibraryError, match="open it again if it was compacted"):
            reader.tokens()
        assert seen(tmp_path) == {"/films/a.mp4": 3}
        assert verify(tmp_path) == []

    def test_grace_counts_from_when_a_version_was_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = writer_module.time.time
        fill(tmp_path, "abc")
        reader = Snapshot.open(tmp_path)
        # Replaces what the reader reads, which is about as old as everything else.
        compact(tmp_path)
        monkeypatch.setattr(writer_module.time, "time", lambda: now() + 3500)
        compact(tmp_path)
        assert len(reader.tokens()) == 9
        monkeypatch.setattr(writer_module.time, "time", lambda: now() + 3700)
        compact(tmp_path)
        with pytest.raises(LibraryError, match="open it again"):
            reader.tokens()

    def test_a_large_library_gets_an_index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writer_module, "EXACT_SEGMENTS", 100)
        fill(tmp_path, "abc", count=30)
        compact(tmp_path)
        assert info(tmp_path)["partitions"] == 0
        with Writer.open(tmp_path) as store:
            store.commit([video("d", 30)], [segments("d", 30)])
        compact(tmp_path)
        assert info(tmp_path)["partitions"] == 11
        with Writer.open(tmp_path) as store:
            store.commit([video("e", 30)], [segments("e", 30)], remove=["/films/a.mp4"])
        compact(tmp_path, grace=0)
        store = Snapshot.open(tmp_path)
        statistics = lance.dataset(str(tmp_path / "segments.lance")).stats.index_stats("pooled_idx")
        assert statistics["num_unindexed_rows"] == 0
        row = store.nearest(segments("e", 30).pooled[4], 1)
        assert store.segments(["video_id", "index"], rows=row).to_pylist() == [
            {"video_id": content("e"), "index": 4, "row": int(row[0])}
        ]
        assert verify(tmp_path) == []


class TestMerge:
    def test_it_joins_by_content(self, tmp_path: Path) -> None:
        ours = fill(tmp_path / "ours", "ab")
        theirs = fill(tmp_path / "theirs", "bc")
        third = tmp_path / "third"
        with Writer.create(third, STAMP) as store:
            records = [
                # Our content, elsewhere and cut into other segments; our path with other content; and a bad file.
                video("a", 5, path="/else/a.mp4"),
                video("x", 2, path="/films/b.mp4"),
                video("y", 0, path="/else/y.mp4", state="bad", reason="torn"),
            ]
            store.commit(records, [segments("a", 5), segments("x", 2)])
        before = info(ours)["version"]
        merge(ours, [theirs, third])
        expected = {
            "/else/a.mp4": 3,
            "/else/y.mp4": 0,
            "/films/a.mp4": 3,
            "/films/b.mp4": 3,
            f"/films/b.mp4#{content('x')[:12]}": 2,
            "/films/c.mp4": 3,
        }
        assert seen(ours) == expected
        assert info(ours)["segments"] == 11
        assert info(ours)["version"] == before + 2
        assert verify(ours) == []
        store = Snapshot.open(ours)
        rows = store.segments(where="path = '/films/c.mp4'")["row"].to_pylist()
        np.testing.assert_array_equal(store.tokens(rows).direction, segments("c", 3).direction)
        assert store.thumbnails(rows) == list(segments("c", 3).thumbnails)
        merge(ours, [theirs, third])
        assert seen(ours) == expected
        assert info(ours)["version"] == before + 2

    def test_libraries_that_were_exchanged_can_still_be_merged(self, tmp_path: Path) -> None:
        """Three machines, each with a file of its own at one path."""
        one, two, three = (tmp_path / name for name in ("one", "two", "three"))
        for folder, name in ((one, "a"), (two, "b"), (three, "c")):
            with Writer.create(folder, STAMP) as store:
                store.commit([video(name, 3, path="/films/x.mp4")], [segments(name, 3)])
        merge(one, [two])
        merge(two, [one])
        assert seen(two) == {"/films/x.mp4": 3, f"/films/x.mp4#{content('a')[:12]}": 3}
        merge(three, [two])
        others = {f"/films/x.mp4#{content(name)[:12]}": 3 for name in "ab"}
        assert seen(three) == {"/films/x.mp4": 3} | others
        assert verify(three) == []

    def test_what_is_whole_elsewhere_replaces_what_is_bad_or_gone_here(self, tmp_path: Path) -> None:
        ours, theirs = fill(tmp_path / "ours", "bc"), fill(tmp_path / "theirs", "abc")
        with Writer.open(ours) as store:
            store.commit([video("a", 0, state="bad", reason="took too long"), video("b", 3, state="gone")])
        merge(ours, [theirs])
        store = Snapshot.open(ours)
        assert {(record.path, record.state) for record in store.videos()} == {
            (f"/films/{name}.mp4", "indexed") for name in "abc"
        }
        assert store.count() == 9
        assert verify(ours) == []
        before = info(ours)["version"]
        merge(ours, [theirs])
        assert info(ours)["version"] == before

    def test_of_a_file_that_could_not_be_read_the_other_librarys_record_counts(self, tmp_path: Path) -> None:
        """What was never read has no content to be known by, and is no second file of that name."""
        unread = video("a", 0, state="bad", reason="took too long")
        unread = replace(unread, video_id=f"unread:{unread.path}")
        ours, theirs = tmp_path / "ours", fill(tmp_path / "theirs", "a")
        with Writer.create(ours, STAMP) as store:
            store.commit([unread])
        store = Snapshot.open(theirs)
        whole = store.videos()
        merge(ours, [theirs])
        for folder, other in ((ours, theirs), (theirs, ours)):
            store = Snapshot.open(folder)
            assert store.videos() == whole
            merge(folder, [other])
        with Writer.create(tmp_path / "third", STAMP) as store:
            store.commit([unread])
        merge(theirs, [tmp_path / "third"])
        store = Snapshot.open(theirs)
        assert store.videos() == whole

    def test_another_model_is_refused_before_anything_is_taken_in(self, tmp_path: Path) -> None:
        ours, theirs = fill(tmp_path / "ours", "a"), fill(tmp_path / "theirs", "b")
        other = fill(tmp_path / "other", "c", stamp=replace(STAMP, name="big", fingerprint="cd" * 32))
        with pytest.raises(LibraryError, match=r"other was made with model big .*index one of them again"):
            merge(ours, [theirs, other])
        with pytest.raises(LibraryError, match="into itself"):
            merge(ours, [ours])
        assert seen(ours) == {"/films/a.mp4": 3}


class TestExport:
    def folder(self, path: Path) -> Path:
        with Writer.open(fill(path, "ab")) as store:
            store.commit([video("a", 3, path=os.fsdecode(b"/copy\xff.mp4"), metadata={"who": "I"})])
        return path

    def rows(self, path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    def test_jsonl(self, tmp_path: Path) -> None:
        export(self.folder(tmp_path / "library"), tmp_path / "rows.jsonl")
        rows = self.rows(tmp_path / "rows.jsonl")
        assert len(rows) == 6
        row = next(row for row in rows if row["video_id"] == content("a") and row["index"] == 1)
        assert row["start"] == 6
        assert row["duration"] == 30
        assert row["modified"] == "2001-09-09T01:46:40"
        assert row["paths"] == [os.fsdecode(b"/copy\xff.mp4"), "/films/a.mp4"]
        assert row["path"] == row["paths"][0]
        assert row["metadata"] == {"who": "I"}
        assert not {"direction", "spread", "thumbnail", "pooled", "row"} & row.keys()

    def test_parquet(self, tmp_path: Path) -> None:
        export(self.folder(tmp_path / "library"), tmp_path / "rows.parquet")
        table = parquet.read_table(tmp_path / "rows.parquet")
        assert table.num_rows == 6
        assert {"video_id", "index", "start", "end", "paths", "metadata"} <= set(table.column_names)

    def test_other_names_and_failures_leave_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = self.folder(tmp_path / "library")
        with pytest.raises(LibraryError, match=r"end in \.jsonl or \.parquet"):
            export(folder, tmp_path / "rows.csv")
        monkeypatch.setattr("prota.library.manage.json.loads", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(folder, tmp_path / "rows.jsonl")
        assert [path.name for path in tmp_path.iterdir()] == ["library"]


class TestRemove:
    def test_by_path_by_id_and_by_its_beginning(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with Writer.open(fill(tmp_path, "abcde")) as store:
            store.commit([video("b", 3, path="/copy.mp4")])
        monkeypatch.chdir("/")
        remove(tmp_path, ["films/a.mp4", content("b"), content("c")[:8]])
        assert seen(tmp_path) == {"/films/d.mp4": 3, "/films/e.mp4": 3}
        assert verify(tmp_path) == []

    def test_what_is_not_there_removes_nothing(self, tmp_path: Path) -> None:
        fill(tmp_path)
        for name in ("/films/z.mp4", content("a")[:4]):
            with pytest.raises(LibraryError, match=r"has no video .*nothing was removed"):
                remove(tmp_path, ["/films/a.mp4", name])
        assert len(seen(tmp_path)) == 2
