"""Read a bounded part of a video file: its segments, their frames and thumbnails.

A worker imports this module, so nothing here imports torch.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from prota.library.segments import Cut, SegmentPlan, plan
from prota.video.decode import DecodeError, Timeline, decode_chosen
from prota.video.shots import shot_boundaries
from prota.video.transforms import Extent, to_square

__all__ = ["PART", "ReadRequest", "VideoContent", "read_video", "remaining"]

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Segments read at once: some 400 frames, 60 MB at 224 × 224, of six minutes of video.
PART = 64
# Longest side; smaller pictures are not enlarged.
THUMBNAIL = 160
JPEG_QUALITY = 80


@dataclass(frozen=True)
class ReadRequest:
    """Which segments of which file, and what is to be made of their frames."""

    path: str | Path
    plan: SegmentPlan
    size: int
    """Side of the square pictures that the model sees."""
    extent: Extent = "centre"
    """What they show of a frame."""
    first: int = 0
    """The segment to start with."""
    count: int = PART
    """How many segments to read at most."""
    cuts: tuple[float, ...] | None = None
    """Shot boundaries in seconds, where they are known; else they are looked for, if the plan wants them."""
    counted: bool | None = None
    """Whether the first part counted frames by decoding all, where it is known: all parts have one timeline."""
    total: int | None = None
    """How many segments the first part found, where it is known: a file of which a later one finds others changed."""

    def __post_init__(self) -> None:
        for name, least in (("size", 1), ("first", 0), ("count", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} is not allowed; allowed: {least} or more")


@dataclass(frozen=True)
class VideoContent:
    """A file, and `len()` of its segments; times are seconds from its first frame."""

    duration: float
    width: int
    height: int
    """Both of the upright picture."""
    fps: float
    codec: str
    first: int
    """The number of the first segment that is here."""
    total: int
    """How many segments the file has, here or not."""
    cuts: tuple[float, ...] | None
    """Shot boundaries, where the plan wants them."""
    starts: Floats
    """[S]."""
    ends: Floats
    """[S]."""
    times: Floats
    """[S, M] when each frame is shown, NaN where there is none."""
    mask: Bools
    """[S, M] where there is a frame."""
    index: Integers
    """[S, M] which of `frames` it is, -1 where there is none."""
    frames: Picture
    """[F, size, size, 3] RGB: each frame once, though overlapping segments share many."""
    thumbnails: tuple[bytes, ...]
    """[S] a JPEG of the frame in the middle."""
    counted: bool = False
    """See `Timeline`."""

    def __len__(self) -> int:
        return len(self.starts)


def read_video(request: ReadRequest) -> VideoContent:
    """The segments of a part of a video, with their frames; a one-line DecodeError (a ValueError) where it has none.

    Later parts are asked for by the requests of `remaining`: a part holds a bounded number of frames, however long the
    video is. Shot boundaries are looked for in all of the video, once, by the request that does not know them.
    """
    try:
        return _read(request)
    except MemoryError:
        raise DecodeError(f"{request.path}: its pictures are too large for the memory of this machine") from None
    except OSError as error:
        raise DecodeError(_line(f"{request.path}: cannot be read: {error.strerror or error}")) from error
    except ValueError as error:
        text = str(error)
        raise DecodeError(_line(text if str(request.path) in text else f"{request.path}: {text}")) from error


def remaining(request: ReadRequest, content: VideoContent) -> list[ReadRequest]:
    """The requests for the parts after the one that `request` gave; in any order, or at the same time."""
    start = content.first + len(content)
    known = replace(request, cuts=content.cuts, counted=content.counted, total=content.total)
    return [replace(known, first=first) for first in range(start, content.total, request.count)]


def _read(request: ReadRequest) -> VideoContent:
    cuts = None
    if request.plan.shots:
        cuts = shot_boundaries(request.path) if request.cuts is None else request.cuts

    def segments(timeline: Timeline) -> tuple[list[Cut], int]:
        found = plan(timeline.times, timeline.duration, request.plan, cuts or ())
        part = found[request.first : request.first + request.count]
        if request.total not in (None, len(found)):
            raise DecodeError(f"{request.path}: it changed while it was read: index it again")
        if not part:
            raise DecodeError(f"{request.path}: segment {request.first} was asked for, but it has only {len(found)}")
        return part, len(found)

    timeline, chosen, pictures = decode_chosen(
        request.path,
        lambda timeline: sorted({index for segment in segments(timeline)[0] for index in segment.indices}),
        partial(_shown, size=request.size, extent=request.extent),
        # With several workers the cores are busy.
        threads=1,
        counted=request.counted,
    )
    # Again, because the decoder may have chosen twice; this is the timeline that it settled on.
    part, total = segments(timeline)
    index = np.full((len(part), request.plan.frames), -1, dtype=np.int64)
    for row, segment in zip(index, part, strict=True):
        row[: len(segment.indices)] = np.searchsorted(chosen, segment.indices)
    mask = index >= 0
    middles = index[np.arange(len(part)), mask.sum(axis=1) // 2]
    return VideoContent(
        duration=timeline.duration,
        width=timeline.width,
        height=timeline.height,
        fps=timeline.fps,
        codec=timeline.codec,
        first=request.first,
        total=total,
        cuts=cuts,
        starts=np.array([segment.start for segment in part]),
        ends=np.array([segment.end for segment in part]),
        times=np.where(mask, timeline.times[chosen][index], np.nan),
        mask=mask,
        index=index,
        frames=np.stack([square for square, _ in pictures]),
        thumbnails=tuple(pictures[middle][1] for middle in middles),
        counted=timeline.counted,
    )


def _shown(frame: Picture, size: int, extent: Extent) -> tuple[Picture, bytes]:
    """A frame as the model sees it, and its thumbnail: a JPEG costs little beside the decoding of a frame."""
    picture = Image.fromarray(frame)
    scale = min(1.0, THUMBNAIL / max(picture.size))
    sides = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    file = io.BytesIO()
    picture.resize(sides, Image.Resampling.BILINEAR, reducing_gap=2.0).save(file, "JPEG", quality=JPEG_QUALITY)
    return to_square(frame, size, extent), file.getvalue()


def _line(text: str) -> str:
    return " ".join(text.split())
