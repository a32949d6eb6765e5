"""What training minimises: the adaptive contrastive loss and the KL term, as named terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.config.model import LossConfig
from prota.types import PreparedTokens, TokenGaussians

__all__ = [
    "MAX_LOGIT_SCALE",
    "LossTerms",
    "adaptive_margin",
    "contrastive_loss",
    "directional_loss",
    "inverse_temperature",
    "kl_to_standard_normal",
    "prota_loss",
    "share_of_loss",
]

# 1/τ goes no higher, as CLIP's.
MAX_LOGIT_SCALE = 100.0
# Of the likeness (cosines) of captions: the smaller, the fewer are alike.
_SOFT_TEMPERATURE = 0.1


@dataclass(frozen=True)
class LossTerms:
    """Scalars of one batch; ``total`` is what is minimised, the others are what it is made of and what to watch."""

    total: Tensor
    contrastive_t2v: Tensor
    contrastive_v2t: Tensor
    kl: Tensor
    """Without its weight β; 0 where tokens are points."""
    margin: Tensor
    """Mean of both directions' margins, without η; 0 where tokens are points."""
    text_log_var: Tensor
    """Mean log σ² of the texts' tokens; 0 where tokens are points."""
    video_log_var: Tensor
    temperature: Tensor
    """τ."""
    locality: Tensor
    """Without its weight; 0 where no words were replaced (see `prota.training.locality`)."""

    def floats(self) -> dict[str, float]:
        """For logs."""
        return {field.name: getattr(self, field.name).item() for field in fields(self)}

    @staticmethod
    def mean(terms: Sequence[LossTerms]) -> LossTerms:
        """Of the losses of several equal parts."""
        columns = ([getattr(term, field.name) for term in terms] for field in fields(LossTerms))
        return LossTerms(*(torch.stack(column).mean(dim=0) for column in columns))


def _token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the real tokens of each item: [A, N, ...] → [A, ...]."""
    weight = mask.to(values.dtype) / mask.sum(dim=1, keepdim=True)
    return torch.einsum("an,an...->a...", weight, values)


def _item_kl(gaussians: TokenGaussians) -> Tensor:
    per_dimension = 0.5 * (gaussians.log_var.exp() + gaussians.mean.square() - 1 - gaussians.log_var)
    return _token_mean(per_dimension.sum(dim=-1), gaussians.mask)


def kl_to_standard_normal(texts: TokenGaussians, videos: TokenGaussians) -> Tensor:
    """Eq. (12): L^kl = ½[KL(N_t ‖ N(0, I)) + KL(N_v ‖ N(0, I))].

    Paper gap: how tokens and dimensions are reduced; summed over dimensions, mean over an item's real
    tokens, then over the batch. μ is the un-normalised mean.
    """
    return 0.5 * (_item_kl(texts).mean() + _item_kl(videos).mean())


@torch.no_grad()
def adaptive_margin(source: TokenGaussians, target: TokenGaussians) -> Tensor:
    """Eq. (14): m = exp(−KL(N_source ‖ N_target)) of each positive pair, [A].

    Per dimension, KL = ½(log σ²_j − log σ²_i + (σ²_i + (μ_i − μ_j)²)/σ²_j − 1). Every term is a product of something
    of token i and something of token j, so that the mean over all token pairs is made of means over either side.

    Paper gap: the KL of two token sequences of different lengths; the mean over pairs of real tokens. Mean over
    dimensions, since a sum would drive m to 0; of the
    un-normalised means, as the KL term, which brings them near enough for a margin. It is a target, so detached.
    """
    mean_i, var_i, log_i = source.mean, source.log_var.exp(), source.log_var
    mean_j, var_j, log_j = target.mean, target.log_var.exp(), target.log_var
    # Only how far means are apart counts; what they have in common would swallow it in single precision.
    common = _token_mean(mean_i, source.mask).unsqueeze(1)
    mean_i, mean_j = mean_i - common, mean_j - common
    square_i = _token_mean(var_i + mean_i.square(), source.mask)
    scaled = (
        square_i * _token_mean(1 / var_j, target.mask)
        - 2 * _token_mean(mean_i, source.mask) * _token_mean(mean_j / var_j, target.mask)
        + _token_mean(mean_j.square() / var_j, target.mask)
    )
    logs = _token_mean(log_j, target.mask) - _token_mean(log_i, source.mask)
    return torch.exp(-(0.5 * (logs + scaled - 1)).mean(dim=-1).clamp(min=0))


def inverse_temperature(logit_scale: Tensor) -> Tensor:
    """1/τ = exp(logit_scale), clamped as CLIP's is; the gradient passes the clamp, or τ would never leave it."""
    scale = logit_scale.exp()
    return scale + (scale.clamp(max=MAX_LOGIT_SCALE) - scale).detach()


def directional_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    margin: Tensor | None,
    scale: Tensor,
    config: LossConfig,
    similar: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Eq. (13): InfoNCE of queries against candidates [Q, C], less the margin η·m [Q] of the positive ``targets`` [Q].

    ``similar`` [Q, C] says how alike a query's and a candidate's captions are, for ``soft_targets``. With ``bias``,
    SigLIP's loss instead: the sum over candidates of −log σ(±(scores/τ + bias)), plus for the positive.

    Paper gap: S^d in the printed denominator is S^p. Printed (``literal``), the margin stands in the numerator alone
    and only adds a constant; ``additive`` takes it from the positive's logit in the denominator too.
    """
    constant = scores.new_zeros(())
    if margin is not None and config.margin == "literal":
        constant = (scale * config.eta * margin).mean()
    elif margin is not None:
        scores = scores - (config.eta * margin).unsqueeze(1) * F.one_hot(targets, scores.shape[1])
    if bias is not None:
        sign = 2 * F.one_hot(targets, scores.shape[1]) - 1
        return -F.logsigmoid(sign * (scale * scores + bias)).sum(dim=1).mean() + constant
    goal = targets
    if similar is not None:
        alike = torch.softmax(similar / _SOFT_TEMPERATURE, dim=1)
        goal = torch.lerp(F.one_hot(targets, scores.shape[1]).to(alike), alike, config.soft_targets)
    return F.cross_entropy(scale * scores, goal, label_smoothing=config.label_smoothing) + constant


def contrastive_loss(text_to_video: Tensor, video_to_text: Tensor) -> Tensor:
    """Eq. (15): L^contra = ½(L_t2v + L_v2t)."""
    return 0.5 * (text_to_video + video_to_text)


def prota_loss(
    scores: Tensor,
    texts: PreparedTokens,
    videos: PreparedTokens,
    *,
    logit_scale: Tensor,
    config: LossConfig,
    logit_bias: Tensor | None = None,
) -> LossTerms:
    """The objective and its terms for a batch in which text i belongs to video i; ``scores`` is [A, A]."""
    if scores.dim() != 2 or scores.shape[0] != scores.shape[1]:
        raise ValueError(f"the loss pairs text i with video i and needs a square matrix; got {list(scores.shape)}")
    targets = torch.arange(len(scores), device=scores.device)
    learned: dict[str, Any] = {"logit_scale": logit_scale, "logit_bias": logit_bias}
    return share_of_loss(scores, scores.T, targets, texts=texts, videos=videos, config=config, **learned)


def share_of_loss(
    text_scores: Tensor,
    video_scores: Tensor,
    targets: Tensor,
    *,
    texts: PreparedTokens,
    videos: PreparedTokens,
    logit_scale: Tensor,
    config: LossConfig,
    similar: tuple[Tensor, Tensor] | None = None,
    logit_bias: Tensor | None = None,
) -> LossTerms:
    """Eq. (16): L^all = L^contra + β L^kl, for a part of a batch: the mean over equal parts is the batch's loss.

    ``texts`` and ``videos`` are the part's own pairs [a]; ``text_scores`` [a, A] its texts against all videos of the
    batch, ``video_scores`` [a, A] its videos against all texts, ``targets`` [a] where in the batch the pairs stand.
    ``similar``: what `directional_loss` takes, for both directions.
    """
    # Half precision would round margins and divergences away, or overflow.
    with torch.autocast(text_scores.device.type, enabled=False):
        if (logit_bias is None) != (config.contrast == "softmax"):
            raise ValueError(f"logit_bias belongs to contrast='sigmoid'; got {logit_bias} with {config.contrast!r}")
        scale = inverse_temperature(logit_scale) if logit_bias is None else logit_scale.exp()
        zero = text_scores.new_zeros(())
        kl = margin = text_log_var = video_log_var = zero
        margin_t2v = margin_v2t = None
        if isinstance(texts.source, TokenGaussians) and isinstance(videos.source, TokenGaussians):
            kl = kl_to_standard_normal(texts.source, videos.source)
            margin_t2v = adaptive_margin(texts.source, videos.source)
            margin_v2t = adaptive_margin(videos.source, texts.source)
            margin = 0.5 * (margin_t2v.mean() + margin_v2t.mean())
            text_log_var, video_log_var = (
                _token_mean(side.log_var.detach().mean(dim=-1), side.mask).mean()
                for side in (texts.source, videos.source)
            )
        elif config.eta or config.beta:
            raise ValueError("loss.eta and loss.beta need token Gaussians, and these tokens are points; set both to 0")
        to_videos, to_texts = similar or (None, None)
        both: dict[str, Any] = {"scale": scale, "config": config, "bias": logit_bias}
        t2v = directional_loss(text_scores, targets, margin=margin_t2v, similar=to_videos, **both)
        v2t = directional_loss(video_scores, targets, margin=margin_v2t, similar=to_texts, **both)
        total = contrastive_loss(t2v, v2t) + config.beta * kl
        return LossTerms(total, t2v, v2t, kl, margin, text_log_var, video_log_var, 1 / scale, zero)
