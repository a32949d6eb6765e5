"""`prota cut`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import AsJson, Timeout, print_json, require_paths

__all__ = ["cut"]

_TIME = "seconds, m:ss or h:mm:ss"


def cut(
    video: Annotated[Path, typer.Argument(metavar="VIDEO", help="video file", show_default=False)],
    start: Annotated[str, typer.Argument(metavar="START", help=_TIME, show_default=False)],
    end: Annotated[str, typer.Argument(metavar="END", help=_TIME, show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help=".mp4, .mov or .mkv")] = Path("clip.mp4"),
    copy: Annotated[
        bool, typer.Option("--copy", help="copy the streams, from the keyframe before START, instead of encoding again")
    ] = False,
    timeout: Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Cut a moment out of a video, with its sound."""
    first, last = _seconds(start), _seconds(end)
    require_paths(video)
    from prota.library.records import clock
    from prota.workers.cutting import save_clip

    made = save_clip(video, first, last, out, exact=not copy, timeout=timeout)
    if as_json:
        values = {"start": round(made.start, 3), "end": round(made.end, 3), "frames": made.frames, "sound": made.sound}
        print_json({"file": str(out), **values})
        return
    sound = "with sound" if made.sound else "without sound"
    typer.echo(f"{out}: {clock(made.start)} – {clock(made.end)}, {made.frames} frames, {sound}")


def _seconds(text: str) -> float:
    if re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text) is None:
        raise typer.BadParameter(f"{text!r} is no time: give {_TIME}")
    seconds = 0.0
    for part in text.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds
