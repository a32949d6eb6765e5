"""From scores to ranks. One tie rule for evaluation and search: equal scores share their places.

Where candidates tie with the right one, its rank is a random variable, each order of the tied being as likely as any
other. Ranks are its expectation, and a hit at k is its probability, so that constant scores give chance level exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from prota.errors import EvaluationError

__all__ = ["Ranks", "rank_of_best", "rank_of_target", "top_k"]


@dataclass(frozen=True)
class Ranks:
    """Where the right answer of each query came, [Q]."""

    better: Tensor
    """Wrong candidates with a higher score than the best right one."""
    tied: Tensor
    """Wrong candidates with exactly its score."""
    right: Tensor
    """Right candidates with exactly that score, at least 1."""

    def expected(self) -> Tensor:
        """Expected place of the first right answer, counting from 1, [Q] float64."""
        return 1 + self.better + self.tied.double() / (self.right + 1)

    def hits(self, k: int) -> Tensor:
        """Probability that a right answer is among the first k, [Q] float64."""
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        places = (k - self.better).clamp(min=0)
        missed = torch.ones_like(self.better, dtype=torch.float64)
        # Missed where the tied group's places up to the k-th all go to wrong candidates, drawn one after the other.
        for place in range(k):
            drawn = (self.tied - place).clamp(min=0).double() / (self.tied + self.right - place).clamp(min=1)
            missed = torch.where(place < places, missed * drawn, missed)
        return 1 - missed


def _check_scores(scores: Tensor) -> None:
    if scores.dim() != 2 or 0 in scores.shape:
        raise EvaluationError(f"scores must be a non-empty matrix [queries, candidates]; got {list(scores.shape)}")
    if not scores.is_floating_point():
        raise EvaluationError(f"scores must be floating-point numbers; got {scores.dtype}")
    if not bool(torch.isfinite(scores).all()):
        raise EvaluationError("scores contain NaN or infinity: ranks of such scores mean nothing")


def rank_of_target(scores: Tensor, target: Tensor) -> Ranks:
    """Ranks of one right candidate per query: scores [Q, C], target [Q] (its column)."""
    _check_scores(scores)
    if target.shape != scores.shape[:1]:
        raise ValueError(f"target must have one column per query, {scores.shape[0]}; got {list(target.shape)}")
    own = scores.gather(1, target[:, None])
    better = (scores > own).sum(dim=1)
    tied = (scores == own).sum(dim=1) - 1
    return Ranks(better, tied, torch.ones_like(tied))


def rank_of_best(scores: Tensor, right: Tensor) -> Ranks:
    """Ranks of the best of several right candidates: scores [Q, C], right [Q, C] bool, at least one True a row."""
    _check_scores(scores)
    if not bool(right.any(dim=1).all()):
        raise ValueError("every query must have at least one right candidate")
    best = scores.masked_fill(~right, -torch.inf).amax(dim=1, keepdim=True)
    better = ((scores > best) & ~right).sum(dim=1)
    equal = scores == best
    return Ranks(better, (equal & ~right).sum(dim=1), (equal & right).sum(dim=1))


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best candidates of each query, best first: values and columns, [Q, min(k, C)].

    Candidates of equal score keep the order of their columns, whatever the device or the batch.
    """
    _check_scores(scores)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    values, columns = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :k], columns[:, :k]
