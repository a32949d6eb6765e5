"""The score on a CPU in one fused pass of C, for inference: values only, float32, no pair tensor in memory.

The C is compiled at its first use (`cpu_build`); where that cannot be, `supports` says so and the readable score
serves. Padding costs nothing: only products of real tokens are computed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from prota.config import ScoreConfig, Temperature
from prota.kernels import cpu_build, tiles
from prota.types import PreparedTokens

__all__ = ["RoundedTokens", "round_tokens", "score", "supports"]

_LOG = logging.getLogger(__name__)
_SIMILARITIES = ("cosine", "squared", "offset", "printed")
_GRAMS = ("none", "gaussian", "dot")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LOG2_E = math.log2(math.e)
# What stands for padding in the C, times a smaller one, would no longer vanish in a softmax.
_LEAST_TEMPERATURE = 1e-20


@dataclass(frozen=True)
class RoundedTokens:
    """Prepared tokens as bytes: three tenths of the memory, scores in two fifths of the time and right to about 1e-3.

    Every token has a scale of its own; spreads are kept less ``centre``, which both sides of a score must share.
    """

    direction: Tensor
    """[A, N, bytes]."""
    spread: Tensor | None
    """[A, N, bytes]; None where tokens are points."""
    weight: Tensor
    """[A, N]."""
    mask: Tensor
    """[A, N] bool."""
    centre: Tensor | None
    """[D], what was taken from all spreads before rounding."""
    width: int
    """D."""

    def __len__(self) -> int:
        return self.mask.shape[0]


class _Side(ctypes.Structure):
    _fields_ = (
        ("direction", ctypes.c_void_p),
        ("spread", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("items", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
    )


class _Settings(ctypes.Structure):
    _fields_ = (
        ("similarity", ctypes.c_int32),
        ("gram", ctypes.c_int32),
        ("kernels", ctypes.c_int32),
        ("normalised", ctypes.c_int32),
        ("rounded", ctypes.c_int32),
        ("offset", ctypes.c_float),
        ("exponent", ctypes.c_float),
        ("low", ctypes.c_float),
        ("inter", ctypes.c_float),
    )


def supports(
    config: ScoreConfig, texts: PreparedTokens, videos: PreparedTokens | RoundedTokens, int8: bool = False
) -> str | None:
    """None where `score` can compute this; otherwise why not, in one line. The first call may compile, about 1 s."""
    if config.aggregation == "pooling":
        return "score.aggregation='pooling' is one matrix product already"
    if config.bandwidth == "batch":
        return "score.bandwidth='batch' has token weights per pair"
    if config.bandwidth == "learned" and torch.is_grad_enabled():
        return "score.bandwidth='learned' wants a gradient"
    if any(value != "max" and value < _LEAST_TEMPERATURE for value in (config.lambda_, config.xi)):
        return f"score.lambda_ or score.xi is below {_LEAST_TEMPERATURE}"
    for name, items in (("texts", texts), ("videos", videos)):
        reason = _unsupported(items, config)
        if reason:
            return f"{name} {reason}"
    if _width(texts) != _width(videos):
        return f"texts have width {_width(texts)}, videos {_width(videos)}"
    library = _library()
    if isinstance(library, str):
        return library
    rounded = int8 or isinstance(videos, RoundedTokens)
    return "this CPU has no products of bytes (AVX512-VNNI)" if rounded and not _rounded_bytes(1) else None


def _unsupported(items: PreparedTokens | RoundedTokens, config: ScoreConfig) -> str | None:
    if (items.spread is not None) != config.probabilistic:
        return "were prepared by another kind of model"
    if isinstance(items, RoundedTokens):
        return None
    if items.weight is None:
        return "have no token weights"
    tensors = [tensor for tensor in (items.direction, items.spread, items.weight) if tensor is not None]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return f"are on {items.direction.device}"
    if any(tensor.dtype not in _DTYPES for tensor in tensors):
        return f"are {items.direction.dtype}: the CPU kernel computes in float32"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "want gradients"
    return None


def score(
    texts: PreparedTokens,
    videos: PreparedTokens | RoundedTokens,
    config: ScoreConfig,
    bandwidth: float,
    int8: bool = False,
) -> Tensor:
    """`ScoreHead.score` of every text with every video, [A, B] float32, on torch's threads.

    In float32 a score depends on its pair alone, to the last bit: not on its place, its neighbours or the threads.
    ``bandwidth`` is b of the Gaussian kernels. ``int8``: from tokens rounded to bytes, which moves scores a little;
    videos may also come rounded. ValueError where `supports` says no.
    """
    reason = supports(config, texts, videos, int8)
    if reason:
        raise ValueError(f"the CPU kernel cannot score this: {reason}")
    result = torch.empty(len(texts), len(videos))
    if not result.numel():
        return result
    if int8 and isinstance(videos, PreparedTokens):
        videos = round_tokens(videos)
    rounded = isinstance(videos, RoundedTokens)
    text_side, text_tensors = _side(round_tokens(texts, videos.centre) if isinstance(videos, RoundedTokens) else texts)
    video_side, video_tensors = _side(videos)
    settings = _settings(config, bandwidth, rounded)
    arguments = (_width(texts), settings, torch.get_num_threads(), result.data_ptr())
    # The score is the same for both sides: the longer list goes into the lanes of the vectors.
    if len(texts) > len(videos):
        failed = _loaded().prota_score(video_side, text_side, *arguments, 1, len(videos))
    else:
        failed = _loaded().prota_score(text_side, video_side, *arguments, len(videos), 1)
    # Until here the C reads memory that belongs to these.
    del text_tensors, video_tensors
    _check_memory(failed)
    return result


def round_tokens(items: PreparedTokens, centre: Tensor | None = None) -> RoundedTokens:
    """Prepared tokens as bytes, for many scores; ``centre`` is that of the other side, if it was rounded before."""
    if not _rounded_bytes(1) or items.weight is None:
        raise ValueError("these tokens cannot be rounded: no weights, or a CPU without products of bytes")
    mask, spread = items.mask.contiguous(), None
    if items.spread is not None:
        if centre is None:
            centre = tiles.centre(items)
        spread = _round(_plain(items.spread), centre, mask)
    direction = _round(_plain(items.direction), None, mask)
    return RoundedTokens(direction, spread, _plain(items.weight), mask, centre, items.direction.shape[2])


def _round(values: Tensor, centre: Tensor | None, mask: Tensor) -> Tensor:
    width = values.shape[2]
    result = torch.empty(*mask.shape, _rounded_bytes(width), dtype=torch.int8)
    start = None if centre is None else centre.data_ptr()
    threads = torch.get_num_threads()
    pointers = (values.data_ptr(), start, mask.data_ptr())
    _check_memory(_loaded().prota_round(*pointers, mask.numel(), width, threads, result.data_ptr()))
    return result


def _check_memory(failed: int) -> None:
    if failed:
        raise MemoryError("no memory for the buffers of the CPU kernel")


@functools.cache
def _library() -> ctypes.CDLL | str:
    library = cpu_build.load()
    if isinstance(library, str):
        _LOG.warning("scores are computed by the reference, not by the fused pass for CPUs: %s", library)
        return library
    return declare(library)


def _loaded() -> ctypes.CDLL:
    library = _library()
    if isinstance(library, str):
        raise ValueError(library)
    return library


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes what the C functions take."""
    number, address, side = ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(_Side)
    library.prota_score.argtypes = (side, side, number, ctypes.POINTER(_Settings), number, address, number, number)
    library.prota_round.argtypes = (address, address, address, number, number, number, address)
    library.prota_rounded_bytes.argtypes = (number,)
    library.prota_rounded_bytes.restype = number
    return library


def _rounded_bytes(width: int) -> int:
    """What one rounded token takes; 0 where there are none."""
    return int(_loaded().prota_rounded_bytes(width))


def _side(items: PreparedTokens | RoundedTokens) -> tuple[_Side, list[Tensor]]:
    """One side as the C takes it, and the tensors that its pointers belong to."""
    assert items.weight is not None
    direction, spread = items.direction, items.spread
    if isinstance(items, PreparedTokens):
        direction, spread = _plain(direction), None if spread is None else _plain(spread)
    # Neighbours in the order of their lengths share a vector, so that little of it is padding.
    weight, mask, order = _plain(items.weight), items.mask.contiguous(), items.mask.sum(dim=1).argsort()
    tensors = [direction, direction if spread is None else spread, weight, mask, order]
    pointers = [tensor.data_ptr() for tensor in tensors]
    if spread is None:
        pointers[1] = 0
    return _Side(*pointers, *mask.shape), tensors


def _width(items: PreparedTokens | RoundedTokens) -> int:
    return items.width if isinstance(items, RoundedTokens) else items.direction.shape[2]


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).contiguous()


def _settings(config: ScoreConfig, bandwidth: float, rounded: bool) -> _Settings:
    return _Settings(
        similarity=_SIMILARITIES.index(config.similarity),
        gram=_GRAMS.index(config.gram if config.weights == "intra+inter" else "none"),
        kernels=config.kernels,
        normalised=config.weighting == "normalised",
        rounded=rounded,
        offset=config.offset,
        # The widest kernel as a power of two: the others are its repeated squares.
        exponent=-_LOG2_E / (bandwidth * 2.0 ** (config.kernels - config.kernels // 2)),
        low=_rate(config.lambda_),
        inter=_rate(config.xi),
    )


def _rate(temperature: Temperature) -> float:
    """As an exponent of two; 0 stands for the hard maximum."""
    return 0.0 if temperature == "max" else temperature * _LOG2_E
