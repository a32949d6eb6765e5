"""What the bar of `prota index` says."""

from __future__ import annotations

from prota.cli.index import progress_note
from prota.library.indexing import IndexReport


def test_the_bar_tells_hours_rate_and_time_left() -> None:
    report = IndexReport(seconds=7200.0, bytes_new=4_000, bytes_done=1_000)
    assert progress_note(report, 600.0) == "2.00 h of video, 12.0 x real time, 0:10:00, 0:30:00 left"
    report.bad["broken.mp4"] = "no video stream"
    assert "1 bad" in progress_note(report, 600.0)


def test_no_time_is_left_before_the_first_and_after_the_last_file() -> None:
    for done in (0.0, 4_000.0):
        assert "left" not in progress_note(IndexReport(bytes_new=4_000, bytes_done=done), 3.0)
    assert progress_note(IndexReport(), 0.0) == "0.00 h of video, 0.0 x real time, 0:00:00"
