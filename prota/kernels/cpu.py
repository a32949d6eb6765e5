"""The score on a CPU in one fused pass of C, for inference: values only, float32, no pair tensor in memory.

The C is compiled at its first use (`cpu_build`); where that cannot be, `supports` says so and the readable score
serves. Padding costs nothing: only products of real tokens are computed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math

import torch
from torch import Tensor

from prota.config.model import ScoreConfig, Temperature
from prota.kernels import cpu_build
from prota.types import PreparedTokens

__all__ = ["score", "supports"]

_LOG = logging.getLogger(__name__)
_SIMILARITIES = ("cosine", "squared", "offset", "printed")
_GRAMS = ("none", "gaussian", "dot")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LOG2_E = math.log2(math.e)
# What stands for padding in the C, times a smaller one, would no longer vanish in a softmax.
_LEAST_TEMPERATURE = 1e-20


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
        ("offset", ctypes.c_float),
        ("exponent", ctypes.c_float),
        ("low", ctypes.c_float),
        ("inter", ctypes.c_float),
    )


def supports(config: ScoreConfig, texts: PreparedTokens, videos: PreparedTokens) -> str | None:
    """None where `score` can compute this; otherwise why not, in one line. The first call may compile, about 1 s."""
    if config.aggregation == "pooling":
        return "score.aggregation='pooling' is one matrix product already"
    if any(value != "max" and value < _LEAST_TEMPERATURE for value in (config.lambda_, config.xi)):
        return f"score.lambda_ or score.xi is below {_LEAST_TEMPERATURE}"
    for name, items in (("texts", texts), ("videos", videos)):
        reason = _unsupported(items, config)
        if reason:
            return f"{name} {reason}"
    if texts.direction.shape[2] != videos.direction.shape[2]:
        return f"texts have width {texts.direction.shape[2]}, videos {videos.direction.shape[2]}"
    library = _library()
    return library if isinstance(library, str) else None


def _unsupported(items: PreparedTokens, config: ScoreConfig) -> str | None:
    if (items.spread is not None) != config.probabilistic:
        return "were prepared by another kind of model"
    tensors = [tensor for tensor in (items.direction, items.spread, items.weight) if tensor is not None]
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return f"are on {items.direction.device}"
    if any(tensor.dtype not in _DTYPES for tensor in tensors):
        return f"are {items.direction.dtype}: the CPU kernel computes in float32"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "want gradients"
    return None


def score(texts: PreparedTokens, videos: PreparedTokens, config: ScoreConfig) -> Tensor:
    """`ScoreHead.score` of every text with every video, [A, B] float32, on torch's threads.

    A score depends on its pair alone, to the last bit: not on its place, its neighbours or the threads. ValueError
    where `supports` says no.
    """
    reason = supports(config, texts, videos)
    if reason:
        raise ValueError(f"the CPU kernel cannot score this: {reason}")
    result = torch.empty(len(texts), len(videos))
    if not result.numel():
        return result
    text_side, text_tensors = _side(texts)
    video_side, video_tensors = _side(videos)
    settings, library = _settings(config), _library()
    assert not isinstance(library, str)
    arguments = (texts.direction.shape[2], settings, torch.get_num_threads(), result.data_ptr())
    # The score is the same for both sides: the longer list goes into the lanes of the vectors.
    if len(texts) > len(videos):
        failed = library.prota_score(video_side, text_side, *arguments, 1, len(videos))
    else:
        failed = library.prota_score(text_side, video_side, *arguments, len(videos), 1)
    # Until here the C reads memory that belongs to these.
    del text_tensors, video_tensors
    if failed:
        raise MemoryError("no memory for the buffers of the CPU kernel")
    return result


@functools.cache
def _library() -> ctypes.CDLL | str:
    library = cpu_build.load()
    if isinstance(library, str):
        _LOG.warning("scores are computed by the reference, not by the fused pass for CPUs: %s", library)
        return library
    return declare(library)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes what the C function takes."""
    number, address, side = ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(_Side)
    library.prota_score.argtypes = (side, side, number, ctypes.POINTER(_Settings), number, address, number, number)
    return library


def _side(items: PreparedTokens) -> tuple[_Side, list[Tensor | None]]:
    """One side as the C takes it, and the tensors that its pointers belong to."""
    # Neighbours in the order of their lengths share a vector, so that little of it is padding.
    order, mask = items.mask.sum(dim=1).argsort(), items.mask.contiguous()
    spread = None if items.spread is None else _plain(items.spread)
    tensors = [_plain(items.direction), spread, _plain(items.weight), mask, order]
    pointers = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return _Side(*pointers, *mask.shape), tensors


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32).contiguous()


def _settings(config: ScoreConfig) -> _Settings:
    return _Settings(
        similarity=_SIMILARITIES.index(config.similarity),
        gram=_GRAMS.index(config.gram if config.weights == "intra+inter" else "none"),
        kernels=config.kernels,
        normalised=config.weighting == "normalised",
        offset=config.offset,
        # The widest kernel as a power of two: the others are its repeated squares.
        exponent=-_LOG2_E / (config.bandwidth_value * 2.0 ** (config.kernels - config.kernels // 2)),
        low=_rate(config.lambda_),
        inter=_rate(config.xi),
    )


def _rate(temperature: Temperature) -> float:
    """As an exponent of two; 0 stands for the hard maximum."""
    return 0.0 if temperature == "max" else temperature * _LOG2_E
