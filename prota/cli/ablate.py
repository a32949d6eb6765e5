"""`prota ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from prota.cli.options import (
    INTERRUPTED,
    AllowMissing,
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    print_json,
    require_config,
    show_table,
)

__all__ = ["ablate"]


def ablate(
    config: ConfigFile,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="folder for all runs and results")],
    table: Annotated[Literal["main", "temperature", "kernels"], typer.Option(help="table of the paper")] = "main",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="runs per row, with the seeds 0, 1, …")] = 3,
    rows: Annotated[
        list[str] | None, typer.Option("--row", metavar="ROW", help="only this row; may be repeated")
    ] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate the rows of an ablation table over seeds. After an interruption the same command resumes."""
    require_config(config)
    from prota.cli.train import Display, StopRequest
    from prota.runtime import start_world
    from prota.training.ablation import ablation_table, run_table

    world = start_world(device)
    stop = StopRequest()
    with Display(world.first, None) as display:
        results = run_table(
            table,
            config,
            overrides=overrides or [],
            seeds=seeds,
            out=out,
            world=world,
            report=display,
            should_stop=stop,
            allow_missing=allow_missing,
            only=tuple(rows or ()),
            announce=lambda text: display.console.print(text) if world.first else None,
        )
    world.close()
    if world.first and results:
        if as_json:
            rows_found = {result.row.name: [passport.metrics for passport in result.passports] for result in results}
            print_json({"table": table, "rows": rows_found}, indent=2)
        else:
            show_table(ablation_table(results, f"{table}: {config}, {seeds} seeds"))
    if stop():
        typer.echo(f"interrupted; the same command resumes ({out})", err=True)
        raise SystemExit(INTERRUPTED)
