"""What several commands take and print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from prota.models import shipped

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from prota.config.experiment import Experiment
    from prota.evaluation.report import SystemUnderTest

__all__ = [
    "INTERRUPTED",
    "AllowMissing",
    "BackendName",
    "ConfigFile",
    "Data",
    "Device",
    "LibraryPlace",
    "ModelName",
    "Overrides",
    "RayAddress",
    "RayCommand",
    "SplitName",
    "StartModel",
    "Timeout",
    "Workers",
    "cores",
    "load_experiment",
    "load_system",
    "print_json",
    "read_lines",
    "require_data",
    "show_table",
    "with_address",
]

# The exit code after Ctrl-C.
INTERRUPTED = 130

ConfigFile = Annotated[Path, typer.Argument(help="TOML file of the experiment, see configs/", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="SECTION.FIELD=VALUE", help="override a setting; may be repeated"),
]
StartModel = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="model to start from: a shipped name, folder, hub id or run; its settings where the config has none",
        show_default=False,
    ),
]
Data = Annotated[Path | None, typer.Option(help="TOML file whose data to use; default: the run's own")]
SplitName = Annotated[Literal["test", "val", "train"], typer.Option(help="which split")]
AllowMissing = Annotated[
    int, typer.Option(min=0, metavar="N", help="go on although up to N videos of a split are missing; recorded")
]
Workers = Annotated[int, typer.Option(min=0, help="decoder processes; 0: one per core")]
Timeout = Annotated[float, typer.Option(min=0.1, help="seconds a video may take")]
BackendName = Annotated[
    Literal["auto", "reference", "triton", "cpu"],
    typer.Option("--backend", help="what computes scores; auto: the fused kernels wherever they can"),
]
# Text: a Path would take one of the slashes of an address.
LibraryPlace = Annotated[
    str,
    typer.Option(
        "--library", "-l", metavar="PLACE", help="folder of the library, or s3://bucket/prefix, gs://…, az://…"
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        help=f"model folder, hub id or {shipped.DEFAULT}; default: the library's own, for a new one {shipped.DEFAULT}",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …; auto: a GPU where there is one")]

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="[ADDRESS]", show_default=False,
        help="work on a Ray cluster: host:port, or auto for one of this machine; without an address one is started",
    ),
]  # fmt: skip


class RayCommand(TyperCommand):
    """A command whose --ray may stand without an address, which typer has no options for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `TyperCommand`."""
        return super().parse_args(ctx, with_address(args))


def with_address(args: list[str]) -> list[str]:
    """A command line in which every --ray has an address: what follows it and is none is something else."""
    from prota.cluster.connect import LOCAL, is_address

    end = args.index("--") if "--" in args else len(args)
    alone = {
        place
        for place in range(end)
        if args[place] == "--ray" and not (place + 1 < end and is_address(args[place + 1]))
    }
    return [f"--ray={LOCAL}" if place in alone else arg for place, arg in enumerate(args)]


def load_experiment(path: Path, overrides: list[str] | None, start: str | None = None) -> Experiment:
    """The experiment of a TOML file; ``start``, the model of --from, stands for its train.start."""
    from prota.config.experiment import Experiment
    from prota.runs import config_of

    changes = [*(overrides or ()), *([f"train.start={json.dumps(start)}"] if start else [])]
    return Experiment.load(path, changes, base=config_of)


def load_system(
    checkpoint: Path, data: Path | None, overrides: list[str] | None, device: str | torch.device
) -> SystemUnderTest:
    """A run or model with its own data, or with those of another TOML file."""
    require_data(data, overrides)
    from prota.evaluation.report import SystemUnderTest
    from prota.runtime import start_world

    experiment = None if data is None else load_experiment(data, overrides)
    chosen = start_world(device).device if isinstance(device, str) else device
    return SystemUnderTest.load(checkpoint, experiment, chosen)


def require_data(data: Path | None, overrides: list[str] | None) -> None:
    if data is None and overrides:
        raise typer.BadParameter("--set changes the settings of --data CONFIG: give that too")


def read_lines(file: Path) -> list[str]:
    """Of a text file, or of standard input where it is ``-``."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} cannot be read: it is not UTF-8 ({error.reason})") from None


def print_json(value: object, indent: int | None = None) -> None:
    """Letters as they are where the output can hold them: a name with question marks would be another."""
    holds_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=not holds_all))


def cores() -> int:
    return os.cpu_count() or 1


def show_table(table: Table, narrowest: int | None = None) -> None:
    """As wide as its numbers: half a number is none, in a file as in a narrow window.

    One with a column that folds needs the width ``narrowest`` in a window, and all of it in a file, to be copied from.
    """
    from rich.console import Console

    console = Console()
    if narrowest is None or not console.is_terminal:
        narrowest = console.measure(table, options=console.options.update(width=1_000)).maximum
    Console(width=max(console.width, narrowest)).print(table)
