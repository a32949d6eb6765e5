"""Decode exactly the requested frames of a video, upright, or raise one clear error. A picture is a video of one frame.

Pillow reads pictures and PyAV decodes videos; both are imported on first use. Decode untrusted files in a worker with a
time limit, see `prota.workers.process_pool`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prota.video import pyav
from prota.video.completeness import COMPLETE_SHARE
from prota.video.pictures import is_picture, read_picture
from prota.video.sampling import SAME_TIME, uniform_indices
from prota.video.timeline import DecodeError, Timeline, Transform, finished
from prota.video.transforms import Extent, to_square

__all__ = ["DecodeError", "Timeline", "decode_chosen", "load_decoders", "read_clip", "read_timeline"]


def load_decoders() -> list[Path]:
    """Import all that decodes, for a process that will be confined; returns the folders of code that it may need still.

    Shared libraries must be loaded before; modules of Python are imported even later, such as for an encoding of text.
    """
    modules = [importlib.import_module(name) for name in ("os", "av", "numpy", "PIL.Image", "prota")]
    # Also what reads the orientation of photographs, and JPEGs with several pictures.
    for plugin in ("Bmp", "Gif", "Jpeg", "Png", "WebP", "Tiff", "Mpo"):
        importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return [Path(os.path.realpath(str(module.__file__))).parent for module in modules]


def read_timeline(path: str | Path) -> Timeline:
    """Read when each frame is shown, from the packets; only the first frame is decoded, as a check.

    The whole file is decoded if the packets are not reliable: without time stamps, AVI, VP8.
    """
    path = Path(path)
    return read_picture(path)[0] if is_picture(path) else pyav.frame_index(path).timeline


def decode_chosen(
    path: str | Path,
    choose: Callable[[Timeline], Sequence[int]],
    transform: Transform | None = None,
    *,
    threads: int = 0,
    counted: bool | None = None,
) -> tuple[Timeline, list[int], list[Any]]:
    """Decode the frames that ``choose`` selects: the timeline, their ascending indices into its ``times``, the frames.

    Frames are RGB uint8 [height, width, 3], upright, or the results of ``transform``. If the decoder shows fewer frames
    than the packets announce, the timeline is taken from decoding and ``choose`` is called again. ``threads``: of the
    decoder; 0: its default.

    To read a file in parts with one timeline, pass the first part's `Timeline.counted` as ``counted``. In a timeline
    from packets, a frame that is never shown is replaced by the frame visible at its time.
    """
    path = Path(path)
    timeline, read = _source(path, threads, bool(counted))
    chosen = _checked_indices(path, choose(timeline), timeline)
    try:
        return timeline, chosen, read(chosen, transform)
    except pyav.NotShownError:
        shown, read = _source(path, threads, counted=True)
        if counted is None:
            chosen = _checked_indices(path, choose(shown), shown)
            return shown, chosen, read(chosen, transform)
        if shown.duration < COMPLETE_SHARE * timeline.duration:
            raise
        seen = np.searchsorted(shown.times, timeline.times[chosen] + SAME_TIME, side="right") - 1
        wanted, places = np.unique(seen.clip(min=0), return_inverse=True)
        pictures = read(wanted.tolist(), transform)
        return timeline, chosen, [pictures[place] for place in places]


def read_clip(
    path: str | Path,
    *,
    frames: int,
    size: int,
    extent: Extent = "centre",
    max_seconds: float = 0.0,
    threads: int = 0,
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[float], float]:
    """Up to ``frames`` frames of a clip, uniform in time: [n, size, size, 3], their seconds, and the clip's duration.

    ``max_seconds``: sample only the beginning; 0: the whole clip.
    """

    def choose(timeline: Timeline) -> list[int]:
        chosen: list[int] = uniform_indices(timeline.times, timeline.duration, frames, max_seconds=max_seconds).tolist()
        return chosen

    timeline, chosen, pictures = decode_chosen(
        path, choose, lambda frame: to_square(frame, size, extent), threads=threads
    )
    return np.stack(pictures), timeline.times[chosen].tolist(), timeline.duration


def _source(path: Path, threads: int, counted: bool) -> tuple[Timeline, Callable[..., list[Any]]]:
    if is_picture(path):
        alone, picture = read_picture(path)
        return alone, lambda wanted, transform: [finished(picture, transform)] * len(wanted)
    index = pyav.counted_index(path) if counted else pyav.frame_index(path)
    return index.timeline, lambda wanted, transform: pyav.read_frames(path, index, wanted, transform, threads=threads)


def _checked_indices(path: Path, indices: Sequence[int], timeline: Timeline) -> list[int]:
    wanted = [int(index) for index in indices]
    if wanted != sorted(wanted) or (wanted and wanted[0] < 0):
        raise ValueError("frame indices must be ascending and not negative")
    if wanted and wanted[-1] >= len(timeline.times):
        raise DecodeError(f"{path}: no frame {wanted[-1]}, only {len(timeline.times)} frames")
    return wanted
