"""How likely it is that a match of a query is the right one.

A score alone does not tell: some queries score high with everything, and the more segments a library has, the better is
the best of the wrong ones. A logistic model of four numbers does better: the score, how far it stands above the scores
of unrelated videos (the background), how unsure the model is of the query's words, and how large the library is. It is
fitted on validation videos, in libraries of many sizes, half of the trials with the right video in the library and half
without it. It is stored with the model, with the background's tokens: a library of three videos has none of its own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.files import write_atomically
from prota.library.records import LibraryError
from prota.settings import first_line
from prota.types import PreparedTokens

__all__ = ["Calibration", "Fit", "Relevance", "calibrate", "features_of", "query_uncertainty"]

_FILE = "relevance.safetensors"
_BACKGROUND = 64
_FEATURES, _UNCERTAINTY = 4, 2
# Score and margin: a better one must never look like less of a match.
_RISING = (0, 1)
# Smaller libraries than this are not fitted to, and count as this: nearly everything is found in them.
_SMALLEST = 8
_BINS = 10


@dataclass(frozen=True)
class Fit:
    """A logistic model of `features_of`."""

    weights: tuple[float, ...]
    """Of a constant and the four features."""
    cutoff: float
    """Below it, a result is no good match."""
    largest: int
    """Size of the largest library it was fitted to.

    Larger ones count as this: in them the video that someone has in mind is no longer the only one that fits.
    """
    usual: tuple[float, float] = (-math.inf, math.inf)
    """Between which the uncertainty of queries lay; what is beyond counts as the nearer end.

    It varies so little that its slope is steep, and says nothing about queries of another kind.
    """

    def of(self, features: Tensor) -> Tensor:
        """Features [n, 4] → the probability of a match [n]."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        features = features.double().clone()
        features[:, _UNCERTAINTY].clamp_(*self.usual)
        return torch.sigmoid(weights[0] + features @ weights[1:])

    def moved(self, uncertainty: float) -> Fit:
        """The same for a model whose queries are on average so much more unsure."""
        weights, (low, high) = list(self.weights), self.usual
        weights[0] -= weights[1 + _UNCERTAINTY] * uncertainty
        return replace(self, weights=tuple(weights), usual=(low + uncertainty, high + uncertainty))


@dataclass(frozen=True)
class Relevance:
    """What is stored with a model."""

    fit: Fit
    background: PreparedTokens

    def of(self, scores: Tensor, background: Tensor, uncertainty: float, size: int) -> list[float]:
        """Of results of one query: their scores [n], those of the background [B], and the size of the library."""
        count, size = len(scores), max(_SMALLEST, min(size, self.fit.largest))
        features = features_of(scores, background.expand(count, -1), torch.full((count,), uncertainty), size)
        return [float(value) for value in self.fit.of(features)]

    def save(self, folder: Path) -> None:
        from safetensors.torch import save

        tokens = self.background
        if tokens.weight is None:
            raise LibraryError("score.bandwidth='batch' weighs tokens by the pair: there is no background to store")
        tensors = {"direction": tokens.direction, "weight": tokens.weight, "spread": tokens.spread}
        stored = {name: value.cpu().half().contiguous() for name, value in tensors.items() if value is not None}
        metadata = {name: json.dumps(value) for name, value in vars(self.fit).items()}
        write_atomically(folder / _FILE, save(stored | {"mask": tokens.mask.cpu().contiguous()}, metadata))

    @staticmethod
    def remove(folder: Path) -> None:
        """Forget what was stored with another model in the same folder."""
        (folder / _FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Relevance | None:
        """What was stored with a model; None where nothing was."""
        from safetensors import SafetensorError, safe_open

        path = folder / _FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                record = {name: json.loads(value) for name, value in file.metadata().items() if name != "format"}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            weights = tuple(float(value) for value in record["weights"])
            if len(weights) != _FEATURES + 1:
                raise ValueError(f"{len(weights)} weights")
            spread = tensors["spread"].float() if "spread" in tensors else None
            tokens = PreparedTokens(
                tensors["direction"].float(), spread, tensors["weight"].float(), tensors["mask"].bool()
            )
            low, high = (float(value) for value in record["usual"])
            return cls(Fit(weights, float(record["cutoff"]), int(record["largest"]), (low, high)), tokens)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LibraryError(f"{path} is damaged ({first_line(error)}): calibrate the model again") from None


def query_uncertainty(texts: PreparedTokens) -> Tensor:
    """Mean log σ² of each text's words, [A]; 0 where tokens are points."""
    if texts.spread is None:
        return texts.direction.new_zeros(len(texts))
    spread = texts.spread.clamp(min=1e-12).log().mean(dim=-1).masked_fill(~texts.mask, 0)
    return spread.sum(dim=1) / texts.mask.sum(dim=1)


def features_of(score: Tensor, background: Tensor, uncertainty: Tensor, size: int) -> Tensor:
    """[n, 4] of scores [n], scores [n, B] of unrelated videos, the queries' uncertainty [n] and a library's size."""
    spread = background.std(dim=1).clamp(min=1e-6) if background.shape[1] > 1 else torch.ones_like(score)
    margin = (score - background.mean(dim=1)) / spread
    return torch.stack([score, margin, uncertainty, torch.full_like(score, math.log(max(size, 1)))], dim=1)


@dataclass(frozen=True)
class Calibration:
    """What was fitted, and how good it is on queries and videos that it was not fitted on."""

    fit: Fit
    background: list[int]
    """Places of the videos whose tokens are to be stored."""
    error: float
    """Expected calibration error: how far stated probabilities are from what happens, on average."""
    refused: float
    """Share of queries about a video that is not there that get "no good match"."""
    kept: float
    """Share of right answers that are shown."""
    trials: int


@dataclass(frozen=True)
class _Trials:
    """The best match of queries in libraries of one size or many."""

    features: Tensor
    right: Tensor
    owner: Tensor
    absent: Tensor

    def part(self, chosen: Tensor) -> _Trials:
        return _Trials(self.features[chosen], self.right[chosen], self.owner[chosen], self.absent[chosen])


def calibrate(scores: Tensor, video_of_text: Tensor, uncertainty: Tensor) -> Calibration:
    """From validation scores [texts, videos]: fitted on half of the videos for the figures, then on all of them."""
    videos = scores.shape[1]
    if videos < 4:
        raise LibraryError(f"{videos} videos are too few to calibrate with: give at least 4")
    generator = torch.Generator().manual_seed(0)
    count = min(_BACKGROUND, videos // 2)
    background, rest = torch.split(torch.randperm(videos, generator=generator), [count, videos - count])
    sizes = [size for size in (2**power for power in range(1, 31)) if size <= len(rest)]
    sizes = [size for size in sizes if size >= _SMALLEST] or sizes
    parts = [_trials(scores, video_of_text, uncertainty, background, rest, size, generator) for size in sizes]
    trials = _Trials(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))
    test = trials.owner % 2 == 1
    half = _fit(trials.part(~test), sizes[-1])
    unseen = trials.part(test)
    probability = half.of(unseen.features)
    refused, kept = _refused_and_kept(probability, unseen, half.cutoff)
    error = _expected_error(probability, unseen.right.double())
    return Calibration(_fit(trials, sizes[-1]), background.tolist(), error, refused, kept, len(probability))


def _trials(
    scores: Tensor,
    video_of_text: Tensor,
    uncertainty: Tensor,
    background: Tensor,
    rest: Tensor,
    size: int,
    generator: torch.Generator,
) -> _Trials:
    """Each query twice in a library of its own, drawn from the ``rest``: with its video there, and without."""
    known = torch.isin(video_of_text, rest)
    scores, owner, uncertainty = scores[known].double(), video_of_text[known], uncertainty[known].double()
    keys = torch.rand(len(scores), len(rest), generator=generator).masked_fill(rest[None] == owner[:, None], -1)
    others = scores.gather(1, rest[keys.topk(size - 1, dim=1).indices]).amax(dim=1)
    own = scores.gather(1, owner[:, None])[:, 0]
    unrelated = scores[:, background]
    features = [features_of(best, unrelated, uncertainty, size) for best in (torch.maximum(own, others), others)]
    right = torch.cat([own > others, torch.zeros(len(own), dtype=torch.bool)])
    absent = torch.arange(2 * len(own)) >= len(own)
    return _Trials(torch.cat(features), right, owner.repeat(2), absent)


def _fit(trials: _Trials, largest: int) -> Fit:
    low, high = (float(trials.features[:, _UNCERTAINTY].quantile(share)) for share in (0.01, 0.99))
    fit = Fit(_rising(trials.features, trials.right), 0.5, largest, (low, high))
    return replace(fit, cutoff=_balanced_cutoff(fit.of(trials.features), trials))


def _rising(features: Tensor, labels: Tensor) -> tuple[float, ...]:
    """`_logistic`, but in what must not count against a match a slope is at least 0."""
    used = list(range(features.shape[1]))
    while True:
        constant, *slopes = _logistic(features[:, used], labels)
        falling = [feature for feature, slope in zip(used, slopes, strict=True) if feature in _RISING and slope < 0]
        if not falling:
            found = dict(zip(used, slopes, strict=True))
            return (constant, *(found.get(feature, 0.0) for feature in range(features.shape[1])))
        used.remove(falling[0])


def _logistic(features: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Logistic regression with a slight pull to zero: features [n, k], labels [n] bool → a constant and k slopes."""
    if labels.all() or not labels.any():
        raise LibraryError("all trials ended alike, so there is nothing to tell matches by: calibrate with more videos")
    features = features.double()
    mean, deviation = features.mean(dim=0), features.std(dim=0).clamp(min=1e-9)
    design = F.pad((features - mean) / deviation, (1, 0), value=1.0)
    weights = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.binary_cross_entropy_with_logits(design @ weights, labels.double())
        value = value + 1e-4 * weights[1:].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    slopes = weights.detach()[1:] / deviation
    constant = float(weights.detach()[0] - (slopes * mean).sum())
    return (constant, *(float(slope) for slope in slopes))


def _balanced_cutoff(probability: Tensor, trials: _Trials) -> float:
    """Where showing right answers and refusing what is absent go together best."""
    cutoffs = [step / 100 for step in range(1, 100)]
    return max(cutoffs, key=lambda cutoff: sum(_refused_and_kept(probability, trials, cutoff)))


def _refused_and_kept(probability: Tensor, trials: _Trials, cutoff: float) -> tuple[float, float]:
    shown = (probability >= cutoff).double()
    return 1 - float(shown[trials.absent].mean()), float(shown[trials.right].mean()) if trials.right.any() else 0.0


def _expected_error(probability: Tensor, truth: Tensor) -> float:
    bins = (probability * _BINS).long().clamp(max=_BINS - 1)
    error = 0.0
    for number in range(_BINS):
        inside = bins == number
        if inside.any():
            error += float(inside.double().mean() * (probability[inside].mean() - truth[inside].mean()).abs())
    return error
