"""Recall at k, median and mean rank in both directions; a video may have several texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from prota.errors import EvaluationError
from prota.ranking import Ranks, rank_of_best, rank_of_target

__all__ = [
    "DirectionMetrics",
    "RetrievalMetrics",
    "direction_metrics",
    "retrieval_metrics",
    "text_ranks",
    "video_ranks",
]


@dataclass(frozen=True)
class DirectionMetrics:
    """Percentages and ranks of one direction."""

    r1: float
    r5: float
    r10: float
    median_rank: float
    mean_rank: float
    queries: int


@dataclass(frozen=True)
class RetrievalMetrics:
    """Both directions."""

    text_to_video: DirectionMetrics
    video_to_text: DirectionMetrics


def direction_metrics(ranks: Ranks) -> DirectionMetrics:
    """Metrics of queries with these ranks; an even number has the mean of the middle two as its median."""
    expected = ranks.expected()
    recalls = {k: 100 * float(ranks.hits(k).mean()) for k in (1, 5, 10)}
    return DirectionMetrics(
        r1=recalls[1],
        r5=recalls[5],
        r10=recalls[10],
        median_rank=float(expected.quantile(0.5)),
        mean_rank=float(expected.mean()),
        queries=len(expected),
    )


def text_ranks(scores: Tensor, video_of_text: Tensor) -> Ranks:
    """Text to video: every text is a query; scores [A, B]."""
    _check_targets(scores, video_of_text)
    return rank_of_target(scores, video_of_text)


def video_ranks(
    scores: Tensor, video_of_text: Tensor, candidates: Literal["captions", "videos"] = "captions"
) -> tuple[Ranks, Tensor]:
    """Video to text: every video with a text is a query, and its best caption counts; scores [A, B].

    The caption is ranked among all captions, or with ``candidates="videos"`` among the best captions of all videos, as
    in CLIP4Clip and its successors for MSR-VTT full. Also returns the videos that are queries.
    """
    _check_targets(scores, video_of_text)
    described = torch.unique(video_of_text)
    if candidates not in ("captions", "videos"):
        raise ValueError(f"candidates must be captions or videos, got {candidates!r}")
    if candidates == "videos":
        best = scores.new_full((len(described), scores.shape[1]), -torch.inf)
        group = torch.searchsorted(described, video_of_text)
        best = best.scatter_reduce(0, group[:, None].expand_as(scores), scores, "amax")
        own = torch.arange(len(described), device=scores.device)
        return rank_of_target(best[:, described].T, own), described
    return rank_of_best(scores[:, described].T, video_of_text[None] == described[:, None]), described


def retrieval_metrics(
    scores: Tensor, video_of_text: Tensor, candidates: Literal["captions", "videos"] = "captions"
) -> RetrievalMetrics:
    """Metrics of a score matrix [A, B] in which text i describes video ``video_of_text[i]``.

    Videos without a text are only candidates.
    """
    to_video = text_ranks(scores, video_of_text)
    to_text, _ = video_ranks(scores, video_of_text, candidates)
    return RetrievalMetrics(direction_metrics(to_video), direction_metrics(to_text))


def _check_targets(scores: Tensor, video_of_text: Tensor) -> None:
    if scores.dim() != 2:
        raise EvaluationError(f"scores must be a matrix [texts, videos]; got {list(scores.shape)}")
    if video_of_text.shape != scores.shape[:1] or video_of_text.dtype != torch.long:
        raise EvaluationError(
            f"video_of_text must be {scores.shape[0]} whole numbers, one per text; got "
            f"{list(video_of_text.shape)} of {video_of_text.dtype}"
        )
    if len(video_of_text) and not 0 <= int(video_of_text.min()) <= int(video_of_text.max()) < scores.shape[1]:
        raise EvaluationError(f"video_of_text must be indices of the {scores.shape[1]} videos")
