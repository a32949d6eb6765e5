"""Experiments: how settings go together, and files that earlier versions saved."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from prota.config.base import ConfigError
from prota.config.experiment import DataConfig, Experiment, SourceConfig, TrainConfig
from tests.processes import REPOSITORY

# [train] of configs/subset-tuned.toml, of configs/pictures.toml and by default, as earlier versions saved it.
TUNED = {"captions": "one", "captions_per_video": 1, "crop": 0.75, "crop_per": "batch", "colour": 0.0, "flip": True}
CROPPED = {"captions": "one", "captions_per_video": 2, "crop": 0.5, "crop_per": "video", "colour": 0.3, "flip": True}
WHOLE = {"captions": "all", "captions_per_video": 1, "crop": 1.0, "crop_per": "batch", "colour": 0.0, "flip": False}


def write_saved(folder: Path, **sections: dict[str, Any]) -> Path:
    """An experiment with these settings in addition to today's, some of which they replace."""
    tree = tomllib.loads(Experiment().to_toml())
    for name, values in sections.items():
        tree[name] |= values
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_config_loads_and_survives_toml(path: Path) -> None:
    experiment = Experiment.load(path, ["train.start=prota-small"])
    assert Experiment.from_toml(experiment.to_toml()) == experiment


@pytest.mark.parametrize(("train", "captions"), [(TUNED, 1), (CROPPED, 2), (WHOLE, 0)])
def test_training_settings_of_earlier_runs_are_read(train: dict[str, Any], captions: int, tmp_path: Path) -> None:
    path = write_saved(tmp_path, train=train | {"precision": "bf16", "checkpoint_steps": 500})
    experiment = Experiment.load_saved(path)
    assert (experiment.train.captions_per_video, experiment.train.crop) == (captions, train["crop"])
    if train is TUNED:
        # Such a run can be evaluated, but not continued: it would be augmented otherwise.
        with pytest.raises(ConfigError, match=r"train\.crop_per was removed: must be 'video', got 'batch'"):
            Experiment.load_saved(path, resume=True)
    else:
        assert Experiment.load_saved(path, resume=True) == experiment


def test_data_settings_of_earlier_runs_are_read(tmp_path: Path) -> None:
    def load(**data: object) -> DataConfig:
        return Experiment.load_saved(write_saved(tmp_path, data=data)).data

    assert load(benchmark="msvd", annotations="a", captions="", max_seconds=0.0).captions == "a"
    assert load(benchmark="folder", annotations="", captions="c.csv", max_seconds=0.0).captions == "c.csv"
    assert load(benchmark="didemo", annotations="a", captions="", max_seconds=30.0).max_seconds == 30
    with pytest.raises(ConfigError, match=r"data\.max_seconds was removed: must be 30\.0, got 0\.0"):
        load(benchmark="didemo", annotations="a", captions="", max_seconds=0.0)


def test_encoder_settings_of_earlier_runs_are_read(tmp_path: Path) -> None:
    for kind, start in (("pair", "random"), ("clip", "clip"), ("toy", "clip")):
        saved = write_saved(tmp_path, encoder={"kind": kind, "temporal_init": start, "temporal_heads": 8})
        assert Experiment.load_saved(saved).encoder.kind == kind
    with pytest.raises(ConfigError, match=r"encoder\.temporal_init was removed: must be 'clip', got 'random'"):
        Experiment.load_saved(write_saved(tmp_path, encoder={"kind": "clip", "temporal_init": "random"}))
    without = {"kind": "clip", "temporal_init": "random", "temporal_layers": 0}
    assert Experiment.load_saved(write_saved(tmp_path, encoder=without)).encoder.temporal_layers == 0


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.captions=one", "train.captions was removed: delete it; captions_per_video decides"),
        ("train.flip=true", "train.flip was removed: delete it; crop below 1 includes mirroring"),
        ("train.precision=fp32", "train.precision was removed: delete it; it is 'bf16'"),
        ("data.annotations=a", "data.annotations was removed: delete it; data.captions names the folder"),
        ("data.benchmark=folder", "captions must name a CSV, TSV or JSONL file"),
        ('data.tags=["human"]', "needs benchmark='folder', got 'msrvtt-9k'"),
        ("data.dilution=12", "data.dilution=12 must be below encoder.frames=12"),
        ("train.teacher=x", "train.teacher needs loss.soft_targets above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Experiment.build(overrides=[override])
    assert sentence in str(caught.value)


def test_there_are_at_most_66_settings_and_each_has_a_description() -> None:
    settings = 0
    for name, section in Experiment.model_fields.items():
        kind = section.annotation
        if name != "sources":
            settings += len(kind.model_fields)  # type: ignore[union-attr]
            assert all(field.description for field in kind.model_fields.values())  # type: ignore[union-attr]
    assert settings <= 66
    assert all(field.description for field in SourceConfig.model_fields.values())


def test_didemo_ends_after_30_seconds() -> None:
    assert (DataConfig(benchmark="didemo").max_seconds, DataConfig().max_seconds) == (30, 0)


def test_crops_alone_augment() -> None:
    assert (TrainConfig().augments, TrainConfig(crop=0.9).augments) == (False, True)
