"""From a checkpoint to a result: what cannot be had is said before the work, not after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prota import Config, ProTA
from prota.data.splits import Benchmark, Item, Split
from prota.evaluation import report
from prota.evaluation.report import Evaluation, SystemUnderTest
from prota.experiment import Experiment


@pytest.mark.parametrize(
    ("train", "said"), [(None, "has no train split"), (Split("train", (Item("a", ()),)), "no training video has")]
)
def test_a_query_bank_is_asked_for_before_anything_is_scored(
    train: Split | None, said: str, world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProTA.from_config(Config.build("lda", "toy", ["encoder.frames=4"])).save_pretrained(tmp_path / "model")
    system = SystemUnderTest.load(tmp_path / "model", Experiment.load(world_config), torch.device("cpu"))
    benchmark = Benchmark("mine", train, None, system.benchmark.test)
    evaluation = Evaluation(replace(system, benchmark=benchmark), "test")

    def too_early(*_: object) -> None:
        raise AssertionError("scored in vain")

    monkeypatch.setattr(report, "score_split", too_early)
    with pytest.raises(ValueError, match=said):
        evaluation.measure("qbnorm")
