"""The margin and validation over training."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.figures.drawing import FigureError, render
from prota.figures.margin import collect, draw
from tests.figures.logs import write_run


def test_the_lines_are_the_logged_values(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "margin"),
        write_run(tmp_path / "none", "loss.eta=0", shift=0.5),
        write_run(tmp_path / "points", preset="dpa"),
    ]
    numbers = collect(runs)
    labels = ["with adaptive margin, η = 0.0005", "without adaptive margin (none)", "without adaptive margin (points)"]
    assert [curve.label for curve in numbers.recall] == labels
    assert numbers.margin[2] is None
    assert [curve.mean for curve in numbers.margin if curve] == [
        pytest.approx((1, 1 / 2, 1 / 3, 1 / 4)),
        pytest.approx((1.5, 1, 1 / 3 + 0.5, 0.75)),
    ]
    assert [curve.steps for curve in numbers.recall] == [(2, 4)] * 3
    assert [curve.mean for curve in numbers.recall] == [(20, 40), (20.5, 40.5), (20, 40)]
    left, right = draw(numbers).axes
    assert len(left.get_lines()) == 2
    assert [line.get_marker() for line in right.get_lines()] == ["o", "s", "^"]
    assert left.get_yscale() == "linear"
    render(lambda: draw(numbers), tmp_path / "a.svg")
    assert "R@1" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_margins_of_many_sizes_are_drawn_on_a_logarithmic_scale(tmp_path: Path) -> None:
    numbers = collect([write_run(tmp_path / "a", shift=-0.2499), write_run(tmp_path / "b", "loss.eta=0")])
    axes = draw(numbers).axes[0]
    assert axes.get_yscale() == "log"
    assert axes.yaxis.get_major_formatter()(1e-4) == "1e-04"


def test_runs_without_validation_or_margin_are_named(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    with pytest.raises(FigureError, match="blind has no validation yet"):
        collect([good, write_run(tmp_path / "blind", "loss.eta=0", validations=False)])
    with pytest.raises(FigureError, match="use a run of preset prota"):
        collect([write_run(tmp_path / "p", preset="dpa"), write_run(tmp_path / "q", preset="lda")])
