"""The fused score matrix and its gradients: what is launched, with what, and how the autograd engine sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from prota.config.model import ScoreConfig, Temperature
from prota.kernels.tiles import Operand, Tiling, centre, choose_tiling, operand, pad_words
from prota.types import PreparedTokens

__all__ = ["Maths", "gradients", "kernel_arguments", "launch_forward", "score", "score_operands"]

_SHIFTED, _CAREFUL, _HARD = 0, 1, 2
# The exponent that the largest possible value gets: room for sums of 128 tokens above, 2^-215 of it below.
_TOP_EXPONENT = 115.0
# Beyond this sharpness the room is too small for what values there are; each token then needs its own maximum.
_MOST_SHIFTED = 128.0
# Programs that share the repair of what underflowed: usually nothing.
_REPAIRERS = 132
# Fastest of those tried on an H200 (benchmarks/kernels.py --tune).
_FORWARD = {"columns": 128, "warps": 8, "stages": 3, "group": 32}
_BACKWARD = {"columns": 64, "warps": 8, "stages": 3, "group": 8}
# Of the gradients of token products, how much exists at a time.
_WORKSPACE_BYTES = 2**29


@dataclass(frozen=True)
class Maths:
    """The score's settings as the kernels take them."""

    similarity: str
    offset: float
    inter: bool
    kernels: int
    normalised: bool
    low: Temperature
    high: Temperature
    bandwidth: float

    @classmethod
    def of(cls, config: ScoreConfig) -> Maths:
        return cls(
            similarity=config.similarity,
            offset=config.offset if config.similarity == "offset" else 0.0,
            inter=config.weights == "intra+inter",
            kernels=config.kernels if config.gram == "gaussian" else 0,
            normalised=config.weighting == "normalised",
            low=config.lambda_,
            high=config.xi,
            bandwidth=config.bandwidth_value,
        )

    def arguments(self, careful: bool) -> dict[str, Any]:
        """Names and values of the kernels' own parameters."""
        root = self.similarity in ("offset", "printed")
        low, low_rate, low_shift = _softmax(self.low, self.offset if root else 1.0, careful)
        high, inter_rate, inter_shift = _softmax(self.high, 1.0, careful)
        widest = self.bandwidth * 2.0 ** (self.kernels - self.kernels // 2)
        return {
            "low_rate": low_rate,
            "low_shift": low_shift,
            # Gram entries enter as sums over kernels.
            "inter_rate": inter_rate / max(1, self.kernels),
            "inter_shift": inter_shift,
            "scale": -math.log2(math.e) / widest,
            "offset": self.offset,
            "GAUSSIANS": self.similarity != "cosine",
            "ROOT": root,
            "INTER": self.inter,
            "KERNELS": self.kernels,
            "NORMALISED": self.normalised,
            "LOW": low,
            "HIGH": high,
        }

    @property
    def may_underflow(self) -> bool:
        """Whether some tiles may have to be repaired."""
        return 0 in (self.arguments(False)["LOW"], self.arguments(False)["HIGH"])


def _softmax(temperature: Temperature, bound: float, careful: bool) -> tuple[int, float, float]:
    """How it is taken, its sharpness in base 2, and the exponent's shift for values up to ``bound``."""
    if temperature == "max":
        return _HARD, 0.0, 0.0
    assert not isinstance(temperature, str)
    rate = temperature * math.log2(math.e)
    if careful or temperature > _MOST_SHIFTED:
        return _CAREFUL, rate, 0.0
    return _SHIFTED, rate, _TOP_EXPONENT - rate * bound


def kernel_arguments(videos: Operand, texts: Operand, tiling: Tiling, precision: str | None = None) -> dict[str, Any]:
    """What forward and backward take alike."""
    (b, m, d), (a, _, _) = videos.shape, texts.shape
    return {
        "video_direction": videos.direction,
        "video_spread": videos.direction if videos.spread is None else videos.spread,
        "video_norm": videos.half_norm,
        "video_weight": videos.weight,
        "video_mask": videos.mask,
        "text_direction": texts.direction,
        "text_spread": texts.direction if texts.spread is None else texts.spread,
        "text_norm": texts.half_norm,
        "text_weight": texts.weight,
        "text_mask": texts.mask,
        "A": a, "B": b, "STEPS": d, "M": m, "D": d,
        "FRAMES": tiling.frames, "PIECES": tiling.pieces, "TEXTS": tiling.texts, "WORDS": tiling.words,
        "DEPTH": tiling.depth, "GROUP": tiling.group, "PRECISION": precision or _precision(videos.direction.dtype),
        "num_warps": tiling.warps, "num_stages": tiling.stages,
    }  # fmt: skip


def _precision(dtype: torch.dtype) -> str:
    """How products of single-precision tokens are taken: on tensor cores in three parts, as good as single."""
    return "tf32x3" if dtype == torch.float32 else "ieee"


def score_operands(
    texts: Operand, videos: Operand, maths: Maths, tiling: Tiling | None = None, precision: str | None = None
) -> Tensor:
    """Scores [A, B], fp32, without gradients."""
    (b, m, d), (a, n, _) = videos.shape, texts.shape
    tiling = tiling or choose_tiling(n, m, d, videos.direction.dtype.itemsize, **_FORWARD)
    scores = videos.weight.new_empty(a, b)
    arguments = kernel_arguments(videos, texts, tiling, precision) | {"allowed": scores, "FILTER": False}
    programs = -(-a // tiling.texts) * -(-b // tiling.videos)
    launch_forward(arguments, maths, programs, scores=scores, chosen=scores, OUTPUT="matrix", CHOSEN=1)
    return scores


def launch_forward(arguments: dict[str, Any], maths: Maths, programs: int, **output: Any) -> None:
    """Run the forward kernel, and once more for the tiles in which a sum of exponentials underflowed."""
    from prota.kernels.triton_forward import forward_kernel

    _launch(forward_kernel, arguments | output, maths, programs)


def _launch(kernel: Any, arguments: dict[str, Any], maths: Maths, programs: int) -> None:
    # The number of broken tiles, then which.
    broken = torch.empty(1 + programs, dtype=torch.int32, device=arguments["video_mask"].device)
    broken[:1] = 0
    # Triton launches on the current GPU, which need not be the one of the tokens.
    with torch.cuda.device_of(broken):  # type: ignore[no-untyped-call]
        kernel[(programs,)](**arguments, **maths.arguments(False), broken=broken, REPAIR=False)
        if maths.may_underflow:
            kernel[(min(programs, _REPAIRERS),)](**arguments, **maths.arguments(True), broken=broken, REPAIR=True)


class _Score(torch.autograd.Function):
    """The score matrix of two operands, differentiable in everything but the masks."""

    @staticmethod
    def forward(ctx: Any, maths: Maths, masks: tuple[Tensor, Tensor], *tensors: Tensor) -> Tensor:
        """``tensors``: direction, spread (if any), half norm and weight of the texts, then of the videos."""
        ctx.maths, ctx.masks = maths, masks
        ctx.save_for_backward(*tensors)
        return score_operands(*_operands(masks, tensors), maths)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        sides = gradients(*_operands(ctx.masks, ctx.saved_tensors), gradient, ctx.maths)
        return None, None, *(part for side in sides for part in (*_products_of(side), side.half_norm, side.weight))


def _operands(masks: tuple[Tensor, Tensor], tensors: tuple[Tensor, ...]) -> tuple[Operand, Operand]:
    half = len(tensors) // 2
    text, video = tensors[:half], tensors[half:]
    spreads = (text[1], video[1]) if half == 4 else (None, None)
    return (
        Operand(text[0], spreads[0], text[-2], text[-1], masks[0]),
        Operand(video[0], spreads[1], video[-2], video[-1], masks[1]),
    )


def gradients(
    texts: Operand,
    videos: Operand,
    gradient: Tensor,
    maths: Maths,
    tiling: Tiling | None = None,
    workspace_bytes: int = _WORKSPACE_BYTES,
) -> tuple[Operand, Operand]:
    """Gradients of both operands (in their fields) from the gradient [A, B] of the scores.

    Works through blocks of texts, so that the gradients of token products never exist for all pairs.
    """
    (b, m, d), (a, n, _) = videos.shape, texts.shape
    tiling = tiling or choose_tiling(n, m, d, videos.direction.dtype.itemsize, **_BACKWARD)
    # Gradients are too small for fp16.
    dtype = torch.float32 if videos.direction.dtype == torch.float16 else videos.direction.dtype
    text_parts, video_parts = _products_of(texts), _products_of(videos)
    size = max(1, workspace_bytes // (b * m * n * dtype.itemsize * len(text_parts) * tiling.texts)) * tiling.texts
    size = min(size, a)
    workspace = [gradient.new_empty(b * m * size * n, dtype=dtype) for _ in text_parts]
    of_texts = [gradient.new_empty(a * n, d) for _ in text_parts]
    of_videos = [gradient.new_zeros(b * m, d) for _ in text_parts]
    sums: list[tuple[Tensor, ...]] = []
    for start in range(0, a, size):
        here = slice(start, start + size)
        block = texts.map(partial(_items, which=here))
        count = block.shape[0]
        flat = [space[: b * m * count * n].view(b * m, count * n) for space in workspace]
        sums.append(_launch_backward(block, videos, gradient[here].contiguous(), maths, tiling, flat))
        for index, products in enumerate(flat):
            of_videos[index] += _product(products, text_parts[index][here].reshape(-1, d).to(dtype))
            of_text = _product(products.T, video_parts[index].reshape(-1, d).to(dtype))
            of_texts[index][start * n : (start + count) * n] = of_text
    text_weight, text_norm, video_weight, video_norm = zip(*sums, strict=True)
    return (
        _gradient_operand(texts, of_texts, torch.cat(text_norm), torch.cat(text_weight)),
        _gradient_operand(videos, of_videos, torch.stack(video_norm).sum(0), torch.stack(video_weight).sum(0)),
    )


def _items(tensor: Tensor, which: slice) -> Tensor:
    return tensor[which]


def _products_of(items: Operand) -> list[Tensor]:
    """What dot products are taken of."""
    return [items.direction] if items.spread is None else [items.direction, items.spread]


def _gradient_operand(like: Operand, parts: list[Tensor], norm: Tensor, weight: Tensor) -> Operand:
    direction, *spread = [part.view(like.shape).to(like.direction.dtype) for part in parts]
    # Padding has no weight to learn, whatever a maximum over nothing says (it may be infinite).
    weight = weight.view(like.mask.shape).masked_fill(like.mask == 0, 0)
    return Operand(direction, spread[0] if spread else None, norm.view(like.mask.shape), weight, like.mask)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product in fp32, whatever goes in."""
    return left @ right if left.dtype == torch.float32 else torch.mm(left, right, out_dtype=torch.float32)


def _launch_backward(
    texts: Operand, videos: Operand, gradient: Tensor, maths: Maths, tiling: Tiling, products: list[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fill the gradients of the products; returns those of weights and half norms, of texts [A N], videos [B M]."""
    from prota.kernels.triton_backward import backward_kernel

    (b, m, _), (a, n, _) = videos.shape, texts.shape
    text_tiles, video_tiles = -(-a // tiling.texts), -(-b // tiling.videos)
    text_weight, text_norm = (gradient.new_zeros(video_tiles, a * n) for _ in range(2))
    video_weight, video_norm = (gradient.new_zeros(text_tiles, b * m) for _ in range(2))
    arguments = kernel_arguments(videos, texts, tiling)
    arguments |= {
        "score_gradient": gradient,
        "angle_gradient": products[0], "spread_gradient": products[-1],
        "text_weight_gradient": text_weight, "text_norm_gradient": text_norm,
        "video_weight_gradient": video_weight, "video_norm_gradient": video_norm,
    }  # fmt: skip
    _launch(backward_kernel, arguments, maths, text_tiles * video_tiles)
    return text_weight.sum(0), text_norm.sum(0), video_weight.sum(0), video_norm.sum(0)


def score(
    texts: PreparedTokens, videos: PreparedTokens, config: ScoreConfig, dtype: torch.dtype | None = None
) -> Tensor:
    """Scores [A, B] as `ScoreHead.score` gives them, with gradients; ``dtype``: of the products' operands."""
    common = centre(videos)
    sides = operand(pad_words(texts), common, dtype), operand(videos, common, dtype)
    maths = Maths.of(config)
    if torch.is_grad_enabled() and any(tensor.requires_grad for side in sides for tensor in side.tensors):
        tensors = (tensor for side in sides for tensor in (*_products_of(side), side.half_norm, side.weight))
        result: Tensor = _Score.apply(maths, (sides[0].mask, sides[1].mask), *tensors)  # type: ignore[no-untyped-call]
        return result
    return score_operands(*sides, maths)
