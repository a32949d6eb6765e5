"""How likely it is that the best match of a query is a match at all.

A score alone does not tell: some queries score high with everything. A logistic model of three numbers does better: the
score, how far it stands above the scores of random segments, and how unsure the model is of the query's words. It is
fitted on validation videos, half the trials with the right video in the library and half without it, and stored with
the model.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.files import write_atomically
from prota.library.records import LibraryError
from prota.types import PreparedTokens

__all__ = ["Calibration", "Relevance", "calibrate", "features_of", "query_uncertainty"]

_FILE = "relevance.json"
_BINS = 10


@dataclass(frozen=True)
class Relevance:
    """Weights of a constant, the score, the margin over the background, and the uncertainty of the query."""

    weights: tuple[float, float, float, float]
    cutoff: float = 0.5
    """Below it, a result is no good match."""

    def of(self, features: Tensor) -> Tensor:
        """Features [n, 3] → the probability of a match [n]."""
        weights = torch.tensor(self.weights, dtype=torch.float64)
        return torch.sigmoid(weights[0] + features.double() @ weights[1:])

    def save(self, folder: Path) -> None:
        write_atomically(folder / _FILE, json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def remove(folder: Path) -> None:
        """Forget what was stored with another model in the same folder."""
        (folder / _FILE).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> Relevance | None:
        """What was stored with a model; None where nothing was."""
        try:
            values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            constant, score, margin, uncertainty = (float(value) for value in values["weights"])
            return cls((constant, score, margin, uncertainty), float(values["cutoff"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise LibraryError(f"{folder / _FILE} is damaged: calibrate the model again") from None

    @classmethod
    def fit(cls, features: Tensor, labels: Tensor, cutoff: float = 0.5) -> Relevance:
        """Logistic regression with a slight pull towards zero: features [n, 3], labels [n] bool."""
        if labels.all() or not labels.any():
            raise LibraryError(
                "all trials ended alike, so there is nothing to tell matches by: calibrate with more videos"
            )
        features = features.double()
        mean, deviation = features.mean(dim=0), features.std(dim=0).clamp(min=1e-9)
        design = torch.cat([torch.ones(len(features), 1, dtype=torch.float64), (features - mean) / deviation], dim=1)
        weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
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
        score, margin, uncertainty = (float(slope) for slope in slopes)
        return cls((constant, score, margin, uncertainty), cutoff)


def query_uncertainty(texts: PreparedTokens) -> Tensor:
    """Mean log σ² of each text's words, [A]; 0 where tokens are points."""
    if texts.spread is None:
        return texts.direction.new_zeros(len(texts))
    spread = texts.spread.clamp(min=1e-12).log().mean(dim=-1).masked_fill(~texts.mask, 0)
    return spread.sum(dim=1) / texts.mask.sum(dim=1)


def features_of(score: Tensor, background: Tensor, uncertainty: Tensor) -> Tensor:
    """[n, 3] of scores [n], the scores [n, B] of random segments, and the queries' uncertainty [n]."""
    spread = background.std(dim=1).clamp(min=1e-6) if background.shape[1] > 1 else torch.ones_like(score)
    return torch.stack([score, (score - background.mean(dim=1)) / spread, uncertainty], dim=1)


@dataclass(frozen=True)
class Calibration:
    """How good the fitted relevance is, on videos that it was not fitted on."""

    relevance: Relevance
    error: float
    """Expected calibration error: how far stated probabilities are from what happens, on average."""
    refused: float
    """Share of queries about a video that is not there that get "no good match"."""
    kept: float
    """Share of right answers that are shown."""
    trials: int


def calibrate(scores: Tensor, video_of_text: Tensor, uncertainty: Tensor) -> Calibration:
    """From validation scores [texts, videos]: fitted on half of the videos for the figures, then on all of them."""
    features, labels, owners, absent = _trials(scores, video_of_text, uncertainty)
    test = owners % 2 == 1
    half = Relevance.fit(features[~test], labels[~test])
    probability, truth = half.of(features[test]), labels[test].double()
    gone = absent[test]
    shown = probability >= half.cutoff
    right = (truth == 1) & ~gone
    return Calibration(
        Relevance.fit(features, labels),
        _expected_error(probability, truth),
        float((~shown[gone]).double().mean()),
        float(shown[right].double().mean()) if right.any() else 0.0,
        int(test.sum()),
    )


def _trials(scores: Tensor, video_of_text: Tensor, uncertainty: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each query twice: with its video in the library, and without. (features, right, video, without) of the best."""
    count, videos = scores.shape
    if videos < 4:
        raise LibraryError(f"{videos} videos are too few to calibrate with: give at least 4")
    own = F.one_hot(video_of_text, videos).bool()
    others = scores.masked_fill(own, -torch.inf)
    background = scores[~own].view(count, videos - 1)
    features, labels = [], []
    for table in (scores, others):
        best, place = table.max(dim=1)
        features.append(features_of(best, background, uncertainty))
        labels.append(place == video_of_text)
    without = torch.arange(2 * count) >= count
    return torch.cat(features), torch.cat(labels), video_of_text.repeat(2), without


def _expected_error(probability: Tensor, truth: Tensor) -> float:
    bins = (probability * _BINS).long().clamp(max=_BINS - 1)
    error = 0.0
    for number in range(_BINS):
        inside = bins == number
        if inside.any():
            error += float(inside.double().mean() * (probability[inside].mean() - truth[inside].mean()).abs())
    return error
