"""`prota search`."""

from __future__ import annotations

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
    from prota.library.search.hits import Hit, MomentExplanation, Results
    from prota.library.search.view import View

__all__ = ["search"]

_STRETCH = re.compile(r"@[\d.]+-[\d.]+$")

Words = Annotated[
    list[str] | None, typer.Argument(metavar="TEXT", help="description of the moment, in English", show_default=False)
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="filter, such as \"duration < 60 and path like '%beach%'\" or \"kind = 'picture'\" (or 'video'); pictures "
        "have the duration 0; of identical files the first one counts",
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
    explain: Annotated[bool, typer.Option("--explain", help="show the contributions of words and frames")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON, one line per query")] = False,
    open_best: Annotated[bool, typer.Option("--open", help="play the best good match")] = False,
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
    from prota.library.library import Library
    from prota.library.records import LibraryError
    from prota.library.search.clips import clip_query, parse_clip
    from prota.runtime import start_world

    try:
        clip = None if like is None else parse_clip(like)
    except LibraryError as error:
        raise typer.BadParameter(str(error)) from None
    view = Library.open(library, model, str(start_world(device).device), existing=True).view
    best: Hit | None = None
    for text in texts:
        # One at a time: on a CPU, scores of a batch may differ in the last bit.
        (query,) = view.encode([text]) if clip is None else [clip_query(view.model, clip)]
        if query.cut and not as_json:
            length = view.model.text_encoder.length
            typer.echo(f"query truncated to {length} tokens, the limit of the model", err=True)
        (results,) = view.search([query], k, where, exact=exact)
        best = best or next(iter(results.good), None)
        if as_json:
            print_json(_as_dict(view, results, explain))
        else:
            _show(view, results, explain)
    if open_best and best is not None:
        _open(best)


def _queries(words: list[str] | None, file: Path | None, like: str | None) -> list[str]:
    if [bool(words), file is not None, like is not None].count(True) != 1:
        raise typer.BadParameter("give one of TEXT, --queries FILE and --like FILE")
    if like is not None:
        if not Path(like).exists():
            require_paths(_STRETCH.sub("", like))
        return [like]
    texts = [" ".join(words or [])] if file is None else read_lines(file)
    from prota.library.search.queries import words_of

    texts = [text for text in texts if words_of(text)]
    if not texts:
        if file is not None:
            raise typer.BadParameter(f"{file} contains no query: write one per line")
        raise typer.BadParameter("the query is empty: describe the moment in words")
    return texts


def _as_dict(view: View, results: Results, explain: bool) -> dict[str, Any]:
    query, moments, good = results.query, [], results.good
    for hit in results.hits:
        moment = {"path": hit.video.path, "video_id": hit.video.video_id, **hit.fields(), "weaker": hit not in good}
        if explain:
            why = view.explain(query, hit.row)
            moment["words"] = [{"word": word.text, "adds": word.contribution} for word in why.words]
            moment["frames"] = [{"second": round(frame.time, 3), "adds": frame.contribution} for frame in why.frames]
        moments.append(moment)
    return {"query": query.text, "cut": query.cut, "moments": moments, "no_good_match": results.no_good_match}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"


def _short(path: str) -> str:
    """A path below the working directory as a relative path."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _show(view: View, results: Results, explain: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console, text, good = Console(), escape(results.query.text), results.good
    if not results.hits:
        console.print(f"nothing found for “{text}”")
        return
    number, moment, match, score = (Column(name, no_wrap=True) for name in ("", "moment", "match", "score"))
    video = Column("video", overflow="fold")
    table = Table(number, moment, video, match, score, title=f"“{text}”" if good else f"no good match for “{text}”")
    for place, hit in enumerate(results.hits, start=1):
        judged = "" if hit.relevance is None else f"{hit.relevance:.0%}"
        table.add_row(
            str(place),
            "picture" if hit.video.kind == "picture" else f"{_clock(hit.start)} – {_clock(hit.end)}",
            escape(_short(hit.video.path)),
            judged if hit in good else f"weaker ({judged})",
            f"{hit.score:.3f}",
            style="" if hit in good else "dim",
            # A line between good and weaker matches.
            end_section=place == len(good),
        )
    show_table(table, narrowest=60)
    if explain:
        for place, hit in enumerate(results.hits[:3], start=1):
            _explain(console, place, hit, view.explain(results.query, hit.row))


def _explain(console: Any, place: int, hit: Hit, why: MomentExplanation) -> None:
    """Draw the contributions of words and frames as bars; they add up to the score."""
    from rich.cells import cell_len
    from rich.markup import escape

    rows = [(word.text, word.contribution) for word in why.words]
    picture = hit.video.kind == "picture"
    rows += [("the picture" if picture else _clock(frame.time), frame.contribution) for frame in why.frames]
    largest = max(abs(value) for _, value in rows) or 1.0
    width = max(cell_len(name) for name, _ in rows)
    console.print(f"\n{place}. contributions to the score {why.score:.3f} ({escape(_short(hit.video.path))})")
    for name, value in rows:
        bar = ("█" if value > 0 else "░") * round(24 * abs(value) / largest)
        padding = " " * (width - cell_len(name))
        console.print(f"  {padding}{escape(name)} {value:+.4f} {bar}", highlight=False)


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
