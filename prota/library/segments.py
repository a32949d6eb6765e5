"""Cut videos into segments, the units that are encoded, stored and searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from prota.errors import UsageError
from prota.video.sampling import SAME_TIME, uniform_indices
from prota.video.timeline import DecodeError

__all__ = ["Cut", "SegmentPlan", "plan"]

Times = np.ndarray[Any, np.dtype[np.float64]]

# Seconds. Shorter shots are joined to a neighbour.
SHORTEST_SHOT = 1.0
# Two weeks at the default plan; a longer duration means invalid time stamps.
MOST_SEGMENTS = 200_000


@dataclass(frozen=True)
class SegmentPlan:
    """The length, frame rate and overlap of segments."""

    frames: int = 12
    """M, the maximum of frames per segment."""
    fps: float = 1.0
    """Frames sampled per second of video."""
    overlap: float = 0.5
    """The share of a segment that the next one repeats."""
    shots: bool = False
    """Whether segments end at shot boundaries."""

    def __post_init__(self) -> None:
        if isinstance(self.frames, bool) or not isinstance(self.frames, int) or self.frames < 1:
            raise UsageError(f"frames must be an integer of at least 1, got {self.frames}")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise UsageError(f"fps must be above 0, got {self.fps}")
        if not 0 <= self.overlap < 1:
            raise UsageError(f"overlap must be at least 0 and below 1, got {self.overlap}")

    @property
    def window(self) -> float:
        """The length of a segment in seconds."""
        return self.frames / self.fps

    @property
    def step(self) -> float:
        """Seconds between starts: a whole number of frames, so that neighbours share frames."""
        return max(1, round(self.frames * (1 - self.overlap))) / self.fps


@dataclass(frozen=True)
class Cut:
    """A planned segment."""

    start: float
    end: float
    indices: tuple[int, ...]
    """Its frames in the timeline of the video, ascending."""


def plan(times: Times, duration: float, plan: SegmentPlan, cuts: Iterable[float] = ()) -> list[Cut]:
    """Cut a video with frames at `times` into segments that cover it, in order.

    Segments last `plan.window` and start every `plan.step`; the last one is moved back to end with the video. A video
    that exceeds the window by less than half a frame interval is one segment. Frames are sampled uniformly in time, as
    in training. No segment crosses a cut (seconds, rounded up to a frame). Neighbours with the same frames, as of a
    slide that stands for minutes, are joined.
    """
    if len(times) == 0:
        raise ValueError("a video without frames has no segments")
    end = max(float(duration), float(times[-1]))
    if not end / plan.step <= MOST_SEGMENTS:
        problem = f"{end:.0f} s of video exceed {MOST_SEGMENTS} segments"
        raise DecodeError(f"{problem}: the time stamps are invalid, or fps is too large")
    found: list[Cut] = []
    for first, last in _shots(times, end, cuts):
        for start, stop in _windows(first, last, plan):
            indices = _frames(times, start, stop, plan.frames)
            still = found.pop() if found and found[-1].indices == indices else None
            found.append(Cut(still.start if still else start, stop, indices))
    return found


def _shots(times: Times, end: float, cuts: Iterable[float]) -> list[tuple[float, float]]:
    """The intervals between cuts, none shorter than `SHORTEST_SHOT` unless the video is."""
    borders = [0.0]
    for cut in sorted(set(cuts)):
        # A shot starts with a frame.
        place = int(np.searchsorted(times, cut - SAME_TIME))
        if place < len(times) and times[place] - borders[-1] >= SHORTEST_SHOT:
            borders.append(float(times[place]))
    if len(borders) > 1 and end - borders[-1] < SHORTEST_SHOT:
        borders.pop()
    return list(zip(borders, [*borders[1:], end], strict=True))


def _windows(first: float, last: float, plan: SegmentPlan) -> Iterator[tuple[float, float]]:
    # Less than half a frame interval makes no other segment.
    rest = last - first - plan.window - 0.5 / plan.fps
    steps = max(0, math.ceil(rest / plan.step))
    for number in range(steps):
        yield first + number * plan.step, first + number * plan.step + plan.window
    # Without overlap, a segment that ends with the video could otherwise start too late and leave a gap.
    yield max(first, min(first + steps * plan.step, last - plan.window)), last


def _frames(times: Times, start: float, end: float, count: int) -> tuple[int, ...]:
    """Sample the frames on screen between two times uniformly; all of them if there are few."""
    first = max(0, int(np.searchsorted(times, start + SAME_TIME, side="right")) - 1)
    last = max(first + 1, int(np.searchsorted(times, end - SAME_TIME)))
    chosen = uniform_indices(times[first:last] - start, end - start, count)
    return tuple((chosen + first).tolist())
