"""Score matrices re-weighted after the fact. Off by default; a result that used one of these names it.

Neither function is told which text belongs to which video. Both however look at more than one query at a time, which a
search engine cannot, so their figures stand beside the plain ones and never replace them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prota.errors import EvaluationError

__all__ = ["dual_softmax", "query_bank"]


def dual_softmax(scores: Tensor, temperature: float = 100.0) -> tuple[Tensor, Tensor]:
    """Dual softmax as CAMoE applies its dual softmax loss (DSL) at test time: two matrices [A, B], float64.

    A score is multiplied with the probability that the answer would have chosen the query. With scores s [A, B] and
    T = ``temperature``, a factor on the scores:

    - text to video: s_ab · exp(T s_ab) / Σ_a' exp(T s_a'b), the softmax over all texts of the test set for each video;
    - video to text: s_ab · exp(T s_ab) / Σ_b' exp(T s_ab'), the softmax over all videos for each text.

    CAMoE's further factor, the number of queries, changes no rank and is left out. Float64, because the probabilities
    of poor matches vanish in float32 and would tie. A product with a probability turns the order of negative scores
    round: scores that are all negative are refused; a single query with no positive score is ranked the wrong way
    round, as it is where the method was published.
    """
    _check("scores", scores)
    _check_temperature(temperature)
    if float(scores.max()) < 0:
        raise EvaluationError(
            "all scores are negative, and dual softmax would reverse their order: use a score that is positive for "
            "good matches, or evaluate without it"
        )
    sharp = scores.double() * temperature
    return sharp.softmax(dim=0).mul_(scores), sharp.softmax(dim=1).mul_(scores)


def query_bank(scores: Tensor, bank_scores: Tensor, temperature: float = 20.0) -> Tensor:
    """Query-bank normalisation (QB-Norm) with the dynamic inverted softmax, text to video: [A, B], float64.

    ``bank_scores`` [K, B] are the scores of bank texts, captions of the training set, with the same videos. A video is
    active when it is the best of at least one bank text: a possible hub. A query whose best video is active is ranked
    by the inverted softmax exp(β s_ab) / Σ_k exp(β s_kb) with β = ``temperature``; all others keep their scores.

    What is returned is the logarithm of that divided by β, s_ab − log Σ_k exp(β s_kb) / β, which ranks a row's videos
    alike and cannot overflow. Rows of the two kinds are not on one scale: compare entries within a row alone. Where
    several videos tie for best, all of them count as best.
    """
    _check("scores", scores)
    _check("bank_scores", bank_scores)
    _check_temperature(temperature)
    if bank_scores.shape[1] != scores.shape[1]:
        raise EvaluationError(
            f"bank_scores are of {bank_scores.shape[1]} videos, scores of {scores.shape[1]}: score the bank texts with "
            "the same videos in the same order"
        )
    active = _is_best(bank_scores).any(dim=0)
    normalised = (_is_best(scores) & active).any(dim=1)
    popularity = (bank_scores.double() * temperature).logsumexp(dim=0) / temperature
    return scores.double() - torch.where(normalised[:, None], popularity[None], 0.0)


def _is_best(scores: Tensor) -> Tensor:
    """Which videos have the highest score of their row, [A, B] bool."""
    return scores == scores.amax(dim=1, keepdim=True)


def _check(name: str, scores: Tensor) -> None:
    if scores.dim() != 2 or 0 in scores.shape:
        raise EvaluationError(f"{name} must be a matrix [texts, videos] with both above 0; got {list(scores.shape)}")
    if not bool(torch.isfinite(scores).all()):
        raise EvaluationError(f"{name} contain NaN or infinity and cannot be normalised: check the model or the file")


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature = {temperature} is not allowed; allowed: a positive number")
