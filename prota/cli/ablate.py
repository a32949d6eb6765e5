"""`prota ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from prota.cli.options import INTERRUPTED, AllowMissing, ConfigFile, Device, Overrides, show_table

__all__ = ["ablate"]


def ablate(
    config: ConfigFile,
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of all runs and results")],
    table: Annotated[
        Literal["main", "temperature", "kernels"], typer.Option(help="which of the paper's tables")
    ] = "main",
    seeds: Annotated[int, typer.Option(min=1, help="runs per row, seeds 0, 1, …")] = 3,
    rows: Annotated[list[str] | None, typer.Option("--row", help="only this row; may be repeated")] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
) -> None:
    """Train and test the rows of an ablation table over seeds; the same command continues one that was stopped."""
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
        show_table(ablation_table(results, f"{table}: {config}, {seeds} seeds"))
    if stop():
        typer.echo(f"stopped; the same command goes on from there ({out})", err=True)
        raise SystemExit(INTERRUPTED)
