"""Overlapping segments of one video become one moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prota.library.search.moments import Moment, Segment, find_moments, stretch


def scored(*rows: tuple[str, float, float]) -> list[Moment]:
    """(video, start, score), each twelve seconds long, best first."""
    ordered = sorted(rows, key=lambda row: -row[2])
    return [Moment(number, video, at, at + 12, score) for number, (video, at, score) in enumerate(ordered)]


def test_neighbours_that_match_as_well_widen_a_moment_and_weak_ones_do_not() -> None:
    moments = find_moments(scored(("a", 6, 0.50), ("a", 12, 0.48), ("a", 0, 0.30), ("b", 0, 0.20)), 5)
    assert [(moment.video_id, moment.start, moment.end, moment.score) for moment in moments] == [
        ("a", 6, 24, 0.50),
        ("b", 0, 12, 0.20),
    ]


def test_a_scene_that_goes_on_is_one_moment_in_whatever_order_its_segments_come() -> None:
    rows = [("a", 30, 0.500), ("a", 54, 0.499), ("a", 12, 0.498), ("a", 48, 0.497), ("a", 18, 0.496), ("a", 42, 0.49),
            ("a", 24, 0.48), ("a", 36, 0.47), ("a", 66, 0.46), ("a", 6, 0.3)]  # fmt: skip
    (moment, other) = find_moments(scored(*rows), 5)
    assert (moment.start, moment.end, moment.score) == (12, 66, 0.5)
    assert (other.start, other.end) == (66, 78), "it only touches the first"


def test_two_stretches_of_one_video_are_two_moments() -> None:
    moments = find_moments(scored(("a", 0, 0.5), ("a", 60, 0.49)), 5)
    assert [(moment.start, moment.end) for moment in moments] == [(0, 12), (60, 72)]


def test_a_segment_between_two_moments_widens_neither_into_the_other() -> None:
    # The one at 6 s is too weak for the first moment and would do for the second, but the first has its beginning.
    moments = find_moments(scored(("a", 0, 1.0), ("a", 12, 0.5), ("a", 6, 0.49)), 5)
    assert [(moment.start, moment.end) for moment in moments] == [(0, 12), (12, 24)]


def test_exactly_nine_tenths_are_enough() -> None:
    (moment,) = find_moments(scored(("a", 0, 1.0), ("a", 6, 0.9)), 5)
    assert (moment.start, moment.end) == (0, 18)


def test_negative_scores_join_too() -> None:
    moments = find_moments(scored(("a", 0, -0.10), ("a", 6, -0.105), ("a", 12, -0.2)), 5)
    assert [(moment.start, moment.end) for moment in moments] == [(0, 18)]


@pytest.mark.parametrize("k", [1, 3])
def test_no_more_than_asked_for(k: int) -> None:
    assert len(find_moments(scored(*((f"v{n}", 0, n / 10) for n in range(9))), k)) == k


@pytest.mark.parametrize(
    ("heat", "expected"),
    [
        ("9900000000", (10, 12)),
        ("0000099999", (15, 20)),
        ("0099409990", (12, 19)),
        ("9000900009", (10, 15)),
        ("0000000090", (18, 19)),
        ("9999999999", (10, 20)),
        ("0000000000", (10, 20)),
        ("3333933333", (14, 15)),
    ],
)
def test_a_moment_is_where_the_query_holds(heat: str, expected: tuple[float, float]) -> None:
    values = np.array([float(digit) for digit in heat])
    assert stretch(values, Segment(10, 20, range(10, 20)), int(values.argmax())) == expected


def test_a_moment_that_nothing_holds_is_its_segment() -> None:
    assert stretch(np.array([-2.0, -1.0, -3.0]), Segment(0, 3, (0, 1, 2)), 1) == (0, 3)


def test_a_scene_knows_its_segments() -> None:
    (moment,) = find_moments(scored(("a", 12, 0.50), ("a", 6, 0.48), ("a", 18, 0.47), ("a", 40, 0.2)), 1)
    assert moment.rows[0] == moment.row
    assert sorted(moment.rows) == [0, 1, 2]


segment = st.tuples(st.sampled_from("abc"), st.integers(0, 20).map(lambda n: 6.0 * n), st.floats(-1, 1))


@settings(max_examples=200, deadline=None)
@given(st.lists(segment, max_size=40), st.integers(1, 12))
def test_moments_never_overlap_and_come_best_first(rows: list[tuple[str, float, float]], k: int) -> None:
    segments = scored(*rows)
    moments = find_moments(segments, k)
    assert [moment.score for moment in moments] == sorted((moment.score for moment in moments), reverse=True)
    if segments:
        assert (moments[0].score, moments[0].row) == (segments[0].score, segments[0].row)
    for place, one in enumerate(moments):
        for other in moments[place + 1 :]:
            assert one.video_id != other.video_id or one.end <= other.start or other.end <= one.start
