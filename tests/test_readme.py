"""The README is true: its code runs, its tree and its names are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prota.config.presets import BACKBONES, PRESETS
from tests.library.worlds import write_clips
from tests.processes import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_code_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    output = capsys.readouterr().out
    assert "torch.Size([2, 2])" in output
    assert "100.0 1.0" in output
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
    write_clips(tmp_path / "videos", "red-left", "blue-top")
    (tmp_path / "my-model").rename(tmp_path / "model")
    names["find"](tmp_path, "red on the left")  # type: ignore[operator]
    assert capsys.readouterr().out.count(".mp4 0.0–") == 2


def test_the_names_are_the_real_ones() -> None:
    for name in PRESETS:
        assert f"`{name}`" in README, name
    for name in BACKBONES:
        assert re.search(rf'[`"]{re.escape(name)}[`"]', README), name


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_and_links_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)|`make (\w+)`", text, flags=re.MULTILINE):
        assert re.search(rf"^{''.join(target)}:", makefile, flags=re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (REPOSITORY / link).exists(), link
