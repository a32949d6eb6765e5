"""What the bar of `prota index` says, and what its --ray takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prota.cli import app
from prota.cli.commands import with_address
from prota.cli.index import progress_note
from prota.cli.progress import duration
from prota.library.indexing import IndexReport


def test_the_bar_tells_hours_rate_and_time_left() -> None:
    report = IndexReport(seconds=7200.0, bytes_new=4_000, bytes_done=1_000)
    assert progress_note(report, 600.0) == "2.0 hours of video, 12.0 x real time, 0:10:00, ETA 0:30:00"
    report.bad["broken.mp4"] = "no video stream"
    assert "1 bad" in progress_note(report, 600.0)


def test_no_time_is_left_before_the_first_and_after_the_last_file() -> None:
    for done in (0.0, 4_000.0):
        assert "ETA" not in progress_note(IndexReport(bytes_new=4_000, bytes_done=done), 3.0)
    assert progress_note(IndexReport(), 0.0) == "0.0 minutes of video, 0.0 x real time, 0:00:00"


def test_less_than_an_hour_is_minutes() -> None:
    assert (duration(90.0), duration(3600.0), duration(7_200_000.0)) == ("1.5 minutes", "1.0 hours", "2,000.0 hours")


def test_pictures_have_no_hours() -> None:
    assert progress_note(IndexReport(pictures=1), 2.0) == "1 picture, 0:00:02"
    assert progress_note(IndexReport(pictures=1200, seconds=3600.0), 60.0).startswith("1.0 hours of video, 60.0 x")
    assert "1,200 pictures" in progress_note(IndexReport(pictures=1200, seconds=3600.0), 60.0)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["v", "--ray"], ["v", "--ray=local"]),
        (["--ray", "v"], ["--ray=local", "v"]),
        (["--ray", "-l", "lib", "v"], ["--ray=local", "-l", "lib", "v"]),
        (["--ray", "auto", "v"], ["--ray", "auto", "v"]),
        (["v", "--ray", "head:6379"], ["v", "--ray", "head:6379"]),
        (["--ray=x", "--", "--ray"], ["--ray=x", "--", "--ray"]),
        (["--ray", "--", "auto"], ["--ray=local", "--", "auto"]),
    ],
)
def test_ray_may_stand_without_an_address(given: list[str], taken: list[str]) -> None:
    assert with_address(given) == taken


def test_what_is_no_address_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["index", str(tmp_path), "--ray=nonsense"])
    assert isinstance(result.exception, ValueError)
    assert "--ray nonsense: invalid address" in str(result.exception)
