"""Losses: worked by hand, against the oracle, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from prota.config.model import ConfigError, DistributionConfig, LossConfig, ScoreConfig
from prota.losses import (
    adaptive_margin,
    contrastive_loss,
    directional_loss,
    inverse_temperature,
    kl_to_standard_normal,
    prota_loss,
    share_of_loss,
)
from prota.types import TokenGaussians
from tests import oracle
from tests.cases import DISTRIBUTION_VARIANTS, LOSS_VARIANTS, Case

BIAS = -1.3


def bias_of(loss: LossConfig) -> Tensor | None:
    return torch.tensor(BIAS, dtype=torch.float64) if loss.contrast == "sigmoid" else None


def gaussians(mean: list[list[float]], var: list[list[float]]) -> TokenGaussians:
    """One item of tokens."""
    means, variances = (torch.tensor([rows], dtype=torch.float64) for rows in (mean, var))
    return TokenGaussians(means, variances.log(), torch.ones(means.shape[:2], dtype=torch.bool))


def oracle_terms(case: Case, loss: LossConfig, logit_scale: float) -> dict[str, float]:
    return oracle.loss_terms(
        *case.items(), *case.oracle_heads(), case.head.config, case.distribution, loss, logit_scale, BIAS
    )


def our_terms(case: Case, loss: LossConfig, logit_scale: float) -> dict[str, float]:
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    scale = torch.tensor(logit_scale, dtype=torch.float64)
    learned = {"logit_scale": scale, "logit_bias": bias_of(loss)}
    return prota_loss(case.head.score(texts, videos), texts, videos, config=loss, **learned).floats()


@pytest.mark.parametrize("variant", LOSS_VARIANTS)
@pytest.mark.parametrize("distribution", DISTRIBUTION_VARIANTS)
def test_terms_equal_the_oracle(variant: str, distribution: str) -> None:
    case = Case.random(ScoreConfig(), DistributionConfig(**DISTRIBUTION_VARIANTS[distribution]))
    # Weights that show; at 5e-4 a wrong margin would hide below the tolerance.
    loss = LossConfig(**LOSS_VARIANTS[variant], eta=0.3, beta=0.2)
    expected = oracle_terms(case, loss, 2.6)
    actual = our_terms(case, loss, 2.6)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name] == pytest.approx(value, abs=1e-9, rel=1e-12), name


@pytest.mark.parametrize("logit_scale", [0.0, 2.6, 9.0])
def test_terms_of_points_equal_the_oracle(logit_scale: float) -> None:
    case = Case.random(ScoreConfig(similarity="cosine"))
    loss = LossConfig(eta=0, beta=0)
    assert our_terms(case, loss, logit_scale) == pytest.approx(oracle_terms(case, loss, logit_scale), abs=1e-9)


def test_eq_12_kl_to_standard_normal() -> None:
    # One text token with μ = (1, 0), σ² = (1, 1): ½(1 + 0) = ½. One frame with μ = 0, σ² = (e, 1): ½(e − 2).
    texts, videos = gaussians([[1.0, 0.0]], [[1.0, 1.0]]), gaussians([[0.0, 0.0]], [[math.e, 1.0]])
    expected = 0.5 * (0.5 + 0.5 * (math.e - 2))
    assert float(kl_to_standard_normal(texts, videos)) == pytest.approx(expected, abs=1e-12)


def test_soft_targets_spread_over_what_is_alike() -> None:
    scores = torch.tensor([[0.3, 0.1, -0.2], [0.0, 0.5, 0.2]])
    targets, scale = torch.tensor([0, 1]), torch.tensor(4.0)
    similar = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    config = LossConfig(soft_targets=0.3)
    expected = 0.0
    for row, (own, logits) in enumerate(zip((0, 1), (scale * scores).tolist(), strict=True)):
        total = math.log(sum(math.exp(logit) for logit in logits))
        likeness = [math.exp(value / 0.1) for value in similar[row].tolist()]
        goal = [0.3 * value / sum(likeness) + (0.7 if place == own else 0) for place, value in enumerate(likeness)]
        expected -= sum(share * (logit - total) for share, logit in zip(goal, logits, strict=True)) / 2
    assert directional_loss(
        scores, targets, margin=None, scale=scale, config=config, similar=similar
    ).item() == pytest.approx(expected, abs=1e-6)
    hard = directional_loss(scores, targets, margin=None, scale=scale, config=LossConfig())
    assert directional_loss(
        scores, targets, margin=None, scale=scale, config=LossConfig(), similar=similar
    ).item() == pytest.approx(hard.item())


def test_eq_13_directional_loss() -> None:
    scores = torch.tensor([[0.9, 0.4], [0.3, 0.8]], dtype=torch.float64)
    margin, scale = torch.tensor([0.5, 1.0], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    # η m = (0.1, 0.2); positives 0.9 and 0.8 become 0.8 and 0.6.
    additive = [math.log(1 + math.exp(2 * (0.4 - 0.8))), math.log(1 + math.exp(2 * (0.3 - 0.6)))]
    targets = torch.arange(2)
    loss = directional_loss(scores, targets, margin=margin, scale=scale, config=LossConfig(eta=0.2))
    assert float(loss) == pytest.approx(sum(additive) / 2, abs=1e-12)
    literal = [math.log(1 + math.exp(2 * (0.4 - 0.9))) + 0.2, math.log(1 + math.exp(2 * (0.3 - 0.8))) + 0.4]
    loss = directional_loss(scores, targets, margin=margin, scale=scale, config=LossConfig(eta=0.2, margin="literal"))
    assert float(loss) == pytest.approx(sum(literal) / 2, abs=1e-12)
    plain = [math.log(1 + math.exp(2 * (0.4 - 0.9))), math.log(1 + math.exp(2 * (0.3 - 0.8)))]
    loss = directional_loss(scores, targets, margin=None, scale=scale, config=LossConfig())
    assert float(loss) == pytest.approx(sum(plain) / 2, abs=1e-12)
    # Smoothed by 0.1: 0.95 of the positive's log-loss and 0.05 of the other's, which is larger by the logits' distance.
    smoothed = [plain[0] + 0.05 * 2 * 0.5, plain[1] + 0.05 * 2 * 0.5]
    loss = directional_loss(scores, targets, margin=None, scale=scale, config=LossConfig(label_smoothing=0.1))
    assert float(loss) == pytest.approx(sum(smoothed) / 2, abs=1e-12)


def test_eq_14_adaptive_margin() -> None:
    # One word N(0, 1); two frames N(1, 1) and N(0, 2): KL = ½ and ½(ln 2 + ½ − 1).
    text, video = gaussians([[0.0]], [[1.0]]), gaussians([[1.0], [0.0]], [[1.0], [2.0]])
    divergence = (0.5 + 0.5 * (math.log(2) - 0.5)) / 2
    assert float(adaptive_margin(text, video)) == pytest.approx(math.exp(-divergence), abs=1e-12)
    # Equal distributions: the largest margin, 1.
    assert float(adaptive_margin(text, text)) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("log_var", [-4.0, -20.0, -30.0, 10.0])
def test_the_margin_of_equals_is_one_in_single_precision(log_var: float) -> None:
    mean = 1 + 0.4 * torch.randn(3, 1, 512)
    same = TokenGaussians(mean, torch.full_like(mean, log_var), torch.ones(3, 1, dtype=torch.bool))
    margin = adaptive_margin(same, same)
    torch.testing.assert_close(margin, torch.ones(3), rtol=0, atol=1e-5)
    assert (margin <= 1).all()


def test_eq_15_contrastive_loss() -> None:
    assert float(contrastive_loss(torch.tensor(2.0), torch.tensor(4.0))) == 3.0


def test_eq_16_total() -> None:
    case = Case.random(ScoreConfig())
    terms = our_terms(case, LossConfig(beta=0.5), 2.6)
    expected = 0.5 * (terms["contrastive_t2v"] + terms["contrastive_v2t"]) + 0.5 * terms["kl"]
    assert terms["total"] == pytest.approx(expected, abs=1e-12)


def test_literal_margin_leaves_the_score_gradients_alone() -> None:
    scores = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    margin, scale = torch.rand(3, dtype=torch.float64), torch.tensor(5.0, dtype=torch.float64)

    def gradient(margin: Tensor | None, config: LossConfig) -> Tensor:
        return torch.autograd.grad(
            directional_loss(scores, torch.arange(3), margin=margin, scale=scale, config=config), scores
        )[0]

    plain = gradient(None, LossConfig())
    torch.testing.assert_close(gradient(margin, LossConfig(eta=0.3, margin="literal")), plain)
    assert not torch.allclose(gradient(margin, LossConfig(eta=0.3)), plain)


@pytest.mark.parametrize("variant", LOSS_VARIANTS)
def test_gradients_of_every_branch(variant: str) -> None:
    """Of the scores and the temperature, with the margin detached; of the Gaussians through the KL term."""
    case = Case.random(ScoreConfig())
    texts, videos = case.head.prepare_texts(case.texts).detach(), case.head.prepare_videos(case.videos).detach()
    scores = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    logit_scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    config = LossConfig(**LOSS_VARIANTS[variant], eta=0.3, beta=0.2)
    bias = bias_of(config)
    learned = (scores, logit_scale, *([] if bias is None else [bias.requires_grad_()]))

    def total(given: Tensor, scale: Tensor, offset: Tensor | None = None) -> Tensor:
        return prota_loss(given, texts, videos, logit_scale=scale, config=config, logit_bias=offset).total

    assert torch.autograd.gradcheck(total, learned)
    source = texts.source

    def kl(mean: Tensor, log_var: Tensor) -> Tensor:
        return kl_to_standard_normal(TokenGaussians(mean, log_var, source.mask), videos.source)

    assert torch.autograd.gradcheck(kl, (source.mean.requires_grad_(), source.log_var.requires_grad_()))


@pytest.mark.parametrize("variant", LOSS_VARIANTS)
def test_equal_shares_average_to_the_whole(variant: str) -> None:
    """Values and gradients of the tokens: two halves of a batch, each against all of it, against the batch at once."""
    torch.manual_seed(3)
    case = Case.random(ScoreConfig(), None, (4, 2, 3, 1), (2, 3, 1, 2))
    config = LossConfig(**LOSS_VARIANTS[variant], eta=0.3, beta=0.2)
    bias = bias_of(config)
    scale = torch.tensor(1.7, dtype=torch.float64)
    results = []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        tokens = [side.map(torch.clone) for side in (case.texts, case.videos)]
        for side in tokens:
            side.embeddings.requires_grad_()
        texts, videos = case.head.prepare_texts(tokens[0]), case.head.prepare_videos(tokens[1])
        scores = case.head.score(texts, videos)
        targets = torch.arange(4)
        given = {"logit_scale": scale, "logit_bias": bias, "config": config}
        terms = [
            share_of_loss(scores[p], scores.T[p], targets[p], texts=texts[p], videos=videos[p], **given) for p in parts
        ]
        total = torch.stack([term.total for term in terms]).mean()
        total.backward()
        results.append((total.detach(), *(side.embeddings.grad for side in tokens)))
    for whole, halves in zip(*results, strict=True):
        torch.testing.assert_close(halves, whole, rtol=0, atol=1e-12)


def test_margin_is_detached() -> None:
    text = gaussians([[0.0]], [[1.0]])
    text.mean.requires_grad_()
    assert not adaptive_margin(text, text).requires_grad


def test_temperature_is_clamped_but_still_learns() -> None:
    assert float(inverse_temperature(torch.tensor(9.0))) == 100.0
    assert float(inverse_temperature(torch.tensor(0.0))) == 1.0
    # CLIP's own value: at the bound, and free to leave it.
    logit_scale = torch.tensor(math.log(100), requires_grad=True)
    inverse_temperature(logit_scale).backward()
    assert logit_scale.grad.item() == pytest.approx(100, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_leaves_the_loss_alone(dtype: torch.dtype) -> None:
    """Narrow Gaussians far apart, whose divergences half precision cannot hold."""
    case = Case.random(ScoreConfig(), DistributionConfig(log_var_init=-9.5), width=64)
    head = case.head.float()
    texts, videos = head.prepare_texts(case.texts.to(torch.float32)), head.prepare_videos(case.videos.to(torch.float32))
    scores, scale = head.score(texts, videos).detach(), torch.tensor(2.0)
    expected = prota_loss(scores, texts, videos, logit_scale=scale, config=LossConfig()).floats()
    with torch.autocast("cpu", dtype=dtype):
        assert prota_loss(scores, texts, videos, logit_scale=scale, config=LossConfig()).floats() == expected
    assert all(math.isfinite(value) for value in expected.values())


def test_margin_survives_long_distances_in_single_precision() -> None:
    mean = 20 * torch.randn(4, 6, 512)
    source = TokenGaussians(mean, torch.full_like(mean, -10.0), torch.ones(4, 6, dtype=torch.bool))
    margin = adaptive_margin(source, source[torch.tensor([1, 2, 3, 0])])
    assert torch.equal(margin, torch.zeros(4))


def test_wrong_input_is_refused() -> None:
    case = Case.random(ScoreConfig(), text_lengths=(2, 2), video_lengths=(2, 2, 2))
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    scale = torch.tensor(1.0, dtype=torch.float64)
    with pytest.raises(ValueError, match="square matrix"):
        prota_loss(case.head.score(texts, videos), texts, videos, logit_scale=scale, config=LossConfig())
    points = Case.random(ScoreConfig(similarity="cosine"))
    texts, videos = points.head.prepare_texts(points.texts), points.head.prepare_videos(points.videos)
    for config in (LossConfig(), LossConfig(eta=0), LossConfig(beta=0)):
        with pytest.raises(ValueError, match="need token Gaussians"):
            prota_loss(points.head.score(texts, videos), texts, videos, logit_scale=scale, config=config)


def test_sigmoid_decides_about_pairs_one_by_one() -> None:
    """By hand, for two texts and two videos: four decisions, and each direction counts all of them."""
    scores, scale, bias = torch.tensor([[0.4, 0.1], [0.0, 0.3]]), torch.tensor(10.0), torch.tensor(-2.0)
    config = LossConfig(contrast="sigmoid", eta=0)
    found = directional_loss(scores, torch.arange(2), margin=None, scale=scale, config=config, bias=bias)
    decisions = [math.log1p(math.exp(-2)), math.log1p(math.exp(-1)), math.log1p(math.exp(-2)), math.log1p(math.exp(-1))]
    assert float(found) == pytest.approx(sum(decisions) / 2, abs=1e-6)
    with pytest.raises(ConfigError, match="soft_targets"):
        LossConfig(contrast="sigmoid", soft_targets=0.1)
