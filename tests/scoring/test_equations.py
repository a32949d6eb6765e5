"""Worked by hand: small numbers that can be checked on paper, one test an equation (see docs/paper_map.md)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prota.config.model import DistributionConfig, ScoreConfig
from prota.scoring.aggregation import (
    combine_directions,
    double_weight,
    inter_modality,
    intra_modality,
    low_dimension,
)
from prota.scoring.distributions import GaussianHead
from prota.scoring.score import ScoreHead
from prota.scoring.similarity import (
    cosine_similarity,
    gram_block,
    kernel_mean,
    token_similarity,
    wasserstein_squared,
)
from prota.types import PreparedTokens, Tokens


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def real(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def prepared(direction: Tensor, spread: Tensor | None = None) -> PreparedTokens:
    """One item of unit tokens [N, D]."""
    weight = torch.full((1, len(direction)), 1 / len(direction), dtype=torch.float64)
    return PreparedTokens(direction[None], None if spread is None else spread[None], weight, real(1, len(direction)))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_eq_1_similarity_matrix() -> None:
    # Tokens (3, 4), (0, 2) and (1, 0), (0, 5): normalised to (.6, .8), (0, 1) and (1, 0), (0, 1).
    head = ScoreHead(2, ScoreConfig(similarity="cosine", weights="uniform"), DistributionConfig())
    texts = head.prepare_texts(Tokens(matrix([3, 4], [0, 2])[None], real(1, 2)))
    videos = head.prepare_videos(Tokens(matrix([1, 0], [0, 5])[None], real(1, 2)))
    close(cosine_similarity(texts, videos)[0, 0], matrix([0.6, 0.8], [0.0, 1.0]))


def test_eq_2_low_dimension() -> None:
    similarity = matrix([0.5, 0.1], [0.2, 0.8])
    # λ = 10 ln 2: the weights of 0.5 and 0.1 are as 2^5 to 2^1, of 0.2 and 0.8 as 2^2 to 2^8.
    lambda_ = 10 * math.log(2)
    words = [(32 * 0.5 + 2 * 0.1) / 34, (4 * 0.2 + 256 * 0.8) / 260]
    frames = [(32 * 0.5 + 4 * 0.2) / 36, (2 * 0.1 + 256 * 0.8) / 258]
    close(low_dimension(similarity, real(1, 2), lambda_), vector(*words))
    close(low_dimension(similarity.T, real(1, 2), lambda_), vector(*frames))
    close(low_dimension(similarity, real(1, 2), "max"), vector(0.5, 0.8))


def test_eq_2_padding_never_wins_over_negative_similarities() -> None:
    similarity = matrix([-0.5, 0.0], [-0.2, 0.0])
    mask = torch.tensor([[True, False]])
    for lambda_ in (100.0, "max"):
        close(low_dimension(similarity, mask, lambda_), vector(-0.5, -0.2))


def test_eq_3_kernel_mean() -> None:
    # Orthogonal unit vectors: ‖x − y‖² = 2. R = 3, b = 1: bandwidths 2^(k−1) for k = 1, 2, 3.
    expected = (math.exp(-2 / 1) + math.exp(-2 / 2) + math.exp(-2 / 4)) / 3
    cosines = matrix([1.0, 0.0], [0.0, 1.0])
    close(kernel_mean(cosines, 1.0, 3), matrix([1.0, expected], [expected, 1.0]))
    # R = 5: ½, 1, 2, 4, 8; a bandwidth of 2 doubles each.
    expected = sum(math.exp(-2 / (2 * bandwidth)) for bandwidth in (0.5, 1, 2, 4, 8)) / 5
    close(kernel_mean(cosines, 2.0, 5)[0, 1], torch.tensor(expected, dtype=torch.float64))


def test_eq_4_gram_blocks() -> None:
    config = ScoreConfig()
    joint = torch.nn.functional.normalize(torch.randn(5, 4, dtype=torch.float64), dim=-1)
    whole = gram_block(joint @ joint.T, config)
    text, video = joint[:2], joint[2:]
    top = torch.cat([gram_block(text @ text.T, config), gram_block(text @ video.T, config)], dim=1)
    bottom = torch.cat([gram_block(text @ video.T, config).T, gram_block(video @ video.T, config)], dim=1)
    close(torch.cat([top, bottom]), whole)
    close(gram_block(joint @ joint.T, ScoreConfig(gram="dot")), joint @ joint.T)


def test_eq_5_intra_modality() -> None:
    # G f = [[1, ½], [½, 1]] [[2, 0], [0, 4]] = [[2, 2], [1, 4]]; the "MLP" adds the two: 4 and 5.
    gram, tokens = matrix([1.0, 0.5], [0.5, 1.0]), matrix([2.0, 0.0], [0.0, 4.0])

    def add(values: Tensor) -> Tensor:
        return values.sum(dim=-1, keepdim=True)

    mask = real(2)
    softmax = [1 / (1 + math.e), math.e / (1 + math.e)]
    close(intra_modality(gram, tokens, mask, mlp=add, config=ScoreConfig()), vector(*softmax))
    sigmoid = [1 / (1 + math.exp(-4)), 1 / (1 + math.exp(-5))]
    close(
        intra_modality(gram, tokens, mask, mlp=add, config=ScoreConfig(intra="sigmoid")),
        vector(*sigmoid),
    )
    close(intra_modality(gram, tokens, mask, mlp=add, config=ScoreConfig(intra="none")), vector(4.0, 5.0))
    # Without a Gram matrix the MLP sees the bare tokens: 2 and 4.
    close(intra_modality(None, tokens, mask, mlp=add, config=ScoreConfig(intra="none")), vector(2.0, 4.0))


def test_eq_6_inter_modality() -> None:
    gram = matrix([0.75, 0.25], [0.5, 0.5])
    # ξ = 4 ln 3: the weights of 0.75 and 0.25 are as 3^3 to 3^1.
    xi = 4 * math.log(3)
    words = [(27 * 0.75 + 3 * 0.25) / 30, 0.5]
    close(inter_modality(gram, real(1, 2), xi), vector(*words))
    close(inter_modality(gram, real(1, 2), "max"), vector(0.75, 0.5))


def test_eq_7_double_weight() -> None:
    intra, inter = vector(0.25, 0.75), vector(0.5, 0.1)
    close(double_weight(intra, inter, ScoreConfig()), vector(0.125, 0.075))
    normalised = double_weight(intra, inter, ScoreConfig(weighting="normalised"))
    close(normalised, vector(0.625, 0.375))
    close(double_weight(intra, None, ScoreConfig()), intra)


def test_eq_8_combine_directions() -> None:
    text_low, text_weight = vector(0.5, 0.8), vector(0.25, 0.5)
    video_low, video_weight = vector(0.4, 0.6), vector(0.1, 0.2)
    # ½(0.125 + 0.4 + 0.04 + 0.12)
    close(combine_directions(text_low, text_weight, video_low, video_weight), torch.tensor(0.3425, dtype=torch.float64))


def test_eq_9_gaussian_head() -> None:
    tokens = Tokens(torch.randn(1, 3, 4), real(1, 3))
    start = GaussianHead(4, DistributionConfig())(tokens)
    close(start.mean, tokens.embeddings)
    plain = GaussianHead(4, DistributionConfig(mean="plain"))
    close(plain(tokens).mean, plain.mean(tokens.embeddings))
    for bias, clamped in ((99.0, 4.0), (-99.0, -10.0)):
        torch.nn.init.constant_(plain.log_var[-1].bias, bias)
        close(plain(tokens).log_var, torch.full((1, 3, 4), clamped))


@pytest.mark.parametrize("start", [-10.5, -9.0, 3.0, 4.5])
def test_variances_learn_from_beyond_the_clamp(start: float) -> None:
    """What went beyond it comes back where the loss asks for that, and goes no farther where it asks for more."""
    tokens = Tokens(torch.randn(1, 3, 4), real(1, 3))
    head = GaussianHead(4, DistributionConfig())
    last = head.log_var[-1]
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.constant_(last.bias, start)
    inside = -10 <= start <= 4
    # Against the gradient: this one makes variances larger.
    (-head(tokens).log_var).sum().backward()
    assert bool((last.bias.grad == (-3 if inside or start < -10 else 0)).all())
    last.bias.grad = None
    head(tokens).log_var.sum().backward()
    assert bool((last.bias.grad == (3 if inside or start > 4 else 0)).all())


def test_eq_10_wasserstein() -> None:
    # Means (1, 0) and (.6, .8): ‖Δμ‖² = .16 + .64 = .8. Variances (.1, .2) and (.4, .6): ‖Δσ²‖² = .09 + .16 = .25.
    texts = prepared(matrix([1.0, 0.0]), matrix([0.1, 0.2]))
    videos = prepared(matrix([0.6, 0.8], [1.0, 0.0]), matrix([0.4, 0.6], [0.1, 0.2]))
    cosines = cosine_similarity(texts, videos)
    close(wasserstein_squared(texts, videos, cosines)[0, 0], matrix([1.05, 0.0]))
    root = math.sqrt(1.05)
    for config, expected in (
        (ScoreConfig(), [1 - 1.05 / 2, 1.0]),
        (ScoreConfig(similarity="offset", offset=1.5), [1.5 - root, 1.5]),
        (ScoreConfig(similarity="printed"), [-root, 0.0]),
    ):
        similarity = token_similarity(texts, videos, cosines, config)[0, 0]
        # The root of zero is off by the root of its epsilon.
        torch.testing.assert_close(similarity, matrix(expected), rtol=0, atol=1.01e-6)
        assert float(similarity[0, 0]) == pytest.approx(expected[0], abs=1e-11)


@pytest.mark.parametrize("level", [-10.0, -4.0, 3.99])
def test_eq_10_keeps_its_digits_where_spreads_are_large_and_alike(level: float) -> None:
    """In single precision the squares of such spreads, and the spreads of others beside them, would swallow them."""
    torch.manual_seed(0)
    texts = torch.exp(level + 1e-4 * torch.randn(2, 3, 512))
    videos = torch.cat([torch.exp(level + 1e-4 * torch.randn(1, 4, 512)), torch.exp(torch.full((1, 4, 512), -4.0))])
    texts.requires_grad_()
    direction = torch.nn.functional.normalize(torch.randn(2, 7, 512), dim=-1)
    sides = [
        PreparedTokens(direction[:, at], spread, torch.ones(spread.shape[:2]), real(2, spread.shape[1]))
        for at, spread in ((slice(3), texts), (slice(3, 7), videos))
    ]
    squared = wasserstein_squared(*sides, cosine_similarity(*sides))
    apart = (texts.double()[:, None, :, None] - videos.double()[None, :, None, :, :]).square().sum(dim=-1)
    expected = 2 - 2 * cosine_similarity(*sides).double() + apart
    torch.testing.assert_close(squared.double(), expected, rtol=1e-6, atol=1e-6)
    got, wanted = (torch.autograd.grad(value[:, 0].sum(), texts)[0] for value in (squared, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-9)


def test_eq_10_deviation_is_the_true_wasserstein_distance() -> None:
    head = ScoreHead(2, ScoreConfig(distance="deviation"), DistributionConfig()).double()
    tokens = Tokens(torch.randn(1, 2, 2, dtype=torch.float64), real(1, 2))
    spread, source = head.prepare_texts(tokens).spread, head.prepare_texts(tokens).source
    close(spread, torch.exp(source.log_var).sqrt())


def test_eq_11_probabilistic_score() -> None:
    # One word, one frame: all attention is 1 and intra weights are 1, so S^p = s^p · g.
    head = ScoreHead(2, ScoreConfig(), DistributionConfig()).double()
    texts = head.prepare_texts(Tokens(matrix([2.0, 0.0])[None], real(1, 1)))
    videos = head.prepare_videos(Tokens(matrix([0.0, 3.0])[None], real(1, 1)))
    spread = (texts.spread - videos.spread).square().sum().item()
    gram = sum(math.exp(-2 / bandwidth) for bandwidth in (0.5, 1, 2, 4, 8)) / 5
    close(head.score(texts, videos), matrix([(1 - (2 + spread) / 2) * gram]).detach())


def test_frames_that_nearly_cancel_are_pooled_to_a_unit_vector_too() -> None:
    # (.6, .8) and (.6, −.8) sum to (1.2, 0); (.28, .96) and (.28, −.96) to (.56, 0), shorter than any of them.
    head = ScoreHead(2, ScoreConfig(similarity="cosine", aggregation="pooling"), DistributionConfig())
    text = head.prepare_texts(Tokens(matrix([2, 0])[None], real(1, 1)))
    for x, y in ((0.6, 0.8), (0.28, 0.96)):
        video = head.prepare_videos(Tokens(matrix([x, y], [x, -y])[None], real(1, 2)))
        close(head.reference_score(text, video), matrix([1.0]))


def test_large_spreads_that_hardly_differ_keep_their_distance_in_single_precision() -> None:
    spread = 50 + 0.01 * torch.rand(2, 3, 16, dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.randn(2, 3, 16, dtype=torch.float64), dim=-1)
    one, other = (prepared(direction[side], spread[side]) for side in (0, 1))
    exact = wasserstein_squared(one, other, cosine_similarity(one, other))
    one, other = one.to(torch.float32), other.to(torch.float32)
    found = wasserstein_squared(one, other, cosine_similarity(one, other))
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5)
