"""`prota match`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device, print_json, read_lines, require_model, require_paths
from prota.models import shipped

__all__ = ["match"]


def match(
    clip: Annotated[Path, typer.Argument(metavar="CLIP", help="video or picture", show_default=False)],
    captions: Annotated[
        Path,
        typer.Argument(
            metavar="CAPTIONS", help="text file with one caption per line; -: standard input", show_default=False
        ),
    ],
    model: Annotated[str, typer.Option(metavar="MODEL", help="name, model folder or hub id")] = shipped.DEFAULT,
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="number of captions to show")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON, one line per caption")] = False,
    device: Device = "auto",
) -> None:
    """Rank captions by how well they describe a video or a picture."""
    require_paths(clip, *([] if str(captions) == "-" else [captions]))
    require_model(model)
    lines = read_lines(captions)
    from prota.library.library import load_model
    from prota.library.search.clips import match_captions

    loaded, _ = load_model(model, device)
    for found in match_captions(loaded, clip, lines)[:k]:
        if as_json:
            print_json(asdict(found))
        else:
            # A picture has no times.
            when = f"{found.start:7.1f} – {found.end:.1f} s  " if found.end else ""
            typer.echo(f"{found.score:+.3f}  {when}{found.caption}")
