"""`prota data check` and `prota data prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import ConfigFile, Overrides, StartModel, Timeout, Workers, cores, load_experiment
from prota.cli.progress import progress

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
    from prota.data.prepare import prepare as fill

    experiment = load_experiment(config, overrides, start)
    with progress("decoding") as update:
        prepared = fill(
            experiment,
            workers=workers,
            timeout=timeout,
            retry=retry,
            on_progress=lambda p: update(
                p.done, p.total, f"{p.done / max(p.seconds, 1e-9):.0f}/s" + (f", {p.failed} failed" if p.failed else "")
            ),
        )
        for part in prepared:
            report = part.report
            typer.echo(f"{part.videos}: {part.found} of {part.wanted} videos found")
            typer.echo(
                f"{part.cache}: {report.decoded} decoded, {report.kept} already there, "
                f"{len(report.quarantined)} quarantined"
            )
            for video_id, reason in sorted(report.quarantined.items()):
                typer.echo(f"  quarantined {video_id}: {reason}")
