"""How likely it is that a match of a query is the right one.

A score alone does not tell: some queries score high with everything, and the more segments a library has, the better is
the best of the wrong ones. A logistic model of five numbers does better: the score, how far it stands above the scores
of unrelated videos (the background), how unsure the model is of the query's words, how large the library is, and how
long the query. `prota.evaluation.calibration` fits it. It is saved and loaded with the model, with the background's
tokens: a library of three videos has none of its own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from prota.errors import one_line
from prota.files import write_atomically
from prota.model.weights import WeightsError
from prota.types import PreparedTokens

__all__ = ["LENGTH", "RELEVANCE_FILE", "RISING", "SMALLEST", "UNCERTAINTY", "Fit", "Relevance"]
__all__ += ["features_of", "query_facts"]

RELEVANCE_FILE = "relevance.safetensors"
# Places among the features.
MARGIN, UNCERTAINTY, LENGTH = 1, 2, 4
# Score and margin: a better one must never look like less of a match.
RISING = (0, 1)
# Deviations above the background's mean: of matches of a general query, and of what looks like a clip. With
# prota-small, 88 % of the segments of one video look alike, and 4 % of those of different ones.
_STANDS_OUT, _ALIKE = 1.0, 2.5
# Smaller libraries than this are not fitted to, and count as this: nearly everything is found in them.
SMALLEST = 8


@dataclass(frozen=True)
class Fit:
    """A logistic model of `features_of`."""

    weights: tuple[float, ...]
    """Of a constant and the features. What was fitted before lengths counted has none for those."""
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

    general: float = math.inf
    """A query is general if the mean of its scores with the background is at least this many deviations above zero.

    It fits unrelated videos nearly as well as any: *a man*. What stands out of these is a match for it.
    """

    def of(self, features: Tensor) -> Tensor:
        """Features [n, 5] → the probability of a match [n]."""
        constant, *slopes = self.weights
        features = features.double().clone()
        features[:, UNCERTAINTY].clamp_(*self.usual)
        return torch.sigmoid(constant + features[:, : len(slopes)] @ torch.tensor(slopes, dtype=torch.float64))

    def moved(self, uncertainty: float) -> Fit:
        """The same for a model whose queries are on average so much more unsure."""
        weights, (low, high) = list(self.weights), self.usual
        weights[0] -= weights[1 + UNCERTAINTY] * uncertainty
        return replace(self, weights=tuple(weights), usual=(low + uncertainty, high + uncertainty))


@dataclass(frozen=True)
class Relevance:
    """Of one model: `ProTA.relevance`."""

    fit: Fit
    background: PreparedTokens

    def of(self, scores: Tensor, background: Tensor, facts: Tensor, size: int, *, broad: bool = False) -> list[float]:
        """Of results of one query: their scores [n], those of the background [B], its facts [2], the library's size.

        ``broad``: whether the query may be general, see `Fit.general`; a text of another language would seem so, too.
        """
        count, size = len(scores), max(SMALLEST, min(size, self.fit.largest))
        features = features_of(scores, background.expand(count, -1), facts.expand(count, -1), size)
        probability = self.fit.of(features)
        if broad and float(background.mean()) >= self.fit.general * max(float(background.std()), 1e-6):
            least = probability.clamp(min=self.fit.cutoff)
            probability = torch.where(features[:, MARGIN] >= _STANDS_OUT, least, probability)
        return [float(value) for value in probability]

    def alike(self, background: Tensor) -> float:
        """The least score of what looks like a clip, of the clip's scores with the background [B]."""
        return float(background.mean() + _ALIKE * background.std())

    def save(self, folder: Path) -> None:
        from safetensors.torch import save

        tokens = self.background
        tensors = {"direction": tokens.direction, "weight": tokens.weight, "spread": tokens.spread}
        stored = {name: value.cpu().half().contiguous() for name, value in tensors.items() if value is not None}
        metadata = {name: json.dumps(value) for name, value in vars(self.fit).items()}
        write_atomically(folder / RELEVANCE_FILE, save(stored | {"mask": tokens.mask.cpu().contiguous()}, metadata))

    @classmethod
    def load(cls, folder: Path) -> Relevance | None:
        """What was stored with a model; None where nothing was."""
        from safetensors import SafetensorError, safe_open

        path = folder / RELEVANCE_FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                record = {name: json.loads(value) for name, value in file.metadata().items() if name != "format"}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            weights = tuple(float(value) for value in record["weights"])
            if len(weights) not in (LENGTH + 1, LENGTH + 2):
                raise ValueError(f"{len(weights)} weights instead of {LENGTH + 1} or {LENGTH + 2}")
            spread = tensors["spread"].float() if "spread" in tensors else None
            tokens = PreparedTokens(
                tensors["direction"].float(), spread, tensors["weight"].float(), tensors["mask"].bool()
            )
            low, high = (float(value) for value in record["usual"])
            # What was fitted before general queries counted has no such number.
            general = float(record.get("general", math.inf))
            return cls(Fit(weights, float(record["cutoff"]), int(record["largest"]), (low, high), general), tokens)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(
                f"corrupt file: {path} ({one_line(error)}); delete it and calibrate the model again"
            ) from None


def query_facts(texts: PreparedTokens) -> Tensor:
    """[A, 2] of each text: the mean log σ² of its tokens, 0 where they are points; and the log of their number."""
    counts = texts.mask.sum(dim=1)
    uncertainty = texts.direction.new_zeros(len(texts))
    if texts.spread is not None:
        logs = texts.spread.clamp(min=1e-12).log().mean(dim=-1).masked_fill(~texts.mask, 0)
        uncertainty = logs.sum(dim=1) / counts
    return torch.stack([uncertainty, counts.log().to(uncertainty)], dim=1)


def features_of(score: Tensor, background: Tensor, facts: Tensor, size: int) -> Tensor:
    """[n, 5] of scores [n], scores [n, B] of unrelated videos, the queries' facts [n, 2] and a library's size."""
    spread = background.std(dim=1).clamp(min=1e-6) if background.shape[1] > 1 else torch.ones_like(score)
    margin = (score - background.mean(dim=1)) / spread
    uncertainty, length = facts.to(score).unbind(dim=1)
    return torch.stack([score, margin, uncertainty, torch.full_like(score, math.log(max(size, 1))), length], dim=1)
