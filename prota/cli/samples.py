"""`prota samples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import progress

__all__ = ["samples"]


def samples(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder for the clips", show_default=False)],
) -> None:
    """Make a folder of short clips to try things on, with captions and their true moments in samples.csv."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; give a folder for the clips")
    from prota.samples.making import make_samples
    from prota.samples.sources import SOURCES, picture_path

    # Before there is a progress bar that the one line about a missing package would stand under.
    for name in SOURCES:
        picture_path(name)
    with progress("making samples") as update:
        result = make_samples(folder, show=update)
    counts = f"{len(result.made)} clips made, {len(result.kept)} already there"
    dropped = f", {len(result.dropped)} of an earlier version removed" if result.dropped else ""
    typer.echo(f"{folder}: {counts}{dropped}; captions in samples.csv")
