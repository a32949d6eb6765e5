"""What workers do in the tests. A module of its own, because a worker imports it, and tests import torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.decode import decode_chosen
from prota.video.sampling import uniform_indices
from prota.video.timeline import Picture, Timeline


def double(number: int) -> int:
    return 2 * number


def misbehave(kind: str) -> str:
    """What a job may do."""
    if kind == "hang":
        threading.Event().wait()
    elif kind == "exit":
        os._exit(3)
    elif kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "quit":
        sys.exit(4)
    elif kind == "raise":
        raise ValueError("not a video:\n  it is a cake")
    elif kind == "lambda":
        return lambda: None  # type: ignore[return-value]
    return f"{kind} by {os.getpid()}"


def hang(_: object) -> None:
    threading.Event().wait()


def large(megabytes: int) -> np.ndarray[Any, Any]:
    return np.full((megabytes, 2**20), megabytes, dtype=np.uint8)


def note_and_hang(folder: str) -> None:
    """Leave a file that tells our process number, so that a test can see when we are gone."""
    temporary = Path(folder) / f"{os.getpid()}.tmp"
    temporary.touch()
    temporary.rename(Path(folder) / f"{os.getpid()}.worker")
    threading.Event().wait()


def decode_all(path: str) -> tuple[Timeline, list[Picture]]:
    """The timeline and all frames."""
    timeline, _, frames = decode_chosen(path, lambda timeline: range(len(timeline.times)))
    return timeline, frames


def decode_uniform(path: str) -> tuple[int, int, list[tuple[int, ...]], tuple[int, int]]:
    """A job: frames in the timeline, frames chosen, their shapes, the size that the timeline names."""
    timeline, chosen, frames = decode_chosen(
        path, lambda timeline: uniform_indices(timeline.times, timeline.duration, 12).tolist()
    )
    shapes = sorted({frame.shape for frame in frames})
    return len(timeline.times), len(chosen), shapes, (timeline.height, timeline.width)
