"""A library knows whether it is whole, and there is a way back from any damage to its files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

from prota.library.library import Library
from prota.library.manage import compact, export, merge, repair, verify
from prota.library.records import DamagedError, LibraryError
from prota.library.search.view import View
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stamp_of
from prota.model.prota import ProTA
from tests.library.small_library import content, fill, name_newest, seen, segments, video
from tests.library.storage import works
from tests.library.storage.damage import answers, make, survive
from tests.library.storage.faults import POINTS, compiled, cut_power, die_at_changes
from tests.library.worlds import hits_of, toy_model, write_clips, write_picture
from tests.processes import python

MANIFESTS = "_versions/*.manifest"


def newest(folder: Path, pattern: str) -> Path:
    """Manifest names count down; other files are alone."""
    return min(folder.glob(pattern))


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place < 0 else place] ^= 4
    path.write_bytes(data)


def change(folder: Path, column: str, value: str, where: str) -> None:
    """Rows of segments that differ from their checksums."""
    lance.dataset(str(folder / "segments.lance")).update({column: value}, where=where)
    name_newest(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ProTA]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, make(folder)


@pytest.mark.process
@pytest.mark.parametrize("seed", range(POINTS or 300))
def test_no_wrong_answer_without_a_word_and_always_a_way_back(
    world: tuple[Path, ProTA], tmp_path: Path, seed: int
) -> None:
    folder, model = world
    result = survive(folder, tmp_path, model, seed)
    assert not result.problem, result


@pytest.mark.process
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_repair_that_dies_is_repeated(tmp_path: Path, power: bool) -> None:
    template = fill(tmp_path / "template", "abcd", count=20)
    compact(template, grace=0)
    (path,) = (template / "segments.lance" / "data").iterdir()
    flip(path, path.read_bytes().index(segments("b", 20).direction[7].tobytes()))
    empty(newest(template, f"videos.lance/{MANIFESTS}"))
    gone(template / "library.json")
    (tmp_path / "runs").mkdir()
    for folder in die_at_changes(works.repair, template, tmp_path / "runs", points=POINTS):
        if power:
            cut_power(folder)
        repair(folder)
        assert seen(folder) == {f"/films/{name}.mp4": 20 for name in "acd"}
        assert verify(folder) == []
        assert repair(folder).nothing


@pytest.mark.process
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_an_index_that_dies_keeps_whole_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: bool) -> None:
    write_clips(tmp_path / "videos", "red-left", "blue-top", "green-right")
    monkeypatch.setenv("PROTA_TEST_VIDEOS", str(tmp_path / "videos"))
    Writer.create(tmp_path / "template", stamp_of(toy_model(), "given in Python")).close()
    (tmp_path / "runs").mkdir()
    whole = {str(tmp_path / "videos" / f"{name}.mp4"): 1 for name in ("red-left", "blue-top", "green-right")}
    counts = []
    for folder in die_at_changes(works.index, tmp_path / "template", tmp_path / "runs", points=POINTS):
        if power:
            cut_power(folder)
        assert verify(folder) == []
        counts.append(len(seen(folder)))
        assert seen(folder).items() <= whole.items()
        works.index(folder)
        assert seen(folder) == whole
        assert verify(folder) == []
    assert counts == sorted(counts)
    assert {0, 3} <= set(counts)


@pytest.mark.process
def test_originals_are_opened_for_reading_alone(tmp_path: Path) -> None:
    write_clips(tmp_path / "videos", "red-left", "blue-top")
    write_picture(tmp_path / "videos" / "photo.jpg")
    log, where = tmp_path / "log", str(tmp_path / "videos")
    watch = {"LD_PRELOAD": str(compiled(tmp_path)), "PROTA_WATCHED": where, "PROTA_WATCHED_LOG": str(log)}
    environment = os.environ | watch | {"PROTA_TEST_VIDEOS": where}
    work = f"from tests.library.storage.works import *; index(Path({str(tmp_path / 'lib')!r}))"
    for code, written in ((work, False), (f"open({where + '/new'!r}, 'w')", True)):
        with python("-c", code, env=environment) as process:
            said = process.communicate()[1]
        assert process.returncode == 0, said
        assert log.exists() == written
    assert len(seen(tmp_path / "lib")) == 3


@pytest.mark.process
def test_corrupt_segments_are_left_out_with_a_count(world: tuple[Path, ProTA], tmp_path: Path) -> None:
    folder, model = world
    shutil.copytree(folder / "lib", tmp_path / "lib")
    whole, _ = answers(folder, model)
    owner = next(record for record in Snapshot.open(tmp_path / "lib").videos() if record.path.endswith("blue.mp4"))
    change(tmp_path / "lib", "start", "1.0", f"video_id = '{owner.video_id}' AND index = 0")
    view = View(Snapshot.open(tmp_path / "lib"), model)
    (results,) = view.search(view.encode(["a blue thing"]), 50)
    assert results.damaged == results.to_dict()["damaged"] == 1
    assert all((hit.path.name, hit.start) != ("blue.mp4", 1.0) for hit in results.hits)
    # Tokens that come from the disk for the hits alone, as in a large library.
    snapshot = Snapshot.open(tmp_path / "lib")
    shown = hits_of(View(snapshot, model, exact_segments=0), "a blue thing", k=50)
    row = next(hit.row for hit in shown if hit.path.name == "blue.mp4")
    tokens = snapshot.tokens([row]).direction.tobytes()
    for path in (tmp_path / "lib" / "segments.lance" / "data").iterdir():
        path.write_bytes(path.read_bytes().replace(tokens, tokens[:-1] + bytes([tokens[-1] ^ 4])))
    view = View(Snapshot.open(tmp_path / "lib"), model, exact_segments=0)
    assert row not in [hit.row for hit in hits_of(view, "a blue thing", k=50)]
    assert view.snapshot.damage > 1
    problems = verify(tmp_path / "lib")
    assert any("a wrong checksum of its place" in problem for problem in problems)
    assert any("a wrong checksum of its tokens" in problem for problem in problems)
    done = repair(tmp_path / "lib")
    assert [Path(path).name for path in done.again] == ["blue.mp4"]
    # Until it is indexed again it is marked, and the next run of its folder reads it.
    (record,) = (record for record in Snapshot.open(tmp_path / "lib").videos() if record.path == owner.path)
    assert (record.state, record.segments) == ("bad", 0)
    report = Library(tmp_path / "lib", model).index(folder / "videos", workers=1)
    assert (report.indexed, report.unchanged) == (1, 4)
    assert answers(tmp_path, model) == (whole, 0)
    assert repair(tmp_path / "lib").nothing


class TestReading:
    def test_a_thumbnail_that_changed_is_not_shown(self, tmp_path: Path) -> None:
        change(fill(tmp_path), "thumbnail", "X'ffd8'", "index = 1")
        snapshot = Snapshot.open(tmp_path)
        assert snapshot.thumbnails([0]) == [segments("a", 3).thumbnails[0]]
        # Changed rows come last.
        with pytest.raises(DamagedError, match="prota library repair"):
            snapshot.thumbnails([0, 5])
        assert "/films/a.mp4: a wrong checksum of its thumbnail in 1 of 3 segments" in verify(tmp_path)

    @pytest.mark.parametrize("column", ["index", "end", "codec", "duration"])
    def test_an_export_refuses_corrupt_rows(self, tmp_path: Path, column: str) -> None:
        value = {"codec": "'vp8'"}.get(column, "7")
        change(fill(tmp_path / "lib"), column, value, "index = 1")
        with pytest.raises(DamagedError):
            export(tmp_path / "lib", tmp_path / "rows.jsonl")
        assert not (tmp_path / "rows.jsonl").exists()

    def test_a_merge_refuses_corrupt_rows(self, tmp_path: Path) -> None:
        change(fill(tmp_path / "other", "cd"), "end", "7", f"video_id = '{content('d')}' AND index = 1")
        with pytest.raises(DamagedError, match="other"):
            merge(fill(tmp_path / "lib"), [tmp_path / "other"])
        assert seen(tmp_path / "lib") == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        assert verify(tmp_path / "lib") == []

    def test_compaction_and_replaced_fragments_keep_checksums(self, tmp_path: Path) -> None:
        fill(tmp_path, "abcd")
        change(tmp_path, "end", "7", "index = 1")
        before = verify(tmp_path)
        assert len(before) == 4
        compact(tmp_path, grace=0)
        assert verify(tmp_path) == before

    def test_a_corrupt_index_is_not_used(self, tmp_path: Path) -> None:
        with Writer.open(fill(tmp_path)) as writer:
            writer.build_index()
        flip(newest(tmp_path, "segments.lance/_indices/*/auxiliary.idx"), 0)
        with pytest.raises(DamagedError, match="index"):
            Snapshot.open(tmp_path).nearest(segments("a", 1).pooled[0], 1)
        assert any("index" in problem for problem in verify(tmp_path))
        assert repair(tmp_path).notes
        assert verify(tmp_path) == []
        assert Snapshot.open(tmp_path).nearest(segments("b", 3).pooled[1], 1).tolist() == [4]

    def test_writers_do_not_build_on_corrupt_records(self, tmp_path: Path) -> None:
        lance.dataset(str(fill(tmp_path) / "videos.lance")).update({"segments": "4"})
        name_newest(tmp_path)
        for opening in (lambda: Snapshot.open(tmp_path).videos(), lambda: Writer.open(tmp_path)):
            with pytest.raises(DamagedError, match="2 of 2 records"):
                opening()


def gone(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [flip, gone, empty])
@pytest.mark.parametrize(
    "name",
    ["library.json", "head.json", f"videos.lance/{MANIFESTS}", f"segments.lance/{MANIFESTS}", "videos.lance/data/*",
     "segments.lance/_deletions/*"],
)  # fmt: skip
def test_small_files_are_restored_from_their_copies(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    with Writer.open(fill(tmp_path, "abc")) as writer:
        writer.compact(grace=0)
        writer.commit([], [], remove=["/films/b.mp4"])
    version = Snapshot.open(tmp_path).version
    harm(newest(tmp_path, name))
    assert verify(tmp_path)
    with pytest.raises(LibraryError, match="prota library repair"):
        Snapshot.open(tmp_path)
    done = repair(tmp_path)
    assert (done.again, done.lost, done.missing) == ([], [], [])
    assert done.notes
    assert verify(tmp_path) == []
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/c.mp4": 3}
    assert Snapshot.open(tmp_path).version == version
    assert repair(tmp_path).nothing


@pytest.mark.parametrize("harm", [flip, gone, empty])
@pytest.mark.parametrize("name", ["library.json", "head.json", f"videos.lance/{MANIFESTS}", "videos.lance/data/*"])
def test_the_copies_are_restored_too(tmp_path: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(newest(fill(tmp_path) / "spare", name))
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
    assert bool(verify(tmp_path)) == ((name, harm) != ("head.json", gone))
    assert repair(tmp_path).notes
    assert verify(tmp_path) == []
    assert repair(tmp_path).nothing


class TestWithoutCopies:
    """Libraries of which more is lost: they lose what is lost, say so, and are whole."""

    @pytest.mark.parametrize("name", ["videos", "segments"])
    def test_the_newest_whole_version_counts(self, tmp_path: Path, name: str) -> None:
        shutil.rmtree(fill(tmp_path, "abc") / "spare")
        flip(newest(tmp_path, f"{name}.lance/{MANIFESTS}"), 40)
        done = repair(tmp_path)
        assert any(name in line for line in done.missing)
        # The last file's segments, or its record. It does not exist.
        assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}
        assert done.lost == (["/films/c.mp4"] if name == "segments" else [])
        assert verify(tmp_path) == []
        with Writer.open(tmp_path) as writer:
            writer.commit([video("c", 2)], [segments("c", 2)])
        assert verify(tmp_path) == []

    def test_without_a_head_the_newest_versions_count(self, tmp_path: Path) -> None:
        shutil.rmtree(fill(tmp_path, "abc") / "spare")
        version = Snapshot.open(tmp_path).version
        (tmp_path / "head.json").unlink()
        assert repair(tmp_path).missing
        assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/c.mp4": 3}
        assert Snapshot.open(tmp_path).version > version
        assert verify(tmp_path) == []

    def test_without_any_version_it_begins_anew(self, tmp_path: Path) -> None:
        shutil.rmtree(fill(tmp_path) / "spare")
        shutil.rmtree(tmp_path / "videos.lance")
        assert repair(tmp_path).missing
        assert seen(tmp_path) == {}
        assert Snapshot.open(tmp_path).count() == 0
        assert verify(tmp_path) == []

    def test_without_its_description_nothing_is_done(self, tmp_path: Path) -> None:
        shutil.rmtree(fill(tmp_path) / "spare")
        (tmp_path / "library.json").write_text("{")
        with pytest.raises(LibraryError, match="cannot repair"):
            repair(tmp_path)
        with pytest.raises(LibraryError, match="no library"):
            repair(tmp_path / "none")

    def test_old_versions_that_cannot_be_read_are_deleted(self, tmp_path: Path) -> None:
        fill(tmp_path, "abc")
        empty(max((tmp_path / "segments.lance").glob(MANIFESTS)))
        assert any("old version" in problem for problem in verify(tmp_path))
        with pytest.raises(DamagedError):
            compact(tmp_path)
        assert repair(tmp_path).notes
        compact(tmp_path, grace=0)
        assert verify(tmp_path) == []


def test_of_a_corrupt_fragment_the_other_contents_stay(tmp_path: Path) -> None:
    with Writer.open(fill(tmp_path, "abcdef", count=40)) as writer:
        writer.compact(grace=0)
        fresh = tmp_path / "c.mp4"
        fresh.touch()
        writer.commit([video("c", 40, path=str(fresh))], remove=["/films/c.mp4"])
    (path,) = (tmp_path / "segments.lance" / "data").iterdir()
    # In the middle of the tokens, which are most of it.
    data = path.read_bytes()
    place = data.index(segments("c", 40).direction[7].tobytes())
    flip(path, place)
    assert verify(tmp_path) == [f"{fresh}: {fault} in 1 of 40 segments" for fault in faults_of(tmp_path, fresh)]
    done = repair(tmp_path)
    assert (done.again, done.lost, done.missing) == ([str(fresh)], [], [])
    assert seen(tmp_path) == {f"/films/{name}.mp4": 40 for name in "abdef"} | {str(fresh): 0}
    assert verify(tmp_path) == []
    tokens = Snapshot.open(tmp_path).tokens()
    assert len(tokens) == 200
    # Without the file, the content is lost, and is told once.
    fresh.unlink()
    assert repair(tmp_path).lost == [str(fresh)]
    assert repair(tmp_path).nothing
    assert seen(tmp_path) == {f"/films/{name}.mp4": 40 for name in "abdef"}


def faults_of(folder: Path, path: Path) -> list[str]:
    return [problem.removeprefix(f"{path}: ").partition(" in 1 of")[0] for problem in verify(folder)]


def test_json_files_tell_when_they_were_changed(tmp_path: Path) -> None:
    """A digit is still a digit: without a checksum, another version would be read."""
    path = fill(tmp_path, "abc") / "head.json"
    head = json.loads(path.read_text())
    path.write_text(json.dumps(head | {"videos": head["videos"] - 1}))
    with pytest.raises(DamagedError):
        Snapshot.open(tmp_path)
