"""The locality term: replacing one word of a sentence should not change the tokens of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from prota.encoders.text import TextBatch
from prota.types import PreparedTokens

__all__ = ["Replaced", "locality_loss", "replace_words"]


@dataclass(frozen=True)
class Replaced:
    """Texts with one scored token replaced in each."""

    text: TextBatch
    place: Tensor
    """[A] long, index of the replaced token among the scored ones."""

    def map(self, change: Any) -> Replaced:
        """Apply ``change`` to every tensor."""
        return Replaced(self.text.map(change), change(self.place))


def replace_words(text: TextBatch, donors: TextBatch, draws: Tensor) -> Replaced:
    """Replace one scored token of each text by one of its donor; ``draws`` [A, 2] in [0, 1) select both."""
    assert text.scored is not None
    assert donors.scored is not None
    rows = torch.arange(len(text.ids))
    place, taken = _chosen(text.scored, draws[:, 0]), _chosen(donors.scored, draws[:, 1])
    ids = text.ids.clone()
    ids[rows, text.scored[rows, place]] = donors.ids[rows, donors.scored[rows, taken]]
    return Replaced(TextBatch(ids, text.mask, text.scored), place)


def _chosen(scored: Tensor, draw: Tensor) -> Tensor:
    count = (scored >= 0).sum(dim=1)
    return (draw * count).long().minimum(count - 1)


def locality_loss(before: PreparedTokens, after: PreparedTokens, place: Tensor) -> Tensor:
    """1 − the mean cosine of a text's other tokens before and after, plus half the sum of their weights' differences.

    Without the second part, contributions to the score would still change: a text's weights are a softmax.
    """
    position = torch.arange(before.mask.shape[1], device=place.device)
    others = before.mask & (position != place.unsqueeze(1))
    apart = ((1 - (before.direction * after.direction).sum(dim=-1)) * others).sum(dim=1)
    weights = ((before.weight - after.weight).abs() * others).sum(dim=1)
    return (apart / others.sum(dim=1).clamp(min=1) + 0.5 * weights).mean()
