"""`prota match`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import Device, print_json, read_lines, require_model, require_paths, show_table
from prota.models import shipped

if TYPE_CHECKING:
    from prota.library.search.clips import CaptionMatch

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
    matches = match_captions(loaded, clip, lines)[:k]
    if as_json:
        for found in matches:
            print_json(asdict(found))
    else:
        _show(matches, clip)


def _show(matches: list[CaptionMatch], clip: Path) -> None:
    from rich.markup import escape
    from rich.table import Column, Table

    from prota.library.records import clock

    number, moment, score = (Column(name, no_wrap=True) for name in ("", "moment", "score"))
    table = Table(number, Column("caption", overflow="fold"), moment, score, title=escape(clip.name))
    for place, found in enumerate(matches, start=1):
        # A picture has no times.
        when = f"{clock(found.start)} – {clock(found.end)}" if found.end else "picture"
        table.add_row(str(place), escape(found.caption), when, f"{found.score:.3f}")
    show_table(table, narrowest=60)
