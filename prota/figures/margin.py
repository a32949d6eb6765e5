"""The adaptive margin over training, and what validation says with and without it (the paper's Fig. 3b)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prota.config.experiment import Experiment
from prota.figures.curves import Curve, curve_of, draw_curves, group_runs
from prota.figures.drawing import FigureError, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Margin", "collect", "draw"]


@dataclass(frozen=True)
class Margin:
    """Margins without their weight η, also where they are only watched; curves in one order in both."""

    margin: tuple[Curve | None, ...]
    """None where tokens are points, which have no margin."""
    recall: tuple[Curve, ...]
    """R@1 on validation, text to video, in percent."""


def collect(runs: Sequence[Path], labels: Sequence[str] = ()) -> Margin:
    """From the logs of runs, at least two."""
    groups = group_runs(runs, labels, _condition)
    for log in (log for group in groups for log in group.logs):
        if not log.validations:
            raise FigureError(f"{log.path} has not been validated yet, or has no validation data: leave this run out")
    margins = tuple(
        curve_of(group, lambda log: log.steps, lambda record: record["margin"])
        if all(log.experiment.score.probabilistic for log in group.logs)
        else None
        for group in groups
    )
    if not any(margins):
        raise FigureError("the tokens of all these runs are points, which have no margin: give a run of preset prota")
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
        # An exponential of a divergence over many dimensions: on a plain scale all but its peaks would be zero.
        left.set_yscale("log")
        left.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    right.set_title("validation, text to video")
    right.set_ylabel("R@1, %")
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False, handlelength=4)
    return figure
