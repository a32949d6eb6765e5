"""From token points to token Gaussians."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prota.config.model import LOG_VAR_MAX, LOG_VAR_MIN, DistributionConfig
from prota.types import TokenGaussians, Tokens

__all__ = ["GaussianHead", "TokenMlp"]


class TokenMlp(nn.Sequential):
    """D → D → outputs, in the precision of its weights; what comes out has the precision of what goes in.

    Paper gap: the paper says "two-layer MLP" and no activation; ReLU, as in the token-weight heads of DRL.
    """

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))

    def forward(self, values: Tensor) -> Tensor:
        first = self[0]
        assert isinstance(first, nn.Linear)
        result: Tensor = super().forward(values.to(first.weight.dtype))  # type: ignore[no-untyped-call]
        return result.to(values.dtype)


class _Held(torch.autograd.Function):
    """A clamp that can be left: outside of it, gradients count that lead back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.bounds = low, high
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (values,), (low, high), (gradient,) = ctx.saved_tensors, ctx.bounds, gradients
        # What is learned goes against the gradient.
        outwards = ((values > high) & (gradient < 0)) | ((values < low) & (gradient > 0))
        return gradient.masked_fill(outwards, 0), None, None


def _held(values: Tensor, low: float, high: float) -> Tensor:
    result: Tensor = _Held.apply(values, low, high)  # type: ignore[no-untyped-call]
    return result


class GaussianHead(nn.Module):
    """W^mean and W^var of one modality."""

    def __init__(self, width: int, config: DistributionConfig) -> None:
        super().__init__()
        self.config = config
        self.mean = TokenMlp(width, width)
        self.log_var = TokenMlp(width, width)
        self._start()

    def _start(self) -> None:
        last_mean, last_var = self.mean[-1], self.log_var[-1]
        assert isinstance(last_mean, nn.Linear)
        assert isinstance(last_var, nn.Linear)
        if self.config.mean == "residual":
            nn.init.zeros_(last_mean.weight)
            nn.init.zeros_(last_mean.bias)
        nn.init.constant_(last_var.bias, self.config.log_var_init)

    def forward(self, tokens: Tokens) -> TokenGaussians:
        """Eq. (9): μ = W^mean(f), σ² = exp W^var(f).

        Paper gap: printed, μ forgets the backbone's alignment at the start of training; ``residual`` adds f, with
        W^mean starting at zero. log σ² is clamped and starts low, since at 0 the variances would swamp the means; the
        KL term brings back what went beyond the clamp.
        """
        values = tokens.embeddings
        mean: Tensor = self.mean(values)
        if self.config.mean == "residual":
            mean = values + mean
        log_var: Tensor = self.log_var(values)
        log_var = _held(log_var, LOG_VAR_MIN, LOG_VAR_MAX)
        return TokenGaussians(mean, log_var, tokens.mask)
