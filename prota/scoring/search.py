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

_BLOCK = 4096


@torch.no_grad()
def search(
    head: ScoreHead,
    texts: PreparedTokens,
    videos: PreparedTokens | VideoBank,
    k: int,
    allowed: Tensor | None = None,
    backend: Backend = "auto",
) -> tuple[Tensor, Tensor]:
    """The k best videos of each text, best first: scores and places, [A, min(k, B)].

    Videos of equal score keep their order. ``allowed`` [B] bool leaves videos out; where fewer than k are left, the
    rest score −inf. On a GPU give a `VideoBank`, made once: it is searched without a score per video.
    """
    if k < 1:
        raise ValueError(f"k = {k} is not allowed; allowed: 1 or more")
    if not len(videos):
        return texts.direction.new_zeros(len(texts), 0), torch.zeros(len(texts), 0, dtype=torch.long)
    if isinstance(videos, VideoBank):
        dispatch.note("triton")
        return fused_top_k(texts, videos, k, head.config, float(head.bandwidth), allowed)
    best = texts.direction.new_zeros(len(texts), 0)
    places = torch.zeros(len(texts), 0, dtype=torch.long, device=best.device)
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
