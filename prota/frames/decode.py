"""Frames of a video file: the right ones, upright, or one clear error. A picture is a video of one frame.

Pillow reads pictures, PyAV decodes videos, and OpenCV stands in where PyAV is not installed. They are imported when
first needed, and a process uses one decoder at a time. A file that may be hostile or broken belongs in a worker with a
time limit: see `prota.frames.pool`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from prota.frames import opencv, pyav
from prota.frames.pictures import is_picture, read_picture
from prota.frames.sampling import SAME_TIME
from prota.frames.timeline import COMPLETE_SHARE, DecodeError, Picture, Timeline, Transform, finished

__all__ = ["Backend", "DecodeError", "Timeline", "available_backend", "decode_chosen", "decode_frames", "read_timeline"]

Backend = Literal["auto", "pyav", "opencv"]


def available_backend(backend: Backend = "auto") -> str:
    """The decoder that will be used, pyav or opencv; `auto` takes PyAV where it is installed."""
    modules = {"pyav": ("av", "av"), "opencv": ("cv2", "opencv-python-headless")}
    if backend != "auto" and backend not in modules:
        raise ValueError(f"backend {backend!r} is not known; known: auto, {', '.join(modules)}")
    for name in modules if backend == "auto" else [backend]:
        if importlib.util.find_spec(modules[name][0]) is not None:
            return name
    package = "av (or opencv-python-headless)" if backend == "auto" else modules[backend][1]
    raise DecodeError(f"no video decoder is installed: pip install {package}")


def read_timeline(path: str | Path, backend: Backend = "auto") -> Timeline:
    """When each frame is shown. With PyAV the packets tell, and only the first frame is decoded, to see that it can be.

    Where packets cannot tell (no time stamps, AVI, VP8), and with OpenCV, the whole file is decoded once.
    """
    path, reader = _checked(path, backend)
    if reader == "pillow":
        return read_picture(path)[0]
    return pyav.frame_index(path).timeline if reader == "pyav" else opencv.timeline_of(path)


def decode_frames(
    path: str | Path, indices: Sequence[int], transform: Transform | None = None, backend: Backend = "auto"
) -> tuple[Timeline, list[Picture]]:
    """The frames at `indices` (ascending, into `Timeline.times`): RGB uint8 [height, width, 3], upright."""
    path, reader = _checked(path, backend)
    timeline, read = _source(path, reader, threads=0)
    return timeline, read(_checked_indices(path, indices, timeline), transform)


def decode_chosen(
    path: str | Path,
    choose: Callable[[Timeline], Sequence[int]],
    transform: Transform | None = None,
    backend: Backend = "auto",
    threads: int = 0,
    counted: bool | None = None,
) -> tuple[Timeline, list[int], list[Picture]]:
    """As `decode_frames`, with the indices chosen by a function of the timeline, so that the file is indexed only once.

    Where the decoder turns out to show fewer frames than the packets announce, the timeline is taken from decoding and
    the choice made again. `threads` = 0 leaves their number to the decoder.

    Who reads a file in parts needs one timeline for all of them: `counted` is the first one's `Timeline.counted`. In
    that of the packets, a frame that is never shown is the one that is seen at its time.
    """
    path, reader = _checked(path, backend)
    timeline, read = _source(path, reader, threads, bool(counted))
    chosen = _checked_indices(path, choose(timeline), timeline)
    try:
        return timeline, chosen, read(chosen, transform)
    except pyav.NotShownError:
        shown, read = _source(path, reader, threads, counted=True)
        if counted is None:
            chosen = _checked_indices(path, choose(shown), shown)
            return shown, chosen, read(chosen, transform)
        if shown.duration < COMPLETE_SHARE * timeline.duration:
            raise
        seen = np.searchsorted(shown.times, timeline.times[chosen] + SAME_TIME, side="right") - 1
        wanted, places = np.unique(seen.clip(min=0), return_inverse=True)
        pictures = read(wanted.tolist(), transform)
        return timeline, chosen, [pictures[place] for place in places]


def _source(
    path: Path, reader: str, threads: int, counted: bool = False
) -> tuple[Timeline, Callable[..., list[Picture]]]:
    if reader == "pillow":
        alone, picture = read_picture(path)
        return alone, lambda wanted, transform: [finished(picture, transform)] * len(wanted)
    if reader == "opencv":
        timeline = opencv.timeline_of(path)
        return timeline, lambda wanted, transform: opencv.read_frames(path, wanted, transform)
    index = pyav.counted_index(path) if counted else pyav.frame_index(path)
    return index.timeline, lambda wanted, transform: pyav.read_frames(path, index, wanted, transform, threads)


def _checked(path: str | Path, asked: Backend) -> tuple[Path, str]:
    """The absolute path, because FFmpeg reads `a:b.mp4` as a protocol, and what reads the file by name."""
    path = Path(path)
    if not path.exists():
        raise DecodeError(f"{path}: the file is not there")
    if not path.is_file():
        raise DecodeError(f"{path}: not a file")
    if path.stat().st_size == 0:
        raise DecodeError(f"{path}: empty file")
    return path.absolute(), "pillow" if is_picture(path) else available_backend(asked)


def _checked_indices(path: Path, indices: Sequence[int], timeline: Timeline) -> list[int]:
    wanted = [int(index) for index in indices]
    if wanted != sorted(wanted) or (wanted and wanted[0] < 0):
        raise ValueError("frame indices must be ascending and not negative")
    if wanted and wanted[-1] >= len(timeline.times):
        raise DecodeError(f"{path}: frame {wanted[-1]} was asked for, but there are only {len(timeline.times)} frames")
    return wanted
