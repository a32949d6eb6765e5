"""Random tokens with ragged masks, heads with random weights, and their plain-list twins for the oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prota.config.model import DistributionConfig, ScoreConfig
from prota.config.presets import PRESETS
from prota.scoring.score import ScoreHead
from prota.types import Tokens
from tests import oracle

# Every value of every scoring field, each beside settings under which it takes effect.
SCORE_VARIANTS: dict[str, dict[str, object]] = {
    **{name: dict(row.get("score", {})) for name, row in PRESETS.items()},
    "offset": {"similarity": "offset", "offset": 1.25},
    "printed": {"similarity": "printed"},
    "deviation": {"distance": "deviation"},
    "deviation-offset": {"distance": "deviation", "similarity": "offset"},
    "normalised": {"weighting": "normalised"},
    "normalised-printed": {"weighting": "normalised", "similarity": "printed"},
    "normalised-uniform": {"weighting": "normalised", "weights": "uniform"},
    "normalised-sigmoid": {"weighting": "normalised", "intra": "sigmoid"},
    "lambda-7": {"lambda_": 7},
    "lambda-max": {"lambda_": "max"},
    "xi-3": {"xi": 3},
    "xi-max": {"xi": "max"},
    "one-kernel": {"kernels": 1},
    "two-kernels": {"kernels": 2},
    "nine-kernels": {"kernels": 9},
    "bandwidth-0.5": {"bandwidth_value": 0.5},
    "bandwidth-1.7": {"bandwidth_value": 1.7},
    "sigmoid": {"intra": "sigmoid"},
    "no-softmax": {"intra": "none"},
    "probabilistic-dot": {"gram": "dot"},
    "probabilistic-bare": {"gram": "none", "weights": "intra"},
    "pooled-mean-text": {"similarity": "cosine", "aggregation": "pooling", "text_pooling": "mean"},
}
LOSS_VARIANTS: dict[str, dict[str, object]] = {
    "additive": {"margin": "additive", "label_smoothing": 0.1},
    "literal": {"margin": "literal", "label_smoothing": 0.1},
    "sigmoid": {"contrast": "sigmoid"},
    "sigmoid-literal": {"contrast": "sigmoid", "margin": "literal"},
}
DISTRIBUTION_VARIANTS: dict[str, dict[str, object]] = {
    "residual": {},
    "plain": {"mean": "plain"},
    "clamped-above": {"log_var_init": 4.0},
    "clamped-below": {"log_var_init": -10.0},
}


def random_tokens(lengths: list[int], width: int, padding: float = 0.0, longest: int | None = None) -> Tokens:
    """Float64 tokens of these lengths; ``padding`` fills what is not real."""
    longest = longest or max(lengths)
    embeddings = torch.randn(len(lengths), longest, width, dtype=torch.float64)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    return Tokens(embeddings.masked_fill(~mask.unsqueeze(-1), padding), mask)


def random_head(width: int, score: ScoreConfig, distribution: DistributionConfig | None = None) -> ScoreHead:
    """A float64 head all of whose weights are random, also those that start at zero."""
    head = ScoreHead(width, score, distribution or DistributionConfig()).double()
    for parameter in head.parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head


@dataclass
class Case:
    """The same head and tokens for the implementation and for the oracle."""

    head: ScoreHead
    distribution: DistributionConfig
    texts: Tokens
    videos: Tokens

    @classmethod
    def random(
        cls,
        score: ScoreConfig,
        distribution: DistributionConfig | None = None,
        text_lengths: tuple[int, ...] = (4, 1, 3),
        video_lengths: tuple[int, ...] = (2, 3, 1),
        width: int = 5,
    ) -> Case:
        distribution = distribution or DistributionConfig()
        return cls(
            random_head(width, score, distribution),
            distribution,
            random_tokens(list(text_lengths), width, padding=math.nan),
            random_tokens(list(video_lengths), width, padding=math.nan),
        )

    def scores(self) -> Tensor:
        return self.head.score(self.head.prepare_texts(self.texts), self.head.prepare_videos(self.videos))

    def items(self) -> tuple[list[oracle.Item], list[oracle.Item]]:
        return _items(self.texts), _items(self.videos)

    def oracle_heads(self) -> tuple[oracle.SideHeads, oracle.SideHeads]:
        return _side_heads(self.head.text), _side_heads(self.head.video)

    def oracle_scores(self) -> Tensor:
        rows = oracle.score_matrix(*self.items(), *self.oracle_heads(), self.head.config, self.distribution)
        return torch.tensor(rows, dtype=torch.float64)


def _items(tokens: Tokens) -> list[oracle.Item]:
    return [row[real].tolist() for row, real in zip(tokens.embeddings, tokens.mask, strict=True)]


def _mlp(mlp: nn.Module | None) -> oracle.Mlp | None:
    if mlp is None:
        return None
    first, _, last = mlp
    return oracle.Mlp(first.weight.tolist(), first.bias.tolist(), last.weight.tolist(), last.bias.tolist())


def _side_heads(side: nn.Module) -> oracle.SideHeads:
    gaussian = side.gaussian
    return oracle.SideHeads(
        weight=_mlp(side.weight),
        mean=_mlp(gaussian.mean if gaussian else None),
        var=_mlp(gaussian.log_var if gaussian else None),
    )
