"""`prota samples`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import AsJson, print_json

__all__ = ["samples"]


def samples(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="folder to copy to", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Copy short sample clips to a folder, with their captions in samples.csv."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; give a folder")
    from prota.samples.copying import copy_samples

    result = copy_samples(folder)
    if as_json:
        print_json({"folder": str(folder), **asdict(result)}, indent=2)
        return
    counts = f"{len(result.copied)} clips copied, {len(result.unchanged)} unchanged"
    removed = f", {len(result.removed)} of an earlier version removed" if result.removed else ""
    typer.echo(f"{folder}: {counts}{removed}; captions in {folder / 'samples.csv'}")
