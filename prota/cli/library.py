"""`prota library info|verify|compact|merge|export|remove`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prota.cli.commands import App
from prota.cli.options import AsJson, LibraryPlace, print_json, require_library
from prota.cli.progress import duration

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
