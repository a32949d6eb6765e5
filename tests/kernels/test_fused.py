"""The fused score and its gradients against the readable ones in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prota.config.model import ScoreConfig
from prota.kernels import fused
from prota.kernels.tiles import centre, operand, pad_words
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens
from tests.kernels.fused_cases import (
    DEVICE,
    DTYPES,
    FUSED_VARIANTS,
    TOLERANCES,
    assert_equal_gradients,
    make,
    score_and_gradients,
    single,
)

pytestmark = pytest.mark.interpreter

pytest.importorskip("triton")
# (texts, words, videos, frames): every odd number of each, and widths that no step divides.
SHAPES = [
    (1, 1, 1, 1),
    (3, 7, 3, 5),
    (1, 31, 129, 1),
    (129, 7, 3, 12),
    (3, 33, 1, 64),
    (3, 77, 2, 7),
    (2, 77, 3, 64),
    (2, 1, 5, 33),
    (129, 1, 129, 1),
]


def compare(score: dict[str, object], shape: tuple[int, int, int, int], dtype: torch.dtype, width: int = 32) -> None:
    head, texts, videos = make(score, *shape, width=width)
    into = torch.randn(shape[0], shape[2], dtype=torch.float64, device=DEVICE)
    expected, expected_gradients = score_and_gradients(head, texts, videos, head.reference_score, into)

    def fused_score(left: PreparedTokens, right: PreparedTokens) -> Tensor:
        return fused.score(single(left), single(right), head.config, dtype)

    actual, gradients = score_and_gradients(head, texts, videos, fused_score, into)
    absolute, relative = TOLERANCES[dtype]
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=absolute, atol=absolute)
    assert_equal_gradients(gradients, expected_gradients, relative)


@pytest.mark.parametrize("variant", FUSED_VARIANTS)
def test_every_setting_gives_the_values_and_gradients_of_the_reference(variant: str) -> None:
    compare(FUSED_VARIANTS[variant], (5, 9, 6, 12), torch.float32)


@pytest.mark.parametrize("kernels", range(1, 10))
def test_every_number_of_kernels(kernels: int) -> None:
    compare({"kernels": kernels}, (3, 5, 3, 4), torch.float32)


@pytest.mark.parametrize("temperature", [50, 200, 400])
@pytest.mark.parametrize("similarity", ["cosine", "squared", "offset", "printed"])
def test_sharper_softmaxes(temperature: float, similarity: str) -> None:
    compare({"lambda_": temperature, "xi": temperature, "similarity": similarity}, (3, 5, 4, 4), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    compare({}, shape, dtype, width=40 if shape[0] < 129 else 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_points_and_normalised_weights_in_every_dtype(dtype: torch.dtype) -> None:
    compare({"similarity": "cosine"}, (3, 9, 5, 12), dtype)
    compare({"weighting": "normalised", "lambda_": "max"}, (3, 9, 5, 12), dtype)


@pytest.mark.parametrize("weighting", ["literal", "normalised"])
@pytest.mark.parametrize("similarity", ["squared", "printed"])
def test_wide_spreads_that_swamp_the_means(similarity: str, weighting: str) -> None:
    """Similarities far from zero: differences of them must not lose what makes a gradient."""
    head, texts, videos = make({"similarity": similarity, "weighting": weighting}, 5, 9, 6, 12)
    with torch.no_grad():
        for side in (head.text, head.video):
            side.gaussian.log_var[-1].bias.add_(6)
    into = torch.randn(5, 6, dtype=torch.float64, device=DEVICE)
    expected, expected_gradients = score_and_gradients(head, texts, videos, head.reference_score, into)

    def fused_score(left: PreparedTokens, right: PreparedTokens) -> Tensor:
        return fused.score(single(left), single(right), head.config)

    actual, gradients = score_and_gradients(head, texts, videos, fused_score, into)
    assert float(expected.abs().max()) > 5
    torch.testing.assert_close(actual.double(), expected, rtol=2e-5, atol=2e-5)
    assert_equal_gradients(gradients, expected_gradients, TOLERANCES[torch.float32][1])


@pytest.mark.parametrize("similarity", ["squared", "offset", "printed"])
def test_padding_is_below_frames_however_wide(similarity: str) -> None:
    """Padding has no spread: beside a narrow word it would be the nearest of frames of the widest variance allowed."""
    head, texts, videos = make({"similarity": similarity}, 5, 9, 6, 12)
    with torch.no_grad():
        left, right = head.prepare_texts(texts), head.prepare_videos(videos)
    wide = right.spread * torch.exp(15 * torch.rand_like(right.spread) + 4)
    right = PreparedTokens(right.direction, wide, right.weight, right.mask)
    assert (~right.mask).any()
    expected = head.reference_score(left, right)
    actual = fused.score(single(left), single(right), head.config)
    torch.testing.assert_close(actual.double(), expected, rtol=2e-5, atol=0)


def far_apart(head: ScoreHead) -> tuple[PreparedTokens, PreparedTokens]:
    """Words whose every frame is nearly opposite: exponentials beside a constant shift all underflow."""
    direction = torch.nn.functional.normalize(torch.randn(16, dtype=torch.float64), dim=0).to(DEVICE)
    noise = 0.05 * torch.randn(2, 6, 5, 16, dtype=torch.float64, device=DEVICE)
    mask = torch.ones(6, 5, dtype=torch.bool, device=DEVICE)
    sides = []
    for sign, part in zip((-1, 1), noise, strict=True):
        unit = torch.nn.functional.normalize(sign * direction + part, dim=-1)
        sides.append(PreparedTokens(unit, None, torch.full_like(unit[..., 0], 0.2), mask))
    return sides[0], sides[1]


def test_tiles_that_underflow_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ScoreConfig(similarity="cosine")
    head = ScoreHead(16, config, make({}, 1, 1, 1, 1)[0].text.gaussian.config).to(DEVICE)
    texts, videos = far_apart(head)
    expected = head.reference_score(texts, videos)
    assert float(expected.max()) < 0, "the case must be one of opposite tokens"
    actual = fused.score(single(texts), single(videos), config)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(fused.Maths, "may_underflow", False)
    unrepaired = fused.score(single(texts), single(videos), config)
    assert not torch.allclose(unrepaired.double(), expected, rtol=1e-2), "nothing underflowed: the test tests nothing"


def test_gradients_of_tiles_that_underflow() -> None:
    config = ScoreConfig(similarity="cosine")
    head = ScoreHead(16, config, make({}, 1, 1, 1, 1)[0].text.gaussian.config).to(DEVICE)
    texts, videos = far_apart(head)
    into = torch.randn(6, 6, dtype=torch.float64, device=DEVICE)

    def gradient(score: Any, dtype: torch.dtype) -> Tensor:
        leaf = texts.direction.to(dtype).detach().clone().requires_grad_()
        given = PreparedTokens(leaf, None, texts.weight.to(dtype), texts.mask)
        score(given, videos.to(dtype)).backward(into.to(dtype))
        assert leaf.grad is not None
        return leaf.grad.double()

    expected = gradient(head.reference_score, torch.float64)
    actual = gradient(lambda left, right: fused.score(left, right, config), torch.float32)
    assert float((actual - expected).norm()) <= 1e-4 * float(expected.norm())


def test_every_output_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds whatever was there before: here NaN, which would come through."""
    real = Tensor.new_empty

    def poisoned(self: Tensor, *size: Any, **options: Any) -> Tensor:
        new = real(self, *size, **options)
        return new.fill_(torch.nan) if new.is_floating_point() else new

    monkeypatch.setattr(Tensor, "new_empty", poisoned)
    compare({}, (5, 9, 18, 12), torch.float32)
    compare({"similarity": "cosine", "weights": "uniform"}, (9, 3, 70, 1), torch.float32)


def operands() -> tuple[Any, Any, Tensor]:
    head, texts, videos = make({}, 37, 6, 9, 5)
    with torch.no_grad():
        left, right = single(head.prepare_texts(texts)), single(head.prepare_videos(videos))
    common = centre(right)
    return operand(pad_words(left), common), operand(right, common), torch.randn(37, 9, device=DEVICE)


def test_blocks_of_texts_change_no_gradient() -> None:
    texts, videos, into = operands()
    maths = fused.Maths.of(ScoreConfig())
    whole = fused.gradients(texts, videos, into, maths)
    blocks = fused.gradients(texts, videos, into, maths, workspace_bytes=1)
    for one, other in zip(whole, blocks, strict=True):
        for left, right in zip(one.tensors, other.tensors, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def test_equal_inputs_give_equal_gradients_to_the_last_bit() -> None:
    texts, videos, into = operands()
    maths = fused.Maths.of(ScoreConfig())
    first, second = (fused.gradients(texts, videos, into, maths) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one.tensors, other.tensors, strict=True))


def test_padding_gets_no_gradient() -> None:
    texts, videos, into = operands()
    for temperature in (100.0, "max"):
        maths = fused.Maths.of(ScoreConfig(lambda_=temperature, xi=temperature))
        for side, gradient in zip((texts, videos), fused.gradients(texts, videos, into, maths), strict=True):
            padding = side.mask == 0
            assert padding.any()
            for tensor in (gradient.direction, gradient.spread, gradient.weight, gradient.half_norm):
                assert not tensor[padding].any()
                assert tensor[~padding].any()


def test_gradients_where_one_tensor_alone_wants_them_and_twice() -> None:
    head, texts, videos = make({}, 3, 5, 4, 6)
    with torch.no_grad():
        left, right = single(head.prepare_texts(texts)), single(head.prepare_videos(videos))
    found = []
    for score in (head.float().reference_score, lambda one, other: fused.score(one, other, head.config)):
        weight = right.weight.clone().requires_grad_()
        scores = score(left, PreparedTokens(right.direction, right.spread, weight, right.mask))
        scores.sum().backward(retain_graph=True)
        scores.sum().backward()
        assert weight.grad is not None
        found.append(weight.grad.masked_fill(~right.mask, 0))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_are_refused() -> None:
    """They would miss what goes through the kernel: wrong, and no one would know."""
    head, texts, videos = make({}, 2, 3, 2, 3)
    with torch.no_grad():
        left, right = single(head.prepare_texts(texts)), single(head.prepare_videos(videos))
    leaves = [items.map(lambda tensor: tensor.clone()) for items in (left, right)]
    for items in leaves:
        for tensor in (items.direction, items.spread, items.weight):
            tensor.requires_grad_()
    scores = fused.score(*leaves, head.config)
    (gradient,) = torch.autograd.grad(scores.square().sum(), leaves[0].direction, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_run_where_the_tokens_are() -> None:
    head, texts, videos = make({}, 3, 5, 4, 6)
    with torch.no_grad():
        left, right = single(head.prepare_texts(texts)), single(head.prepare_videos(videos))
        expected = fused.score(left, right, head.config)
        elsewhere = fused.score(left.to("cuda:1"), right.to("cuda:1"), head.config)
    assert torch.equal(elsewhere.to(expected.device), expected)
