"""Two toy models, trained a little, and their test split."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prota.evaluation.report import Evaluation, SystemUnderTest
from prota.figures.ranked import RankedSplit
from tests.training.runs import train


@pytest.fixture(scope="session")
def gaussian_run(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "prota"
    train(world_config, folder)
    return folder


@pytest.fixture(scope="session")
def point_run(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "points"
    points = ("score.similarity=cosine", "score.weights=uniform", "loss.beta=0", "loss.eta=0")
    train(world_config, folder, *points, "train.epochs=1")
    return folder


def ranked_split(run: Path) -> RankedSplit:
    return RankedSplit(Evaluation(SystemUnderTest.load(run, None, torch.device("cpu")), "test"))


@pytest.fixture
def gaussians(gaussian_run: Path) -> RankedSplit:
    return ranked_split(gaussian_run)


@pytest.fixture
def points(point_run: Path) -> RankedSplit:
    return ranked_split(point_run)
