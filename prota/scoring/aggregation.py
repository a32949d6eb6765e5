"""From token similarities to one number per pair, over either side's tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from prota.config.model import ScoreConfig, Temperature

__all__ = [
    "combine_directions",
    "double_weight",
    "inter_modality",
    "intra_modality",
    "low_dimension",
    "pooling_weights",
    "uniform_weights",
]


def _weighted_by_itself(values: Tensor, mask: Tensor, temperature: Temperature) -> Tensor:
    """Σ_j x_j softmax_j(temperature · x_j) over the last axis; ``max``: the maximum. Padding is −inf before either."""
    padding = ~mask
    if temperature == "max":
        return values.masked_fill(padding, -torch.inf).amax(dim=-1)
    attention = (temperature * values).masked_fill(padding, -torch.inf).softmax(dim=-1)
    return (values * attention).sum(dim=-1)


def low_dimension(similarity: Tensor, mask: Tensor, lambda_: Temperature) -> Tensor:
    """Eq. (2): l_{t_i→v} = Σ_j s_ij softmax_j(λ s_ij); [..., N, M] with a mask [..., 1, M] → [..., N]."""
    return _weighted_by_itself(similarity, mask, lambda_)


def inter_modality(gram: Tensor, mask: Tensor, xi: Temperature) -> Tensor:
    """Eq. (6): h_{t_i→v} = Σ_j g_ij softmax_j(ξ g_ij); [..., N, M] with a mask [..., 1, M] → [..., N]."""
    return _weighted_by_itself(gram, mask, xi)


def intra_modality(
    gram: Tensor | None, tokens: Tensor, mask: Tensor, *, mlp: Callable[[Tensor], Tensor], config: ScoreConfig
) -> Tensor:
    """Eq. (5): h_{t→t} = W_t(G_tt f_t); [..., N, N], [..., N, D], [..., N] → [..., N], zero at padding.

    Padded tokens must be zero. ``gram`` None: W_t(f_t), the weights of DRL.

    Paper gap: nothing bounds the printed weights; by default they are a softmax over the item's real tokens.
    Tokens enter the MLP un-normalised, as in the field's token-weight heads.
    """
    logits = mlp(tokens if gram is None else gram @ tokens).squeeze(-1)
    if config.intra == "softmax":
        return logits.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    weights = logits.sigmoid() if config.intra == "sigmoid" else logits
    return weights.masked_fill(~mask, 0)


def uniform_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """One over the number of real tokens, [A, N]."""
    return mask.to(dtype) / mask.sum(dim=-1, keepdim=True)


def pooling_weights(direction: Tensor, mask: Tensor, last_only: bool) -> Tensor:
    """[A, N]: the weights with which unit tokens sum to the unit pooled vector (CLIP4Clip's mean pooling).

    Paper gap: "global pooling" names the video's mean; the text's vector is its last token (EOS) as in CLIP4Clip,
    or the mean of its tokens for encoders that are pooled so.
    """
    if last_only:
        position = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        last = position.masked_fill(~mask, -1).amax(dim=1, keepdim=True)
        return (position == last).to(direction.dtype)
    norm: Tensor = torch.linalg.vector_norm(direction.sum(dim=1), dim=-1, keepdim=True)
    return mask.to(direction.dtype) / norm.clamp(min=torch.finfo(direction.dtype).eps)


def double_weight(intra: Tensor, inter: Tensor | None, config: ScoreConfig) -> Tensor:
    """Eq. (7): ĥ_t = h_{t→v} · h_{t→t}, [..., N]; without ``inter``, the weights of the own side alone.

    Paper gap: the printed product (``literal``) is no weighting that sums to one, it also gates pairs with little
    in common, and trains best; ``normalised`` divides by the sum over the item's tokens.
    """
    weights = intra if inter is None else inter * intra
    if config.weighting == "literal":
        return weights
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def combine_directions(text_low: Tensor, text_weight: Tensor, video_low: Tensor, video_weight: Tensor) -> Tensor:
    """Eq. (8): S = ½(l_{t→v} · ĥ_t + l_{v→t} · ĥ_v), from [..., N] and [..., M] → [...]."""
    return 0.5 * ((text_low * text_weight).sum(dim=-1) + (video_low * video_weight).sum(dim=-1))
