"""The best videos of a library for each text: exact, without a score for every video in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from prota.kernels import dispatch
from prota.kernels.dispatch import Backend
from prota.kernels.search import VideoBank
from prota.kernels.search import top_k as fused_top_k
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens

__all__ = ["search"]

# Videos, and texts with a bank: what is kept of a block grows with both.
_BLOCK = 4096


@torch.no_grad()
def search(
    head: ScoreHead,
    texts: PreparedTokens,
    videos: PreparedTokens | VideoBank,
    k: int,
    *,
    allowed: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """The k best videos of each text, best first: scores and places, [A, min(k, B)].

    Videos of equal score keep their order, on every device. Identical videos have equal scores where the fused pass
    for CPUs scores them, which rounds each pair by itself. The reference's matrix products (and those of Triton's
    interpreter) are rounded by the BLAS of the machine, some of them by position, and a GPU repairs whole tiles: there
    the scores of identical videos may differ in the last bits, and their order with them.

    ``allowed`` [B] bool leaves videos out; where fewer than k are left, the rest score −inf. On a GPU give a
    `VideoBank`, made once: it is searched without a score per video.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if allowed is not None and (allowed.dtype != torch.bool or allowed.shape != (len(videos),)):
        given = f"{list(allowed.shape)} {allowed.dtype}"
        raise ValueError(f"allowed must say True or False of each of the {len(videos)} videos; got {given}")
    if not len(texts):
        nothing = texts.direction.new_zeros(0, min(k, len(videos)))
        return nothing, nothing.long()
    if isinstance(videos, VideoBank):
        return _search_bank(head, texts, videos, k, allowed=allowed, backend=backend)
    best = texts.direction.new_zeros(len(texts), 0)
    places = best.long()
    for start in range(0, len(videos), _BLOCK):
        scores = head.score(texts, videos[start : start + _BLOCK], backend)
        if allowed is not None:
            scores = scores.masked_fill(~allowed[start : start + _BLOCK], -torch.inf)
        here = torch.arange(start, start + scores.shape[1], device=scores.device).expand_as(scores)
        best, places = torch.cat([best, scores], dim=1), torch.cat([places, here], dim=1)
        # What was there before stands before: a stable sort keeps the order of places among equals.
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, places = best[:, :k], places.gather(1, order[:, :k])
    return best, places


def _search_bank(
    head: ScoreHead, texts: PreparedTokens, bank: VideoBank, k: int, *, allowed: Tensor | None, backend: Backend
) -> tuple[Tensor, Tensor]:
    dispatch.check_bank(head.config, texts, bank.videos, backend)
    dispatch.note("triton")
    blocks = (texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK))
    parts = [fused_top_k(block, bank, k, head.config, allowed) for block in blocks]
    return torch.cat([scores for scores, _ in parts]), torch.cat([places for _, places in parts])
