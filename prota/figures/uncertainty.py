"""Uncertainty of words and frames over training, with and without the KL term (the paper's Fig. 3a)."""

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

__all__ = ["Uncertainty", "collect", "draw"]


@dataclass(frozen=True)
class Uncertainty:
    """Mean log σ² of the tokens of each training batch."""

    text: tuple[Curve, ...]
    video: tuple[Curve, ...]


def collect(runs: Sequence[Path], labels: Sequence[str] = ()) -> Uncertainty:
    """Collect the curves of at least two runs."""
    groups = group_runs(runs, labels, _condition)
    for log in (log for group in groups for log in group.logs):
        if not log.experiment.score.probabilistic:
            raise FigureError(f"the tokens of {log.path} are points, which have no uncertainty: remove this run")
    return Uncertainty(
        text=tuple(curve_of(group, lambda log: log.steps, lambda record: record["text_log_var"]) for group in groups),
        video=tuple(curve_of(group, lambda log: log.steps, lambda record: record["video_log_var"]) for group in groups),
    )


def _condition(experiment: Experiment) -> str:
    beta = experiment.loss.beta
    return f"with KL, β = {beta:g}" if beta else "without KL"


def draw(numbers: Uncertainty) -> Figure:
    figure = new_figure(2.7)
    left, right = figure.subplots(1, 2, sharey=True)
    draw_curves(left, numbers.text)
    draw_curves(right, numbers.video)
    left.set_title("text")
    right.set_title("video")
    left.set_ylabel("mean log σ² of the tokens")
    draw_legend(figure, left)
    return figure
