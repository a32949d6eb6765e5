"""`prota match`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device
from prota.models import shipped

__all__ = ["match"]


def match(
    clip: Annotated[Path, typer.Argument(help="video file", show_default=False)],
    captions: Annotated[Path, typer.Argument(help="text file, a caption a line", show_default=False)],
    model: Annotated[str, typer.Option(help="model folder, hub id or a name that comes with prota")] = shipped.DEFAULT,
    k: Annotated[int, typer.Option("-k", min=1, help="captions to show")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, one object a caption")] = False,
    device: Device = "auto",
) -> None:
    """Order captions by how well they describe a clip."""
    try:
        lines = captions.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{captions} cannot be read: {error}") from None
    from prota.library.clips import match_captions
    from prota.model import ProTA
    from prota.training.distributed import start_world

    loaded = ProTA.from_pretrained(model).to(start_world(device).device)
    for found in match_captions(loaded, clip, lines)[:k]:
        if as_json:
            typer.echo(json.dumps(asdict(found), ensure_ascii=False))
        else:
            typer.echo(f"{found.score:+.3f}  {found.start:7.1f} – {found.end:.1f} s  {found.caption}")
