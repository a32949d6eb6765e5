"""`prota samples`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["samples"]


def samples(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder for the clips", show_default=False)],
) -> None:
    """Copy short sample clips to a folder, with captions and their moments in samples.csv."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; give a folder for the clips")
    from prota.samples.copying import copy_samples

    result = copy_samples(folder)
    counts = f"{len(result.copied)} clips copied, {len(result.unchanged)} unchanged"
    removed = f", {len(result.removed)} of an earlier version removed" if result.removed else ""
    typer.echo(f"{folder}: {counts}{removed}; captions in samples.csv")
