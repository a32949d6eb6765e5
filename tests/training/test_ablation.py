"""Reading a table's results without running anything, and what may be set for all of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.evaluation.paper import ablation_rows
from prota.evaluation.passport import PassportError
from prota.runtime import ALONE
from prota.training.ablation import read_table, row_experiment, run_table
from tests.figures.test_ablation import write_result


def test_what_is_there_is_read_in_order(tmp_path: Path) -> None:
    for row, seed in (("prota", 10), ("prota", 9), ("lda", 0), ("lambda=max_xi=-", 0)):
        write_result(tmp_path, row, seed, float(seed))
    (tmp_path / "lda" / "seed-1").mkdir()
    (tmp_path / "lda" / "seed-x").mkdir()
    (tmp_path / "lda" / "seed-x" / "result.json").write_text("not a seed's", encoding="utf-8")
    results = read_table("main", tmp_path)
    assert [(result.row.name, result.values("text_to_video", "r1")) for result in results] == [
        ("lda", [0.0]),
        ("prota", [9.0, 10.0]),
    ]
    assert [result.row.name for result in read_table("temperature", tmp_path)] == ["lambda=max,xi=-"]
    assert read_table("kernels", tmp_path) == []
    (tmp_path / "lda" / "seed-0" / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PassportError, match="is not a result of prota"):
        read_table("main", tmp_path)


@pytest.mark.parametrize(
    ("table", "override", "said"),
    [
        ("main", "train.seed=3", "train.seed cannot be overridden"),
        ("main", "train={epochs=1, seed=3}", "train.seed cannot be overridden"),
        ("kernels", "score.kernels=3", "score.kernels cannot be overridden"),
        ("temperature", "score.xi=20", "score.xi cannot be overridden"),
    ],
)
def test_what_rows_and_runs_set_themselves_is_refused(table: str, override: str, said: str, tmp_path: Path) -> None:
    """Before anything is trained, though the first rows of the temperatures have no ξ of their own."""
    config = tmp_path / "experiment.toml"
    config.write_text(Experiment.build("prota", "toy").to_toml(), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        run_table(table, config, overrides=[override], seeds=1, out=tmp_path / "out", world=ALONE)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_what_only_some_rows_have_is_left_to_them(tmp_path: Path) -> None:
    config = tmp_path / "experiment.toml"
    config.write_text(Experiment.build("prota", "toy").to_toml(), encoding="utf-8")
    rows = {row.name: row for row in ablation_rows("main")}
    overrides = ["loss.beta=0.5", "train.epochs=9"]
    made = {name: row_experiment(rows[name], config, overrides, 2) for name in ("dpa-p", "prota")}
    assert {name: experiment.loss.beta for name, experiment in made.items()} == {"dpa-p": 0.0, "prota": 0.5}
    assert {(experiment.train.epochs, experiment.train.seed) for experiment in made.values()} == {(9, 2)}
