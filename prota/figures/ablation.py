"""The tables of `prota ablate` as plots: mean and deviation over seeds, the paper's figures beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prota.evaluation.ablation import AblationResult, TableName, read_table
from prota.figures.drawing import GREY, MARKS, FigureError, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Ablation", "RowResult", "collect", "draw"]

Metric = Literal["r1", "r5", "r10", "median_rank", "mean_rank"]
_METRICS = {"r1": "R@1, %", "r5": "R@5, %", "r10": "R@10, %", "median_rank": "median rank", "mean_rank": "mean rank"}


@dataclass(frozen=True)
class RowResult:
    """One row in one direction."""

    row: str
    seeds: tuple[float, ...]
    """One value for each seed."""
    mean: float
    deviation: float | None
    """Standard deviation over seeds; None for one seed."""
    paper: float | None
    """What the paper prints for it, on its own data."""


@dataclass(frozen=True)
class Ablation:
    """One metric of a table in both directions; rows from the table's first to its last."""

    table: str
    metric: Metric
    split: str
    text_to_video: tuple[RowResult, ...]
    video_to_text: tuple[RowResult, ...]


def collect(out: Path, table: TableName = "main", metric: Metric = "r1") -> Ablation:
    """From the results below the folder of an ablation, as far as they are there."""
    results = read_table(table, out)
    if not results:
        raise FigureError(
            f"{out} has no result of the table {table} (ROW/seed-N/result.json): run `prota ablate … -o {out}` first"
        )
    splits = {passport.split: passport.split_hash for result in results for passport in result.passports}
    if len(splits) > 1 or len({p.split_hash for r in results for p in r.passports}) > 1:
        raise FigureError(f"the results in {out} are of different splits ({', '.join(splits)}): they do not compare")
    return Ablation(
        table=table,
        metric=metric,
        split=next(iter(splits)),
        text_to_video=tuple(_row(result, "text_to_video", metric) for result in results),
        video_to_text=tuple(_row(result, "video_to_text", metric) for result in results),
    )


def _row(result: AblationResult, direction: str, metric: Metric) -> RowResult:
    values = result.values(direction, metric)
    printed = getattr(getattr(result.row.paper, direction), metric) if result.row.paper else None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return RowResult(result.row.name, tuple(values), statistics.fmean(values), deviation, printed)


def draw(numbers: Ablation) -> Figure:
    """Ours beside the paper's in both directions; all panels have one scale, so that differences compare."""
    directions = {"text to video": numbers.text_to_video, "video to text": numbers.video_to_text}
    printed = any(row.paper is not None for rows in directions.values() for row in rows)
    columns = [(name, rows, whose) for name, rows in directions.items() for whose in ("ours", "paper")[: 1 + printed]]
    rows = numbers.text_to_video
    figure = new_figure(1.25 + 0.26 * len(rows))
    panels = figure.subplots(1, len(columns), sharey=True)
    ranges = [_range(rows, whose) for _, rows, whose in columns]
    span = 1.15 * max(high - low for low, high in ranges) or 1.0
    for panel, (name, rows, whose), (low, high) in zip(panels, columns, ranges, strict=True):
        _points(panel, rows, whose)
        middle = (low + high) / 2
        panel.set_xlim(middle - span / 2, middle + span / 2)
        panel.set_title(f"{name}\n{'here' if whose == 'ours' else 'in the paper'}")
        panel.set_xlabel(_METRICS[numbers.metric])
        panel.locator_params(axis="x", nbins=4)
        panel.grid(axis="both", linewidth=0.4, color="#dddddd")
        panel.set_axisbelow(True)
        panel.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), [row.row for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    _explain(figure, numbers)
    return figure


def _range(rows: Sequence[RowResult], whose: str) -> tuple[float, float]:
    if whose == "paper":
        values = [row.paper for row in rows if row.paper is not None]
    else:
        values = [value for row in rows for value in row.seeds]
        values += [row.mean + sign * row.deviation for row in rows if row.deviation for sign in (-1, 1)]
    return min(values), max(values)


def _points(panel: Axes, rows: Sequence[RowResult], whose: str) -> None:
    ours, paper = MARKS[0], MARKS[1]
    for place, row in enumerate(rows):
        if whose == "ours":
            if len(row.seeds) > 1:
                panel.plot(row.seeds, [place + 0.24] * len(row.seeds), "|", color=GREY, markersize=5)
            panel.errorbar(
                row.mean, place, xerr=row.deviation, color=ours.colour, marker=ours.marker, markersize=5, capsize=3
            )
        elif row.paper is not None:
            panel.plot(row.paper, place, paper.marker, color=paper.colour, markersize=5, markerfacecolor="white")


def _explain(figure: Figure, numbers: Ablation) -> None:
    counts = sorted({len(row.seeds) for row in numbers.text_to_video})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    bars = f"● mean ± deviation of {seeds} seeds, | each seed" if counts[-1] > 1 else "● one seed, no error bars"
    printed = any(row.paper is not None for row in numbers.text_to_video)
    text = f"here: {numbers.split}, {bars}" + ("; □ the paper's figures, on its own data" if printed else "")
    figure.supxlabel(text, fontsize=7.5, color=GREY)
