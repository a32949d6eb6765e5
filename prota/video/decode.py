"""Frames of a video file: the right ones, upright, or one clear error. A picture is a video of one frame.

Pillow reads pictures, PyAV decodes videos; both are imported when first needed. A file that may be hostile or broken
belongs in a worker with a time limit: see `prota.workers.process_pool`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prota.video import pyav
from prota.video.pictures import is_picture, read_picture
from prota.video.sampling import SAME_TIME, uniform_indices
from prota.video.timeline import COMPLETE_SHARE, DecodeError, Timeline, Transform, finished
from prota.video.transforms import Extent, to_square

__all__ = ["DecodeError", "Timeline", "decode_chosen", "read_clip", "read_timeline"]


def read_timeline(path: str | Path) -> Timeline:
    """When each frame is shown. The packets tell, and only the first frame is decoded, to see that it can be.

    Where packets cannot tell (no time stamps, AVI, VP8), the whole file is decoded once.
    """
    path = _checked(path)
    return read_picture(path)[0] if is_picture(path) else pyav.frame_index(path).timeline


def decode_chosen(
    path: str | Path,
    choose: Callable[[Timeline], Sequence[int]],
    transform: Transform | None = None,
    *,
    threads: int = 0,
    counted: bool | None = None,
) -> tuple[Timeline, list[int], list[Any]]:
    """The timeline, the indices into its `times` that `choose` takes (ascending), and their frames.

    Frames are RGB uint8 [height, width, 3], upright, or what `transform` makes of them. Where the decoder turns out to
    show fewer frames than the packets announce, the timeline is taken from decoding and the choice made again.
    `threads` = 0 leaves their number to the decoder.

    Who reads a file in parts needs one timeline for all of them: `counted` is the first one's `Timeline.counted`. In
    that of the packets, a frame that is never shown is the one that is seen at its time.
    """
    path = _checked(path)
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


def _checked(path: str | Path) -> Path:
    """The absolute path, because FFmpeg reads `a:b.mp4` as a protocol."""
    path = Path(path)
    if not path.exists():
        raise DecodeError(f"{path}: the file is not there")
    if not path.is_file():
        raise DecodeError(f"{path}: not a file")
    if path.stat().st_size == 0:
        raise DecodeError(f"{path}: empty file")
    return path.absolute()


def _checked_indices(path: Path, indices: Sequence[int], timeline: Timeline) -> list[int]:
    wanted = [int(index) for index in indices]
    if wanted != sorted(wanted) or (wanted and wanted[0] < 0):
        raise ValueError("frame indices must be ascending and not negative")
    if wanted and wanted[-1] >= len(timeline.times):
        raise DecodeError(f"{path}: frame {wanted[-1]} was asked for, but there are only {len(timeline.times)} frames")
    return wanted
