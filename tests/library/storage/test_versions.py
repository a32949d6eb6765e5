"""Opening libraries: those that exist, those that do not, those of other versions."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prota.library.manage import info, verify
from prota.library.records import LibraryError
from prota.library.storage.reader import Snapshot
from prota.library.storage.versions import SCHEMA, sealed
from prota.library.storage.writer import Writer, write_segments
from tests.library.small_library import STAMP, content, fill, seen, segments, video
from tests.library.storage import works
from tests.library.storage.faults import POINTS, cut_power, die_at_changes
from tests.processes import LIMIT


def open_and_close(folder: Path) -> None:
    Writer.open(folder).close()


def test_a_library_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(LibraryError, match="already holds a library"):
        Writer.create(tmp_path, STAMP)
    assert seen(tmp_path) == {"/films/a.mp4": 3, "/films/b.mp4": 3}


def test_who_waits_gets_the_library_that_another_made_meanwhile(tmp_path: Path) -> None:
    making = Writer.create(tmp_path, STAMP)
    with pytest.raises(LibraryError, match="is locked by"):
        Writer.create(tmp_path, STAMP)
    ender = threading.Timer(0.3, making.close)
    ender.start()
    with Writer.create(tmp_path, STAMP, wait=LIMIT) as store:
        store.commit([video("a", 3)], [segments("a", 3)])
    ender.join()
    assert seen(tmp_path) == {"/films/a.mp4": 3}


@pytest.mark.parametrize("opening", [Snapshot.open, open_and_close], ids=["read", "write"])
def test_what_is_no_library_is_told_with_its_remedy(tmp_path: Path, opening: Callable[[Path], object]) -> None:
    with pytest.raises(LibraryError, match=r"no library at .*: create one with `prota index"):
        opening(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    fill(tmp_path)
    whole = {name: (tmp_path / name).read_text() for name in ("library.json", "head.json")}
    for name, text, message in (
        ("library.json", "{", "cannot read .*library.json"),
        ("library.json", "[]", "corrupt file: .*library.json"),
        ("library.json", '{"format": "other"}', "does not describe a library"),
        ("library.json", '{"format": "prota-library", "schema": 1, "model": {}}', "corrupt file: .*library.json"),
        ("library.json", None, "library.json is missing"),
        ("head.json", '{"version": 1}', "corrupt file: .*head.json"),
        ("head.json", '{"version": "x", "videos": 1, "segments": 1}', "corrupt file: .*head.json"),
        ("head.json", '{"version": 9, "videos": 99, "segments": 1}', "head.json refers to missing data"),
        ("head.json", '{"version": 9, "videos": 1, "segments": 1, "check": 1}', "corrupt file: .*head.json"),
        ("head.json", None, "head.json is missing"),
    ):
        (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
        with pytest.raises(LibraryError, match=message):
            opening(tmp_path)
        (tmp_path / name).write_text(whole[name])
    opening(tmp_path)


def test_a_library_without_its_description_is_not_overwritten(tmp_path: Path) -> None:
    (fill(tmp_path) / "library.json").unlink()
    with pytest.raises(LibraryError, match=r"library\.json is missing"):
        Writer.create(tmp_path, STAMP)


def test_the_wrong_model_is_refused_with_the_sentence_that_mends_it(tmp_path: Path) -> None:
    store = Snapshot.open(fill(tmp_path))
    store.check_model(replace(STAMP, name="the same, elsewhere"))
    for change in ({"fingerprint": "cd" * 32}, {"width": 8}, {"frames": 8}, {"spread": False}):
        with pytest.raises(LibraryError, match=r"made with model tiny .*you gave big .*--model tiny"):
            store.check_model(replace(STAMP, name="big", **change))


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = fill(tmp_path) / "library.json"
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | {"schema": 99})))
    with pytest.raises(LibraryError, match=r"newer prota .*schema 99.*update prota"):
        Snapshot.open(tmp_path)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A library of schema 1, as the commit before schema 2 wrote it: 3 videos, a copy, and an index."""
    with tarfile.open(Path(__file__).with_name("schema-1.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "library"


OLD = {"/films/a.mp4": 3, "/films/b.mp4": 3, "/films/c.mp4": 2, "/films/copy.mp4": 3}


def test_an_older_library_is_read_as_it_is(old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert seen(old) == OLD
    assert verify(old) == []
    snapshot = Snapshot.open(old)
    assert snapshot.segments(where="path LIKE '%/c.mp4' AND index = 1")["row"].to_pylist() == [7]
    np.testing.assert_array_equal(snapshot.tokens([7]).direction[0], segments("c", 2).direction[1])
    assert snapshot.nearest(segments("b", 3).pooled[1], 1).tolist() == [4]
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_the_first_writer_upgrades_an_older_library(old: Path) -> None:
    with Writer.open(old) as writer:
        assert seen(old) == OLD
        fragments = write_segments(old, STAMP, [(video("d", 2), segments("d", 2))])
        writer.adopt([video("d", 2)], fragments, {content("d")}, remove=["/films/a.mp4"])
        writer.commit([video("e", 1)], [segments("e", 1)], remove=["/films/copy.mp4"])
        assert "path" not in writer.snapshot.datasets[1].schema.names
        row = writer.snapshot.nearest(segments("d", 2).pooled[1], 1)
        np.testing.assert_array_equal(writer.snapshot.tokens(row).direction[0], segments("d", 2).direction[1])
        writer.compact(grace=0)
    assert info(old)["schema"] == SCHEMA
    assert seen(old) == {"/films/b.mp4": 3, "/films/c.mp4": 2, "/films/d.mp4": 2, "/films/e.mp4": 1}
    assert verify(old) == []


@pytest.mark.process
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_an_upgrade_is_all_or_nothing(old: Path, tmp_path: Path, power: bool) -> None:
    (tmp_path / "runs").mkdir()
    for folder in die_at_changes(works.upgrade, old, tmp_path / "runs", points=POINTS):
        if power:
            cut_power(folder)
        assert seen(folder) == OLD
        assert verify(folder) == []
        works.upgrade(folder)
        assert info(folder)["schema"] == SCHEMA
        assert seen(folder) == OLD
        assert verify(folder) == []
