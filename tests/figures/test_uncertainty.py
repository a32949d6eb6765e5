"""Mean log σ² of both sides over training."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.figures.drawing import FigureError, render
from prota.figures.uncertainty import collect, draw
from tests.figures.logs import write_run


def test_the_lines_are_the_logged_values(tmp_path: Path) -> None:
    numbers = collect([write_run(tmp_path / "kl"), write_run(tmp_path / "none", "loss.beta=0", shift=0.5)])
    assert [curve.label for curve in numbers.text] == ["with KL, β = 0.0005", "without KL"]
    assert numbers.text[0].mean == (-1, -2, -3, -4)
    assert numbers.video[1].mean == (-1.5, -3.5, -5.5, -7.5)
    text, video = draw(numbers).axes
    assert (text.get_title(), video.get_title()) == ("text", "video")
    drawn = [list(line.get_ydata()) for line in video.get_lines()]  # type: ignore[arg-type]
    assert drawn == [[-2, -4, -6, -8], [-1.5, -3.5, -5.5, -7.5]]
    render(lambda: draw(numbers), tmp_path / "a.png")
    assert 5_000 < (tmp_path / "a.png").stat().st_size < 200_000


def test_points_have_no_uncertainty(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "kl"), write_run(tmp_path / "points", preset="lda")]
    with pytest.raises(FigureError, match="points are points, which have no uncertainty"):
        collect(runs)
