"""Weights are those of the explained scores; frames are shown with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prota.figures.drawing import render
from prota.figures.ranked import RankedSplit
from prota.figures.tokens import PairWeights, TokenWeights, collect, draw
from prota.types import REST


def test_the_numbers_are_those_of_the_explained_scores(gaussians: RankedSplit) -> None:
    choice = gaussians.choose(None, None, None)
    numbers = collect(gaussians, choice)
    index = gaussians.captions.index(choice.caption)
    words = gaussians.model.text_encoder.words(choice.caption)
    assert numbers.words == (*(word.text for word in words), REST)
    for pair, video in ((numbers.positive, choice.positive), (numbers.negative, choice.negative)):
        explained = gaussians.model.explain(gaussians.text(choice.caption), gaussians.video(video))
        assert pair.video == video
        assert pair.score == pytest.approx(float(gaussians.scores[index, gaussians.place(video)]), abs=1e-5)
        assert pair.text_inter is not None
        # Of words of one token; the rest are two, whose weights are summed.
        product = np.array(pair.text_intra) * np.array(pair.text_inter)
        assert pair.text_weight[:-1] == pytest.approx(product[:-1].tolist(), rel=1e-5)
        assert sum(pair.text_weight) == pytest.approx(float(explained.text_weight.sum()), rel=1e-5)
        assert sum(pair.video_intra) == pytest.approx(1)
        assert len(pair.video_weight) == 4
    assert len(numbers.words) == len(numbers.positive.text_weight)
    assert numbers.positive.rank == float(gaussians.ranks()[index])


def test_bars_and_pictures_are_drawn(gaussians: RankedSplit, tmp_path: Path) -> None:
    choice = gaussians.choose(None, None, None)
    numbers, pictures = collect(gaussians, choice), gaussians.pictures(choice.positive, choice.negative)
    figure = draw(numbers, pictures)
    words = figure.axes[:3]
    assert [axes.get_title() for axes in words] == ["intra, the same for both videos", "inter", "double"]
    assert [label.get_text() for label in words[0].get_yticklabels()] == list(numbers.words)
    widths = [patch.get_width() for patch in words[2].patches]  # type: ignore[attr-defined]
    assert widths == [*numbers.positive.text_weight, *numbers.negative.text_weight]
    assert sum(bool(axes.images) for axes in figure.axes) == 8
    framed = [axes.spines["top"].get_linewidth() for axes in figure.axes if axes.images]
    assert sorted(framed) == [0.6] * 6 + [2.5] * 2
    assert framed.index(2.5) == int(np.argmax(numbers.positive.video_weight))
    render(lambda: draw(numbers, pictures), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 1065
        assert picture.height < 1300
    assert (tmp_path / "a.png").stat().st_size < 200_000


def test_a_model_without_inter_weights_has_one_panel(points: RankedSplit) -> None:
    choice = points.choose(None, None, None)
    numbers = collect(points, choice)
    assert numbers.positive.text_inter is None
    assert list(numbers.positive.kinds()) == ["weight"]
    figure = draw(numbers, points.pictures(choice.positive, choice.negative))
    assert sum(bool(axes.images) for axes in figure.axes) == 8
    assert len(figure.axes) == 1 + 2 * (4 + 1)
    # Uniform weights have no heaviest frame.
    assert {axes.spines["top"].get_linewidth() for axes in figure.axes if axes.images} == {0.6}


def test_negative_weights_are_drawn_from_zero() -> None:
    weights = (-0.3, -0.1, -0.2)
    pair = PairWeights("v", 0.5, 1.0, weights, weights, weights, weights, weights, weights)
    frames = np.zeros((3, 8, 8, 3), dtype=np.uint8)
    figure = draw(TokenWeights("a b c", ("a", "b", "c"), pair, pair), {"v": frames})
    words = [axes for axes in figure.axes if axes.containers and axes.get_xlim()[0] == pytest.approx(1.05 * -0.3)]
    bars = [axes for axes in figure.axes if axes.containers and axes.get_ylim()[0] == pytest.approx(1.1 * -0.3)]
    assert words
    assert bars
    assert {axes.get_xlim()[1] for axes in words} == {axes.get_ylim()[1] for axes in bars} == {0.0}


def test_of_long_videos_twelve_frames_are_shown() -> None:
    long = tuple(float(number) for number in range(1, 65))
    pair = PairWeights("long", 0.5, 1.0, (1.0,), (1.0,), (1.0,), long, long, long)
    short = replace(pair, video="short", video_intra=(1.0,), video_inter=(1.0,), video_weight=(1.0,))
    frames = np.zeros((64, 8, 8, 3), dtype=np.uint8)
    figure = draw(TokenWeights("a", ("a",), pair, short), {"long": frames, "short": frames})
    assert sum(bool(axes.images) for axes in figure.axes) == 13
    titles = [part.get_suptitle() for part in figure.subfigs]
    assert titles[1:] == [
        "its own video: long, rank 1, score 0.5000 (12 of 64 frames)",
        "another video: short, rank 1, score 0.5000",
    ]
