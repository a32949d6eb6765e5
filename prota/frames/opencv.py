"""Frames by OpenCV, for machines without PyAV: every file is read from its start."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from prota.frames.timeline import COMPLETE_SHARE, DecodeError, Picture, Timeline, Transform, end_of, finished

__all__ = ["read_frames", "timeline_of"]


@contextmanager
def _capture(path: Path) -> Iterator[tuple[Any, Any]]:
    """OpenCV and an open capture; FFmpeg's chatter goes unheard, errors are ours to word."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    cv2: Any = importlib.import_module("cv2")
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise DecodeError(f"{path}: cannot be opened: no video stream, or not a video that OpenCV knows")
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
        yield cv2, capture
    finally:
        capture.release()


def timeline_of(path: Path) -> Timeline:
    with _capture(path) as (cv2, capture):
        stamps: list[float] = []
        shape: tuple[int, ...] = ()
        while capture.grab():
            stamps.append(capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            if not shape:
                good, picture = capture.retrieve()
                shape = picture.shape if good else ()
        if not shape:
            raise DecodeError(f"{path}: no frame could be decoded")
        announced = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        if _counts_frames(path) and len(stamps) < COMPLETE_SHARE * announced - 1:
            raise DecodeError(f"{path}: only {len(stamps)} of {announced:.0f} announced frames could be read")
        fps = capture.get(cv2.CAP_PROP_FPS) or 25.0
        code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("ascii", "replace").strip("\0 ")
        rotation = int(capture.get(cv2.CAP_PROP_ORIENTATION_META)) % 360
    if len(stamps) > 2 and stamps[-1] == 0:
        # OpenCV forgets the stamp of a frame that comes out after the last packet.
        stamps[-1] = stamps[-2] + float(np.median(np.diff(stamps[:-1])))
    times = np.array(stamps) - stamps[0]
    if len(times) > 1 and np.diff(times).min() <= 0:
        times = np.arange(len(stamps)) / fps
    return Timeline(times, end_of(times, fps), shape[1], shape[0], fps, code.lower(), rotation, "opencv")


def _counts_frames(path: Path) -> bool:
    """Whether the container (MP4, MOV, AVI) counts its frames; for others OpenCV guesses from the duration."""
    with path.open("rb") as file:
        head = file.read(8)
    return head[:4] == b"RIFF" or head[4:] in (b"ftyp", b"moov", b"mdat", b"wide", b"free")


def read_frames(path: Path, wanted: list[int], transform: Transform | None) -> list[Picture]:
    """Grab through the file, because OpenCV's seek lands on wrong frames; only kept frames are converted."""
    kept, position = list[Picture](), -1
    with _capture(path) as (_, capture):
        for number in wanted:
            if kept and number == position:
                kept.append(kept[-1])
                continue
            while position < number and capture.grab():
                position += 1
            good, picture = (False, None) if position < number else capture.retrieve()
            if not good or picture is None:
                raise DecodeError(f"{path}: only {position + 1} frames could be read")
            kept.append(finished(picture[..., ::-1], transform))
    return kept
