"""Token similarities and the Gram matrix: everything about two single tokens.

All pairs go through dot products of two batches, so that no tensor ever has both a pair axis and D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prota.config.model import ScoreConfig
from prota.types import PreparedTokens

__all__ = [
    "cosine_similarity",
    "gram_block",
    "kernel_mean",
    "pair_dot",
    "token_similarity",
    "wasserstein_squared",
]

# Under the square root of W2, for its gradient at zero: moves a distance of 0.001 by 5e-10.
_ROOT_EPSILON = 1e-12


def pair_dot(texts: Tensor, videos: Tensor) -> Tensor:
    """Dot products of every text token with every video token: [A, N, D], [B, M, D] → [A, B, N, M]."""
    return torch.einsum("and,bmd->abnm", texts, videos)


def cosine_similarity(texts: PreparedTokens, videos: PreparedTokens) -> Tensor:
    """Eq. (1): the matrix L_m of s_ij, [A, B, N, M].

    Paper gap: "dot product" of tokens of any length; λ = 100 only makes sense for cosines, so tokens are
    L2-normalised.
    """
    return pair_dot(texts.direction, videos.direction)


def wasserstein_squared(texts: PreparedTokens, videos: PreparedTokens, cosines: Tensor) -> Tensor:
    """Eq. (10), the radicand: W2² = ‖μ_i − μ_j‖² + ‖σ²_i − σ²_j‖² of every token pair, [A, B, N, M].

    ``cosines`` are those of the means, which are unit vectors: ‖μ_i − μ_j‖² = 2 − 2 cos.

    Paper gap: the 2-Wasserstein distance of diagonal Gaussians compares standard deviations, the paper prints
    variances; ``spread`` holds what ``score.distance`` says.
    """
    assert texts.spread is not None
    assert videos.spread is not None
    # In double precision, which Apple's GPUs lack: of large spreads that are alike, nearly everything cancels.
    precision = torch.float32 if texts.spread.device.type == "mps" else torch.float64
    text_spread, video_spread = texts.spread.to(precision), videos.spread.to(precision)
    text_norm = text_spread.square().sum(dim=-1)[:, None, :, None]
    video_norm = video_spread.square().sum(dim=-1)[None, :, None, :]
    apart = text_norm + video_norm - 2 * pair_dot(text_spread, video_spread)
    return 2 - 2 * cosines + apart.clamp(min=0).to(cosines.dtype)


def token_similarity(texts: PreparedTokens, videos: PreparedTokens, cosines: Tensor, config: ScoreConfig) -> Tensor:
    """s of every token pair as ``score.similarity`` says, [A, B, N, M].

    Paper gap: printed, s^p = −W2 is negative while its weights are kernels of the same distance, so that beyond
    some distance a farther token scores higher. ``squared``, 1 − W2²/2, is positive for near tokens and the cosine
    where variances are equal; ``offset`` is c − W2.
    """
    if config.similarity == "cosine":
        return cosines
    squared = wasserstein_squared(texts, videos, cosines)
    if config.similarity == "squared":
        return 1 - 0.5 * squared
    root = torch.sqrt(squared.clamp(min=0) + _ROOT_EPSILON)
    return config.offset - root if config.similarity == "offset" else -root


def kernel_mean(cosines: Tensor, bandwidth: float, kernels: int) -> Tensor:
    """Eq. (3): g_ij, the mean of R Gaussian kernels of unit vectors with these cosines, any shape.

    K_k = exp(−‖x − y‖² / (b·2^(k − ⌊R/2⌋))) for k = 1 … R.

    Paper gap: the paper names neither the bandwidths nor their number's start; k counts from 1, as its sum does.
    Counting from 0 is the same as halving b.
    """
    # Rounding takes cosines of equal tokens above 1; a narrow bandwidth would make much of that.
    squared = (2 - 2 * cosines).clamp(min=0)
    # Halving a bandwidth squares its kernel: one exponential for the widest, k = R, gives all the others.
    kernel = torch.exp(-squared / (bandwidth * 2.0 ** (kernels - kernels // 2)))
    total = kernel
    for _ in range(kernels - 1):
        kernel = kernel * kernel
        total = total + kernel
    return total / kernels


def gram_block(cosines: Tensor, config: ScoreConfig) -> Tensor:
    """Eq. (4): one of the blocks G_tt, G_tv, G_vv of the Gram matrix, from the cosines of its tokens.

    The whole matrix is never built: own blocks are computed once per item, G_tv per pair, and G_vt is its transpose.
    """
    if config.gram == "dot":
        return cosines
    return kernel_mean(cosines, config.bandwidth_value, config.kernels)
