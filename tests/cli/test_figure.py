"""`prota figure`: every figure from the command line, and mistakes in one line."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from prota.cli.figure import app
from tests.cli.test_commands import prota
from tests.figures.logs import write_run
from tests.figures.test_ablation import write_result
from tests.training.runs import train

pytestmark = pytest.mark.train


def figure(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def run(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figure") / "run"
    train(world_config, folder, "train.epochs=1")
    return folder


@pytest.mark.parametrize("name", ["uncertainty", "margin"])
def test_curves_of_runs(name: str, tmp_path: Path) -> None:
    runs = (write_run(tmp_path / "a"), write_run(tmp_path / "b", "loss.beta=0", "loss.eta=0"))
    out, numbers = tmp_path / "figure.png", tmp_path / "numbers.json"
    said = figure(name, *runs, "-o", out, "--json", numbers, "--label", "one", "--label", "two")
    assert said == f"figure: {out}\nnumbers: {numbers}\n"
    with Image.open(out) as picture:
        assert picture.size == (1065, 405)
    record = json.loads(numbers.read_text(encoding="utf-8"))
    assert record["figure"] == name
    assert '"label": "two"' in numbers.read_text(encoding="utf-8")


def test_an_ablation(tmp_path: Path) -> None:
    write_result(tmp_path / "abl", "prota", 0, 10.0)
    figure("ablation", tmp_path / "abl", "-o", tmp_path / "a.svg", "--metric", "r5")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_figures_of_a_checkpoint(run: Path, tmp_path: Path) -> None:
    on = ("--device", "cpu", "--json", tmp_path / "numbers.json")
    figure("tokens", run, "-o", tmp_path / "tokens.png", *on, "--video", "red-left", "--negative", "black-left")
    record = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert (record["positive"]["video"], record["negative"]["video"]) == ("red-left", "black-left")
    figure("failures", run, "-o", tmp_path / "failures.svg", *on, "--count", 2, "--order", "nearest")
    record = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert 1 <= len(record["shown"]) <= 2
    chosen = ("--caption", "red on the left", "--label", "A", "--label", "B")
    figure("distributions", run, run, "-o", tmp_path / "distributions.png", *on, *chosen)
    record = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    assert [panel["label"] for panel in record["panels"]] == ["A", "B"]
    assert record["panels"][0]["text"]["places"] == record["panels"][1]["text"]["places"]
    figure("distributions", run, run, "-o", tmp_path / "default.png", *on)
    for name in ("tokens.png", "distributions.png", "default.png"):
        with Image.open(tmp_path / name) as picture:
            assert picture.width == 1065


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["uncertainty", "GOOD", "GOOD", "-o", "a.jpg"], 2, "a.jpg: the file must end in .png or .svg"),
        (["uncertainty", "GOOD", "-o", "a.png"], 1, "at least two runs"),
        (["margin", "GOOD", "gone", "lost", "-o", "a.png"], 1, "gone, lost: no such file or folder"),
        (["tokens", "gone", "-o", "a.png", "--device", "cpu"], 1, "gone"),
        (["tokens", "gone", "-o", "a.png", "-s", "data.cache=x"], 2, "--data CONFIG"),
        (["distributions", "a", "b", "-o", "a.png", "--label", "x"], 2, "give --label twice"),
        (["failures", "gone", "-o", "a.png", "--order", "best"], 2, "'best' is not one of"),
        (["ablation", "gone", "-o", "a.png"], 1, "gone: no such file or folder"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    result = prota("figure", *(good if argument == "GOOD" else argument for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_without_matplotlib_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n", encoding="utf-8")
    from tests.processes import REPOSITORY

    result = prota("figure", "ablation", ".", "-o", "a.png", PYTHONPATH=f"{tmp_path}:{REPOSITORY}", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr == "prota: figures need matplotlib: pip install matplotlib\n"
