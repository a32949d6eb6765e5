"""How a video is cut into segments, the stretches that are encoded, stored and found."""

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

# Seconds. What flashes by more quickly is no shot that anyone would look for; it is joined to a neighbour.
SHORTEST_SHOT = 1.0
# Two weeks at the default plan. A file that needs more has wrong time stamps.
MOST_SEGMENTS = 200_000


@dataclass(frozen=True)
class SegmentPlan:
    """How long segments are, how densely they are looked at, and how far they overlap."""

    frames: int = 12
    """M, the most frames of a segment."""
    fps: float = 1.0
    """Frames looked at in a second of video."""
    overlap: float = 0.5
    """The share of a segment that the next one shows again."""
    shots: bool = False
    """Whether a segment ends where the picture changes at once."""

    def __post_init__(self) -> None:
        if isinstance(self.frames, bool) or not isinstance(self.frames, int) or self.frames < 1:
            raise UsageError(f"frames = {self.frames} is not allowed; allowed: 1 or more")
        if not (math.isfinite(self.fps) and self.fps > 0):
            raise UsageError(f"fps = {self.fps} is not allowed; allowed: frames a second, above 0")
        if not 0 <= self.overlap < 1:
            raise UsageError(f"overlap = {self.overlap} is not allowed; allowed: a share from 0 to below 1")

    @property
    def window(self) -> float:
        """Seconds of a segment."""
        return self.frames / self.fps

    @property
    def step(self) -> float:
        """Seconds from one start to the next: a whole number of frames, so that neighbours share theirs."""
        return max(1, round(self.frames * (1 - self.overlap))) / self.fps


@dataclass(frozen=True)
class Cut:
    """A segment that is to be made."""

    start: float
    end: float
    indices: tuple[int, ...]
    """Its frames, ascending, into the timeline of the video."""


def plan(times: Times, duration: float, plan: SegmentPlan, cuts: Iterable[float] = ()) -> list[Cut]:
    """The segments of a video whose frames are shown at `times`, in order; together they cover all of it.

    Segments last `plan.window` and start every `plan.step`; the last one is moved back so that it ends with the video.
    A video that is shorter, or longer by less than half the time between two looks, is one segment. Frames are chosen
    uniformly in time, as for training. No segment crosses one of the `cuts` (seconds), each of which counts from the
    next frame on. Neighbours that would show the same frames are one: a slide may stand for minutes, in a single frame.
    """
    if len(times) == 0:
        raise ValueError("a video without frames has no segments")
    end = max(float(duration), float(times[-1]))
    if not end / plan.step <= MOST_SEGMENTS:
        problem = f"{end:.0f} s of video would be more than {MOST_SEGMENTS} segments"
        raise DecodeError(f"{problem}: the time stamps are wrong, or else a smaller fps is needed")
    found: list[Cut] = []
    for first, last in _shots(times, end, cuts):
        for start, stop in _windows(first, last, plan):
            indices = _frames(times, start, stop, plan.frames)
            still = found.pop() if found and found[-1].indices == indices else None
            found.append(Cut(still.start if still else start, stop, indices))
    return found


def _shots(times: Times, end: float, cuts: Iterable[float]) -> list[tuple[float, float]]:
    """Stretches between cuts, none shorter than `SHORTEST_SHOT` unless the video is."""
    borders = [0.0]
    for cut in sorted(set(cuts)):
        # A shot starts with a frame: between two frames there is nothing to cut.
        place = int(np.searchsorted(times, cut - SAME_TIME))
        if place < len(times) and times[place] - borders[-1] >= SHORTEST_SHOT:
            borders.append(float(times[place]))
    if len(borders) > 1 and end - borders[-1] < SHORTEST_SHOT:
        borders.pop()
    return list(zip(borders, [*borders[1:], end], strict=True))


def _windows(first: float, last: float, plan: SegmentPlan) -> Iterator[tuple[float, float]]:
    # Half the time between two looks is no reason for another segment that shows nearly the same again.
    rest = last - first - plan.window - 0.5 / plan.fps
    steps = max(0, math.ceil(rest / plan.step))
    for number in range(steps):
        yield first + number * plan.step, first + number * plan.step + plan.window
    # Where that much is left over without overlap, "back" from the end would be too late, and leave a gap.
    yield max(first, min(first + steps * plan.step, last - plan.window)), last


def _frames(times: Times, start: float, end: float, count: int) -> tuple[int, ...]:
    """Of the frames on screen between two times, uniformly chosen ones; all of them where there are few."""
    first = max(0, int(np.searchsorted(times, start + SAME_TIME, side="right")) - 1)
    last = max(first + 1, int(np.searchsorted(times, end - SAME_TIME)))
    chosen = uniform_indices(times[first:last] - start, end - start, count)
    return tuple((chosen + first).tolist())
