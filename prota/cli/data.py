"""`prota data check` and `prota data prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.commands import App
from prota.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    StartModel,
    Timeout,
    Workers,
    cores,
    load_experiment,
    print_json,
    require_config,
    write_json,
)
from prota.cli.progress import progress

if TYPE_CHECKING:
    from prota.data.doctor import Inventory

__all__ = ["app"]

app = App(help="Check the files of a benchmark and decode its videos.", no_args_is_help=True)


@app.command()
def check(
    config: ConfigFile,
    overrides: Overrides = None,
    workers: Workers = 0,
    timeout: Timeout = 60.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="also write all names and reasons as JSON; -: print it"),
    ] = None,
) -> None:
    """List the videos of a benchmark that are missing, corrupt, too short, duplicated or without captions.

    Exit status 1 if there are any.
    """
    require_config(config)
    from prota.data.benchmarks import load_benchmark
    from prota.data.doctor import check as inspect

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
    if str(json_file) != "-":
        _show(inventory)
    if json_file is not None:
        write_json(inventory.as_dict(), json_file)
    elif not inventory.complete:
        typer.echo("--json FILE writes all names and reasons")
    if not inventory.complete:
        raise typer.Exit(1)


def _show(inventory: Inventory) -> None:
    from rich.console import Console

    from prota.data.splits import examples

    Console().print(inventory.table())
    for split in inventory.splits:
        for what, videos in (("missing", split.missing), ("corrupt", split.corrupt), ("too short", split.too_short)):
            if videos:
                typer.echo(f"{split.name}, {what}: {examples(videos)}")
        for reason in list(split.corrupt.values())[:1]:
            typer.echo(f"  reason of the first: {reason}")


@app.command()
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    workers: Workers = 0,
    timeout: Timeout = 60.0,
    retry: Annotated[bool, typer.Option("--retry", help="retry quarantined videos")] = False,
    start: StartModel = None,
    as_json: AsJson = False,
) -> None:
    """Decode all videos and pictures into the frame caches. After an interruption the same command resumes."""
    require_config(config)
    from prota.data.prepare import prepare as fill

    experiment = load_experiment(config, overrides, start)
    filled: list[dict[str, Any]] = []
    # Settings are checked before the bar is shown.
    prepared = fill(
        experiment,
        workers=workers,
        timeout=timeout,
        retry=retry,
        on_progress=lambda p: update(
            p.done, p.total, f"{p.done / max(p.seconds, 1e-9):.0f}/s" + (f", {p.failed} failed" if p.failed else "")
        ),
    )
    with progress("decoding") as update:
        for part in prepared:
            typer.echo(f"{part.videos}: {part.found} of {part.wanted} videos found", err=True)
            report = part.report
            filled.append({
                "cache": str(part.cache), "decoded": report.decoded, "kept": report.kept,
                "quarantined": dict(report.quarantined),
            })  # fmt: skip
    if as_json:
        print_json(filled, indent=2)
        return
    for cache in filled:
        quarantined = cache["quarantined"]
        typer.echo(
            f"{cache['cache']}: {cache['decoded']} decoded, {cache['kept']} already cached, "
            f"{len(quarantined)} quarantined"
        )
        for video_id, reason in sorted(quarantined.items()):
            typer.echo(f"  quarantined {video_id}: {reason}")
