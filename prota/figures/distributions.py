"""Gaussians of words and frames in the plane, by t-SNE, with and without ProTA (the paper's Fig. 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prota.figures.drawing import GREY, MARKS, FigureError, new_figure, place_labels, short_name, wrapped
from prota.figures.ranked import Choice, RankedSplit
from prota.types import PreparedTokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Cloud", "Distributions", "Panel", "choose_pair", "collect", "draw"]

Array = np.ndarray[Any, np.dtype[np.float64]]

# Length of the median semi-axis of all ellipses, if the mean square of the places is 1.
_TYPICAL = 0.12


@dataclass(frozen=True)
class Cloud:
    """The tokens of the caption or a video."""

    name: str
    tokens: tuple[str, ...]
    """The word of each token, empty for start and end tokens; of a video, the numbers of its frames."""
    places: tuple[tuple[float, float], ...]
    """t-SNE coordinates; those of a panel have a mean square of 1."""
    ellipses: tuple[tuple[float, float, float], ...] | None
    """Semi-axes in σ of token space, and the angle of the first in degrees; None if tokens are points."""
    log_var: float | None
    """Mean log σ² of the tokens."""


@dataclass(frozen=True)
class Panel:
    """The tokens of one model."""

    label: str
    text: Cloud
    positive: Cloud
    negative: Cloud
    positive_distance: float
    """Mean W2² between the tokens of caption and video, in token space."""
    negative_distance: float
    positive_rank: float
    negative_rank: float


@dataclass(frozen=True)
class Distributions:
    """One caption and two videos in two models."""

    caption: str
    positive: str
    negative: str
    panels: tuple[Panel, ...]
    scale: float
    """Length of σ = 1 in units of the places, the same in all panels."""


def choose_pair(without: RankedSplit, with_: RankedSplit) -> Choice:
    """The caption that gains most from ProTA, with the best other video without ProTA.

    Captions that only the second model ranks first are preferred. Leads are compared in standard deviations of each
    model's scores.
    """
    if without.split.hash != with_.split.hash:
        raise FigureError("the two checkpoints have different data, so their captions cannot be compared")
    _, negatives = without.best_others()
    leads = []
    for ranked in (without, with_):
        others = ranked.scores.gather(1, negatives[:, None])[:, 0]
        leads.append((ranked.own_scores() - others) / ranked.scores.std().clamp(min=1e-9))
    gain = leads[1] - leads[0]
    mended = (without.ranks() > 1) & (with_.ranks() == 1)
    index = int(gain.masked_fill(~mended, -torch.inf).argmax() if mended.any() else gain.argmax())
    ids = without.split.video_ids
    return Choice(without.captions[index], ids[int(without.video_of_text[index])], ids[int(negatives[index])])


def collect(models: Sequence[tuple[str, RankedSplit]], choice: Choice) -> Distributions:
    """Collect the tokens of one caption and two videos for each labelled model."""
    panels = tuple(_panel(label, ranked, choice) for label, ranked in models)
    clouds = [cloud for panel in panels for cloud in (panel.text, panel.positive, panel.negative)]
    axes = [axis for cloud in clouds for ellipse in cloud.ellipses or () for axis in ellipse[:2]]
    scale = _TYPICAL / float(np.median(axes)) if axes else 1.0
    return Distributions(choice.caption, choice.positive, choice.negative, panels, scale)


def _panel(label: str, ranked: RankedSplit, choice: Choice) -> Panel:
    items = {
        "caption": ranked.text(choice.caption),
        "its own video": ranked.video(choice.positive),
        "another video": ranked.video(choice.negative),
    }
    names = {token: word.text for word in ranked.model.text_encoder.words(choice.caption) for token in word.tokens}
    variance = ranked.model.config.score.distance == "variance"
    features = [_features(item) for item in items.values()]
    everything = np.concatenate(features)
    places = _places(everything)
    width = items["caption"].direction.shape[-1]
    directions = _directions(everything[:, :width], places)
    clouds, start = [], 0
    for (name, item), rows in zip(items.items(), features, strict=True):
        own = places[start : start + len(rows)]
        start += len(rows)
        sigma = _sigma(item, variance)
        clouds.append(
            Cloud(
                name=name,
                tokens=tuple(
                    names.get(token, "") if name == "caption" else str(token + 1) for token in range(len(rows))
                ),
                places=tuple((float(x), float(y)) for x, y in own),
                ellipses=None if sigma is None else tuple(_ellipse(values, directions) for values in sigma),
                log_var=None if sigma is None else float(2 * np.log(sigma).mean()),
            )
        )
    text, positive, negative = features
    return Panel(
        label=label,
        text=clouds[0],
        positive=clouds[1],
        negative=clouds[2],
        positive_distance=_distance(text, positive),
        negative_distance=_distance(text, negative),
        positive_rank=ranked.rank(choice.caption, choice.positive),
        negative_rank=ranked.rank(choice.caption, choice.negative),
    )


def _features(item: PreparedTokens) -> Array:
    """Real tokens as vectors with the distances of the score: means and spreads, [N, D or 2 D]."""
    mask = item.mask[0]
    parts = [item.direction[0][mask]] + ([] if item.spread is None else [item.spread[0][mask]])
    return torch.cat(parts, dim=-1).double().cpu().numpy()


def _distance(text: Array, video: Array) -> float:
    return float(((text[:, None] - video[None]) ** 2).sum(axis=-1).mean())


def _sigma(item: PreparedTokens, variance: bool) -> Array | None:
    """σ of the real tokens, [N, D]."""
    if item.spread is None:
        return None
    spread: Array = item.spread[0][item.mask[0]].double().cpu().numpy()
    return np.sqrt(spread) if variance else spread


def _places(points: Array) -> Array:
    """t-SNE of points [n, D]: places [n, 2] with a mean square of 1 around their centre."""
    from sklearn.manifold import TSNE

    # A high perplexity, as the relation of sentence and videos matters. Small steps, as usual ones, for thousands of
    # points, would make the result depend on rounding.
    method = TSNE(
        perplexity=len(points) / 2,
        method="exact",
        early_exaggeration=1.0,
        learning_rate=1.0,
        max_iter=2000,
        random_state=0,
    )
    places: Array = method.fit_transform(points).astype(np.float64)
    places -= places.mean(axis=0)
    places /= np.sqrt((places**2).sum(axis=1).mean())
    return places


def _directions(means: Array, places: Array) -> Array:
    """The two orthonormal directions of token space, [2, D], of the linear map from means to places that fits best."""
    centred = means - means.mean(axis=0)
    # Ridge regression, against directions in which the means hardly differ.
    gram = centred @ centred.T
    ridge = 0.01 * np.trace(gram) / len(gram)
    weights = centred.T @ np.linalg.solve(gram + ridge * np.eye(len(gram)), places - places.mean(axis=0))
    left, _, right = np.linalg.svd(weights, full_matrices=False)
    directions: Array = (left @ right).T
    return directions


def _ellipse(sigma: Array, directions: Array) -> tuple[float, float, float]:
    """The contour of a Gaussian at one σ, projected on these directions: semi-axes, angle in degrees."""
    values, vectors = np.linalg.eigh((directions * sigma**2) @ directions.T)
    first = vectors[:, 1]
    angle = float(np.degrees(np.arctan2(first[1], first[0]))) % 180
    return float(np.sqrt(values[1])), float(np.sqrt(max(values[0], 0.0))), angle


def draw(numbers: Distributions) -> Figure:
    figure = new_figure(4.75)
    figure.suptitle(f"“{wrapped(numbers.caption, 95, 2)}”", fontsize=9.5)
    panels = np.atleast_1d(figure.subplots(1, len(numbers.panels)))
    reach = max(_reach(panel, numbers.scale) for panel in numbers.panels)
    for axes, panel in zip(panels, numbers.panels, strict=True):
        _draw_panel(axes, panel, numbers.scale)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    _legend(figure, numbers)
    for axes, panel in zip(panels, numbers.panels, strict=True):
        place_labels(axes, panel.text.tokens, panel.text.places, MARKS[0].colour)
    return figure


def _reach(panel: Panel, scale: float) -> float:
    """Largest distance from the centre, with room for words."""
    clouds = (panel.text, panel.positive, panel.negative)
    places = max(abs(value) for cloud in clouds for place in cloud.places for value in place)
    axes = max((ellipse[0] for cloud in clouds for ellipse in cloud.ellipses or ()), default=0.0)
    return 1.08 * places + scale * axes


def _draw_panel(axes: Axes, panel: Panel, scale: float) -> None:
    from matplotlib.patches import Ellipse

    for cloud, mark in zip((panel.text, panel.positive, panel.negative), MARKS, strict=False):
        for place, ellipse in zip(cloud.places, cloud.ellipses or (), strict=False):
            wide, high, angle = ellipse
            patch = Ellipse(
                place, 2 * scale * wide, 2 * scale * high, angle=angle, facecolor=(mark.colour, 0.1),
                edgecolor=mark.colour, linestyle=mark.line, linewidth=0.9,
            )  # fmt: skip
            axes.add_patch(patch)
        x, y = zip(*cloud.places, strict=True)
        axes.plot(x, y, mark.marker, color=mark.colour, markersize=4, markerfacecolor="white", zorder=5)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, edgecolor=GREY)
    axes.set_title(panel.label, fontweight="bold")
    axes.set_xlabel(_caption(panel), fontsize=7.5)


def _caption(panel: Panel) -> str:
    lines = [
        f"own video: rank {panel.positive_rank:g}, mean W2² to the words {panel.positive_distance:.3f}",
        f"other video: rank {panel.negative_rank:g}, mean W2² to the words {panel.negative_distance:.3f}",
    ]
    spreads = [cloud.log_var for cloud in (panel.text, panel.positive, panel.negative) if cloud.log_var is not None]
    if spreads:
        values = ", ".join(f"{value:.2f}".replace("-", "−") for value in spreads)
        lines.append(f"mean log σ²: {values} (words, own, other)")
    else:
        lines.append("tokens are points")
    return "\n".join(lines)


def _legend(figure: Figure, numbers: Distributions) -> None:
    from matplotlib.lines import Line2D

    own, other = short_name(numbers.positive), short_name(numbers.negative)
    names = ("words", f"frames of its own video, {own}", f"of another, {other}")
    handles = [
        Line2D([], [], color=mark.colour, linestyle=mark.line, marker=mark.marker, markerfacecolor="white", label=name)
        for name, mark in zip(names, MARKS, strict=False)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, handlelength=3.5)
