"""Places, ellipses and distances of tokens, and the pair that tells two models apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.patches import Ellipse

from prota.figures.distributions import _directions, _ellipse, _places, choose_pair, collect, draw
from prota.figures.drawing import FigureError, render
from prota.figures.ranked import Choice, RankedSplit


def test_an_ellipse_is_the_gaussian_seen_along_two_directions() -> None:
    sigma = np.array([3.0, 1.0, 2.0])
    flat = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert _ellipse(sigma, flat) == pytest.approx((3, 1, 0))
    assert _ellipse(sigma, flat[::-1]) == pytest.approx((3, 1, 90))
    turn = math.radians(30)
    turned = np.array([[math.cos(turn), -math.sin(turn), 0.0], [math.sin(turn), math.cos(turn), 0.0]])
    assert _ellipse(sigma, turned) == pytest.approx((3, 1, 30))
    assert _ellipse(np.full(3, 0.5), turned)[:2] == pytest.approx((0.5, 0.5))


def clusters(count: int = 20, width: int = 16) -> np.ndarray:
    generator = np.random.default_rng(0)
    centres = generator.normal(0, 3, (3, width))
    return np.concatenate([centre + generator.normal(0, 0.5, (count, width)) for centre in centres])


def test_clusters_stay_together_and_apart() -> None:
    places = _places(clusters())
    assert places.mean(axis=0) == pytest.approx([0, 0], abs=1e-9)
    assert (places**2).sum(axis=1).mean() == pytest.approx(1)
    distances = ((places[:, None] - places[None]) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    owner = np.arange(60) // 20
    assert (owner[distances.argmin(axis=1)] == owner).all()
    assert np.array_equal(places, _places(clusters()))


@pytest.mark.parametrize("count", [2, 5, 12, 60])
def test_the_last_digit_does_not_decide(count: int) -> None:
    """Encoders on another number of threads give slightly other tokens; the figure is to stay the same."""
    points = clusters(count)
    moved = points + 1e-7 * np.random.default_rng(1).normal(size=points.shape)
    assert np.abs(_places(points) - _places(moved)).max() < 1e-2


@pytest.mark.parametrize(
    "points", [clusters(1), np.repeat(np.eye(3), 4, axis=0), 1e6 * clusters(3)], ids=["few", "doubled", "far apart"]
)
def test_odd_points_have_finite_places(points: np.ndarray) -> None:
    assert np.isfinite(_places(points)).all()


def test_directions_are_those_of_the_map() -> None:
    means = np.random.default_rng(0).normal(size=(40, 6))
    directions = _directions(means, means[:, [4, 1]] * [5.0, 5.0])
    expected = np.zeros((2, 6))
    expected[0, 4] = expected[1, 1] = 1
    assert directions == pytest.approx(expected, abs=0.05)
    assert directions @ directions.T == pytest.approx(np.eye(2), abs=1e-9)


def test_distances_are_those_of_the_score(gaussians: RankedSplit) -> None:
    choice = gaussians.choose(None, None, None)
    numbers = collect([("one", gaussians)], choice)
    (panel,) = numbers.panels
    for video, distance in ((choice.positive, panel.positive_distance), (choice.negative, panel.negative_distance)):
        pieces = gaussians.model.explain(gaussians.text(choice.caption), gaussians.video(video))
        # s = 1 − ½ W2².
        assert distance == pytest.approx(float(2 * (1 - pieces.similarities).mean()), rel=1e-4)
        assert pieces.video_uncertainty is not None
    assert panel.negative.log_var == pytest.approx(float(pieces.video_uncertainty.mean()), rel=1e-4)
    # Marks at the ends are tokens without a name.
    words = gaussians.model.text_encoder.words(choice.caption)
    assert panel.text.tokens == ("", *(word.text for word in words), "")
    assert panel.positive.tokens == ("1", "2", "3", "4")
    places = np.array([*panel.text.places, *panel.positive.places, *panel.negative.places])
    assert (places**2).sum(axis=1).mean() == pytest.approx(1)
    assert panel.text.ellipses is not None
    for wide, high, _ in panel.text.ellipses:
        assert wide >= high > 0
    axes = [
        axis for cloud in (panel.text, panel.positive, panel.negative) for e in cloud.ellipses or () for axis in e[:2]
    ]
    assert numbers.scale * float(np.median(axes)) == pytest.approx(0.12)


def test_points_are_drawn_without_ellipses(points: RankedSplit, gaussians: RankedSplit, tmp_path: Path) -> None:
    choice = choose_pair(points, gaussians)
    numbers = collect([("without", points), ("with", gaussians)], choice)
    assert numbers.panels[0].text.ellipses is None
    assert numbers.panels[0].text.log_var is None
    left, right = draw(numbers).axes
    tokens = len(numbers.panels[1].text.tokens) + 8
    ellipses = [sum(isinstance(patch, Ellipse) for patch in axes.patches) for axes in (left, right)]
    assert ellipses == [0, tokens]
    assert {text.get_text() for text in left.texts} == set(numbers.panels[0].text.tokens) - {""}
    assert [line.get_marker() for line in left.get_lines()] == ["o", "s", "^"]
    assert "tokens are points" in left.get_xlabel()
    assert left.get_xlim() == right.get_xlim()
    render(lambda: draw(numbers), tmp_path / "a.png")
    assert 10_000 < (tmp_path / "a.png").stat().st_size < 200_000


def test_the_caption_that_is_mended_most_is_shown(points: RankedSplit, gaussians: RankedSplit) -> None:
    right = torch.nn.functional.one_hot(points.video_of_text).float()
    points.scores, gaussians.scores = right.clone(), right.clone()
    # Caption 6 finds video 0 first without, and is mended; caption 8 is further off, but stays wrong.
    points.scores[6, 0] = 1.5
    points.scores[8, 1] = 3.0
    gaussians.scores[8, 1] = 1.1
    ids = points.split.video_ids
    assert choose_pair(points, gaussians) == Choice(points.captions[6], ids[3], ids[0])
    gaussians.scores[6, 0] = 1.5
    assert choose_pair(points, gaussians) == Choice(points.captions[8], ids[4], ids[1])


def test_models_of_different_data_do_not_compare(points: RankedSplit, gaussians: RankedSplit) -> None:
    from prota.data.splits import Split

    gaussians.split = Split("test", gaussians.split.items[:3])
    with pytest.raises(FigureError, match="different data"):
        choose_pair(points, gaussians)
