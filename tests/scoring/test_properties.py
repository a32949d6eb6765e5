"""What must never move a score, gradients of every branch, and the smallest and largest inputs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prota.config.model import DistributionConfig, ScoreConfig
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens, TokenGaussians, Tokens
from tests.cases import SCORE_VARIANTS, Case, random_head, random_tokens

variants = st.sampled_from(sorted(SCORE_VARIANTS))
lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**16)
quickly = settings(max_examples=60, deadline=None)


def make(variant: str, seed: int, text_lengths: tuple[int, ...], video_lengths: tuple[int, ...]) -> Case:
    torch.manual_seed(seed)
    return Case.random(ScoreConfig(**SCORE_VARIANTS[variant]), None, text_lengths, video_lengths, width=6)


def score(head: ScoreHead, texts: Tokens, videos: Tokens) -> Tensor:
    return head.score(head.prepare_texts(texts), head.prepare_videos(videos))


def padded(tokens: Tokens, extra: int, value: float) -> Tokens:
    embeddings = torch.nn.functional.pad(tokens.embeddings, (0, 0, 0, extra), value=value)
    return Tokens(embeddings, torch.nn.functional.pad(tokens.mask, (0, extra)))


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@quickly
@given(variants, seeds, lengths, lengths, st.integers(1, 4), st.sampled_from([0.0, 1e6, math.nan, math.inf]))
def test_padding_moves_no_score(
    variant: str, seed: int, text: tuple[int, ...], video: tuple[int, ...], extra: int, value: float
) -> None:
    case = make(variant, seed, text, video)
    longer = score(case.head, padded(case.texts, extra, value), padded(case.videos, extra, value))
    close(longer, case.scores())


@quickly
@given(variants, seeds, lengths, lengths)
def test_permuting_a_batch_permutes_its_scores(
    variant: str, seed: int, text: tuple[int, ...], video: tuple[int, ...]
) -> None:
    case = make(variant, seed, text, video)
    rows, columns = torch.randperm(len(text)), torch.randperm(len(video))
    close(score(case.head, case.texts[rows], case.videos[columns]), case.scores()[rows][:, columns])


@quickly
@given(variants, seeds, lengths, lengths, st.integers(1, 200))
def test_blocks_move_no_score(
    variant: str, seed: int, text: tuple[int, ...], video: tuple[int, ...], elements: int
) -> None:
    case = make(variant, seed, text, video)
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    close(case.head.reference_score(texts, videos, block_elements=elements), case.scores())


@quickly
@given(variants, seeds, lengths, lengths)
def test_a_pair_scores_alone_as_it_does_in_a_batch(
    variant: str, seed: int, text: tuple[int, ...], video: tuple[int, ...]
) -> None:
    case = make(variant, seed, text, video)
    alone = score(case.head, case.texts[-1:], case.videos[:1])
    close(alone[0, 0], case.scores()[-1, 0])


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
def test_dtype_moves_scores_within_tolerance(variant: str, dtype: torch.dtype, tolerance: float) -> None:
    # Raw MLP weights are unbounded, so tolerances are relative to the largest score.
    case = make(variant, 1, (4, 2), (3, 1))
    expected = case.scores().detach()
    actual = score(case.head.float(), case.texts.to(dtype), case.videos.to(dtype)).double()
    close(actual, expected, tolerance * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_one_word_one_frame_one_item(variant: str) -> None:
    case = make(variant, 2, (1,), (1,))
    assert case.scores().shape == (1, 1)
    close(case.scores(), case.oracle_scores(), 1e-9)


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_explanation_sums_to_the_score(variant: str) -> None:
    case = make(variant, 3, (5, 2), (3, 4))
    head, expected = case.head, case.scores().detach()
    for a in range(2):
        for b in range(2):
            text = head.prepare_texts(padded(case.texts[a : a + 1], 2, math.nan))
            explanation = head.explain(text, head.prepare_videos(case.videos[b : b + 1]))
            assert explanation.similarities.shape == ([5, 2][a], [3, 4][b])
            total = explanation.text_contributions.sum() + explanation.video_contributions.sum()
            assert explanation.score == float(total)
            assert explanation.score == pytest.approx(float(expected[a, b]), abs=1e-12)


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_fits_of_frames_are_those_that_explanations_tell(variant: str) -> None:
    case = make(variant, 3, (5, 2), (3, 4))
    head, texts, videos = case.head, case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    fits = head.frame_fits(texts, videos)
    for a in range(2):
        for b in range(2):
            told = head.explain(texts[a : a + 1], videos[b : b + 1]).video_low
            torch.testing.assert_close(fits[a, b][videos.mask[b]], told, rtol=1e-5, atol=1e-6)
            assert bool((fits[a, b][~videos.mask[b]] == -torch.inf).all())


def test_explain_wants_one_of_each() -> None:
    case = make("prota", 0, (2, 2), (2,))
    with pytest.raises(ValueError, match="one text and one video; got 2 texts and 1 videos"):
        case.head.explain(case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos))


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_gradients_of_every_branch(variant: str) -> None:
    """Analytic against numeric gradients in float64: for the tokens of both sides and every parameter of the head."""
    config = ScoreConfig(**SCORE_VARIANTS[variant])
    case = Case.random(config, None, (2, 3), (3, 1), width=3)
    head = case.head
    parameters = dict(head.named_parameters())

    def function(text: Tensor, video: Tensor, *values: Tensor) -> Tensor:
        replaced = dict(zip(parameters, values, strict=True))
        texts, videos = Tokens(text, case.texts.mask), Tokens(video, case.videos.mask)
        return torch.func.functional_call(_Scorer(head), {f"head.{k}": v for k, v in replaced.items()}, (texts, videos))

    tokens = [tokens.embeddings.nan_to_num(0.0).requires_grad_() for tokens in (case.texts, case.videos)]
    values = [parameter.detach().clone().requires_grad_() for parameter in parameters.values()]
    assert torch.autograd.gradcheck(function, (*tokens, *values), atol=1e-6, rtol=1e-4)


class _Scorer(torch.nn.Module):
    def __init__(self, head: ScoreHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, texts: Tokens, videos: Tokens) -> Tensor:
        return score(self.head, texts, videos)


@pytest.mark.parametrize("variant", SCORE_VARIANTS)
@pytest.mark.parametrize("token", [None, [1.0, 0.0, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_identical_tokens_have_finite_gradients(variant: str, dtype: torch.dtype, token: list[float] | None) -> None:
    """All words and frames the same point, and both sides the same heads: every distance is zero.

    Round numbers normalise without rounding, so that distances are zero to the last bit.
    """
    head = random_head(4, ScoreConfig(**SCORE_VARIANTS[variant])).to(dtype)
    head.video.load_state_dict(head.text.state_dict())
    point = torch.randn(4, dtype=dtype) if token is None else torch.tensor(token, dtype=dtype)
    text = point.expand(2, 3, 4).clone().requires_grad_()
    video = point.expand(2, 2, 4).clone().requires_grad_()
    result = score(head, Tokens(text, torch.ones(2, 3).bool()), Tokens(video, torch.ones(2, 2).bool()))
    result.sum().backward()
    assert bool(result.isfinite().all())
    for gradient in (text.grad, video.grad, *(parameter.grad for parameter in head.parameters())):
        # Uniform and pooled heads have Gaussians' or no parameters that a score may leave without a gradient.
        assert gradient is None or bool(gradient.isfinite().all())
    assert text.grad is not None


def test_zero_tokens_have_finite_scores_and_gradients() -> None:
    for variant in SCORE_VARIANTS:
        head = random_head(4, ScoreConfig(**SCORE_VARIANTS[variant]))
        text = torch.zeros(1, 2, 4, dtype=torch.float64, requires_grad=True)
        result = score(head, Tokens(text, torch.ones(1, 2).bool()), random_tokens([2], 4))
        result.sum().backward()
        assert bool(result.isfinite().all()), variant
        assert bool(text.grad.isfinite().all()), variant


def test_squared_with_equal_variances_is_the_cosine_score() -> None:
    """A fresh probabilistic head (μ = f) whose variances are all equal scores as the deterministic one."""
    points = random_head(6, ScoreConfig(similarity="cosine"))
    gaussians = ScoreHead(6, ScoreConfig(similarity="squared"), DistributionConfig()).double()
    for side, source in ((gaussians.text, points.text), (gaussians.video, points.video)):
        side.weight.load_state_dict(source.weight.state_dict())
        torch.nn.init.zeros_(side.gaussian.log_var[-1].weight)
    texts, videos = random_tokens([4, 2], 6), random_tokens([3, 1, 2], 6)
    close(score(gaussians, texts, videos), score(points, texts, videos))


@pytest.mark.parametrize("kind", ["Tokens", "TokenGaussians"])
def test_an_item_of_padding_alone_is_refused(kind: str) -> None:
    mask = torch.tensor([[True, False], [False, False]])
    values = torch.zeros(2, 2, 3)
    with pytest.raises(ValueError, match=r"\[1\] have no real token"):
        Tokens(values, mask) if kind == "Tokens" else TokenGaussians(values, values, mask)


def test_what_is_stored_is_enough_to_score() -> None:
    """Prepared videos cut down to what a store keeps, joined with others, score as before."""
    case = make("prota", 5, (3, 2), (4, 1, 2))
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    parts = [case.head.prepare_videos(case.videos[:1]), case.head.prepare_videos(case.videos[1:])]
    shorter = PreparedTokens(*(t[:, :2] if t is not None else None for t in _columns(parts[1])))
    joined = PreparedTokens.cat([parts[0].without_source(), shorter])
    close(case.head.score(texts, joined), case.head.score(texts, videos))


def _columns(item: PreparedTokens) -> tuple[Tensor | None, ...]:
    return item.direction, item.spread, item.weight, item.mask


def test_autocast_leaves_the_score_in_single_precision() -> None:
    case = make("prota", 6, (3, 2), (4, 1))
    head, texts, videos = case.head.float(), case.texts.to(torch.float32), case.videos.to(torch.float32)
    expected = score(head, texts, videos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = score(head, texts, videos)
    assert actual.dtype == torch.float32
    close(actual, expected, 0.0)


def test_no_pair_tensor_outgrows_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the block, not by A · B: no product of two batches is larger than one block allows."""
    from prota.scoring import score as module
    from prota.scoring import similarity

    largest = 0

    def watched(texts: Tensor, videos: Tensor) -> Tensor:
        nonlocal largest
        result = torch.einsum("and,bmd->abnm", texts, videos)
        largest = max(largest, result.numel())
        return result

    monkeypatch.setattr(similarity, "pair_dot", watched)
    head = ScoreHead(8, ScoreConfig(), DistributionConfig())
    tokens = [Tokens(torch.randn(200, n, 8), torch.ones(200, n, dtype=torch.bool)) for n in (32, 12)]
    with torch.no_grad():
        head.reference_score(head.prepare_texts(tokens[0]), head.prepare_videos(tokens[1]))
    assert 0 < largest <= module._BLOCK_ELEMENTS["cpu"] < 200 * 200 * 32 * 12


@pytest.mark.parametrize("similarity", ["squared", "offset", "printed"])
@pytest.mark.parametrize("log_var", [-10.0, -4.0, 0.0, 4.0])
def test_large_variances_do_not_cancel_in_single_precision(similarity: str, log_var: float) -> None:
    """Tokens of both sides whose wide Gaussians differ little: the distance is small, its terms are not."""
    torch.manual_seed(0)
    config = ScoreConfig(similarity=similarity)

    def side(tokens: int) -> PreparedTokens:
        direction = torch.nn.functional.normalize(torch.randn(3, tokens, 512, dtype=torch.float64), dim=-1)
        spread = torch.exp(log_var + 0.01 * torch.randn(3, tokens, 512, dtype=torch.float64))
        weight = torch.full((3, tokens), 1 / tokens, dtype=torch.float64)
        return PreparedTokens(direction, spread, weight, torch.ones(3, tokens, dtype=torch.bool))

    texts, videos = side(6), side(4)
    head = ScoreHead(512, config, DistributionConfig())
    expected = head.score(texts, videos)
    actual = head.score(texts.to(torch.float32), videos.to(torch.float32)).double()
    close(actual, expected, 1e-4 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variant", SCORE_VARIANTS)
def test_a_head_in_half_precision_works(variant: str, dtype: torch.dtype) -> None:
    case = make(variant, 1, (4, 2), (3, 1))
    expected = case.scores().detach()
    actual = score(case.head.to(dtype), case.texts.to(dtype), case.videos.to(dtype))
    assert actual.dtype == torch.float32
    close(actual.double(), expected, 0.1 * max(1.0, expected.abs().max().item()))


def test_tokens_stored_in_half_precision_score_with_others() -> None:
    case = make("prota", 2, (4, 2), (3, 1))
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    stored = videos.without_source().to(torch.float16)
    actual = case.head.score(texts.to(torch.float32), stored)
    close(actual.double(), case.scores().detach(), 1e-2)


def test_tokens_of_another_kind_of_model_are_refused() -> None:
    points, gaussians = make("dpa", 0, (2,), (2,)), make("prota", 0, (2,), (2,))
    prepared = [case.head.prepare_texts(case.texts) for case in (points, gaussians)]
    videos = [case.head.prepare_videos(case.videos) for case in (points, gaussians)]
    with pytest.raises(ValueError, match=r"these tokens are Gaussians, but .*='cosine' compares points"):
        points.head.score(prepared[0], videos[1])
    with pytest.raises(ValueError, match=r"these tokens are points, but .*='squared' compares Gaussians"):
        gaussians.head.explain(prepared[0], videos[1])


def test_no_texts_or_no_videos_score_to_an_empty_matrix() -> None:
    case = make("prota", 0, (2, 1), (2,))
    texts, videos = case.head.prepare_texts(case.texts), case.head.prepare_videos(case.videos)
    assert case.head.score(texts[:0], videos).shape == (0, 1)
    assert case.head.score(texts, videos[:0]).shape == (2, 0)


def test_autocast_leaves_explanations_alone() -> None:
    case = make("prota", 6, (3,), (4,))
    head = case.head.float()
    text, video = (
        head.prepare_texts(case.texts.to(torch.float32)),
        head.prepare_videos(case.videos.to(torch.float32)),
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        explanation = head.explain(text, video)
    assert explanation.score == pytest.approx(head.score(text, video).item(), abs=1e-6)


@pytest.mark.parametrize(("kernels", "least"), [(1, 0.025), (5, 0.00625), (16, 0.05 / 256)])
def test_normalised_weights_of_opposite_tokens_are_weights(kernels: int, least: float) -> None:
    """With the narrowest kernels that are allowed, in single precision: the score is that of uniform weights."""
    config = ScoreConfig(weighting="normalised", similarity="cosine", kernels=kernels, bandwidth_value=least)
    head = random_head(8, config).float()
    direction = torch.nn.functional.normalize(torch.ones(1, 3, 8), dim=-1).requires_grad_()
    texts, videos = (head_of(Tokens(value, torch.ones(1, 3, dtype=torch.bool))) for head_of, value in (
        (head.prepare_texts, direction), (head.prepare_videos, -direction)
    ))  # fmt: skip
    found = head.score(texts, videos, "reference")
    assert float(found.detach()) == pytest.approx(-1, abs=1e-4)
    (gradient,) = torch.autograd.grad(found.sum(), direction)
    assert bool(gradient.isfinite().all())
