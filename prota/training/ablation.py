"""Train and test the rows of the paper's ablation tables over seeds.

Every run has a folder OUT/ROW/seed-N, and its result is in result.json; finished runs are skipped.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from prota.config.base import ConfigError, parse_override
from prota.config.experiment import Experiment
from prota.config.presets import preset_fields
from prota.evaluation.paper import AblationRow, ablation_rows
from prota.evaluation.passport import Passport
from prota.evaluation.report import Evaluation, SystemUnderTest
from prota.runs import config_of
from prota.runtime import World
from prota.training.checkpoint import RunFolder
from prota.training.features import FeatureClips
from prota.training.trainer import Reporter, TrainingLoop

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["AblationResult", "ablation_table", "read_table", "row_experiment", "run_table"]

# Overrides of these apply only to rows that use them.
_OPTIONAL = {("loss", "beta"), ("loss", "eta")}

TableName = Literal["main", "temperature", "kernels"]


@dataclass(frozen=True)
class AblationResult:
    """The results of one row over seeds."""

    row: AblationRow
    passports: tuple[Passport, ...]

    def values(self, direction: str, metric: str) -> list[float]:
        return [passport.metrics[direction][metric] for passport in self.passports]


def run_table(
    table: TableName,
    config: Path,
    *,
    overrides: list[str],
    seeds: int,
    out: Path,
    world: World,
    report: Reporter | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    allow_missing: int = 0,
    only: tuple[str, ...] = (),
    announce: Callable[[str], None] = lambda _: None,
) -> list[AblationResult]:
    """Train and test every row of a table with every seed; resumes an interrupted call."""
    rows = ablation_rows(table)
    unknown = set(only) - {row.name for row in rows}
    if unknown:
        raise ConfigError(f"no row {', '.join(sorted(unknown))} in {table}; allowed: {', '.join(r.name for r in rows)}")
    chosen = [row for row in rows if not only or row.name in only]
    # Built before any training, so that invalid settings of a later row are reported at once.
    experiments = {row.name: [row_experiment(row, config, overrides, seed) for seed in range(seeds)] for row in chosen}
    features: FeatureClips | None = None
    results: list[AblationResult] = []
    for row in chosen:
        passports: list[Passport] = []
        for seed, experiment in enumerate(experiments[row.name]):
            run = RunFolder(out / _folder_name(row.name) / f"seed-{seed}")
            run.claim(experiment, world)
            result = run.path / "result.json"
            if not result.exists():
                announce(f"{row.name}, seed {seed}")
                trainer = TrainingLoop(
                    experiment, run, world, allow_missing=allow_missing, features=features, report=report
                )
                features = trainer.features
                if not trainer.fit(report, should_stop).finished:
                    return [*results, AblationResult(row, tuple(passports))] if passports else results
                if world.first:
                    system = SystemUnderTest.load(run.path, None, world.device)
                    evaluation = Evaluation(system, "test", allow_missing)
                    evaluation.result(evaluation.measure()).write(result)
                world.barrier()
            run.release()
            passports.append(Passport.read(result))
        results.append(AblationResult(row, tuple(passports)))
    return results


def read_table(table: TableName, out: Path) -> list[AblationResult]:
    """Existing results of a table, in its order."""
    results = []
    for row in ablation_rows(table):
        found = [
            (int(match[1]), path)
            for path in (out / _folder_name(row.name)).glob("seed-*/result.json")
            if (match := re.fullmatch(r"seed-(\d+)", path.parent.name))
        ]
        if found:
            results.append(AblationResult(row, tuple(Passport.read(path) for _, path in sorted(found))))
    return results


def row_experiment(row: AblationRow, config: Path, overrides: list[str], seed: int) -> Experiment:
    """The experiment of a row: data and training of the file, head and loss of the row.

    Settings that distinguish rows or runs cannot be overridden, but β and η can, for rows that use them.
    """
    own = Experiment.build(row.preset)
    fixed = preset_fields().union({("train", "seed")}, *map(_fields, row.overrides))
    kept = []
    for override in overrides:
        fields = _fields(override)
        for section, field in fields - _OPTIONAL:
            if (section, field) in fixed:
                apart = "runs of a row" if section == "train" else "rows of an ablation"
                raise ConfigError(f"{section}.{field} cannot be overridden: it distinguishes the {apart}")
        if all(getattr(own.loss, field) > 0 for _, field in fields & _OPTIONAL):
            kept.append(override)
    return Experiment.load(config, [*kept, *row.overrides, f"train.seed={seed}"], row.preset, config_of)


def _fields(override: str) -> set[tuple[str, str]]:
    """(section, field) that an override sets."""
    ((section, fields),) = parse_override(override).items()
    return {(section, field) for field in fields} if isinstance(fields, dict) else {(section, "")}


def _folder_name(row: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", row)


def ablation_table(results: list[AblationResult], title: str) -> Table:
    """Mean ± standard deviation over seeds, with the paper's figure."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("row", no_wrap=True)
    for direction in ("t→v", "v→t"):
        for metric in ("R@1", "R@5", "R@10"):
            table.add_column(f"{direction} {metric}", justify="right")
        table.add_column(f"{direction} mean rank", justify="right")
    for result in results:
        cells = []
        for direction in ("text_to_video", "video_to_text"):
            for metric in ("r1", "r5", "r10", "mean_rank"):
                values = result.values(direction, metric)
                deviation = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
                paper = getattr(getattr(result.row.paper, direction), metric) if result.row.paper else None
                cells.append(f"{statistics.fmean(values):.1f}{deviation}" + (f"\n({paper})" if paper else ""))
        table.add_row(result.row.name, *cells)
    table.caption = "ours over seeds, mean ± standard deviation; in brackets the paper's, on its own data"
    return table
