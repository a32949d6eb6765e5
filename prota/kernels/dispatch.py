"""Which implementation computes a score: chosen by device, dtype and settings, or as told.

``auto`` takes the fused kernels on a GPU and the fused path on a CPU wherever they cover the settings, and the readable
reference elsewhere. That it had to is said once per reason on a GPU; on a CPU, where the reference trains, only that
there is no compiler. `using` changes what ``auto`` means for a while, and `recorded` tells what ran.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

import torch
from torch import Tensor

from prota.config.model import ScoreConfig
from prota.errors import UsageError
from prota.kernels import cpu
from prota.kernels.tiles import MOST_FRAMES, MOST_WORDS, Operand
from prota.types import PreparedTokens

__all__ = ["Backend", "check_bank", "choose", "fused_score", "note", "recorded", "using"]

Backend = Literal["auto", "reference", "triton", "cpu"]

_LOG = logging.getLogger(__name__)
_said: set[str] = set()
# Each thread has its own: one that compares backends must not choose for another that serves.
_default: ContextVar[Backend] = ContextVar("backend", default="auto")
_records: list[list[str]] = []
# What stands for padding in the kernels, times a smaller one, would no longer vanish in a softmax.
_LEAST_TEMPERATURE = 1e-7
# Ampere: bf16, and the shared memory that the tiles need.
_LEAST_CAPABILITY = (8, 0)


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """Within it, ``auto`` means this backend to this thread (for a whole command, or a comparison)."""
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}; got {backend!r}")
    before = _default.set(backend)
    try:
        yield
    finally:
        _default.reset(before)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """A list that grows by the name of each backend that computes scores meanwhile."""
    names: list[str] = []
    _records.append(names)
    try:
        yield names
    finally:
        # By identity: equal lists are not the same record.
        _records[:] = [record for record in _records if record is not names]


def note(backend: str) -> None:
    """Tell those who record what ran."""
    for record in _records:
        record.append(backend)


def choose(
    config: ScoreConfig, texts: PreparedTokens, videos: PreparedTokens, backend: Backend
) -> Literal["reference", "triton", "cpu"]:
    """What computes the score of these tokens; a backend that was asked for and cannot is refused."""
    _check_pair(texts, videos)
    backend = _default.get() if backend == "auto" else backend
    if backend == "reference":
        return "reference"
    if backend == "triton" or (backend == "auto" and _on_gpu(texts.direction)):
        lack = _triton_lacks(config, texts, videos, {texts.direction.dtype, videos.direction.dtype})
        chosen: Literal["triton", "cpu"] = "triton"
    else:
        lack = cpu.supports(config, texts, videos)
        chosen = "cpu"
    if lack is None:
        return chosen
    if backend != "auto":
        raise UsageError(f"backend={backend!r} cannot compute this score: {lack}; allowed here: reference")
    if chosen == "triton" and lack not in _said:
        _said.add(lack)
        _LOG.warning("scores are computed by the reference, not by the fused kernels: %s", lack)
    return "reference"


def check_bank(config: ScoreConfig, texts: PreparedTokens, videos: Operand, backend: Backend) -> None:
    """Refuse a search of stored videos that the fused kernels, which alone can search them, cannot do right."""
    _check_pair(texts, videos)
    backend = _default.get() if backend == "auto" else backend
    if backend not in ("auto", "triton"):
        raise ValueError(
            f"backend={backend!r} cannot search a VideoBank: give the prepared videos, or backend='triton'"
        )
    # Texts are rounded as the videos were.
    lack = _triton_lacks(config, texts, videos, {videos.direction.dtype})
    if lack is not None:
        raise ValueError(f"a VideoBank cannot be searched: {lack}; give the prepared videos instead")


def _check_pair(texts: PreparedTokens, videos: PreparedTokens | Operand) -> None:
    """Tokens that nothing can compare are refused."""
    left, right = texts.direction, videos.direction
    if left.device != right.device:
        raise ValueError(f"texts are on {left.device}, videos on {right.device}: move them to one device")
    if left.shape[2] != right.shape[2]:
        raise ValueError(f"texts have width {left.shape[2]}, videos {right.shape[2]}: prepare them with the same model")


def fused_score(
    chosen: Literal["triton", "cpu"], texts: PreparedTokens, videos: PreparedTokens, config: ScoreConfig
) -> Tensor:
    """Scores [A, B] by what `choose` chose."""
    if chosen == "cpu":
        return cpu.score(texts, videos, config)
    from prota.kernels import fused

    return fused.score(texts, videos, config)


def _on_gpu(tokens: Tensor) -> bool:
    return tokens.device.type == "cuda"


def _triton_lacks(
    config: ScoreConfig, texts: PreparedTokens, videos: PreparedTokens | Operand, dtypes: set[torch.dtype]
) -> str | None:
    """Why the fused kernels cannot; None where they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not _on_gpu(texts.direction):
        if os.environ.get("TRITON_INTERPRET") != "1":
            return f"these tokens are on {texts.direction.device}, not on a GPU"
    elif torch.cuda.get_device_capability(texts.direction.device) < _LEAST_CAPABILITY:
        return "this GPU is older than the kernels are made for (compute capability 8.0)"
    if any((items.spread is not None) != config.probabilistic for items in (texts, videos)):
        return "texts or videos were prepared by another kind of model"
    if config.aggregation == "pooling":
        return "score.aggregation='pooling' is one matrix product already"
    if any(value != "max" and value < _LEAST_TEMPERATURE for value in (config.lambda_, config.xi)):
        return f"score.lambda_ or score.xi is below {_LEAST_TEMPERATURE}"
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float16, torch.bfloat16}:
        return f"tokens are {' and '.join(sorted(map(str, dtypes)))}; the kernels take float32, float16 or bfloat16"
    words, frames = texts.mask.shape[1], videos.mask.shape[1]
    if words > MOST_WORDS or frames > MOST_FRAMES:
        return f"{words} words and {frames} frames; the kernels take up to {MOST_WORDS} and {MOST_FRAMES}"
    return None
