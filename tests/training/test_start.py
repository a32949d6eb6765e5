"""Training that starts from a saved model: its weights, settings of the new run's own, and a record of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from prota import ProTA
from prota.cli import app
from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.evaluation.passport import Passport
from prota.evaluation.report import Evaluation, SystemUnderTest
from prota.model.folder import ModelFolderError
from prota.model.weights import fingerprint
from prota.runs import config_of, find_checkpoint
from prota.training.checkpoint import RunFolder
from prota.training.trainer import TrainingLoop
from tests.tiny_models import clip_config, pair_config
from tests.training.runs import ALONE, curve, train

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def first(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("first") / "run"
    train(world_config, run)
    return run


def bare_config(world_config: Path, folder: Path) -> Path:
    """Data and training alone: what the model is follows from the model."""
    full = Experiment.load(world_config)
    values = {"data": full.data.model_dump(), "train": {"epochs": 1, "batch_size": 6, "lr_text": 1e-3}}
    lines = []
    for section, fields in values.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in fields.items() if value not in ((), None)]
    (folder / "own.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "own.toml"


def test_a_run_starts_with_the_weights_of_another(first: Path, world_config: Path, tmp_path: Path) -> None:
    experiment = Experiment.load(world_config, [f"train.start={first}", "train.epochs=1"])
    trainer = TrainingLoop(experiment, RunFolder(tmp_path / "run"), ALONE)
    best = ProTA.from_pretrained(find_checkpoint(first)[0])
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, best.state_dict()[name]), name


def test_settings_come_from_the_model_where_the_config_has_none(
    first: Path, world_config: Path, tmp_path: Path
) -> None:
    config = bare_config(world_config, tmp_path)
    result = CliRunner().invoke(app, ["train", str(config), "-o", str(tmp_path / "run"), "--from", str(first)])
    assert result.exit_code == 0, result.output
    experiment = RunFolder(tmp_path / "run").experiment()
    assert experiment.encoder == Experiment.load(world_config).encoder
    assert experiment.train.start == str(first)
    # What a checkpoint and a result say of it.
    weights = fingerprint(find_checkpoint(first)[0])
    system = SystemUnderTest.load(tmp_path / "run", None, torch.device("cpu"))
    evaluation = Evaluation(system, "test")
    passport = evaluation.result(evaluation.measure())
    passport.write(tmp_path / "result.json")
    assert passport.checkpoint is not None
    assert passport.checkpoint.started_from == {"model": str(first), "fingerprint": weights}
    assert Passport.read(tmp_path / "result.json") == passport
    # The same command again has nothing left to do; with another model behind the name the run is another.
    again = CliRunner().invoke(app, ["train", str(config), "-o", str(tmp_path / "run"), "--from", str(first)])
    assert again.exit_code == 0, again.output


def test_a_resumed_run_is_the_uninterrupted_one(first: Path, world_config: Path, tmp_path: Path) -> None:
    settings = (f"train.start={first}", "train.epochs=2")
    train(world_config, tmp_path / "whole", *settings)
    train(world_config, tmp_path / "halved", *settings, stop_after=3)
    train(world_config, tmp_path / "halved", *settings)
    assert curve(tmp_path / "halved") == curve(tmp_path / "whole")


def test_a_run_does_not_go_on_from_another_start(first: Path, world_config: Path, tmp_path: Path) -> None:
    ProTA.from_pretrained(find_checkpoint(first)[0]).save_pretrained(tmp_path / "model")
    settings = (f"train.start={tmp_path / 'model'}", "train.epochs=1")
    train(world_config, tmp_path / "run", *settings, stop_after=2)
    ProTA.from_config(Experiment.load(world_config).model).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="cannot resume"):
        train(world_config, tmp_path / "run", *settings)


def test_towers_alone_take_a_new_head(first: Path, world_config: Path, tmp_path: Path) -> None:
    """Another head and another temporal transformer over the same towers."""
    changes = ["encoder.temporal_layers=1", "score.similarity=cosine", "loss.eta=0", "loss.beta=0"]
    settings = [f"train.start={first}", "train.start_with=towers", *changes]
    trainer = TrainingLoop(Experiment.load(world_config, settings), RunFolder(tmp_path / "run"), ALONE)
    best, model = ProTA.from_pretrained(find_checkpoint(first)[0]), trainer.model
    assert torch.equal(model.logit_scale, best.logit_scale)
    for part in ("text_encoder.tower", "video_encoder.tower"):
        theirs = best.get_submodule(part).state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in model.get_submodule(part).state_dict().items())
    assert len(model.video_encoder.temporal.layers) == 1  # type: ignore[union-attr]
    rates = {group["name"]: group["rate"] for group in trainer.optimiser.param_groups}
    assert rates["frame projection"] == rates["vision tower"] == 1e-3


def test_projections_that_are_taken_along_learn_as_the_towers_do(
    dinov2_folder: Path, bert_folder: Path, world_config: Path, tmp_path: Path
) -> None:
    """And the features of a pair of towers keep the mean that they were standardised with."""
    config = pair_config(dinov2_folder, bert_folder, "encoder.frames=4")
    model = ProTA.from_config(config)
    model.video_encoder.tower.feature_mean.fill_(0.5)
    model.save_pretrained(tmp_path / "model")
    settings = [f"train.start={tmp_path / 'model'}", "train.lr_vision=1e-5", "train.lr_text=2e-5"]
    own = bare_config(world_config, tmp_path)
    trainer = TrainingLoop(Experiment.load(own, settings, base=config_of), RunFolder(tmp_path / "run"), ALONE)
    rates = {group["name"]: group["rate"] for group in trainer.optimiser.param_groups}
    assert (rates["frame projection"], rates["text projection"], rates["logit scale"]) == (1e-5, 2e-5, 2e-5)
    trainer._begin()
    assert float(trainer.model.video_encoder.tower.feature_mean.min()) == 0.5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("encoder.width=64", "encoder.width is 32 there, 64 here"),
        ("encoder.temporal_layers=1", "encoder.temporal_layers is 2 there, 1 here"),
        ("distribution.mean=plain", "distribution.mean is residual there, plain here"),
    ],
)
def test_another_architecture_is_refused_with_what_differs(
    first: Path, world_config: Path, tmp_path: Path, change: str, named: str
) -> None:
    experiment = Experiment.load(world_config, [f"train.start={first}", change])
    with pytest.raises(ModelFolderError) as caught:
        TrainingLoop(experiment, RunFolder(tmp_path / "run"), ALONE)
    assert named in str(caught.value)


def test_a_start_that_is_not_there(world_config: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", str(world_config), "-o", str(tmp_path / "run"), "--from", "no-such"])
    assert isinstance(result.exception, ModelFolderError)
    assert "\n" not in str(result.exception)
    with pytest.raises(ConfigError, match="start_with"):
        Experiment.load(world_config, ["train.start_with=towers"])


def test_a_start_with_other_sizes_of_pictures(dinov2_folder: Path, bert_folder: Path, tmp_path: Path) -> None:
    """The pictures' size is not a matter of weights."""
    config = pair_config(dinov2_folder, bert_folder)
    ProTA.from_config(config).save_pretrained(tmp_path / "model")
    larger = pair_config(dinov2_folder, bert_folder, "encoder.image_size=42")
    model = ProTA.from_start(tmp_path / "model", larger)
    assert model.video_encoder.tower.image.size == 42
    assert model.encode_video(torch.zeros(1, 2, 3, 42, 42, dtype=torch.uint8)).mask.shape == (1, 2)


def test_a_new_temporal_transformer_starts_from_the_towers_that_are_taken(clip_folder: Path, tmp_path: Path) -> None:
    """CLIP's text layers, as the model that training starts from has them."""
    config = clip_config(clip_folder)
    saved = ProTA.from_config(config)
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(0.01)
    saved.save_pretrained(tmp_path)
    started = ProTA.from_start(tmp_path, config, towers_only=True)
    temporal, text = started.video_encoder.temporal, saved.text_encoder.tower.model
    assert temporal is not None
    for own, layer in zip(temporal.layers, text.encoder.layers, strict=False):
        for name, value in own.state_dict().items():
            assert torch.equal(value, layer.state_dict()[name]), name
    positions = text.embeddings.position_embedding.weight
    assert torch.equal(temporal.positions.weight[: len(positions)], positions)
