"""`prota library info|verify|compact|merge|export|remove`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import LibraryPlace

__all__ = ["app"]

app = typer.Typer(help="Look after a library of indexed videos.", no_args_is_help=True)


@app.command()
def info(library: LibraryPlace = "library") -> None:
    """What a library holds, as JSON; bad files with the reason."""
    from prota.library import manage

    typer.echo(json.dumps(manage.info(library), indent=2))


@app.command()
def verify(
    library: LibraryPlace = "library",
    deep: Annotated[bool, typer.Option("--deep", help="also read every video file again and compare its hash")] = False,
) -> None:
    """Check that everything in a library is whole; exit code 1 where it is not."""
    from prota.library import manage

    problems = manage.verify(library, deep=deep)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo(f"{library}: good")


@app.command()
def compact(library: LibraryPlace = "library") -> None:
    """Join small files, drop old versions, and build the index that large libraries are searched by."""
    from prota.library import manage

    manage.compact(library)
    typer.echo(f"{library}: compacted")


@app.command()
def merge(
    others: Annotated[list[str], typer.Argument(help="libraries to take in", show_default=False)],
    library: LibraryPlace = "library",
) -> None:
    """Take in libraries that were made elsewhere with the same model; nothing is doubled."""
    from prota.library import manage

    manage.merge(library, others)
    typer.echo(f"{library}: {manage.info(library)['segments']:,} segments")


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help="file to write, .jsonl or .parquet", show_default=False)],
    library: LibraryPlace = "library",
) -> None:
    """Write one row per segment, without its tokens."""
    from prota.library import manage

    manage.export(library, path)
    typer.echo(f"wrote {path}")


@app.command()
def remove(
    videos: Annotated[list[str], typer.Argument(help="paths or ids of videos", show_default=False)],
    library: LibraryPlace = "library",
) -> None:
    """Take videos out of a library; their files stay where they are."""
    from prota.library import manage

    manage.remove(library, videos)
    typer.echo(f"{library}: removed {len(videos)}")
