"""`prota search`."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.options import Device, LibraryPlace, ModelName, print_json, read_lines, show_table
from prota.errors import ProtaError

if TYPE_CHECKING:
    from prota.library.search.clips import ClipRange
    from prota.library.search.hits import Hit, MomentExplanation, Results
    from prota.library.search.queries import Query
    from prota.library.search.view import View

__all__ = ["search"]

Words = Annotated[list[str] | None, typer.Argument(help="what the moment shows", show_default=False)]

Where = Annotated[
    str | None,
    typer.Option(
        help="filter, such as \"duration < 60 and path like '%beach%'\" or \"kind = 'picture'\" (else 'video'); "
        "a picture has the duration 0; of copies, the first one counts"
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        help="find what looks like a clip or a picture: clip.mp4@12-20 in seconds, clip.mp4 (its middle), x.jpg"
    ),
]


def search(
    words: Words = None,
    k: Annotated[int, typer.Option("-k", min=1, help="moments to show")] = 10,
    library: LibraryPlace = "library",
    where: Where = None,
    like: Like = None,
    queries: Annotated[Path | None, typer.Option(help="file of queries, one a line; -: standard input")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="score every segment, however many there are")] = False,
    everything: Annotated[bool, typer.Option("--all", help="also show what is no good match")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="show which words matched which seconds")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, one object a query")] = False,
    open_best: Annotated[bool, typer.Option("--open", help="open the best video at its moment")] = False,
    model: ModelName = None,
    device: Device = "auto",
) -> None:
    """Find the moments that some words mean."""
    texts = _queries(words, queries, like)
    if explain and like is not None:
        raise typer.BadParameter("--explain shows which words matched, and --like has none")
    # Modules are a million objects and no garbage: looking for some would take a fifth of the time.
    gc.disable()
    try:
        _check(library, model)
        from prota.library.library import Library
        from prota.runtime import start_world

        clip = None if like is None else _parse(like)
        view = Library.open(library, model, str(start_world(device).device), existing=True).view
    finally:
        gc.enable()
    best: Hit | None = None
    for text in texts:
        # One by one: on a CPU, scores of a batch may differ in the last bit.
        (query,) = view.encode([text]) if clip is None else [_like(view, clip)]
        if query.cut and not as_json:
            length = view.model.text_encoder.length
            typer.echo(f"only the first {length} tokens of the query are read: the model takes no more", err=True)
        (results,) = view.search([query], k, where, exact=exact)
        hits = results.hits if everything else results.good
        best = best or (hits[0] if hits else None)
        if as_json:
            print_json(_as_dict(view, results, hits, explain))
        elif results.hits and not hits:
            typer.echo(f"no good match for “{query.text}” (--all shows the {len(results.hits)} nearest)")
        else:
            _show(view, results, hits, explain)
    if open_best and best is not None:
        _open(best)


def _check(library: str, model: str | None) -> None:
    """Raise what is wrong with these before torch is loaded."""
    from prota.library.storage.location import Location
    from prota.library.storage.versions import read_library
    from prota.model.folder import model_folder

    read_library(Location.of(library))
    if model is not None:
        model_folder(model)


def _parse(like: str) -> ClipRange:
    from prota.library.records import LibraryError
    from prota.library.search.clips import parse_clip

    try:
        return parse_clip(like)
    except LibraryError as error:
        raise typer.BadParameter(str(error)) from None


def _like(view: View, clip: ClipRange) -> Query:
    from prota.library.search.clips import clip_query

    return clip_query(view.model, clip)


def _queries(words: list[str] | None, file: Path | None, like: str | None) -> list[str]:
    if [bool(words), file is not None, like is not None].count(True) != 1:
        raise typer.BadParameter("give either words, --queries FILE or --like CLIP")
    if like is not None:
        return [like]
    texts = [" ".join(words or [])] if file is None else read_lines(file)
    from prota.library.search.queries import words_of

    texts = [text for text in texts if words_of(text)]
    if not texts:
        if file is not None:
            raise typer.BadParameter(f"{file} has no query: write one a line, in words")
        raise typer.BadParameter("the query is empty: say in words what the moment shows")
    return texts


def _as_dict(view: View, results: Results, hits: list[Hit], explain: bool) -> dict[str, Any]:
    query, moments = results.query, []
    for hit in hits:
        moment = {"path": hit.video.path, "video_id": hit.video.video_id, **hit.fields()}
        if explain:
            why = view.explain(query, hit.row)
            moment["words"] = [{"word": word.text, "adds": word.contribution} for word in why.words]
            moment["frames"] = [{"second": round(frame.time, 3), "adds": frame.contribution} for frame in why.frames]
        moments.append(moment)
    no_good_match = bool(results.hits) and not hits
    return {"query": query.text, "cut": query.cut, "moments": moments, "no_good_match": no_good_match}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"


def _short(path: str) -> str:
    """Below the present folder without it, as one would type it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _show(view: View, results: Results, hits: list[Hit], explain: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console, text = Console(), escape(results.query.text)
    if not hits:
        console.print(f"nothing found for “{text}”")
        return
    number, moment, match, score = (Column(name, no_wrap=True) for name in ("", "moment", "match", "score"))
    video = Column("video", overflow="fold")
    table = Table(number, moment, video, match, score, title=f"“{text}”")
    for place, hit in enumerate(hits, start=1):
        table.add_row(
            str(place),
            "picture" if hit.video.kind == "picture" else f"{_clock(hit.start)} – {_clock(hit.end)}",
            escape(_short(hit.video.path)),
            "" if hit.relevance is None else f"{hit.relevance:.0%}",
            f"{hit.score:.3f}",
        )
    show_table(table, narrowest=60)
    if explain:
        for place, hit in enumerate(hits[:3], start=1):
            _explain(console, place, hit, view.explain(results.query, hit.row))


def _explain(console: Any, place: int, hit: Hit, why: MomentExplanation) -> None:
    """Bars of what words and seconds add; they sum to the score."""
    from rich.cells import cell_len
    from rich.markup import escape

    rows = [(word.text, word.contribution) for word in why.words]
    picture = hit.video.kind == "picture"
    rows += [("the picture" if picture else _clock(frame.time), frame.contribution) for frame in why.frames]
    largest = max(abs(value) for _, value in rows) or 1.0
    width = max(cell_len(name) for name, _ in rows)
    console.print(f"\n{place}. why, adding up to {why.score:.3f} ({escape(_short(hit.video.path))})")
    for name, value in rows:
        bar = ("█" if value > 0 else "░") * round(24 * abs(value) / largest)
        padding = " " * (width - cell_len(name))
        console.print(f"  {padding}{escape(name)} {value:+.4f} {bar}", highlight=False)


def _open(hit: Hit) -> None:
    """A video with mpv or vlc at the moment; else, and a picture, with whatever opens its kind here."""
    import shutil

    for command in (["mpv", f"--start={hit.start:.1f}"], ["vlc", f"--start-time={hit.start:.1f}"]):
        if hit.video.kind == "video" and shutil.which(command[0]):
            subprocess.Popen([*command, "--", hit.video.path])
            return
    opener = "open" if sys.platform == "darwin" else "xdg-open"
    if not shutil.which(opener):
        remedy = ": install mpv or vlc" if hit.video.kind == "video" else ""
        raise ProtaError(f"no program found to open {hit.video.path}{remedy}")
    subprocess.Popen([opener, hit.video.path])
