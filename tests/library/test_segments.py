"""Segments cover a video, in order, and keep within its shots."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prota.errors import UsageError
from prota.library.segments import SHORTEST_SHOT, Cut, SegmentPlan, plan
from prota.video.sampling import uniform_indices

DEFAULT = SegmentPlan()


def steady(seconds: float, fps: float = 25.0) -> np.ndarray[Any, Any]:
    return np.arange(round(seconds * fps)) / fps


def spans(cuts: list[Cut]) -> list[tuple[float, float]]:
    return [(round(cut.start, 6), round(cut.end, 6)) for cut in cuts]


def test_the_default_is_twelve_seconds_every_six() -> None:
    found = plan(steady(30), 30.0, DEFAULT)
    assert spans(found) == [(0, 12), (6, 18), (12, 24), (18, 30)]
    # One frame a second, in the middle of each second; neighbours share six of them.
    assert found[0].indices == tuple(12 + 25 * second for second in range(12))
    assert found[1].indices[:6] == found[0].indices[6:]
    assert len({index for cut in found for index in cut.indices}) == 30


def test_the_last_segment_ends_with_the_video() -> None:
    assert spans(plan(steady(20), 20.0, DEFAULT)) == [(0, 12), (6, 18), (8, 20)]
    # Less than half a second more, half the time between two looks, is no reason for another segment.
    assert spans(plan(steady(18.4), 18.4, DEFAULT)) == [(0, 12), (6, 18.4)]
    assert spans(plan(steady(12.4), 12.4, DEFAULT)) == [(0, 12.4)]
    assert spans(plan(steady(12.6), 12.6, DEFAULT)) == [(0, 12), (0.6, 12.6)]
    assert spans(plan(steady(24.4), 24.4, SegmentPlan(overlap=0))) == [(0, 12), (12, 24.4)]


@pytest.mark.parametrize("seconds", [0.2, 1, 5, 11.96, 12])
def test_a_short_clip_is_one_segment_of_uniform_frames(seconds: float) -> None:
    times = steady(seconds)
    found = plan(times, seconds, DEFAULT)
    assert spans(found) == [(0, seconds)]
    assert found[0].indices == tuple(uniform_indices(times, seconds, 12).tolist())
    assert len(set(found[0].indices)) == min(12, len(times))


def test_one_frame_is_a_segment() -> None:
    assert plan(np.zeros(1), 0.04, DEFAULT) == [Cut(0.0, 0.04, (0,))]
    assert plan(np.zeros(1), 0.0, DEFAULT) == [Cut(0.0, 0.0, (0,))]


def test_a_still_picture_is_one_segment_however_long() -> None:
    # A talk: slides at 0, 100 and 101 s, of which the file holds one frame each.
    found = plan(np.array([0.0, 100.0, 101.0]), 200.0, DEFAULT)
    assert found == [Cut(0.0, 96.0, (0,)), Cut(90.0, 108.0, (0, 1, 2)), Cut(102.0, 200.0, (2,))]


def test_other_plans() -> None:
    times = steady(10)
    assert spans(plan(times, 10.0, SegmentPlan(frames=4, fps=2.0, overlap=0.0))) == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, 10),
    ]
    assert spans(plan(times, 10.0, SegmentPlan(frames=8, overlap=0.75))) == [(0, 8), (2, 10)]
    # Half of three frames is rounded to whole ones, so that neighbours share theirs.
    assert spans(plan(times, 10.0, SegmentPlan(frames=3, overlap=0.5))) == [(n, n + 3) for n in (0, 2, 4, 6, 7)]
    assert len(plan(times, 10.0, SegmentPlan(frames=1))) == 10
    # More frames a second than there are: all of them, once.
    dense = plan(times, 10.0, SegmentPlan(frames=12, fps=100.0))
    assert max(len(cut.indices) for cut in dense) <= 5
    assert all(len(set(cut.indices)) == len(cut.indices) for cut in dense)


def test_ten_hours_are_no_problem() -> None:
    found = plan(steady(36_000), 36_000.0, DEFAULT)
    assert len(found) == 5999
    assert len({index for cut in found for index in cut.indices}) == 36_000


def test_time_stamps_that_cannot_be_are_refused() -> None:
    for end in (1e9, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="time stamps are invalid") as caught:
            plan(np.array([0.0, 1.0]), end, DEFAULT)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="without frames"):
        plan(np.zeros(0), 1.0, DEFAULT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frames", 0),
        ("frames", True),
        ("fps", 0.0),
        ("fps", float("nan")),
        ("fps", float("inf")),
        ("overlap", 1.0),
        ("overlap", -0.1),
    ],
)
def test_bad_plans_are_refused(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"{name} must be .*, got {value}"):
        SegmentPlan(**settings)


def test_no_segment_crosses_a_cut() -> None:
    found = plan(steady(40), 40.0, DEFAULT, cuts=[5.0, 25.0])
    assert spans(found) == [(0, 5), (5, 17), (11, 23), (13, 25), (25, 37), (28, 40)]
    for cut in found:
        assert all(cut.start - 1e-6 <= index / 25 < cut.end for index in cut.indices)


def test_short_shots_are_joined_to_a_neighbour() -> None:
    times = steady(10)
    assert spans(plan(times, 10.0, DEFAULT, cuts=[0.5, 4.0, 4.4, 4.9, 5.0, 9.5])) == [(0, 4), (4, 5), (5, 10)]
    assert spans(plan(steady(0.8), 0.8, DEFAULT, cuts=[0.4])) == [(0, 0.8)]
    # Outside the video there is nothing to cut, and between two frames neither.
    assert spans(plan(times, 10.0, DEFAULT, cuts=[-1.0, 0.0, 10.0, 11.0, float("inf")])) == [(0, 10)]
    assert spans(plan(times, 10.0, DEFAULT, cuts=[4.97])) == [(0, 5), (5, 10)]


@st.composite
def videos(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], float]:
    """Steady or irregular time stamps."""
    if draw(st.booleans()):
        times = steady(draw(st.floats(0.1, 200)), draw(st.sampled_from([1.0, 8.0, 23.976, 25.0])))
        times = times if len(times) else np.zeros(1)
    else:
        gaps = draw(st.lists(st.floats(0.01, 30), max_size=60))
        times = np.concatenate([[0.0], np.cumsum(gaps)])
    return times, float(times[-1] + draw(st.floats(0.01, 5)))


plans = st.builds(
    SegmentPlan, frames=st.integers(1, 16), fps=st.sampled_from([0.3, 0.5, 1.0, 2.0, 7.0]), overlap=st.floats(0, 0.95)
)


@given(video=videos(), how=plans, cuts=st.lists(st.floats(0, 250), max_size=8))
def test_segments_cover_the_video_in_order(
    video: tuple[np.ndarray[Any, Any], float], how: SegmentPlan, cuts: list[float]
) -> None:
    times, duration = video
    found = plan(times, duration, how, cuts)
    assert found[0].start == 0
    assert found[-1].end == duration
    for one, other in pairwise(found):
        # In order, none inside another, nothing between them.
        assert one.start < other.start <= one.end + 1e-9
        assert one.end < other.end
        assert one.indices != other.indices
    for cut in found:
        assert cut.start < cut.end
        assert 1 <= len(cut.indices) <= how.frames
        assert list(cut.indices) == sorted(cut.indices)
        assert 0 <= cut.indices[0] <= cut.indices[-1] < len(times)
        # Each frame is on screen at some time of its segment.
        until = np.append(times[1:], np.inf)[list(cut.indices)]
        assert (times[list(cut.indices)] < cut.end).all()
        assert (until > cut.start).all()
        # Only where there are few frames may one segment stand for several.
        few = np.diff(np.append(times, duration)).max() > 0.5 / how.fps
        assert few or cut.end - cut.start <= how.window + 0.5 / how.fps + 1e-6


@given(seconds=st.integers(2, 120), cuts=st.sets(st.integers(-5, 125)), how=plans)
def test_cuts_part_what_is_before_from_what_is_after(seconds: int, cuts: set[int], how: SegmentPlan) -> None:
    found = plan(steady(seconds), float(seconds), how, cuts)
    inside = sorted(cut for cut in cuts if SHORTEST_SHOT <= cut <= seconds - SHORTEST_SHOT)
    for first, last in zip([0, *inside], [*inside, seconds], strict=True):
        shot = [cut for cut in found if first <= cut.start < last]
        assert (shot[0].start, shot[-1].end) == (first, last)
        # Each shot is cut up as if it were a video of its own.
        alone = plan(steady(last - first), float(last - first), how)
        assert spans(shot) == spans([Cut(cut.start + first, cut.end + first, ()) for cut in alone])
        assert all(first * 25 <= index < last * 25 for cut in shot for index in cut.indices)


@given(video=videos(), how=plans)
def test_without_cuts_neighbours_are_a_step_apart(video: tuple[np.ndarray[Any, Any], float], how: SegmentPlan) -> None:
    times, duration = video
    found = plan(times, duration, how)
    for one, other in pairwise(found[:-1]):
        steps = (other.start - one.start) / how.step
        assert steps == pytest.approx(round(steps), abs=1e-6)
