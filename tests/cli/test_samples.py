"""`prota samples` as a user runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prota.cli import app
from prota.samples import making
from prota.samples.scenes import CLIPS
from tests.cli.test_commands import prota
from tests.processes import REPOSITORY


def test_a_folder_of_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(making.make_samples, style=making.Look(48, 36, 2), clips=CLIPS[:2])
    monkeypatch.setattr(making, "make_samples", small)
    for said in ("2 clips made, 0 already there", "0 clips made, 2 already there"):
        result = CliRunner().invoke(app, ["samples", str(tmp_path / "clips")])
        assert result.exit_code == 0, result.output
        assert said in result.output
    fewer = partial(making.make_samples, style=making.Look(48, 36, 2), clips=CLIPS[:1])
    with monkeypatch.context() as patch:
        patch.setattr(making, "make_samples", fewer)
        result = CliRunner().invoke(app, ["samples", str(tmp_path / "clips")])
    assert "0 clips made, 1 already there, 1 of an earlier version removed" in result.output
    assert not (tmp_path / "clips" / "rocket.mp4").exists()
    assert "1 clips made, 1 already there;" in CliRunner().invoke(app, ["samples", str(tmp_path / "clips")]).output
    assert {path.name for path in (tmp_path / "clips").glob("[!.]*")} == {
        "astronaut.mp4", "rocket.mp4", "samples.csv", "sources.txt",
    }  # fmt: skip


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    # A module of that name, without photographs, stands before the package.
    (tmp_path / "skimage.py").touch()
    result = prota("samples", tmp_path / "clips", PYTHONPATH=f"{tmp_path}:{REPOSITORY}")
    assert result.returncode == 1
    assert result.stderr == (
        "prota: sample clips are made of photographs in scikit-image: "
        "pip install scikit-image scikit-learn matplotlib\n"
    )
    assert not (tmp_path / "clips").exists()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("file", 2, "is a file; give a folder"),
        ("file/clips", 1, "a part of this path is a file"),
        ("mine", 1, "is not a clip of"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, name: str, code: int, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cat.mp4").write_bytes(b"my cat")
    result = prota("samples", tmp_path / name)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_must_be_named() -> None:
    result = prota("samples")
    assert result.returncode == 2
    assert "DIR" in result.stderr
