"""Heads, tokens and gradients for comparing fused kernels with the float64 reference; on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prota.config.model import DistributionConfig, ScoreConfig
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens, Tokens
from tests.cases import SCORE_VARIANTS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter computes bf16 products wrongly: they are tested on a GPU alone.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
# (largest difference of a score, relative difference of a gradient's norm): the rounding of tokens to the dtype.
TOLERANCES = {torch.float32: (2e-6, 2e-4), torch.float16: (1e-3, 2e-2), torch.bfloat16: (8e-3, 6e-2)}
FUSED_VARIANTS = {name: row for name, row in SCORE_VARIANTS.items() if row.get("aggregation") != "pooling"}


def make(
    score: dict[str, object], texts: int, words: int, videos: int, frames: int, width: int = 32
) -> tuple[ScoreHead, Tokens, Tokens]:
    """A float64 head, and tokens with scattered masks that have something in common."""
    head = ScoreHead(width, ScoreConfig(**score), DistributionConfig()).double()
    with torch.no_grad():
        for parameter in head.parameters():
            # Variances near those that training starts from: far larger ones are all that a score is then made of.
            parameter.add_(0.1 * torch.randn_like(parameter))
    head = head.to(DEVICE)
    common = torch.randn(width, dtype=torch.float64)
    sides = []
    for items, tokens in ((texts, words), (videos, frames)):
        embeddings = torch.randn(items, tokens, width, dtype=torch.float64) + common
        mask = torch.rand(items, tokens) < 0.7
        mask[torch.arange(items), torch.randint(tokens, (items,))] = True
        sides.append(Tokens(embeddings.to(DEVICE), mask.to(DEVICE)))
    return head, sides[0], sides[1]


def single(items: PreparedTokens) -> PreparedTokens:
    return items.without_source().to(torch.float32)


def score_and_gradients(
    head: ScoreHead,
    texts: Tokens,
    videos: Tokens,
    score: Callable[[PreparedTokens, PreparedTokens], Tensor],
    into: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores, and the gradients of tokens and of the head's parameters from the gradient ``into`` the scores."""
    leaves = [Tokens(tokens.embeddings.clone().requires_grad_(), tokens.mask) for tokens in (texts, videos)]
    head.zero_grad()
    scores = score(head.prepare_texts(leaves[0]), head.prepare_videos(leaves[1]))
    scores.backward(into.to(scores.dtype))
    gradients = {"texts": leaves[0].embeddings.grad, "videos": leaves[1].embeddings.grad}
    gradients |= {name: parameter.grad for name, parameter in head.named_parameters()}
    return scores.detach(), {name: value.clone() for name, value in gradients.items() if value is not None}


def assert_equal_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Each gradient to ``tolerance`` of its norm; those that the maths makes zero are only noise on either side."""
    assert actual.keys() == expected.keys()
    largest = max(float(value.norm()) for value in expected.values())
    for name, value in expected.items():
        off = float((actual[name] - value).norm())
        assert off <= tolerance * max(float(value.norm()), 1e-3 * largest), (name, off, float(value.norm()))
