"""Weights of words and frames: intra, inter and double weights of a caption with its own and another video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prota.figures.drawing import GREY, MARKS, new_figure, short_name, show_picture, wrapped
from prota.figures.ranked import Choice, Pictures, RankedSplit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from torch import Tensor

__all__ = ["PairWeights", "TokenWeights", "collect", "draw"]

# Frames per row; of longer videos evenly spaced ones are drawn, the JSON file has all.
_FRAMES = 12
_KINDS = {"intra": "intra", "inter": "inter", "weight": "double"}
_SIDES = {"positive": "its own video", "negative": "another video"}


@dataclass(frozen=True)
class PairWeights:
    """The weights of a text-video pair; ``inter`` is None if the preset has none."""

    video: str
    score: float
    rank: float
    text_intra: tuple[float, ...]
    text_inter: tuple[float, ...] | None
    text_weight: tuple[float, ...]
    """ĥ, the double weight."""
    video_intra: tuple[float, ...]
    video_inter: tuple[float, ...] | None
    video_weight: tuple[float, ...]

    def kinds(self) -> dict[str, str]:
        """The weights to draw with their names; without inter weights, intra and double weights are equal."""
        return {"weight": "weight"} if self.text_inter is None else _KINDS


@dataclass(frozen=True)
class TokenWeights:
    """One caption with two videos."""

    caption: str
    words: tuple[str, ...]
    """Whole words, and the rest of the sentence, if any."""
    positive: PairWeights
    negative: PairWeights


def collect(ranked: RankedSplit, choice: Choice) -> TokenWeights:
    """Collect the pieces of both scores by whole words."""
    text, words = ranked.text(choice.caption), ranked.model.text_encoder.words(choice.caption)
    explained = {video: ranked.model.explain(text, ranked.video(video)) for video in (choice.positive, choice.negative)}

    def weights(video_id: str) -> PairWeights:
        pieces, parts = explained[video_id], explained[video_id].by_word(words)
        return PairWeights(
            video=video_id,
            score=pieces.score,
            rank=ranked.rank(choice.caption, video_id),
            text_intra=tuple(part.intra for part in parts),
            text_inter=tuple(part.inter for part in parts if part.inter is not None) or None,
            text_weight=tuple(part.weight for part in parts),
            video_intra=_floats(pieces.video_intra),
            video_inter=None if pieces.video_inter is None else _floats(pieces.video_inter),
            video_weight=_floats(pieces.video_weight),
        )

    names = tuple(part.text for part in explained[choice.positive].by_word(words))
    return TokenWeights(choice.caption, names, weights(choice.positive), weights(choice.negative))


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def draw(numbers: TokenWeights, pictures: Pictures) -> Figure:
    """Words above both videos, with the same scales for both."""
    kinds = numbers.positive.kinds()
    words = 0.9 + 0.19 * len(numbers.words)
    video = 1.1 + 0.36 * len(kinds)
    figure = new_figure(0.3 + words + 2 * video)
    figure.suptitle(f"“{wrapped(numbers.caption, 95, 3)}”", fontsize=9.5)
    top, middle, bottom = figure.subfigures(3, 1, height_ratios=[words, video, video], squeeze=False)[:, 0]
    _draw_words(top, numbers, kinds)
    for part, side in ((middle, "positive"), (bottom, "negative")):
        _draw_video(part, numbers, side, kinds=kinds, pictures=pictures)
    return figure


def _title(pair: PairWeights, side: str) -> str:
    return f"{_SIDES[side]}: {short_name(pair.video, 50)}, rank {pair.rank:g}, score {pair.score:.4f}"


def _draw_words(part: SubFigure, numbers: TokenWeights, kinds: dict[str, str]) -> None:
    """Bars of each word for both videos; one bar if they are equal."""
    panels = np.atleast_1d(part.subplots(1, len(kinds), sharey=True))
    places = np.arange(len(numbers.words))
    for panel, (kind, name) in zip(panels, kinds.items(), strict=True):
        own, other = (getattr(pair, f"text_{kind}") for pair in (numbers.positive, numbers.negative))
        if np.allclose(own, other, rtol=1e-4):
            panel.barh(places, own, 0.5, color="#999999", edgecolor=GREY, linewidth=0.5)
            panel.set_title(f"{name}, the same for both videos")
        else:
            for offset, values, mark in ((-0.2, own, MARKS[0]), (0.2, other, MARKS[1])):
                _bars(panel.barh, places + offset, values, width=0.4, mark=mark)
            panel.set_title(name)
        panel.set_xlim(*_limits(*own, *other, margin=1.05))
        panel.tick_params(axis="y", length=0)
        panel.locator_params(axis="x", nbins=4)
    panels[0].set_yticks(places, numbers.words)
    panels[0].set_ylim(len(numbers.words) - 0.4, -0.6)
    part.supylabel("weights of the words", fontsize=8.5)
    _legend(part)


def _limits(*values: float, margin: float) -> tuple[float, float]:
    """From zero to the longest bars; weights may be negative."""
    return margin * min(0.0, *values), margin * max(0.0, *values)


def _bars(draw_bars: Any, places: Any, values: Any, *, width: float, mark: Any) -> None:
    # Filled or hatched, to be distinguishable in print.
    fill = "white" if mark.hatch else mark.colour
    draw_bars(places, values, width, color=fill, edgecolor=mark.colour, hatch=mark.hatch, linewidth=0.7)


def _legend(part: SubFigure) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="white" if mark.hatch else mark.colour, edgecolor=mark.colour, hatch=mark.hatch, label=label)
        for mark, label in zip(MARKS, (f"with {name}" for name in _SIDES.values()), strict=False)
    ]
    part.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, handlelength=2.5)


def _draw_video(
    part: SubFigure, numbers: TokenWeights, side: str, *, kinds: dict[str, str], pictures: Pictures
) -> None:
    """A strip of frames, with a border around the heaviest, and bars for each kind of weight."""
    pair: PairWeights = getattr(numbers, side)
    mark = MARKS[list(_SIDES).index(side)]
    frames = len(pair.video_weight)
    shown = np.unique(np.linspace(0, frames - 1, min(frames, _FRAMES)).round().astype(int))
    # Columns for the longer video, so that frames have the same size.
    columns = min(_FRAMES, max(len(numbers.positive.video_weight), len(numbers.negative.video_weight)))
    grid = part.add_gridspec(1 + len(kinds), columns, height_ratios=[1.7, *[1] * len(kinds)])
    weights = np.array(pair.video_weight)[shown]
    for place, frame in enumerate(shown):
        axes = part.add_subplot(grid[0, place])
        heaviest = place == int(weights.argmax()) and not np.allclose(weights, weights[0])
        show_picture(axes, pictures[pair.video][frame], "black" if heaviest else GREY, 2.5 if heaviest else 0.6)
    for row, (kind, name) in enumerate(kinds.items(), start=1):
        axes = part.add_subplot(grid[row, :])
        _frame_bars(axes, numbers, pair, kind=kind, shown=shown, mark=mark)
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_xticks(range(len(shown)), [str(frame + 1) for frame in shown] if row == len(kinds) else [])
    some = "" if len(shown) == frames else f" ({len(shown)} of {frames} frames)"
    part.suptitle(_title(pair, side) + some, fontsize=8.5)
    part.supylabel("weights of the frames", fontsize=8.5)


def _frame_bars(axes: Axes, numbers: TokenWeights, pair: PairWeights, *, kind: str, shown: Any, mark: Any) -> None:
    both = [value for other in (numbers.positive, numbers.negative) for value in getattr(other, f"video_{kind}")]
    _bars(axes.bar, np.arange(len(shown)), np.array(getattr(pair, f"video_{kind}"))[shown], width=0.5, mark=mark)
    axes.set_ylim(*_limits(*both, margin=1.1))
    axes.locator_params(axis="y", nbins=2)
    axes.tick_params(axis="x", length=0)
