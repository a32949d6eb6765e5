"""The adaptive margin and validation R@1 over training, with and without it (the paper's Fig. 3b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prota.config.experiment import Experiment
from prota.figures.curves import Curve, curve_of, draw_curves, draw_legend, group_runs
from prota.figures.drawing import FigureError, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Margin", "collect", "draw"]


@dataclass(frozen=True)
class Margin:
    """Margins without their weight η, also if they are not trained with; both have the same order of curves."""

    margin: tuple[Curve | None, ...]
    """None if tokens are points, which have no margin."""
    recall: tuple[Curve, ...]
    """R@1 on validation, text to video, in percent."""


def collect(runs: Sequence[Path], labels: Sequence[str] = ()) -> Margin:
    """Collect the curves of at least two runs."""
    groups = group_runs(runs, labels, _condition)
    for log in (log for group in groups for log in group.logs):
        if not log.validations:
            raise FigureError(f"{log.path} has no validation yet, or no validation data: remove this run")
    margins = tuple(
        curve_of(group, lambda log: log.steps, lambda record: record["margin"])
        if all(log.experiment.score.probabilistic for log in group.logs)
        else None
        for group in groups
    )
    if not any(margins):
        raise FigureError("the tokens of all runs are points, which have no margin; use a run of preset prota")
    recall = tuple(
        curve_of(group, lambda log: log.validations, lambda record: record["validation"]["text_to_video"]["r1"])
        for group in groups
    )
    return Margin(margins, recall)


def _condition(experiment: Experiment) -> str:
    eta = experiment.loss.eta
    return f"with adaptive margin, η = {eta:g}" if eta else "without adaptive margin"


def draw(numbers: Margin) -> Figure:
    figure = new_figure(2.7)
    left, right = figure.subplots(1, 2)
    draw_curves(left, numbers.margin)
    draw_curves(right, numbers.recall)
    left.set_title("margin of the positive pairs")
    left.set_ylabel("m = exp(−KL)")
    values = [value for curve in numbers.margin if curve for value in curve.mean if value > 0]
    if values and max(values) > 1000 * min(values):
        # An exponential of a divergence: on a linear scale only its peaks would be visible.
        left.set_yscale("log")
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    right.set_title("validation, text to video")
    right.set_ylabel("R@1, %")
    draw_legend(figure, right)
    return figure
