"""`prota match`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device, print_json, read_lines
from prota.models import shipped

__all__ = ["match"]


def match(
    clip: Annotated[Path, typer.Argument(help="video or picture", show_default=False)],
    captions: Annotated[
        Path, typer.Argument(help="text file, a caption a line; -: standard input", show_default=False)
    ],
    model: Annotated[str, typer.Option(help="model folder, hub id or a name that comes with prota")] = shipped.DEFAULT,
    k: Annotated[int, typer.Option("-k", min=1, help="captions to show")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, one object a caption")] = False,
    device: Device = "auto",
) -> None:
    """Order captions by how well they describe a clip or a picture."""
    lines = read_lines(captions)
    from prota.library.search.clips import match_captions
    from prota.model.prota import ProTA
    from prota.runtime import start_world

    loaded = ProTA.for_texts(model).to(start_world(device).device)
    for found in match_captions(loaded, clip, lines)[:k]:
        if as_json:
            print_json(asdict(found))
        else:
            # Nothing is at any time of a picture.
            when = f"{found.start:7.1f} – {found.end:.1f} s  " if found.end else ""
            typer.echo(f"{found.score:+.3f}  {when}{found.caption}")
