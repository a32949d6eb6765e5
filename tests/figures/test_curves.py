"""Curves are what the logs say; seeds are averaged, everything else is kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.config.experiment import Experiment
from prota.figures.curves import Curve, curve_of, draw_curves, group_runs, read_log
from prota.figures.drawing import FigureError, new_figure
from tests.figures.logs import write_run


def condition(experiment: Experiment) -> str:
    return "with" if experiment.loss.beta else "without"


def margin_of(group: object) -> Curve:
    return curve_of(group, lambda log: log.steps, lambda record: record["margin"])  # type: ignore[arg-type]


def test_a_log_is_read_up_to_its_half_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with (run / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "tot')
    log = read_log(run)
    assert [record["step"] for record in log.steps] == [1, 2, 3, 4]
    assert [record["step"] for record in log.validations] == [2, 4]


def test_runs_that_differ_in_their_seed_are_one_curve(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a"),
        write_run(tmp_path / "none", "loss.beta=0"),
        write_run(tmp_path / "b", "train.seed=1", shift=0.5, steps=3),
    ]
    first, second = group_runs(runs, (), condition)
    assert (first.label, second.label) == ("with", "without")
    curve = margin_of(first)
    assert curve.runs == (str(tmp_path / "a"), str(tmp_path / "b"))
    # Steps that both have.
    assert curve.steps == (1, 2, 3)
    assert curve.mean == pytest.approx((1.25, 0.75, 1 / 3 + 0.25))
    assert curve.low == pytest.approx((1, 0.5, 1 / 3))
    assert curve.high == pytest.approx((1.5, 1, 1 / 3 + 0.5))


def test_equal_conditions_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "row" / "seed-0"), write_run(tmp_path / "other", "loss.beta=0.1")]
    assert [group.label for group in group_runs(runs, (), condition)] == ["with (row)", "with (other)"]


def test_labels_decide_what_belongs_together(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", "loss.beta=0"), write_run(tmp_path / "c")]
    groups = group_runs(runs, ("x", "x", "y"), condition)
    assert [(group.label, len(group.logs)) for group in groups] == [("x", 2), ("y", 1)]
    with pytest.raises(FigureError, match="2 labels for 3 runs"):
        group_runs(runs, ("x", "y"), condition)


def test_long_curves_are_averaged_over_stretches(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", steps=1000), write_run(tmp_path / "b", "loss.beta=0")]
    curve = curve_of(group_runs(runs, (), condition)[0], lambda log: log.steps, lambda record: record["text_log_var"])
    assert len(curve.steps) == 200
    assert curve.steps[0] == 3
    assert curve.mean[0] == -3
    assert curve.mean[-1] == -998


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    with pytest.raises(FigureError, match="at least two runs"):
        group_runs([good], (), condition)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FigureError, match="empty is not a training run"):
        group_runs([good, tmp_path / "empty"], (), condition)
    unlogged = write_run(tmp_path / "unlogged")
    (unlogged / "log.jsonl").unlink()
    with pytest.raises(FigureError, match=r"has no log\.jsonl"):
        read_log(unlogged)
    (unlogged / "log.jsonl").write_text("{}\n[]\n3\n", encoding="utf-8")
    with pytest.raises(FigureError, match="no training step"):
        read_log(unlogged)
    (unlogged / "log.jsonl").write_text('{"step": 1, "total": 2}\n', encoding="utf-8")
    with pytest.raises(FigureError, match="is of another version of prota: 'margin'"):
        margin_of(group_runs([unlogged, write_run(tmp_path / "b", "loss.beta=0")], (), condition)[0])
    (unlogged / "log.jsonl").write_text('{"step": 1, "total": 2, "margin": NaN}\n', encoding="utf-8")
    with pytest.raises(FigureError, match="training failed"):
        margin_of(group_runs([unlogged, tmp_path / "b"], (), condition)[0])


def test_too_many_kinds_are_refused(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(number), f"loss.beta={number}") for number in range(7)]
    with pytest.raises(FigureError, match="7 groups of runs are too many"):
        group_runs(runs, (), condition)


def test_each_curve_keeps_its_mark() -> None:
    axes = new_figure(2.0).subplots()
    values = (1.0, 2.0)
    curve = Curve("b", ("run", "run2"), values, values, values, values)
    draw_curves(axes, [None, curve])
    (line,) = axes.get_lines()
    assert line.get_marker() == "s"
    assert line.get_linestyle() == "--"
    assert list(line.get_ydata()) == [1, 2]  # type: ignore[arg-type]
    assert len(axes.collections) == 1
