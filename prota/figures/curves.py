"""Curves over training, from the logs of runs; runs that differ in the seed only are one curve."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prota.config.experiment import Experiment
from prota.figures.drawing import MARKS, FigureError
from prota.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Curve", "RunGroup", "RunLog", "curve_of", "draw_curves", "draw_legend", "group_runs", "read_log"]

# More points cannot be distinguished in print.
_POINTS = 200


@dataclass(frozen=True)
class Curve:
    """One quantity over training steps: mean, minimum and maximum of the runs."""

    label: str
    runs: tuple[str, ...]
    steps: tuple[float, ...]
    """Long curves are averaged over intervals of equal length; these are their centres."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class RunLog:
    """The settings and the log of a run."""

    path: Path
    experiment: Experiment
    steps: list[dict[str, Any]]
    validations: list[dict[str, Any]]


@dataclass(frozen=True)
class RunGroup:
    """The runs of one curve."""

    label: str
    logs: tuple[RunLog, ...]


def read_log(path: Path) -> RunLog:
    """Read the log of a run folder."""
    run = Run(path)
    if not run.is_run:
        raise FigureError(f"{path} is not a training run: it has no experiment.toml")
    try:
        lines = run.log.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise FigureError(f"{path} has no log.jsonl: it has not been trained yet") from None
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            # The last line may be incomplete.
            continue
    steps = [record for record in records if isinstance(record, dict) and "total" in record]
    validations = [record for record in records if isinstance(record, dict) and "validation" in record]
    if not steps:
        raise FigureError(f"{run.log} has no training step: resume it with the same command")
    return RunLog(path, run.experiment(), steps, validations)


def group_runs(paths: Sequence[Path], labels: Sequence[str], condition: Callable[[Experiment], str]) -> list[RunGroup]:
    """Group runs by label, or runs that differ in the seed only, named by ``condition``.

    If two groups would have the same name, the name of the folder is added.
    """
    if len(paths) < 2:
        raise FigureError("a comparison needs at least two runs")
    if labels and len(labels) != len(paths):
        raise FigureError(f"{len(labels)} labels for {len(paths)} runs: give one for each, or none")
    groups: dict[str, list[RunLog]] = {}
    for place, path in enumerate(paths):
        log = read_log(path)
        key = labels[place] if labels else log.experiment.replace(train=log.experiment.train.replace(seed=0)).to_toml()
        groups.setdefault(key, []).append(log)
    if len(groups) > len(MARKS):
        raise FigureError(f"{len(groups)} groups of runs are too many; give at most {len(MARKS)}")
    if labels:
        return [RunGroup(label, tuple(logs)) for label, logs in groups.items()]
    names = [condition(logs[0].experiment) for logs in groups.values()]
    return [
        RunGroup(name if names.count(name) == 1 else f"{name} ({_folder(logs[0].path)})", tuple(logs))
        for name, logs in zip(names, groups.values(), strict=True)
    ]


def _folder(path: Path) -> str:
    """The name of the folder; of `ROW/seed-0`, as in ablations, the row."""
    path = path.resolve()
    return path.parent.name if re.fullmatch(r"seed-\d+", path.name) else path.name


def curve_of(
    group: RunGroup, records: Callable[[RunLog], list[dict[str, Any]]], value: Callable[[dict[str, Any]], float]
) -> Curve:
    """One quantity of a group, at the steps that all of its runs have."""
    logged = []
    for log in group.logs:
        try:
            logged.append({int(record["step"]): float(value(record)) for record in records(log)})
        except (KeyError, TypeError, ValueError) as error:
            raise FigureError(f"{log.path / 'log.jsonl'} is of another version of prota: {error}") from None
    steps = sorted(set.intersection(*(set(values) for values in logged)))
    table = np.array([[values[step] for step in steps] for values in logged])
    if not np.isfinite(table).all():
        raise FigureError(f"the log of {group.label} has values that are not finite: its training failed")
    size = max(1, math.ceil(len(steps) / _POINTS))
    parts = [slice(start, start + size) for start in range(0, len(steps), size)]

    def thinned(values: np.ndarray[Any, Any]) -> tuple[float, ...]:
        return tuple(float(values[part].mean()) for part in parts)

    return Curve(
        label=group.label,
        runs=tuple(str(log.path) for log in group.logs),
        steps=thinned(np.array(steps, dtype=float)),
        mean=thinned(table.mean(axis=0)),
        low=thinned(table.min(axis=0)),
        high=thinned(table.max(axis=0)),
    )


def draw_curves(axes: Axes, curves: Sequence[Curve | None]) -> None:
    """Draw lines with different styles and markers; None skips the style of a curve that is in another panel only."""
    for place, (curve, mark) in enumerate(zip(curves, MARKS, strict=False)):
        if curve is None:
            continue
        every = max(1, len(curve.steps) // 8)
        axes.plot(
            curve.steps, curve.mean, color=mark.colour, linestyle=mark.line, marker=mark.marker, linewidth=1.5,
            # Markers at different positions and of different sizes, so that lines on top of each other are visible.
            markevery=(place * every // max(1, len(curves)), every), markersize=7 - place, markerfacecolor="white",
            label=curve.label,
        )  # fmt: skip
        if len(curve.runs) > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, color=mark.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("training step")
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    axes.set_axisbelow(True)


def draw_legend(figure: Figure, axes: Axes) -> None:
    """Write the names of the curves in ``axes`` below the figure."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False, handlelength=4)
