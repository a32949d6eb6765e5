"""README and guide are true: their code runs, their names and targets are the real ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from prota.config.presets import BACKBONES, PRESETS
from prota.samples.copying import CLIPS
from tests.processes import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
GUIDE = REPOSITORY / "docs" / "guide"


def run_blocks(page: str) -> None:
    """The Python of a page, from top to bottom."""
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    assert names


def test_the_code_on_training_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks("train.md")
    assert "torch.Size([2, 2])" in capsys.readouterr().out
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_the_code_on_evaluation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks("evaluate.md")
    assert capsys.readouterr().out == "100.0 1.0\n"


def test_the_code_on_searching_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips").mkdir()
    for name in ("sintel.mp4", "cat.mp4"):
        shutil.copy(CLIPS / name, tmp_path / "clips")
    run_blocks("search.md")
    assert "sintel.mp4 1.9" in capsys.readouterr().out


def test_the_code_on_other_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips").mkdir()
    for name in ("cat.mp4", "coffee.mp4"):
        shutil.copy(CLIPS / name, tmp_path / "clips")
    run_blocks("choosing-a-model.md")


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_names_are_the_real_ones() -> None:
    page = (GUIDE / "train.md").read_text(encoding="utf-8")
    for name in (*PRESETS, *BACKBONES):
        assert re.search(rf'[`"]{re.escape(name)}[`"]', page), name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/reference/index.md"])
def test_make_targets_exist(page: str) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)", (REPOSITORY / page).read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
