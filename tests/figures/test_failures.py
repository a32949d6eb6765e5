"""Which captions fail, and what they find."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from prota.figures.drawing import FigureError, render
from prota.figures.failures import Failure, Found, collect, draw
from prota.figures.ranked import RankedSplit


@pytest.fixture
def known(gaussians: RankedSplit) -> RankedSplit:
    """Of 14 captions three fail: ranks 2 and 7 of one video, 3 of another."""
    scores = torch.zeros(14, 7)
    scores[torch.arange(14), gaussians.video_of_text] = 5.0
    scores[4, 0] = 7.0
    scores[5] = torch.tensor([9.0, 8.0, 1.0, 7.0, 6.0, 5.0, 4.0])
    scores[12, :2] = 6.0
    gaussians.scores = scores
    return gaussians


def test_the_worst_come_first_and_a_video_once(known: RankedSplit) -> None:
    ids = known.split.video_ids
    numbers = collect(known)
    assert (numbers.queries, numbers.failed, numbers.split) == (14, 3, "folder test")
    found = (Found(ids[0], 1, 9.0), Found(ids[1], 2, 8.0), Found(ids[3], 3, 7.0))
    # Equal scores share a rank; the own video is left out of what is found.
    tied = (Found(ids[0], 1, 6.0), Found(ids[1], 1, 6.0), Found(ids[2], 4, 0.0))
    assert numbers.shown == (
        Failure(known.captions[5], ids[2], 7.0, 1.0, found),
        Failure(known.captions[12], ids[6], 3.0, 5.0, tied),
    )
    assert numbers.videos() == [ids[2], ids[0], ids[1], ids[3], ids[6]]
    assert [failure.rank for failure in collect(known, order="nearest").shown] == [2.0, 3.0]
    assert len(collect(known, count=1).shown) == 1


def test_nothing_to_show_is_said(known: RankedSplit) -> None:
    known.scores = torch.nn.functional.one_hot(known.video_of_text).float()
    with pytest.raises(FigureError, match="all 14 captions find their own video first"):
        collect(known)


def test_every_row_has_its_pictures(known: RankedSplit, tmp_path: Path) -> None:
    numbers = collect(known)
    pictures = known.pictures(*numbers.videos())
    figure = draw(numbers, pictures)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 2 * 4 * 2
    titles = [axes.get_title(loc="left") for axes in shown if axes.get_title(loc="left")]
    assert titles[:2] == ["own: rank 7, 1.000", "rank 1, 9.000"]
    render(lambda: draw(numbers, pictures), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 1065
    assert (tmp_path / "a.png").stat().st_size < 200_000
