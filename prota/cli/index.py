"""`prota index`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import (
    FPS,
    INTERRUPTED,
    AsJson,
    Device,
    Frames,
    LibraryPlace,
    ModelName,
    Overlap,
    RayAddress,
    Shots,
    Timeout,
    Wait,
    Workers,
    connected,
    print_json,
    require_model,
    require_paths,
    warn_unconfined,
)
from prota.cli.progress import duration, progress_bar
from prota.cli.train import StopRequest

if TYPE_CHECKING:
    from prota.library.indexing import IndexReport
    from prota.library.indexing.pipeline import ExecutorMaker

__all__ = ["index"]

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH", help="videos, pictures, or folders of them", show_default=False)
]
Pictures = Annotated[
    bool, typer.Option(help="also index JPEG, PNG and WebP files, except x.jpg beside x.mp4, which is its preview")
]


def index(
    paths: Paths,
    library: LibraryPlace = "library",
    model: ModelName = None,
    fps: FPS = 1.0,
    frames: Frames = 0,
    overlap: Overlap = 0.5,
    pictures: Pictures = True,
    shots: Shots = False,
    prune: Annotated[bool, typer.Option("--prune", help="remove videos whose files are missing")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="retry files that failed before")] = False,
    workers: Workers = 0,
    timeout: Timeout = 300.0,
    wait: Wait = 0.0,
    device: Device = "auto",
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Create or update a library. After an interruption the same command resumes.

    --frames, --fps, --overlap and --shots apply to new and changed files only. Exit status 1 if every file failed.
    """
    require_paths(*paths)
    if model is not None:
        require_model(model)
    if ray is not None:
        from prota.cluster.connect import check

        check(ray)
    from prota.library.library import Library

    warn_unconfined()
    # On a cluster the workers encode; this process only identifies the model.
    opened = Library(library, model, device="cpu" if ray else device)
    if frames > (most := opened.model.config.encoder.frames):
        raise typer.BadParameter(f"--frames {frames}: this model takes at most {most}")
    with _executor(ray, device, workers) as executor, _Display() as display:
        # Only now: Ray replaces the signal handlers when it connects.
        stop = StopRequest()
        report = opened.index(
            paths, fps=fps, frames=frames, overlap=overlap, shots=shots, pictures=pictures, prune=prune, retry=retry,
            workers=workers, timeout=timeout, wait=wait, report=display.show, should_stop=stop, executor=executor,
        )  # fmt: skip
    if as_json:
        print_json({"library": library, **asdict(report)}, indent=2)
    else:
        _print_report(report, library, "removed" if prune else "missing")
    if not report.finished:
        typer.echo("interrupted; finished files are in the library, the same command resumes", err=True)
        raise SystemExit(INTERRUPTED)
    if report.bad and len(report.bad) == report.done:
        raise SystemExit(1)
    if report.done and not as_json:
        where = "" if library == "library" else f" --library {shlex.quote(library)}"
        typer.echo(f'search it with: prota search "a dog jumps into water"{where}')


@contextmanager
def _executor(ray: str | None, device: str, workers: int) -> Iterator[ExecutorMaker | None]:
    """None for this machine, or a cluster."""
    if ray is None:
        yield None
        return
    with connected(ray):
        from prota.cluster.executor import RayExecutor

        yield partial(RayExecutor, device=device, decoders=workers)


def _print_report(report: IndexReport, library: str, gone: str) -> None:
    for path, reason in sorted(report.bad.items()):
        typer.echo(f"bad: {_on_one_line(path)}: {reason}", err=True)
    if not (report.finished or report.found):
        # Interrupted before any file was found.
        return
    parts = {
        "indexed": report.indexed, "unchanged": report.unchanged - report.still_bad, "moved": report.moved,
        "duplicates": report.duplicates, "bad": len(report.bad),
        "bad as before (retry them with --retry)": report.still_bad, gone: report.gone,
    }  # fmt: skip
    counts = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count) or "no videos or pictures found"
    new = f"{report.segments:,} new segments of {duration(report.seconds)} of video"
    typer.echo(f"{library}: {counts}; {new}" + (f" and {_pictures(report)}" if report.pictures else ""))


def _pictures(report: IndexReport) -> str:
    return f"{report.pictures:,} picture{'' if report.pictures == 1 else 's'}"


def _on_one_line(path: str) -> str:
    """A file name with its control characters escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in path)


class _Display:
    """A progress bar with files, duration of video, pictures, throughput and ETA."""

    def __init__(self) -> None:
        self.bar = progress_bar(times=False)
        self.task = self.bar.add_task("indexing", total=None, note="")
        self.started = time.monotonic()

    def __enter__(self) -> _Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, report: IndexReport) -> None:
        note = progress_note(report, time.monotonic() - self.started)
        self.bar.update(self.task, completed=report.done, total=max(report.found, report.done), note=note)


def progress_note(report: IndexReport, elapsed: float) -> str:
    """The text beside the bar: duration of video, throughput, pictures, bad files, elapsed time and ETA."""
    parts = [f"{duration(report.seconds)} of video", f"{report.seconds / max(1e-9, elapsed):.1f} x real time"]
    if report.pictures:
        parts = [*(parts if report.seconds else []), _pictures(report)]
    if report.bad:
        parts.append(f"{len(report.bad)} bad")
    parts.append(_clock(elapsed))
    # Estimated from bytes, not files: a film among clips is one file, but most of the work.
    if 0 < report.bytes_done < report.bytes_new:
        parts.append(f"ETA {_clock(elapsed * (report.bytes_new / report.bytes_done - 1))}")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
