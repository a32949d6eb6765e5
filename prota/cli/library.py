"""`prota library info|verify|repair|compact|merge|export|remove`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.commands import App
from prota.cli.options import (
    FPS,
    AsJson,
    Device,
    Frames,
    LibraryPlace,
    ModelName,
    Overlap,
    Shots,
    Wait,
    print_json,
    require_library,
    require_model,
)
from prota.cli.progress import duration

if TYPE_CHECKING:
    from prota.library.manage import Repaired

__all__ = ["app"]

app = App(help="Inspect and maintain a library.", no_args_is_help=True)


@app.command()
def info(library: LibraryPlace = "library", as_json: AsJson = False) -> None:
    """Show the contents and size of a library, and bad files with the reason."""
    require_library(library)
    from prota.library import manage

    found = manage.info(library)
    if as_json:
        print_json(found, indent=2)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    videos, model = found["videos"], found["model"]
    counts = f"{videos['indexed']:,} indexed ({found['pictures']:,} of them pictures)"
    rows = {
        "library": f"{found['folder']}, version {found['version']}, created {found['created']}",
        "files": f"{counts}, {videos['bad']:,} bad, {videos['gone']:,} missing",
        "video": f"{duration(found['hours'] * 3600)} in {found['segments']:,} segments",
        "size": f"{found['bytes'] / 1e6:,.1f} MB",
        "model": model["name"],
    }
    for name, value in rows.items():
        typer.echo(f"{name:8} {value}")
    for path, reason in found["bad"].items():
        typer.echo(f"bad      {path}: {reason}")


@app.command()
def verify(
    library: LibraryPlace = "library",
    deep: Annotated[bool, typer.Option("--deep", help="also read all video files and compare their hashes")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a library for corruption; exit status 1 if there is any."""
    require_library(library)
    from prota.library import manage

    problems = manage.verify(library, deep=deep)
    if as_json:
        print_json({"library": library, "problems": problems}, indent=2)
    else:
        for problem in problems:
            typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"{library}: intact")


@app.command()
def repair(
    library: LibraryPlace = "library",
    model: ModelName = None,
    fps: FPS = 1.0,
    frames: Frames = 0,
    overlap: Overlap = 0.5,
    shots: Shots = False,
    wait: Wait = 0.0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Restore what is corrupt or missing in a library, or drop it and index its files again.

    Give --fps, --frames, --overlap and --shots as for `prota index`. Exit status 1 if something is lost or could not be
    indexed again.
    """
    require_library(library)
    if model is not None:
        require_model(model)
    from prota.library import manage

    done = manage.repair(library, wait)
    if not as_json:
        _show_repair(done)
    bad: dict[str, str] = {}
    if done.again:
        from prota.library.library import Library

        plan: dict[str, Any] = {"fps": fps, "frames": frames, "overlap": overlap, "shots": shots}
        bad = Library(library, model, device=device).index(done.again, retry=True, wait=wait, **plan).bad
    if as_json:
        print_json({"library": library, **asdict(done), "bad": bad}, indent=2)
    else:
        for path, reason in bad.items():
            typer.echo(f"bad: {path}: {reason}", err=True)
        typer.echo(f"{library}: {'intact' if done.nothing else 'repaired'}")
    if done.lost or done.missing or bad:
        raise typer.Exit(1)


def _show_repair(done: Repaired) -> None:
    for note in done.notes:
        typer.echo(note)
    for path in done.again:
        typer.echo(f"dropped, to be indexed again: {path}")
    for path in done.lost:
        typer.echo(f"lost, the file no longer exists: {path}", err=True)
    for problem in done.missing:
        typer.echo(f"lost: {problem}; index your folders again with `prota index FOLDER`", err=True)


@app.command()
def compact(library: LibraryPlace = "library", as_json: AsJson = False) -> None:
    """Merge small files, delete old versions, and build the index that large libraries need."""
    require_library(library)
    from prota.library import manage

    manage.compact(library)
    _report(library, "compacted", as_json)


@app.command()
def merge(
    others: Annotated[list[str], typer.Argument(metavar="LIBRARY", help="libraries to add", show_default=False)],
    library: LibraryPlace = "library",
    as_json: AsJson = False,
) -> None:
    """Add libraries that were made with the same model; identical videos are stored once."""
    for place in (library, *others):
        require_library(place)
    from prota.library import manage

    manage.merge(library, others)
    _report(library, f"{manage.info(library)['segments']:,} segments", as_json)


@app.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help=".jsonl or .parquet file to write", show_default=False)],
    library: LibraryPlace = "library",
    as_json: AsJson = False,
) -> None:
    """Export one row per segment, without tokens, as JSON Lines or Parquet."""
    require_library(library)
    from prota.library import manage

    manage.export(library, path)
    if as_json:
        print_json({"library": library, "file": str(path)}, indent=2)
    else:
        typer.echo(f"wrote {path}")


@app.command()
def remove(
    videos: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEO", help="paths or ids of videos, as in `prota library export`", show_default=False
        ),
    ],
    library: LibraryPlace = "library",
    as_json: AsJson = False,
) -> None:
    """Remove videos from a library; their files are kept."""
    require_library(library)
    from prota.library import manage

    manage.remove(library, videos)
    _report(library, f"removed {len(videos)}", as_json)


def _report(library: str, change: str, as_json: bool) -> None:
    """Print the change; as JSON, the contents of the library after it."""
    if not as_json:
        typer.echo(f"{library}: {change}")
        return
    from prota.library import manage

    print_json(manage.info(library), indent=2)
