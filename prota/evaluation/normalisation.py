"""Normalisation of score matrices, off by default and named in the result.

Neither function knows which text belongs to which video. Both use several queries at once, as a search engine cannot,
so their figures complement the plain ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prota.errors import EvaluationError

__all__ = ["dual_softmax", "query_bank"]

# Factors on the scores, as published.
_DUAL_SOFTMAX, _QUERY_BANK = 100.0, 20.0


def dual_softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Dual softmax as CAMoE applies its dual softmax loss (DSL) at test time: two matrices [A, B], float64.

    A score is multiplied by the probability that the candidate would choose the query. With scores s and T = 100:

    - text to video: s_ab · exp(T s_ab) / Σ_a' exp(T s_a'b), the softmax over all texts of the test set for each video;
    - video to text: s_ab · exp(T s_ab) / Σ_b' exp(T s_ab'), the softmax over all videos for each text.

    CAMoE's constant factor, the number of queries, is omitted. Small probabilities would underflow in float32. The
    product reverses the order of negative scores: a matrix without positive scores is an error; a query without one is
    ranked in reverse order, as in the published method.
    """
    _check("scores", scores)
    if float(scores.max()) < 0:
        raise EvaluationError(
            "dual softmax would reverse the order of scores that are all negative; use scores that are positive for "
            "good matches, or evaluate without it"
        )
    sharp = scores.double() * _DUAL_SOFTMAX
    return sharp.softmax(dim=0).mul_(scores), sharp.softmax(dim=1).mul_(scores)


def query_bank(scores: Tensor, bank_scores: Tensor) -> Tensor:
    """Query-bank normalisation (QB-Norm) with the dynamic inverted softmax, text to video: [A, B], float64.

    ``bank_scores`` [K, B] are the scores of bank texts, captions of the training set, with the same videos. A video is
    active, a possible hub, if it is the best of at least one bank text. A query whose best video is active is ranked by
    the inverted softmax exp(β s_ab) / Σ_k exp(β s_kb) with β = 20; all others keep their scores.

    Returns its logarithm divided by β, s_ab − log Σ_k exp(β s_kb) / β, which has the same order and cannot overflow.
    Compare entries within a row only: rows of the two kinds have different scales. Several videos may tie for best.
    """
    _check("scores", scores)
    _check("bank_scores", bank_scores)
    if bank_scores.shape[1] != scores.shape[1]:
        raise EvaluationError(
            f"bank_scores must have {scores.shape[1]} columns, one per video of scores, got {bank_scores.shape[1]}"
        )
    active = _is_best(bank_scores).any(dim=0)
    normalised = (_is_best(scores) & active).any(dim=1)
    popularity = (bank_scores.double() * _QUERY_BANK).logsumexp(dim=0) / _QUERY_BANK
    return scores.double() - torch.where(normalised[:, None], popularity[None], 0.0)


def _is_best(scores: Tensor) -> Tensor:
    """Which videos have the highest score of their row, [A, B] bool."""
    return scores == scores.amax(dim=1, keepdim=True)


def _check(name: str, scores: Tensor) -> None:
    if scores.dim() != 2 or 0 in scores.shape:
        raise EvaluationError(f"{name} must be a non-empty matrix [texts, videos]; got {list(scores.shape)}")
    if not bool(torch.isfinite(scores).all()):
        raise EvaluationError(f"{name} contain NaN or infinity: check the model or the file")
