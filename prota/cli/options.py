"""Options that several commands take, checks of arguments, and output as JSON or a table."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prota.errors import NotFoundError
from prota.models import shipped
from prota.platform import unconfined

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from prota.config.experiment import Experiment
    from prota.evaluation.report import SystemUnderTest

__all__ = [
    "FPS",
    "INTERRUPTED",
    "AllowMissing",
    "AsJson",
    "BackendName",
    "Checkpoint",
    "ConfigFile",
    "Data",
    "Device",
    "Frames",
    "LibraryPlace",
    "ModelName",
    "Overlap",
    "Overrides",
    "RayAddress",
    "Shots",
    "SplitName",
    "StartModel",
    "Timeout",
    "Wait",
    "Workers",
    "connected",
    "cores",
    "load_experiment",
    "load_system",
    "print_json",
    "read_lines",
    "require_config",
    "require_data",
    "require_library",
    "require_model",
    "require_paths",
    "require_system",
    "show_table",
    "warn_unconfined",
    "write_json",
]

# The exit status after Ctrl-C.
INTERRUPTED = 130

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="TOML file of the experiment, such as configs/msrvtt-9k.toml", show_default=False
    ),
]
Checkpoint = Annotated[
    Path, typer.Argument(metavar="MODEL", help="run folder, model folder, name or hub id", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="SECTION.FIELD=VALUE", help="override a setting; may be repeated"),
]
StartModel = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="MODEL",
        help="start from this model: a name, folder, hub id or run; it also gives the settings that CONFIG omits",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="TOML file with the data to use; default: the run's own data")
]
SplitName = Annotated[Literal["test", "val", "train"], typer.Option(help="split to use")]
AllowMissing = Annotated[
    int, typer.Option(min=0, metavar="N", help="accept up to N missing videos per split; recorded in the result")
]
Workers = Annotated[int, typer.Option(min=0, metavar="N", help="decoder processes; 0: one per core")]
Timeout = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="time limit for decoding a video")]
BackendName = Annotated[
    Literal["auto", "reference", "triton", "cpu"],
    typer.Option("--backend", help="implementation of the scores; auto: the fused kernels where supported"),
]
# Text: a Path would remove one of the slashes of an address.
LibraryPlace = Annotated[
    str,
    typer.Option("--library", "-l", metavar="LIBRARY", help="library folder, or s3://bucket/prefix, gs://…, az://…"),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="name, model folder or hub id, also of a bare CLIP, SigLIP, …; default: the library's model, for a new "
        f"library {shipped.DEFAULT}",
        show_default=False,
    ),
]
Device = Annotated[
    str, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, mps, …; auto: a GPU if there is one, else the CPU")
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]

FPS = Annotated[float, typer.Option(min=0.01, metavar="FPS", help="frames sampled per second")]
Frames = Annotated[int, typer.Option(min=0, metavar="N", help="frames per segment; 0: the maximum of the model")]
Overlap = Annotated[float, typer.Option(min=0, max=0.9, metavar="SHARE", help="overlap of consecutive segments")]
Shots = Annotated[bool, typer.Option("--shots", help="detect cuts; no segment crosses one")]
Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="time to wait for another writer")]

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="[ADDRESS]", show_default=False,
        help="use a Ray cluster: host:port, or auto for one on this machine; without an address, start a local one",
    ),
]  # fmt: skip

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def require_paths(*paths: Path | str) -> None:
    """NotFoundError for all of these that do not exist, before anything heavy is imported."""
    missing = [str(path) for path in paths if not os.path.exists(path)]
    if missing:
        raise NotFoundError(f"{', '.join(missing)}: no such file or folder")


def require_library(library: str) -> None:
    """NotFoundError if a folder contains no library. An object store is asked when the library is opened."""
    # One that has lost its description is for `prota library repair`.
    traces = ("library.json", "head.json", "spare", "segments.lance")
    if ":/" not in library and not any(Path(library, name).exists() for name in traces):
        raise NotFoundError.library(library)


def require_model(*models: Path | str) -> None:
    """NotFoundError for the first of these that can be neither a folder nor a shipped model nor a hub id."""
    for model in map(str, models):
        if not (Path(model).exists() or model in shipped.names() or _HUB_ID.fullmatch(model)):
            raise NotFoundError(
                f"{model}: no such folder, not a shipped model ({', '.join(shipped.names())}), and not a hub id",
                hint="give a folder, a shipped name or owner/name",
            )


def require_config(path: Path) -> None:
    if not path.is_file():
        raise typer.BadParameter(f"cannot read the config file {path}: no such file")


def load_experiment(path: Path, overrides: list[str] | None, start: str | None = None) -> Experiment:
    """The experiment of a TOML file; ``start``, the model of --from, replaces its train.start."""
    require_config(path)
    from prota.config.experiment import Experiment
    from prota.runs import config_of

    changes = [*(overrides or ()), *([f"train.start={json.dumps(start)}"] if start else [])]
    return Experiment.load(path, changes, base=config_of)


def load_system(
    checkpoint: Path, data: Path | None, overrides: list[str] | None, device: str | torch.device
) -> SystemUnderTest:
    """A run or model with its own data, or with the data of another TOML file."""
    require_system(data, overrides, checkpoint)
    from prota.evaluation.report import SystemUnderTest
    from prota.runtime import start_world

    experiment = None if data is None else load_experiment(data, overrides)
    chosen = start_world(device).device if isinstance(device, str) else device
    return SystemUnderTest.load(checkpoint, experiment, chosen)


def require_data(data: Path | None, overrides: list[str] | None) -> None:
    """BadParameter if there are overrides, but no file that they change, or if that file is missing."""
    if data is not None:
        require_config(data)
    elif overrides:
        raise typer.BadParameter("--set changes the settings of --data CONFIG, which is missing")


def require_system(data: Path | None, overrides: list[str] | None, *models: Path) -> None:
    """Check the arguments of `load_system` before anything heavy is imported."""
    require_data(data, overrides)
    require_model(*models)


def read_lines(file: Path) -> list[str]:
    """The lines of a text file; ``-``: of standard input."""
    try:
        content = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"cannot read {file}: not UTF-8 ({error.reason})") from None


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON; characters that the output cannot encode are escaped, because `?` would change a file name."""
    holds_all = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    typer.echo(json.dumps(value, indent=indent, ensure_ascii=not holds_all))


def write_json(value: object, file: Path) -> None:
    """Write JSON to a file; ``-``: to standard output."""
    if str(file) == "-":
        print_json(value, indent=2)
    else:
        file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def warn_unconfined() -> None:
    """Report that this system has no sandbox for decoders."""
    if reason := unconfined():
        typer.echo(f"warning: decoding is not confined ({reason}); index only files that you trust", err=True)


@contextmanager
def connected(ray: str) -> Iterator[None]:
    """A connection to a Ray cluster; prints the URL of its dashboard."""
    from prota.cluster.connect import connect

    with connect(ray) as dashboard:
        if dashboard:
            typer.echo(f"Ray's dashboard: {dashboard}", err=True)
        yield


def cores() -> int:
    return os.cpu_count() or 1


def show_table(table: Table, narrowest: int | None = None) -> None:
    """Print a table without cutting numbers off, however narrow the terminal.

    ``narrowest``: least width of a table with a column that folds. In a file nothing folds, for copying.
    """
    from rich.console import Console

    console = Console()
    if narrowest is None or not console.is_terminal:
        narrowest = console.measure(table, options=console.options.update(width=1_000)).maximum
    Console(width=max(console.width, narrowest)).print(table)
