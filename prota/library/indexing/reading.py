"""Read a bounded part of a video file: its segments, their frames and thumbnails.

Worker processes import this module, so it does not import torch.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from prota.library.segments import Cut, SegmentPlan, plan
from prota.video.decode import DecodeError, Timeline, decode_chosen
from prota.video.pictures import is_picture, picture_size
from prota.video.shots import shot_boundaries
from prota.video.timeline import TooLargeError
from prota.video.transforms import Extent, to_square

__all__ = ["PART", "ReadRequest", "VideoContent", "read_video", "remaining"]

Picture = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Segments per part: about 400 frames, 60 MB at 224 × 224, of six minutes of video.
PART = 64
# Longest side; smaller frames are not enlarged.
THUMBNAIL = 160
JPEG_QUALITY = 80
# Standard deviation of grey levels below which a picture shows nothing: black, white, the end of a fade.
FLAT = 10.0
# Frames are twins if no cell of 16 × 16 differs by more than this in brightness, of 255.
TWIN_CELLS, TWIN_DIFFERENCE = 16, 8


@dataclass(frozen=True)
class ReadRequest:
    """The segments of a file to read, and the format of their frames."""

    path: str | Path
    plan: SegmentPlan
    size: int
    """Side of the square frames for the model."""
    extent: Extent = "centre"
    """The part of a frame that they show."""
    first: int = 0
    """The first segment."""
    count: int = PART
    """The maximum of segments."""
    cuts: tuple[float, ...] | None = None
    """Shot boundaries in seconds if known; else they are computed if the plan has `shots`."""
    counted: bool | None = None
    """If known, whether the first part counted frames by decoding all: all parts have one timeline."""
    most_pixels: int = 0
    """Larger frames are rejected; 0: only pictures that are larger than Pillow reads."""
    total: int | None = None
    """If known, the number of all segments in the first part; another number means that the file has changed."""


@dataclass(frozen=True)
class VideoContent:
    """A file, and `len()` of its segments; times are seconds from its first frame."""

    duration: float
    width: int
    height: int
    """Of the upright frame."""
    fps: float
    codec: str
    first: int
    """The number of the first segment in this part."""
    total: int
    """The number of all segments of the file."""
    cuts: tuple[float, ...] | None
    """Shot boundaries, if the plan has `shots`."""
    starts: Floats
    """[S]."""
    ends: Floats
    """[S]."""
    times: Floats
    """[S, M] time of each frame, NaN for padding."""
    mask: Bools
    """[S, M] False for padding."""
    index: Integers
    """[S, M] position in `frames`, -1 for padding."""
    frames: Picture
    """[F, size, size, 3] RGB; frames that overlapping segments share, and twins of a frame, are there once."""
    thumbnails: tuple[bytes, ...]
    """[S] JPEGs of the middle frames, or of those with most contrast where the middle shows nothing."""
    counted: bool = False
    """See `Timeline`."""

    def __len__(self) -> int:
        return len(self.starts)


def read_video(request: ReadRequest) -> VideoContent:
    """Read a part of a video: a bounded number of segments with their frames; a one-line DecodeError on failure.

    `remaining` makes the requests for later parts. A request without known shot boundaries computes those of the whole
    video.
    """
    try:
        return _read(request)
    except MemoryError:
        raise DecodeError(f"{request.path}: out of memory, the frames are too large") from None
    except OSError as error:
        raise DecodeError(_line(f"{request.path}: cannot read the file: {error.strerror or error}")) from error
    except ValueError as error:
        text = str(error)
        kind = TooLargeError if isinstance(error, TooLargeError) else DecodeError
        raise kind(_line(text if str(request.path) in text else f"{request.path}: {text}")) from error


def remaining(request: ReadRequest, content: VideoContent) -> list[ReadRequest]:
    """The requests for the parts after the one that `request` read, to be run in any order or in parallel."""
    start = content.first + len(content)
    known = replace(request, cuts=content.cuts, counted=content.counted, total=content.total)
    return [replace(known, first=first) for first in range(start, content.total, request.count)]


def _read(request: ReadRequest) -> VideoContent:
    if request.most_pixels and is_picture(Path(request.path)):
        # Before it is decoded.
        _check_size(request, *picture_size(Path(request.path)))
    cuts = None
    if request.plan.shots:
        cuts = shot_boundaries(request.path) if request.cuts is None else request.cuts

    def segments(timeline: Timeline) -> tuple[list[Cut], int]:
        _check_size(request, timeline.width, timeline.height)
        found = plan(timeline.times, timeline.duration, request.plan, cuts or ())
        part = found[request.first : request.first + request.count]
        if request.total not in (None, len(found)):
            raise DecodeError(f"{request.path}: the file changed while it was read: index it again")
        if not part:
            raise DecodeError(f"{request.path}: has no segment {request.first}, only {len(found)}")
        return part, len(found)

    timeline, chosen, pictures = decode_chosen(
        request.path,
        lambda timeline: sorted({index for segment in segments(timeline)[0] for index in segment.indices}),
        partial(_shown, size=request.size, extent=request.extent),
        # Several workers use the other cores.
        threads=1,
        counted=request.counted,
    )
    # Again, for the timeline that the decoder finally used: it may have called the function above twice.
    part, total = segments(timeline)
    index = np.full((len(part), request.plan.frames), -1, dtype=np.int64)
    for row, segment in zip(index, part, strict=True):
        row[: len(segment.indices)] = np.searchsorted(chosen, segment.indices)
    mask = index >= 0
    contrast = np.array([contrast for *_, contrast in pictures])
    frames, twins = _without_twins([square for square, *_ in pictures])
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
        index=np.where(mask, twins[index], -1),
        frames=frames,
        thumbnails=tuple(pictures[_telling(row[seen], contrast)][1] for row, seen in zip(index, mask, strict=True)),
        counted=timeline.counted,
    )


def _without_twins(frames: Sequence[Picture]) -> tuple[Picture, Integers]:
    """The frames without those that show what the one kept before them shows, and the place of each among them.

    A slide or a still camera is encoded once. Each is compared with a frame that is kept, so slow changes add up.
    """
    kept: list[Picture] = []
    places = np.empty(len(frames), dtype=np.int64)
    last: Floats | None = None
    for number, frame in enumerate(frames):
        grey = Image.fromarray(frame).convert("L")
        small = np.asarray(grey.resize((TWIN_CELLS, TWIN_CELLS), Image.Resampling.BOX), np.float64)
        if last is None or np.abs(small - last).max() > TWIN_DIFFERENCE:
            kept.append(frame)
            last = small
        places[number] = len(kept) - 1
    return np.stack(kept), places


def _telling(frames: Integers, contrast: Floats) -> int:
    """The frame of a segment for its thumbnail: the middle one, if it shows anything."""
    middle = int(frames[len(frames) // 2])
    return middle if contrast[middle] >= FLAT else int(frames[contrast[frames].argmax()])


def _check_size(request: ReadRequest, width: int, height: int) -> None:
    if 0 < request.most_pixels < width * height:
        limit = f"the limit is {request.most_pixels / 1e6:.0f} megapixels"
        raise TooLargeError(f"{request.path}: frames of {width} x {height} pixels are too large; {limit}")


def _shown(frame: Picture, size: int, extent: Extent) -> tuple[Picture, bytes, float]:
    """A frame for the model, its thumbnail, and the contrast of that."""
    picture = Image.fromarray(frame)
    scale = min(1.0, THUMBNAIL / max(picture.size))
    sides = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    file = io.BytesIO()
    small = picture.resize(sides, Image.Resampling.BILINEAR, reducing_gap=2.0)
    small.save(file, "JPEG", quality=JPEG_QUALITY)
    return to_square(frame, size, extent), file.getvalue(), float(np.asarray(small.convert("L")).std())


def _line(text: str) -> str:
    return " ".join(text.split())
