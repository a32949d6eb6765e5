"""`prota search`."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.options import (
    Device,
    LibraryPlace,
    ModelName,
    print_json,
    read_lines,
    require_library,
    require_model,
    require_paths,
    show_table,
)
from prota.errors import ProtaError

if TYPE_CHECKING:
    from rich.console import Console

    from prota.library.search.explain import MomentExplanation
    from prota.library.search.hits import Hit, Results

__all__ = ["search"]

# Shades of a heat map, each with a colour.
_HEAT = (("·", "dim"), ("░", "blue"), ("▒", "cyan"), ("▓", "yellow"), ("█", "red"))
_RANGE = re.compile(r"@[\d.]+-[\d.]+$")

Words = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="description of the moment, in English", show_default=False)
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="filter, such as \"duration < 60 and path like '%beach%'\" or \"kind = 'picture'\" (or 'video'); pictures "
        "have the duration 0; identical files are filtered as the first of them",
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="search by example: x.jpg, clip.mp4 (its middle) or clip.mp4@12-20 (from second 12 to 20)",
    ),
]


def search(
    words: Words = None,
    k: Annotated[int, typer.Option("-k", min=1, metavar="N", help="number of moments to show")] = 10,
    library: LibraryPlace = "library",
    where: Where = None,
    like: Like = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="text file with one query per line; -: standard input")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="score all segments, even in a large library")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="show which words match which seconds")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON, one line per query")] = False,
    open_best: Annotated[bool, typer.Option("--open", help="play the best good match")] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the good matches to a .csv, .json, .m3u, .edl, .fcpxml or .otio file"),
    ] = None,
    reel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="join the good matches to one .mp4, .mov or .mkv video")
    ] = None,
    model: ModelName = None,
    device: Device = "auto",
) -> None:
    """Search the library with a text query, or with a clip or picture.

    Results below the calibrated threshold are listed last, under a line, as weaker matches.
    """
    require_library(library)
    if model is not None:
        require_model(model)
    texts = _queries(words, queries, like)
    if explain and like is not None:
        raise typer.BadParameter("--explain needs a text query, not --like")
    # Importing modules makes a million objects and no garbage: looking for some would take a fifth of the time.
    gc.disable()
    try:
        from prota.library.library import Library

        lib = Library(library, model, device=device, existing=True)
    finally:
        gc.enable()
    found: list[Results] = []
    for text in texts:
        # One at a time: on a CPU, scores of a batch may differ in the last bit.
        results = lib.search(text if like is None else None, k, like=like, where=where, exact=exact)
        if results.query.cut and not as_json:
            length = lib.model.config.encoder.text_length
            typer.echo(f"query truncated to {length} tokens, the limit of the model", err=True)
        if results.damaged and not as_json:
            typer.echo(
                f"{results.damaged} corrupt segments were left out: run `prota library repair --library {library}`",
                err=True,
            )
        found.append(results)
        if as_json:
            print_json(_as_dict(results, explain))
        else:
            _show(results, explain, filtered=where is not None)
    _hand_over(found, export, reel)
    if open_best and (best := next((hit for results in found for hit in results), None)) is not None:
        _open(best)


def _hand_over(found: list[Results], export: Path | None, reel: Path | None) -> None:
    if export is not None:
        from prota.library.search.export import export as write

        count = write([(results.query.text, hit) for results in found for hit in results], export)
        typer.echo(f"{export}: {count} moments", err=True)
    if reel is not None:
        from prota.workers.cutting import Span, save_reel

        hits = [hit for results in found for hit in results if hit.video.kind == "video"]
        seconds = save_reel([Span(hit.path, hit.start, hit.end) for hit in hits], reel)
        typer.echo(f"{reel}: {len(hits)} moments, {seconds:.1f} s", err=True)


def _queries(words: list[str] | None, file: Path | None, like: str | None) -> list[str]:
    if [bool(words), file is not None, like is not None].count(True) != 1:
        raise typer.BadParameter("give one of TEXT, --queries FILE and --like FILE")
    if like is not None and not Path(like).exists():
        require_paths(_RANGE.sub("", like))
    from prota.library.search.queries import parse_clip, words_of

    if like is not None:
        parse_clip(like)
        return [like]
    texts = [" ".join(words or [])] if file is None else read_lines(file)
    texts = [text for text in texts if words_of(text)]
    if not texts:
        if file is not None:
            raise typer.BadParameter(f"{file} contains no query: write one per line")
        raise typer.BadParameter("the query is empty: describe the moment in words")
    return texts


def _as_dict(results: Results, explain: bool) -> dict[str, Any]:
    found = results.to_dict()
    if explain:
        for hit, moment in zip(results.hits, found["moments"], strict=True):
            moment["why"] = hit.explain().to_dict()
    return found


def _short(path: str) -> str:
    """A path below the working directory as a relative path."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _show(results: Results, explain: bool, *, filtered: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from prota.library.records import clock

    console, good = Console(), results.good
    text = escape(results.query.text if results.query.like else f"“{results.query.text}”")
    if results.hint is not None:
        typer.echo(f"note: {results.hint}", err=True)
    if not results.hits:
        console.print(f"no results for {text}{': no video matches --where' if filtered else ''}")
        return
    number, moment, best, match, score = (
        Column(name, no_wrap=True) for name in ("", "moment", "best", "match", "score")
    )
    video = Column("video", overflow="fold")
    # An uncalibrated model, or a search by example, gives no probability.
    judges = any(hit.probability is not None for hit in results.hits) or len(good) < len(results.hits)
    columns = (number, moment, best, video, *([match] if judges else []), score)
    table = Table(
        *columns, title=text if good else f"no good match for {text}{' with this filter' if filtered else ''}"
    )
    for place, hit in enumerate(results.hits, start=1):
        picture, judged = hit.video.kind == "picture", "" if hit.probability is None else f"{hit.probability:.0%}"
        table.add_row(
            str(place),
            "picture" if picture else f"{clock(hit.start)} – {clock(hit.end)}",
            "" if picture else clock(hit.best),
            escape(_short(hit.video.path)),
            *([judged if hit in good else f"weaker ({judged})".removesuffix(" ()")] if judges else []),
            f"{hit.score:.3f}",
            style="" if hit in good else "dim",
            # A line between good and weaker matches.
            end_section=place == len(good),
        )
    show_table(table, narrowest=60)
    if explain:
        for place, hit in enumerate(results.hits[:3], start=1):
            _explain(console, place, hit, hit.explain())


def _explain(console: Console, place: int, hit: Hit, why: MomentExplanation) -> None:
    """Print which words match which seconds, and a heat map of words and seconds."""
    from rich.cells import cell_len
    from rich.text import Text

    from prota.library.records import clock

    console.print(Text(f"\n{place}. {_short(hit.video.path)}: {why.sentence}"))
    rows = [(word.text, word.heat) for word in why.words if word.chosen]
    rows.append(("the query", tuple(frame.heat for frame in why.frames)))
    times = [clock(frame.time, decimals=0) for frame in why.frames]
    if len(set(times)) < len(times):
        times = [clock(frame.time) for frame in why.frames]
    names = max(cell_len(name) for name, _ in rows)
    width = max(map(len, times))
    if 2 + names + len(times) * (width + 1) > console.width:
        # Only the ends have room for their times.
        width = 2
        times = [times[0].ljust(3 * (len(times) - 1)) + times[-1]]
    if hit.video.kind == "video":
        console.print(Text(" ".join(["  " + " " * names, *(time.ljust(width) for time in times)])))
    for name, heats in rows:
        line = Text("  " + " " * (names - cell_len(name)) + name)
        for heat in heats:
            level = min(int(heat * len(_HEAT)), len(_HEAT) - 1)
            shade, style = _HEAT[level]
            line.append(" ").append(shade * width, style)
        console.print(line)


def _open(hit: Hit) -> None:
    """Open a video at its moment with mpv or vlc; without them, or for a picture, use the default application."""
    import shutil

    for command in (["mpv", f"--start={hit.start:.1f}"], ["vlc", f"--start-time={hit.start:.1f}"]):
        if hit.video.kind == "video" and shutil.which(command[0]):
            subprocess.Popen([*command, "--", hit.video.path])
            return
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    if not shutil.which(opener):
        remedy = ": install mpv or vlc" if hit.video.kind == "video" else ""
        raise ProtaError(f"no application found to open {hit.video.path}{remedy}")
    subprocess.Popen([opener, hit.video.path])
