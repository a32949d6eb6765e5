"""What keeps a word's token its own: where another word of its sentence is replaced, it should stay where it is."""

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
    """Texts of which one scored token each is another one."""

    text: TextBatch
    place: Tensor
    """[A] long, which of a text's scored tokens that is."""

    def map(self, change: Any) -> Replaced:
        """The same with ``change`` applied to every tensor."""
        return Replaced(self.text.map(change), change(self.place))


def replace_words(text: TextBatch, donors: TextBatch, draws: Tensor) -> Replaced:
    """In each text one scored token becomes a scored token of its donor; ``draws`` [A, 2] in [0, 1) choose both."""
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
    """Of a text's other tokens: 1 − their mean cosine with and without the replacement, and half of what their weights
    differ by in all; the mean over texts.

    Without the second part words stay where they are, but what they add to a score does not: a text's weights are a
    softmax.
    """
    position = torch.arange(before.mask.shape[1], device=place.device)
    others = before.mask & (position != place.unsqueeze(1))
    apart = ((1 - (before.direction * after.direction).sum(dim=-1)) * others).sum(dim=1)
    weights = ((before.weight - after.weight).abs() * others).sum(dim=1)
    return (apart / others.sum(dim=1).clamp(min=1) + 0.5 * weights).mean()
