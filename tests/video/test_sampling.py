"""Which frames of a clip are looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prota.video.sampling import uniform_indices


def test_uniform_frames_are_those_in_the_middle_of_equal_stretches() -> None:
    times = np.arange(100) / 10
    assert uniform_indices(times, 10.0, 5).tolist() == [10, 30, 50, 70, 90]
    assert uniform_indices(times, 10.0, 1).tolist() == [50]


def test_ties_do_not_depend_on_rounding() -> None:
    times = np.arange(100) / 10
    for nudge in (-1e-9, 1e-9):
        assert uniform_indices(times + nudge, 10.0, 5).tolist() == [10, 30, 50, 70, 90]


def test_variable_frame_rate_is_sampled_in_time_not_by_number() -> None:
    # Nine frames in the first second, then one that stays for nine.
    times = np.array([*(np.arange(9) / 9), 1.0])
    assert uniform_indices(times, 10.0, 5).tolist() == [9, 9, 9, 9, 9]
    assert uniform_indices(times, 2.0, 4).tolist() == [2, 6, 9, 9]


def test_only_the_first_seconds_are_sampled() -> None:
    times = np.arange(100) / 10
    # As if the clip ended there.
    assert uniform_indices(times, 10.0, 5, max_seconds=5.0).tolist() == [5, 15, 25, 35, 45]
    # The frame that is shown when the time is up is not seen, however its stamp was rounded.
    for nudge in (-1e-9, 0, 1e-9):
        assert uniform_indices(times + nudge, 10.0, 8, max_seconds=0.8).tolist() == list(range(8))
        assert uniform_indices(times + nudge, 10.0, 9, max_seconds=0.8).tolist() == list(range(8))
    assert uniform_indices(times, 10.0, 4, max_seconds=1e-9).tolist() == [0]


@given(
    gaps=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=80),
    count=st.integers(1, 16),
    max_seconds=st.floats(0.01, 100),
)
def test_a_limit_binds_longer_clips_alone(gaps: list[float], count: int, max_seconds: float) -> None:
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    duration = float(times[-1] + 0.1)
    chosen = uniform_indices(times, duration, count, max_seconds=max_seconds)
    assert (times[chosen] < max_seconds).all()
    if duration <= max_seconds:
        assert chosen.tolist() == uniform_indices(times, duration, count).tolist()


@pytest.mark.parametrize("available", [1, 2, 12])
def test_a_short_clip_gives_all_its_frames_once(available: int) -> None:
    times = np.arange(available) / 5
    chosen = uniform_indices(times, available / 5, count=12)
    assert chosen.tolist() == list(range(available))


@given(gaps=st.lists(st.floats(0.001, 3.0), min_size=1, max_size=80), count=st.integers(1, 16))
def test_the_frame_that_is_shown_in_the_middle_of_each_stretch(gaps: list[float], count: int) -> None:
    times = np.concatenate([[0.0], np.cumsum(gaps)])
    duration = float(times[-1] + 0.1)
    chosen = uniform_indices(times, duration, count)
    if len(times) <= count:
        assert chosen.tolist() == list(range(len(times)))
        return
    assert len(chosen) == count
    middles = (np.arange(count) + 0.5) / count * duration
    # Both are right where a point falls between two frames by less than the rounding of its own time.
    assert (times[chosen] <= middles + 1e-5).all()
    assert (np.append(times, np.inf)[chosen + 1] > middles - 1e-5).all()


def test_bad_settings_are_refused() -> None:
    times = np.arange(10) / 10
    with pytest.raises(ValueError, match="count must be"):
        uniform_indices(times, 1.0, 0)
    with pytest.raises(ValueError, match="no frames"):
        uniform_indices(times[:0], 0.0, 2)
