"""`prota export` as a user runs it: from a run, from a model folder, and untrained from a TOML file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from prota.config.experiment import Experiment
from prota.model.prota import ProTA
from prota.model.relevance import Fit, Relevance
from prota.training.checkpoint import RunFolder
from prota.types import PreparedTokens
from tests.cli.test_commands import prota, succeeds
from tests.library.worlds import toy_model, write_clips

pytestmark = pytest.mark.train


def stored_relevance() -> Relevance:
    tokens = PreparedTokens(torch.ones(2, 1, 4), None, torch.ones(2, 1), torch.ones(2, 1, dtype=torch.bool))
    return Relevance(Fit((0.0, 1.0, 2.0, 3.0, -1.0), 0.5, 8), tokens)


def test_a_run_gives_its_best_with_its_relevance(world_config: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    succeeds("train", world_config, "-o", run, "-s", "train.epochs=1", "--device", "cpu")
    best = RunFolder(run).checkpoint("best")
    assert best is not None
    stored_relevance().save(best)
    said = succeeds("export", run, out, "--weights", "int8")
    assert "int8 weights, " in said
    assert re.search(r"rounding error: at most [01]\.\d\d%", said)
    assert "calibrated relevance: kept" in said
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "relevance.safetensors"]
    taken = Relevance.load(out)
    assert taken is not None
    assert taken.fit == stored_relevance().fit
    result = tmp_path / "result.json"
    succeeds("evaluate", out, "--data", world_config, "--device", "cpu", "--json", result)
    assert json.loads(result.read_text(encoding="utf-8"))["checkpoint"]["rule"] == "as given"


def test_a_model_folder_is_stored_anew(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "model")
    toy_model(1).save_pretrained(tmp_path / "out")
    stored_relevance().save(tmp_path / "out")
    told = json.loads(succeeds("export", tmp_path / "model", tmp_path / "out", "--weights", "float16", "--json"))
    assert (told["weights"], told["calibrated"], round(told["share_of_float32"], 1)) == ("float16", False, 0.5)
    assert Relevance.load(tmp_path / "out") is None, "that of another model stays behind"
    before, after = (tmp_path / name / "model.safetensors" for name in ("model", "out"))
    assert after.stat().st_size < 0.6 * before.stat().st_size


@pytest.fixture
def clip_experiment(world_config: Path, clip_folder: Path, tmp_path: Path) -> Path:
    """The small world, looked at by a small CLIP."""
    values = Experiment.load(world_config).model_dump(include={"data", "train"})
    encoder = {"clip": str(clip_folder), "width": 32, "image_size": 32, "text_length": 10, "temporal_layers": 2}
    experiment = Experiment.build("prota", "clip-vit-b32", values=values | {"encoder": encoder | {"frames": 4}})
    path = tmp_path / "clip.toml"
    path.write_text(experiment.to_toml(), encoding="utf-8")
    return path


def test_it_is_not_strewn_among_other_files(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "videos", "red-left")
    refused = prota("export", tmp_path / "model", tmp_path / "videos")
    assert refused.returncode == 2
    assert "contains other files" in refused.stderr
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["red-left.mp4"]
    for _ in range(2):
        said = succeeds("export", tmp_path / "model", tmp_path / "copy")
    assert "float32 weights, " in said
    again = succeeds("export", tmp_path / "copy", tmp_path / "small", "--weights", "int8")
    assert "rounding error" in again
    assert "rounding" not in succeeds("export", tmp_path / "small", tmp_path / "smaller", "--weights", "int8")


def test_a_clip_is_searched_and_evaluated_without_training(clip_experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "zero-shot"
    arguments = ("export", clip_experiment, out, "--preset", "global-pooling")
    told = prota(*arguments)
    assert told.returncode == 0, told.stderr
    assert "untrained: its temporal transformer is random; -s encoder.temporal_layers=0" in told.stderr
    told = prota(*arguments, "-s", "encoder.temporal_layers=0")
    assert told.returncode == 0, told.stderr
    assert "untrained" not in told.stderr
    assert ProTA.from_pretrained(out).config.score.aggregation == "pooling"
    succeeds("evaluate", out, "--data", clip_experiment, "--device", "cpu")
    write_clips(tmp_path / "videos", "red-left", "blue-top")
    library = tmp_path / "library"
    succeeds("index", tmp_path / "videos", "-l", library, "--model", out, "--device", "cpu", "--workers", 1)
    assert succeeds("search", "the", "red", "dog", "-l", library, "--device", "cpu").count(".mp4") == 2


def test_what_has_still_to_learn_is_said(clip_experiment: Path, world_config: Path, tmp_path: Path) -> None:
    said = prota("export", clip_experiment, tmp_path / "out", "-s", "encoder.temporal_layers=0").stderr
    assert "untrained: its head is random; --preset global-pooling, mean-max or lda" in said
    assert said.count("untrained") == 1
    assert "its encoders are not aligned" in prota("export", world_config, tmp_path / "out").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["export", "nowhere", "OUT"], 1, "nowhere: no such folder, not a shipped model"),
        (["export", "MODEL", "MODEL"], 2, "is the model itself"),
        (["export", "MODEL", "OUT", "--weights", "int4"], 2, "'int4' is not one of"),
        (["export", "MODEL", "OUT", "--preset", "lda"], 2, "need a TOML file"),
        (["export", "TEXT", "OUT"], 2, "invalid TOML"),
        (["export", "MODEL", "TEXT"], 1, "is a file: give a folder to save the model in"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "model")
    (tmp_path / "text").write_text("no settings")
    names = {"MODEL": tmp_path / "model", "OUT": tmp_path / "out", "TEXT": tmp_path / "text"}
    result = prota(*(names.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_mean_of_two_models_is_written_without_the_relevance_of_one(world_config: Path, tmp_path: Path) -> None:
    run, other, out = tmp_path / "run", tmp_path / "other", tmp_path / "out"
    succeeds("train", world_config, "-o", run, "-s", "train.epochs=1", "--device", "cpu")
    best = RunFolder(run).checkpoint("best")
    assert best is not None
    trained = ProTA.from_pretrained(best)
    first = float(trained.logit_scale.detach())
    torch.nn.init.constant_(trained.logit_scale, 1.5)
    trained.save_pretrained(other)
    stored_relevance().save(other)
    said = succeeds("export", other, out, "--mean-with", run, "--mean-with", other)
    assert "mean of 3 models" in said
    assert "calibrated relevance: none" in said
    assert float(ProTA.from_pretrained(out).logit_scale.detach()) == pytest.approx((3.0 + first) / 3)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for inside in (run, best, run / "new" / "model"):
        for source in (run, other, world_config):
            told = prota("export", source, inside)
            assert told.returncode == 2
            assert f"is inside the run {run}" in told.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    told = prota("export", run, other, "--mean-with", other)
    assert told.returncode == 2
    assert "is the model itself" in " ".join(told.stderr.replace("│", " ").split())
    told = prota("export", world_config, out, "--mean-with", run)
    assert told.returncode == 2
    assert "not a TOML file" in told.stderr
    toy_model(0, "encoder.picture=whole").save_pretrained(tmp_path / "strange")
    told = prota("export", run, tmp_path / "none", "--mean-with", tmp_path / "strange")
    assert told.returncode == 1
    assert "cannot average" in told.stderr
    assert not (tmp_path / "none").exists()
    assert "Traceback" not in told.stderr
