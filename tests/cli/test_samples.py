"""`prota samples` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prota.samples.copying import CLIPS
from tests.cli.test_commands import prota


def test_a_folder_of_clips(tmp_path: Path) -> None:
    count = len(list(CLIPS.glob("*.mp4")))
    for copied, unchanged in ((count, 0), (0, count)):
        result = prota("samples", tmp_path / "clips")
        assert result.returncode == 0, result.stderr
        assert f"{copied} clips copied, {unchanged} unchanged" in result.stdout
        assert str(tmp_path / "clips" / "samples.csv") in result.stdout
    again = json.loads(prota("samples", tmp_path / "clips", "--json").stdout)
    assert (again["copied"], len(again["unchanged"]), again["removed"]) == ([], count, [])
    assert {path.name for path in (tmp_path / "clips").glob("[!.]*")} == {path.name for path in CLIPS.iterdir()}


@pytest.mark.parametrize(("name", "code"), [("file", 2), ("file/clips", 1), ("mine", 1)])
def test_mistakes_are_one_line(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cat.mp4").write_bytes(b"my cat")
    result = prota("samples", tmp_path / name)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "mine" / "cat.mp4").read_bytes() == b"my cat"


def test_a_folder_must_be_named() -> None:
    result = prota("samples")
    assert result.returncode == 2
    assert "FOLDER" in result.stderr
