"""`prota calibrate` as a user runs it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from prota import ProTA
from prota.evaluation import calibration
from prota.model.relevance import Relevance
from tests.cli.test_commands import prota, succeeds

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def run(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate") / "run"
    succeeds("train", world_config, "-o", folder, "--device", "cpu")
    return folder


def test_what_comes_with_prota_is_not_calibrated_anew(world_config: Path) -> None:
    result = prota("calibrate", "prota-small", "--data", world_config, "--device", "cpu")
    assert result.returncode == 2
    assert "prota export prota-small FOLDER" in result.stderr


def test_calibrating_a_run_stores_it_with_the_model(run: Path) -> None:
    said = succeeds("calibrate", run, "--device", "cpu")
    assert "calibration error" in said
    folder = Path(said.rsplit("saved in ", 1)[1].strip())
    assert (folder / "relevance.safetensors").is_file()
    told = json.loads(succeeds("calibrate", run, "--device", "cpu", "--json"))
    assert (told["model"], told["captions"]["trials"], told["words"]) == (str(folder), 4, None)


def test_a_model_that_saw_the_validation_videos_is_calibrated_with_another(run: Path, tmp_path: Path) -> None:
    """What is learned is the other's; tokens, and how unsure it is of words on average, are the model's own."""
    itself = Path(succeeds("calibrate", run, "--device", "cpu").rsplit("saved in ", 1)[1].strip())
    copy = tmp_path / "copy"
    succeeds("export", run, copy)
    model = ProTA.from_pretrained(copy)
    with torch.no_grad():
        for side in (model.head.text, model.head.video):
            side.gaussian.log_var[-1].bias += 0.25
    model.save_pretrained(copy)
    (copy / "relevance.safetensors").unlink()
    said = succeeds("calibrate", copy, "--fit-with", run, "--device", "cpu")
    assert f"captions, 4 held-out trials of {run}" in said
    ours, theirs = Relevance.load(copy), Relevance.load(itself)
    assert ours is not None
    assert theirs is not None
    assert ours.fit.usual == pytest.approx([end + 0.25 for end in theirs.fit.usual], abs=1e-4)
    assert ours.fit.weights[1:] == theirs.fit.weights[1:]
    assert ours.fit.weights[0] == pytest.approx(theirs.fit.weights[0] - 0.25 * theirs.fit.weights[3], rel=1e-3)
    assert ours.background.spread is not None
    assert theirs.background.spread is not None
    assert torch.allclose(ours.background.spread, theirs.background.spread * math.exp(0.25), rtol=5e-3)


def test_another_kind_of_model_teaches_nothing(run: Path, world_config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    succeeds("export", world_config, other, "--preset", "mean-max", "-s", "loss.eta=0", "-s", "loss.beta=0")
    refused = prota("calibrate", other, "--fit-with", run, "--device", "cpu")
    assert refused.returncode == 2
    assert "different score settings" in refused.stderr


def test_single_words_are_learned_from_where_there_are_enough(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_CAPTIONS", 1), ("_RARE", 1.0), ("_CLEAR", 0.5), ("_WORDS", 1)):
        monkeypatch.setattr(calibration, name, value)
    said = succeeds("calibrate", run, "--device", "cpu")
    assert "captions, " in said
    assert "single words, " in said
