"""`prota search`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prota.cli.options import Device, LibraryPlace, ModelName, print_json, read_lines, show_table
from prota.errors import ProtaError

if TYPE_CHECKING:
    from prota.library.library import Library
    from prota.library.search import Hit, Query

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
    from prota.library.clips import like_query, parse_clip
    from prota.library.library import Library
    from prota.library.records import LibraryError
    from prota.library.storage.location import Location
    from prota.library.storage.versions import read_library
    from prota.runtime import start_world

    try:
        clip = None if like is None else parse_clip(like)
    except LibraryError as error:
        raise typer.BadParameter(str(error)) from None
    # Where there is nothing to search, no model need be read to say so.
    read_library(Location.of(library))
    opened = Library.open(library, model, str(start_world(device).device))
    best: Hit | None = None
    for text in texts:
        searcher = opened.searcher
        query = searcher.encode(text) if clip is None else like_query(opened.model, clip)
        if query.cut and not as_json:
            length = opened.model.text_encoder.length
            typer.echo(f"only the first {length} tokens of the query are read: the model takes no more", err=True)
        found = searcher.search(query, k, where, exact)
        hits = found if everything else searcher.good(found)
        best = best or (hits[0] if hits else None)
        if as_json:
            answer = _as_dict(opened, query, hits, explain) | {"no_good_match": bool(found) and not hits}
            print_json(answer)
        elif found and not hits:
            typer.echo(f"no good match for “{query.text}” (--all shows the {len(found)} nearest)")
        else:
            _show(opened, query, hits, explain)
    if open_best and best is not None:
        _open(best)


def _queries(words: list[str] | None, file: Path | None, like: str | None) -> list[str]:
    if [bool(words), file is not None, like is not None].count(True) != 1:
        raise typer.BadParameter("give either words, --queries FILE or --like CLIP")
    if like is not None:
        return [like]
    texts = [" ".join(words or [])] if file is None else read_lines(file)
    from prota.library.search import has_words

    texts = [text for text in texts if has_words(text)]
    if not texts:
        if file is not None:
            raise typer.BadParameter(f"{file} has no query: write one a line, in words")
        raise typer.BadParameter("the query is empty: say in words what the moment shows")
    return texts


def _as_dict(library: Library, query: Query, hits: list[Hit], explain: bool) -> dict[str, Any]:
    found = []
    for hit in hits:
        entry: dict[str, Any] = {
            "path": hit.video.path, "video_id": hit.video.video_id, "kind": hit.video.kind,
            "start": round(hit.start, 3), "end": round(hit.end, 3), "best": round(hit.best, 3), "score": hit.score,
            "relevance": hit.relevance,
        }  # fmt: skip
        if explain:
            explanation = library.searcher.explain(query, hit.row)
            words = explanation.by_word(library.model.text_encoder.words(query.text))
            entry["words"] = [{"word": word.text, "adds": word.contribution} for word in words]
            times = library.searcher.frame_times(hit.row)
            entry["frames"] = [
                {"second": round(second, 3), "adds": float(adds)}
                for second, adds in zip(times, explanation.video_contributions, strict=True)
            ]
        found.append(entry)
    return {"query": query.text, "cut": query.cut, "moments": found}


def _clock(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{rest:04.1f}" if hours else f"{minutes}:{rest:04.1f}"


def _short(path: str) -> str:
    """Below the present folder without it, as one would type it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _show(library: Library, query: Query, hits: list[Hit], explain: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    console = Console()
    if not hits:
        console.print(f"nothing found for “{escape(query.text)}”")
        return
    number, moment, match, score = (Column(name, no_wrap=True) for name in ("", "moment", "match", "score"))
    video = Column("video", overflow="fold")
    table = Table(number, moment, video, match, score, title=f"“{escape(query.text)}”")
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
            _explain(console, library, query, hit, place=place)


def _explain(console: Any, library: Library, query: Query, hit: Hit, *, place: int) -> None:
    """Bars of what words and seconds add; they sum to the score."""
    from rich.cells import cell_len
    from rich.markup import escape

    explanation = library.searcher.explain(query, hit.row)
    words = explanation.by_word(library.model.text_encoder.words(query.text))
    times = library.searcher.frame_times(hit.row)
    frames = ["the picture"] if hit.video.kind == "picture" else [_clock(time) for time in times]
    rows = [(word.text, word.contribution) for word in words]
    rows += zip(frames, explanation.video_contributions.tolist(), strict=True)
    largest = max(abs(value) for _, value in rows) or 1.0
    width = max(cell_len(name) for name, _ in rows)
    console.print(f"\n{place}. why, adding up to {explanation.score:.3f} ({escape(_short(hit.video.path))})")
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
