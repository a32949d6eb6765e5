"""Filters as a user means them: days are whole, and both ends count."""

from __future__ import annotations

from datetime import date

import pytest

from prota.server.engine import View
from prota.server.folders import Folders
from prota.server.searching import Filters, condition


@pytest.fixture
def view() -> View:
    return View(1, None, {}, Folders([("/films/a.mp4", "a")]), 0.0, None)  # type: ignore[arg-type]


def test_a_day_is_whole(view: View) -> None:
    day = date(2024, 2, 29)
    assert condition(Filters(after=day, before=day), view) == (
        "modified >= timestamp '2024-02-29 00:00:00' AND modified < timestamp '2024-03-01 00:00:00'"
    )


def test_both_ends_of_a_duration_count(view: View) -> None:
    assert condition(Filters(1.5, 60.0), view) == "duration >= 1.5 AND duration <= 60.0"


def test_no_filter_is_no_condition(view: View) -> None:
    assert condition(Filters(), view) is None
    # There is no day after the last, and nothing that was changed later.
    assert condition(Filters(before=date.max), view) is None


def test_all_conditions_hold_at_once(view: View) -> None:
    assert condition(Filters(1.0, folder="films"), view) == "duration >= 1.0 AND video_id IN ('a')"
