"""The tables of `prota ablate` with error bars over seeds, beside the paper's figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prota.figures.drawing import GREY, MARKS, FigureError, new_figure
from prota.training.ablation import AblationResult, TableName, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Ablation", "RowResult", "collect", "draw", "is_far_off"]

Metric = Literal["r1", "r5", "r10", "median_rank", "mean_rank"]
# A row this many times the median deviation from the median is shown as a number at the edge.
_FAR = 12
_METRICS = {"r1": "R@1, %", "r5": "R@5, %", "r10": "R@10, %", "median_rank": "median rank", "mean_rank": "mean rank"}


@dataclass(frozen=True)
class RowResult:
    """The results of one row in one direction."""

    row: str
    seeds: tuple[float, ...]
    """One value for each seed."""
    mean: float
    deviation: float | None
    """Standard deviation over seeds; None for one seed."""
    paper: float | None
    """The paper's figure, on its own data."""


@dataclass(frozen=True)
class Ablation:
    """One metric of a table in both directions, with its rows in order."""

    table: str
    metric: Metric
    split: str
    text_to_video: tuple[RowResult, ...]
    video_to_text: tuple[RowResult, ...]


def collect(out: Path, table: TableName = "main", metric: Metric = "r1") -> Ablation:
    """Collect the existing results in the folder of an ablation."""
    results = read_table(table, out)
    if not results:
        raise FigureError(
            f"{out} has no result of the table {table} (ROW/seed-N/result.json): run `prota ablate … -o {out}` first"
        )
    splits = {passport.split: passport.split_hash for result in results for passport in result.passports}
    if len(splits) > 1 or len({p.split_hash for r in results for p in r.passports}) > 1:
        raise FigureError(f"the results in {out} are of different splits ({', '.join(splits)}) and cannot be compared")
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
    """Our results and the paper's in both directions; the panels of a direction have the same scale."""
    directions = {"text to video": numbers.text_to_video, "video to text": numbers.video_to_text}
    printed = any(row.paper is not None for rows in directions.values() for row in rows)
    columns = [(name, rows, whose) for name, rows in directions.items() for whose in ("ours", "paper")[: 1 + printed]]
    rows = numbers.text_to_video
    figure = new_figure(1.25 + 0.26 * len(rows))
    panels = figure.subplots(1, len(columns), sharey=True)
    ranges = [_range(rows, whose) for _, rows, whose in columns]
    spans = dict.fromkeys(directions, 0.0)
    for (name, _, _), (low, high) in zip(columns, ranges, strict=True):
        spans[name] = max(spans[name], 1.15 * (high - low))
    for panel, (name, rows, whose), (low, high) in zip(panels, columns, ranges, strict=True):
        middle, half = (low + high) / 2, (spans[name] or 1.0) / 2
        panel.set_xlim(middle - half, middle + half)
        _points(panel, rows, whose)
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
        shown = [row for row in rows if not is_far_off(row, rows)]
        values = [value for row in shown for value in row.seeds]
        values += [row.mean + sign * row.deviation for row in shown if row.deviation for sign in (-1, 1)]
    return min(values), max(values)


def is_far_off(row: RowResult, rows: Sequence[RowResult]) -> bool:
    """Whether a row, which did not learn, is so far from the others that these would look equal."""
    means = [other.mean for other in rows]
    middle = statistics.median(means)
    usual = statistics.median(abs(mean - middle) for mean in means)
    return usual > 0 and abs(row.mean - middle) > _FAR * usual


def _points(panel: Axes, rows: Sequence[RowResult], whose: str) -> None:
    ours, paper = MARKS[0], MARKS[1]
    for place, row in enumerate(rows):
        if whose == "ours" and is_far_off(row, rows):
            low, high = panel.get_xlim()
            above = row.mean > high
            text = f"{row.mean:.1f} →" if above else f"← {row.mean:.1f}"
            panel.text(high if above else low, place, text, ha="right" if above else "left", va="center", fontsize=8)
        elif whose == "ours":
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
