"""Cut clips and reels in a confined worker, which gives back the finished file; this process writes it atomically."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prota.errors import UsageError
from prota.files import write_atomically
from prota.video.cut import Clip, CutError, CutRequest, Reel, cut_clip, join_clips
from prota.video.pictures import is_picture
from prota.workers.process_pool import DecodePool

__all__ = ["CONTAINERS", "Span", "cut", "save_clip", "save_reel"]

CONTAINERS = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}


@dataclass(frozen=True)
class Span:
    """From a second of a video file to another."""

    path: Path
    start: float
    end: float


def save_clip(
    path: str | Path, start: float, end: float, out: str | Path, *, exact: bool = True, timeout: float = 600.0
) -> Clip:
    """Cut a clip and write it to ``out``: .mp4, .mov or .mkv.

    ``exact``: encode again (H.264, AAC); else copy the streams, from the keyframe before ``start``.
    """
    out = Path(out)
    request = CutRequest(Path(path), start, end, exact, _container(out))
    _check_place(out, [request.path])
    clip = cut(request, timeout)
    _write(out, clip.content)
    return clip


def save_reel(spans: Sequence[Span], out: str | Path, *, timeout: float = 600.0) -> float:
    """Join moments of one or several videos, in the size of the first, and write them to ``out``; returns seconds."""
    if not spans:
        raise UsageError("no moments to join")
    out = Path(out)
    _check_place(out, [span.path for span in spans])
    reel, size = Reel(_container(out), ()), None
    with DecodePool(1, timeout) as pool:
        for span in spans:
            request = CutRequest(span.path, span.start, span.end, container="mp4", reel=True, size=size)
            clip: Clip = _run(pool, cut_clip, _checked(request))
            reel, size = replace(reel, clips=(*reel.clips, clip)), size or clip.size
        content: bytes = _run(pool, join_clips, reel)
    _write(out, content)
    return sum(clip.end - clip.start for clip in reel.clips)


def cut(request: CutRequest, timeout: float = 600.0) -> Clip:
    """Cut a clip in a worker process."""
    with DecodePool(1, timeout) as pool:
        clip: Clip = _run(pool, cut_clip, _checked(request))
    return clip


def _run(pool: DecodePool, job: Callable[[Any], Any], argument: Any) -> Any:
    ((_, outcome),) = pool.run(job, [("cut", argument)])
    if outcome.bug:
        raise RuntimeError(outcome.bug)
    if outcome.error is not None:
        raise CutError(outcome.error)
    return outcome.value


def _checked(request: CutRequest) -> CutRequest:
    if not 0 <= request.start < request.end:
        raise UsageError(f"from {request.start:g} to {request.end:g} s is no range: it must end after it starts")
    if is_picture(request.path):
        raise UsageError(f"{request.path} is a picture: there is nothing to cut")
    return replace(request, path=request.path.absolute())


def _container(out: Path) -> str:
    if out.suffix.lower() not in CONTAINERS:
        raise UsageError(f"{out}: the name must end in {', '.join(CONTAINERS)}")
    return CONTAINERS[out.suffix.lower()]


def _check_place(out: Path, sources: Sequence[Path]) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: " + ("is a folder" if out.is_dir() else "its folder does not exist"))
    for source in sources:
        if not source.is_file():
            raise CutError(f"{source}: no such file; if it was moved, index its folder again")
        if out.exists() and out.samefile(source):
            raise UsageError(f"{out} is the video itself: choose another name")


def _write(out: Path, content: bytes) -> None:
    try:
        write_atomically(out, content)
    except OSError as error:
        raise CutError(f"cannot write {out}: {error.strerror or error}") from None
