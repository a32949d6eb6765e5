"""Small runs for the tests of training, and what they leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from prota.config.experiment import Experiment
from prota.runtime import ALONE
from prota.training.checkpoint import RunFolder
from prota.training.trainer import TrainingLoop

__all__ = ["ALONE", "TERMS", "curve", "log", "train", "trained", "validations", "weights"]

TERMS = ("total", "contrastive_t2v", "contrastive_v2t", "kl", "margin", "text_log_var", "video_log_var")
TERMS += ("temperature", "locality")


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def curve(run: Path) -> list[tuple[float, ...]]:
    return [tuple(record[name] for name in TERMS) for record in log(run) if "total" in record]


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = RunFolder(run).checkpoint("last")
    assert folder is not None
    return load_file(folder / "model.safetensors")


def train(
    config: Path, run: Path, *overrides: str, stop_after: int | None = None, allow_missing: int = 0
) -> TrainingLoop:
    experiment = Experiment.load(config, overrides)
    folder = RunFolder(run)
    folder.claim(experiment)
    trainer = TrainingLoop(experiment, folder, ALONE, allow_missing=allow_missing)
    steps = 0

    def should_stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == stop_after

    trainer.fit(should_stop=should_stop)
    folder.release()
    return trainer


def trained(run: Path) -> dict[str, torch.Tensor]:
    """What training goes on with, beside the average that is the model."""
    folder = RunFolder(run).checkpoint("last")
    assert folder is not None
    loaded: dict[str, torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return loaded


def validations(run: Path) -> list[dict[str, Any]]:
    return [record["validation"] for record in log(run) if "validation" in record]
