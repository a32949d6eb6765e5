"""From a checkpoint to a result: what are missing is said before the work, not after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from prota import Config, ProTA
from prota.config.experiment import Experiment
from prota.data.splits import Benchmark, Item, Split
from prota.evaluation import report
from prota.evaluation.report import Evaluation, SystemUnderTest, read_matrix


@pytest.mark.parametrize(
    ("train", "said"), [(None, "has no train split"), (Split("train", (Item("a", ()),)), "needs training captions")]
)
def test_a_query_bank_is_asked_for_before_anything_is_scored(
    train: Split | None, said: str, world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProTA.from_config(Config.build("lda", "toy", ["encoder.frames=4"])).save_pretrained(tmp_path / "model")
    system = SystemUnderTest.load(tmp_path / "model", Experiment.load(world_config), torch.device("cpu"))
    benchmark = Benchmark("mine", train, None, system.benchmark.test)
    evaluation = Evaluation(replace(system, benchmark=benchmark), "test")

    def too_early(*_: object, **__: object) -> None:
        raise AssertionError("scored in vain")

    monkeypatch.setattr(report, "score_split", too_early)
    with pytest.raises(ValueError, match=said):
        evaluation.measure("qbnorm")


@pytest.mark.parametrize("content", ["[[0], 0]", "[0, true]", "[0, 1.0]", "[]", "{}", "3", f"[0, {10**30}]"])
def test_targets_that_are_no_list_of_numbers(content: str, tmp_path: Path) -> None:
    np.save(tmp_path / "scores.npy", np.eye(2))
    (tmp_path / "targets.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"targets\.json must be a list of integers"):
        read_matrix(tmp_path / "scores.npy", tmp_path / "targets.json")
    (tmp_path / "targets.json").write_text("[1, 0]", encoding="utf-8")
    assert read_matrix(tmp_path / "scores.npy", tmp_path / "targets.json")[1].tolist() == [1, 0]
