"""Clips that the tests make themselves: every frame is a flat grey that tells its number."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.decode import Timeline, decode_chosen
from prota.video.timeline import Transform

STEP = 8
"""Grey levels between neighbours; up to 30 frames can be told apart."""


def write_clip(
    path: Path,
    count: int = 30,
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
    stamps: Sequence[int] | None = None,
    rotation: int = 0,
    corner: bool = False,
    noise: bool = False,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
) -> Path:
    """`count` frames at 25 a second, or at `stamps` in units of 1/100 s; `corner`: the upper left quarter is white.

    With `noise` in the upper half pictures outweigh the header, for files that are to be cut or damaged.
    """
    import av

    width, height = size
    generator = np.random.default_rng(0)
    with av.open(str(path), "w", options=container or {}) as file:
        stream: Any = file.add_stream(codec, rate=25, options={"g": "8", "bf": "2"} if options is None else options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 4_000_000
        stream.codec_context.time_base = Fraction(1, 100) if stamps else Fraction(1, 25)
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(count):
            picture = np.full((height, width, 3), STEP * number, dtype=np.uint8)
            if corner:
                picture[: height // 2, : width // 2] = 255
            if noise:
                picture[: height // 2] = generator.integers(0, 256, (height // 2, width, 3))
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = stamps[number] if stamps else number
            frame.time_base = stream.codec_context.time_base
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    if codec == "libsvtav1" and sys.platform == "linux":
        # For root, this encoder gives the thread that calls it, and all that it starts, a real-time priority.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return path


def number_of(frame: np.ndarray[Any, Any]) -> int:
    """Which frame of a written clip this is."""
    return round(float(frame[frame.shape[0] * 3 // 4 :].mean()) / STEP)


def decode_frames(path: Path, wanted: Sequence[int], transform: Transform | None = None) -> tuple[Timeline, list[Any]]:
    """The timeline of a clip and the frames of these numbers."""
    timeline, _, frames = decode_chosen(path, lambda timeline: wanted, transform)
    return timeline, frames
