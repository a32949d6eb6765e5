"""The best of many stored videos for each text, without a row of scores per text.

A tile of videos hands on only its best score. The k best videos of a text lie in the k tiles with the best best
scores (equal ones: in the order of their places, as `ranking.top_k` has it): those tiles alone are scored again, one
by one, and their videos sorted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prota.config.model import ScoreConfig
from prota.kernels.fused import Maths, kernel_arguments, launch_forward
from prota.kernels.tiles import Operand, Tiling, centre, choose_tiling, operand, pad_words, power_of_two
from prota.types import PreparedTokens

__all__ = ["VideoBank", "top_k"]

# Texts side by side read a video's tokens from memory once.
_SEARCH = {"columns": 128, "warps": 8, "stages": 3, "group": 64}
_FEW = {"columns": 32, "warps": 4, "stages": 4, "group": 64}
_PART = 8192
# The least that the matrix units take, of one text.
_LEAST_COLUMNS = 16


@dataclass(frozen=True)
class VideoBank:
    """Stored videos, ready to be searched again and again."""

    videos: Operand
    common: Tensor | None

    @classmethod
    def of(
        cls, videos: PreparedTokens, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> VideoBank:
        """Part by part, so that a library that fills most of a GPU needs no second copy of itself there, or in fp32."""
        common, dtype, device = centre(videos), dtype or videos.direction.dtype, device or videos.mask.device
        common = None if common is None else common.to(device)
        whole: Operand | None = None
        for start in range(0, len(videos), _PART):
            part = operand(videos[start : start + _PART].to(device), common, dtype)
            whole = whole or part.map(lambda tensor: tensor.new_empty(len(videos), *tensor.shape[1:]))
            for into, tensor in zip(whole.tensors, part.tensors, strict=True):
                into[start : start + _PART] = tensor
        if whole is None:
            raise ValueError("the bank is empty: give at least one video")
        return cls(whole, common)

    def __len__(self) -> int:
        return self.videos.shape[0]


def top_k(
    texts: PreparedTokens,
    bank: VideoBank,
    k: int,
    config: ScoreConfig,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The k best videos of each text, best first: scores and places, [A, min(k, B)].

    Videos of equal score come in the order of their places (see `prota.scoring.search.search` for which are equal).
    ``allowed`` [B] bool leaves videos out; where fewer than k are left, the rest score −inf.
    """
    queries = operand(pad_words(texts, _LEAST_COLUMNS), bank.common, bank.videos.direction.dtype)
    (a, n, d), (b, m, _) = queries.shape, bank.videos.shape
    maths, k = Maths.of(config), min(k, b)
    tiling = _search_tiling(a, n, m, d, bank.videos.direction.dtype.itemsize)
    tiles = -(-b // tiling.videos)
    permitted = None if allowed is None else allowed.to(torch.uint8).contiguous()
    best = queries.weight.new_empty(a, tiles)
    arguments = kernel_arguments(bank.videos, queries, tiling) | _filter(permitted, best)
    launch_forward(arguments, maths, -(-a // tiling.texts) * tiles, scores=best, chosen=best, OUTPUT="best", CHOSEN=1)
    chosen = best.sort(dim=1, descending=True, stable=True).indices[:, : min(k, tiles)].to(torch.int32).contiguous()
    # One text at a time, with the same cut of the videos.
    single = replace(tiling, texts=1)
    count = chosen.shape[1]
    scores = queries.weight.new_empty(a, count * tiling.videos)
    arguments = kernel_arguments(bank.videos, queries, single) | _filter(permitted, best)
    launch_forward(arguments, maths, a * count, scores=scores, chosen=chosen, OUTPUT="chosen", CHOSEN=count)
    places = (chosen.long()[:, :, None] * tiling.videos + torch.arange(tiling.videos, device=chosen.device)).flatten(1)
    # In the order of places first, so that a stable sort keeps it among equals.
    places, order = places.sort(dim=1)
    values, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values[:, :k], places.gather(1, order[:, :k])


def _search_tiling(texts: int, words: int, frames: int, width: int, itemsize: int) -> Tiling:
    """No wider than the texts there are."""
    columns = words * power_of_two(texts)
    launch = _FEW if columns <= _FEW["columns"] else _SEARCH
    return choose_tiling(words, frames, width, itemsize, **launch | {"columns": min(columns, launch["columns"])})


def _filter(allowed: Tensor | None, anything: Tensor) -> dict[str, object]:
    return {"allowed": anything if allowed is None else allowed, "FILTER": allowed is not None}
