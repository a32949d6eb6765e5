"""Curves over training, read from the logs of runs; runs that differ in their seed alone are one curve."""

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

__all__ = ["Curve", "RunGroup", "RunLog", "curve_of", "draw_curves", "group_runs", "read_log"]

Value = Callable[[dict[str, Any]], float]
# More points than this cannot be told apart in print.
_POINTS = 200


@dataclass(frozen=True)
class Curve:
    """One quantity over training steps; with several runs their mean, lowest and highest."""

    label: str
    runs: tuple[str, ...]
    steps: tuple[float, ...]
    """Where there are many, the middles of equal stretches, over which values are averaged."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class RunLog:
    """What a run was asked for, and what it logged."""

    path: Path
    experiment: Experiment
    steps: list[dict[str, Any]]
    validations: list[dict[str, Any]]


@dataclass(frozen=True)
class RunGroup:
    """Runs that are one curve."""

    label: str
    logs: tuple[RunLog, ...]


def read_log(path: Path) -> RunLog:
    """The log of a run folder."""
    run = Run(path)
    if not run.is_run:
        raise FigureError(f"{path} is not a run: it has no experiment.toml; give folders that `prota train` wrote")
    try:
        lines = run.log.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise FigureError(f"{path} has no log.jsonl: nothing was trained there yet") from None
    records = []
    for line in lines:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            # The last line of a run that was killed, or is writing now, may be half a line.
            continue
    steps = [record for record in records if isinstance(record, dict) and "total" in record]
    validations = [record for record in records if isinstance(record, dict) and "validation" in record]
    if not steps:
        raise FigureError(f"{run.log} has no training step in it: train on with the same command")
    return RunLog(path, run.experiment(), steps, validations)


def group_runs(paths: Sequence[Path], labels: Sequence[str], condition: Callable[[Experiment], str]) -> list[RunGroup]:
    """Runs that differ in their seed alone together, named by ``condition``; or those of one label together.

    Where two groups would have one name, the folder's is added.
    """
    if len(paths) < 2:
        raise FigureError("a comparison needs at least two runs: give their folders")
    if labels and len(labels) != len(paths):
        raise FigureError(f"{len(labels)} labels for {len(paths)} runs: give one each, or none")
    groups: dict[str, list[RunLog]] = {}
    for place, path in enumerate(paths):
        log = read_log(path)
        key = labels[place] if labels else log.experiment.replace(train=log.experiment.train.replace(seed=0)).to_toml()
        groups.setdefault(key, []).append(log)
    if len(groups) > len(MARKS):
        raise FigureError(f"{len(groups)} kinds of runs are too many to tell apart; allowed: up to {len(MARKS)}")
    if labels:
        return [RunGroup(label, tuple(logs)) for label, logs in groups.items()]
    names = [condition(logs[0].experiment) for logs in groups.values()]
    return [
        RunGroup(name if names.count(name) == 1 else f"{name} ({_folder(logs[0].path)})", tuple(logs))
        for name, logs in zip(names, groups.values(), strict=True)
    ]


def _folder(path: Path) -> str:
    """The folder's name; of `ROW/seed-0`, as an ablation writes them, the row's."""
    path = path.resolve()
    return path.parent.name if re.fullmatch(r"seed-\d+", path.name) else path.name


def curve_of(group: RunGroup, records: Callable[[RunLog], list[dict[str, Any]]], value: Value) -> Curve:
    """One quantity of a group, at the steps that all its runs have logged."""
    logged = []
    for log in group.logs:
        try:
            logged.append({int(record["step"]): float(value(record)) for record in records(log)})
        except (KeyError, TypeError, ValueError) as error:
            raise FigureError(f"{log.path / 'log.jsonl'} was not written by this version of prota: {error}") from None
    steps = sorted(set.intersection(*(set(values) for values in logged)))
    table = np.array([[values[step] for step in steps] for values in logged])
    if not np.isfinite(table).all():
        raise FigureError(f"the log of {group.label} has values that are no numbers: its training went wrong")
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
    """One line each, told apart by line and marker; None keeps the mark of a curve that is only in another panel."""
    for place, (curve, mark) in enumerate(zip(curves, MARKS, strict=False)):
        if curve is None:
            continue
        every = max(1, len(curve.steps) // 8)
        axes.plot(
            curve.steps, curve.mean, color=mark.colour, linestyle=mark.line, marker=mark.marker, linewidth=1.5,
            # Markers at different places or of different size: where lines lie on each other both are seen.
            markevery=(place * every // max(1, len(curves)), every), markersize=7 - place, markerfacecolor="white",
            label=curve.label,
        )  # fmt: skip
        if len(curve.runs) > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, color=mark.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("training step")
    axes.grid(axis="y", linewidth=0.4, color="#dddddd")
    axes.set_axisbelow(True)
