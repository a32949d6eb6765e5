"""Captions whose own video is not ranked first, and the videos that are."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from prota.figures.drawing import GREY, FigureError, new_figure, short_name, show_picture, wrapped
from prota.figures.ranked import Pictures, RankedSplit
from prota.ranking import top_k

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Failure", "Failures", "Found", "collect", "draw"]

Order = Literal["worst", "nearest"]
_FOUND = 3
# Frames per video: one from each half.
_PICTURES = 2


@dataclass(frozen=True)
class Found:
    """A wrong video among the best."""

    video: str
    rank: int
    score: float


@dataclass(frozen=True)
class Failure:
    """A caption whose own video is not first."""

    caption: str
    video: str
    rank: float
    score: float
    found: tuple[Found, ...]


@dataclass(frozen=True)
class Failures:
    """Some of the failures of a split."""

    split: str
    queries: int
    failed: int
    """Captions whose own video is not first."""
    shown: tuple[Failure, ...]

    def videos(self) -> list[str]:
        """All videos in the figure, each once."""
        rows = ((failure.video, *(found.video for found in failure.found)) for failure in self.shown)
        return list(dict.fromkeys(itertools.chain(*rows)))


def collect(ranked: RankedSplit, count: int = 5, order: Order = "worst") -> Failures:
    """Collect the worst failures or those nearest to rank 1, with at most one caption per video."""
    ranks = ranked.ranks()
    failed = (ranks > 1).nonzero().flatten()
    if not len(failed):
        raise FigureError(f"all {len(ranks)} captions find their own video first: there are no failures")
    ordered = failed[ranks[failed].sort(descending=order == "worst", stable=True).indices].tolist()
    chosen: dict[int, int] = {}
    for index in ordered:
        chosen.setdefault(int(ranked.video_of_text[index]), index)
    name = f"{ranked.evaluation.system.benchmark.name} {ranked.split.name}"
    shown = tuple(_failure(ranked, index, float(ranks[index])) for index in list(chosen.values())[:count])
    return Failures(name, len(ranks), len(failed), shown)


def _failure(ranked: RankedSplit, index: int, rank: float) -> Failure:
    own = int(ranked.video_of_text[index])
    row = ranked.scores[index]
    scores, places = (values[0].tolist() for values in top_k(row[None], _FOUND + 1))
    ids = ranked.split.video_ids
    found = [
        # Videos with equal scores share a rank.
        Found(ids[place], int((row > score).sum()) + 1, score)
        for score, place in zip(scores, places, strict=True)
        if place != own
    ]
    return Failure(ranked.captions[index], ids[own], rank, float(row[own]), tuple(found[:_FOUND]))


def draw(numbers: Failures, pictures: Pictures) -> Figure:
    """A row for each caption: its text, its own video and the three best others."""
    rows = len(numbers.shown)
    figure = new_figure(0.4 + 0.95 * rows)
    share = f"{numbers.failed:,} of {numbers.queries:,} captions do not find their own video first"
    figure.suptitle(f"{numbers.split}: {share}", fontsize=9)
    # The text, then groups of frames with narrow gaps.
    groups = 1 + _FOUND
    widths = [2.5, *([0.12, *[1] * _PICTURES] * groups)]
    grid = figure.add_gridspec(rows, len(widths), width_ratios=widths, wspace=0.02, hspace=0.1)
    for row, failure in enumerate(numbers.shown):
        words = figure.add_subplot(grid[row, 0])
        words.set_axis_off()
        words.text(0, 0.5, f"“{wrapped(failure.caption, 30, 5)}”", va="center", transform=words.transAxes)
        shown = [(failure.video, f"own: rank {failure.rank:g}", failure.score)]
        shown += [(found.video, f"rank {found.rank}", found.score) for found in failure.found]
        for group, (video, place, score) in enumerate(shown):
            start = 2 + group * (1 + _PICTURES)
            cells = [figure.add_subplot(grid[row, start + number]) for number in range(_PICTURES)]
            for cell, frame in zip(cells, _halves(pictures[video]), strict=True):
                show_picture(cell, frame, *(("black", 2.2) if group == 0 else (GREY, 0.6)))
            cells[0].set_title(f"{place}, {score:.3f}", fontsize=7, loc="left", pad=3)
            cells[0].set_xlabel(short_name(video), fontsize=6.5, loc="left", labelpad=2, color=GREY)
    return figure


def _halves(frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The middle frame of each half of a video."""
    chosen: np.ndarray[Any, Any] = frames[((np.arange(_PICTURES) + 0.5) * len(frames) / _PICTURES).astype(int)]
    return chosen
