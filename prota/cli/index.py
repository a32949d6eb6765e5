"""`prota index`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import INTERRUPTED, Device, LibraryPlace, ModelName, RayAddress, Timeout, Workers, cores
from prota.cli.progress import progress_bar
from prota.cli.train import StopRequest

if TYPE_CHECKING:
    from prota.library.indexing import IndexReport
    from prota.library.indexing.pipeline import ExecutorMaker

__all__ = ["index"]

Paths = Annotated[list[Path], typer.Argument(help="videos and pictures, or folders of them", show_default=False)]
Pictures = Annotated[
    bool, typer.Option(help="index JPEG, PNG and WebP too, but not x.jpg beside x.mp4, which is a preview of it")
]


def index(
    paths: Paths,
    library: LibraryPlace = "library",
    model: ModelName = None,
    fps: Annotated[float, typer.Option(min=0.01, help="frames looked at per second")] = 1.0,
    frames: Annotated[int, typer.Option(min=0, help="frames of a segment; 0: as many as the model takes")] = 0,
    overlap: Annotated[float, typer.Option(min=0, max=0.9, help="share of a segment that the next one repeats")] = 0.5,
    pictures: Pictures = True,
    shots: Annotated[bool, typer.Option("--shots", help="let no segment cross a cut")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="remove videos whose files are gone")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="try bad files again")] = False,
    workers: Workers = 0,
    timeout: Timeout = 300.0,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for another writer")] = 0.0,
    device: Device = "auto",
    ray: RayAddress = None,
) -> None:
    """Bring a library up to date with folders of videos and pictures; the same command continues one that was stopped.

    How videos are cut (--frames, --fps, --overlap, --shots) counts for files that are new or changed.
    """
    if ray is not None:
        from prota.cluster.connect import check

        check(ray)
    from prota.library.records import LibraryError

    # Before torch is loaded.
    if missing := [str(path) for path in paths if not path.exists()]:
        raise LibraryError(f"{', '.join(missing)}: no such file or folder")
    from prota.library.indexing import IndexOptions
    from prota.library.library import Library
    from prota.library.segments import SegmentPlan
    from prota.runtime import start_world

    # On a cluster, others encode; this process only has to know which model it is.
    opened = Library.open(library, model, "cpu" if ray else str(start_world(device).device))
    most = opened.model.config.encoder.frames
    if frames > most:
        raise typer.BadParameter(f"--frames {frames} is more than this model takes; allowed: up to {most}")
    plan = SegmentPlan(frames or most, fps, overlap, shots)
    options = IndexOptions(plan, workers or cores(), timeout, prune, retry, pictures=pictures)
    with _executor(ray, device, workers) as executor, _Display() as display:
        # Not before: Ray takes signals to itself when it connects.
        stop = StopRequest()
        report = opened.index(paths, options, report=display.show, should_stop=stop, wait=wait, executor=executor)
    _tell(report, library, "removed" if prune else "gone")
    if not report.finished:
        typer.echo("stopped; what was finished is in the library, and the same command goes on from there", err=True)
        raise SystemExit(INTERRUPTED)
    if report.bad and len(report.bad) == report.done:
        # Nothing of what was asked for can be searched.
        raise SystemExit(1)


@contextmanager
def _executor(ray: str | None, device: str, workers: int) -> Iterator[ExecutorMaker | None]:
    """None for this machine, or a cluster."""
    if ray is None:
        yield None
        return
    from prota.cluster.connect import connect

    with connect(ray) as dashboard:
        if dashboard:
            typer.echo(f"Ray's dashboard: {dashboard}", err=True)
        from prota.cluster.executor import RayExecutor

        yield partial(RayExecutor, device=device, decoders=workers)


def _tell(report: IndexReport, library: str, gone: str) -> None:
    for path, reason in sorted(report.bad.items()):
        typer.echo(f"bad: {_on_one_line(path)}: {reason}", err=True)
    if not (report.finished or report.found):
        # Stopped before anything was looked at.
        return
    parts = {
        "indexed": report.indexed, "unchanged": report.unchanged - report.still_bad, "moved": report.moved,
        "already there at another path": report.duplicates, "bad": len(report.bad),
        "bad as before (--retry tries them again)": report.still_bad, gone: report.gone,
    }  # fmt: skip
    counts = ", ".join(f"{count:,} {what}" for what, count in parts.items() if count) or "nothing to index found"
    new = f"{report.segments:,} new segments of {report.seconds / 3600:.2f} hours of video"
    typer.echo(f"{library}: {counts}; {new}" + (f" and {_pictures(report)}" if report.pictures else ""))


def _pictures(report: IndexReport) -> str:
    return f"{report.pictures:,} picture{'' if report.pictures == 1 else 's'}"


def _on_one_line(path: str) -> str:
    """A name as it is, but for what would break the line or steer the terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in path)


class _Display:
    """Files, hours of video, pictures, rate and time left."""

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
    """What the bar says: hours of video with the rate, pictures, bad files, time taken and time left."""
    parts = [f"{report.seconds / 3600:.2f} h of video", f"{report.seconds / max(1e-9, elapsed):.1f} x real time"]
    if report.pictures:
        parts = [*(parts if report.seconds else []), _pictures(report)]
    if report.bad:
        parts.append(f"{len(report.bad)} bad")
    parts.append(_clock(elapsed))
    # By the bytes of files: a film among clips is one file, but most of the work.
    if 0 < report.bytes_done < report.bytes_new:
        parts.append(f"{_clock(elapsed * (report.bytes_new / report.bytes_done - 1))} left")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
