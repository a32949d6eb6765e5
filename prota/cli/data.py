"""`prota data check` and `prota data prepare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import ConfigFile, Overrides, StartModel, Timeout, Workers, cores, load_experiment
from prota.cli.progress import progress

if TYPE_CHECKING:
    from prota.config.experiment import Experiment
    from prota.data.splits import Split

__all__ = ["app"]

app = typer.Typer(help="Look at a benchmark's files, and decode its videos once.", no_args_is_help=True)


@app.command()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    workers: Workers = 0,
    timeout: Timeout = 60.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the inventory to this file")] = None,
) -> None:
    """Inventory of a benchmark: found, missing, corrupt, too short, duplicated, named twice, without captions.

    Exit code 1 where anything is wrong.
    """
    from rich.console import Console

    from prota.data.benchmarks import load_benchmark
    from prota.data.doctor import check as inspect
    from prota.data.splits import examples

    experiment = load_experiment(config, overrides)
    benchmark = load_benchmark(experiment.data)
    with progress("checking videos") as update:
        inventory = inspect(
            benchmark,
            experiment.data,
            workers=workers or cores(),
            timeout=timeout,
            on_progress=lambda done, total: update(done, total),
        )
    Console().print(inventory.table())
    for split in inventory.splits:
        for what, videos in (("missing", split.missing), ("corrupt", split.corrupt), ("too short", split.too_short)):
            if videos:
                typer.echo(f"{split.name}, {what}: {examples(videos)}")
        for reason in list(split.corrupt.values())[:1]:
            typer.echo(f"  the first because: {reason}")
    if json_file is not None:
        json_file.write_text(json.dumps(inventory.as_dict(), indent=2) + "\n", encoding="utf-8")
    elif not inventory.complete:
        typer.echo("--json FILE writes all names and reasons")
    if not inventory.complete:
        raise typer.Exit(1)


@app.command()
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    workers: Workers = 0,
    timeout: Timeout = 60.0,
    retry: Annotated[bool, typer.Option(help="try quarantined videos again")] = False,
    start: StartModel = None,
) -> None:
    """Decode every video and picture once into the frame caches; resumes where it was stopped."""
    from prota.data.benchmarks import load_benchmark, load_source
    from prota.data.doctor import require_disjoint

    experiment = load_experiment(config, overrides, start)
    for section, data in (("data", experiment.data), *((f"sources.{n}", own) for n, own in experiment.sources.items())):
        for field in ("cache", "videos"):
            if not getattr(data, field):
                raise typer.BadParameter(
                    f"{section}.{field} is not set: give the folder in {config} or with -s {section}.{field}=…"
                )
    benchmark = load_benchmark(experiment.data)
    paths = _find(experiment, benchmark.splits)
    require_disjoint(benchmark, paths)
    _fill(experiment, paths, workers=workers, timeout=timeout, retry=retry)
    for name in experiment.sources:
        own = experiment.of_source(name)
        _fill(own, _find(own, [load_source(own.data)]), workers=workers, timeout=timeout, retry=retry)


def _find(experiment: Experiment, splits: Sequence[Split]) -> dict[str, Path]:
    """The files of all videos of some splits."""
    from prota.data.splits import DataError
    from prota.data.videos import find_videos

    folder = experiment.data.videos
    found = find_videos(Path(folder).expanduser(), [video for split in splits for video in split.video_ids])
    total = sum(map(len, splits))
    if not found.paths:
        raise DataError(f"none of the {total} videos is in {folder}: set data.videos to their folder")
    typer.echo(f"{folder}: {len(found.paths)} of {total} videos found")
    return found.paths


def _fill(experiment: Experiment, paths: dict[str, Path], *, workers: int, timeout: float, retry: bool) -> None:
    """The frame cache of an experiment, and a look at what is in it."""
    from prota.data.frame_cache import CacheError, CachePlan, FrameCache, fill_cache

    settings, encoder = experiment.data, experiment.encoder
    plan = CachePlan(encoder.frames, settings.cache_size, settings.max_seconds, encoder.picture)
    folder = Path(settings.cache).expanduser()
    with progress("decoding") as update:
        report = fill_cache(
            folder,
            paths,
            plan,
            workers=workers or cores(),
            timeout=timeout,
            retry=retry,
            on_progress=lambda p: update(
                p.done, p.total, f"{p.done / max(p.seconds, 1e-9):.0f}/s" + (f", {p.failed} failed" if p.failed else "")
            ),
        )
    typer.echo(
        f"{folder}: {report.decoded} decoded, {report.kept} already there, {len(report.quarantined)} quarantined"
    )
    for video_id, reason in sorted(report.quarantined.items()):
        typer.echo(f"  quarantined {video_id}: {reason}")
    problems = FrameCache.open(folder).verify()
    if problems:
        raise CacheError(f"{folder} is damaged: {problems[0]}; delete it and prepare again")
