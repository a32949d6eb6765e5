"""Bootstrap intervals of metrics over videos."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from prota.ranking import Ranks

__all__ = ["bootstrap"]

_CUTOFFS = {"r1": 1, "r5": 5, "r10": 10}
_LEVEL = 0.95


def bootstrap(ranks: Ranks, groups: Tensor, resamples: int = 1000, seed: int = 0) -> dict[str, tuple[float, float]]:
    """95 % percentile intervals of r1, r5, r10 (percent), median_rank and mean_rank.

    ``groups`` [Q] long is the video of each query. Videos are drawn with replacement, each with all of its queries:
    captions of one video are not independent, and drawing them separately would give too narrow intervals. Candidates
    are not resampled. Metrics of a resample are those of `direction_metrics`.
    """
    members, sizes = _check(ranks, groups, resamples)
    expected = ranks.expected().cpu()
    # The mean of a resample is a weighted mean over videos, so queries are summed per video once.
    values = torch.stack([100 * ranks.hits(k).cpu() for k in _CUTOFFS.values()] + [expected], dim=1)
    sums = torch.zeros(len(sizes), values.shape[1], dtype=torch.float64).index_add_(0, members, values)
    # Its median comes from one sorted order and the number of times that each query was drawn.
    sorted_ranks, order = expected.sort()
    sorted_members = members[order]
    means, medians = [], []
    for counts in _draws(len(sizes), resamples, seed):
        means.append(counts.double() @ sums / (counts @ sizes))
        medians.append(_median(sorted_ranks, counts[sorted_members]))
    columns = dict(zip([*_CUTOFFS, "mean_rank"], torch.stack(means).T, strict=True))
    columns["median_rank"] = torch.stack(medians)
    return {name: _interval(columns[name]) for name in (*_CUTOFFS, "median_rank", "mean_rank")}


def _check(ranks: Ranks, groups: Tensor, resamples: int) -> tuple[Tensor, Tensor]:
    """The group of each query, from 0, and the sizes of the groups."""
    if groups.shape != ranks.better.shape or groups.dtype != torch.long or len(groups) == 0:
        raise ValueError(
            f"groups must be {len(ranks.better)} whole numbers, one per query and at least one; got "
            f"{list(groups.shape)} of {groups.dtype}"
        )
    if resamples < 2:
        raise ValueError(f"resamples = {resamples} must be at least 2")
    _, members, sizes = torch.unique(groups.cpu(), return_inverse=True, return_counts=True)
    return members, sizes


def _draws(groups: int, resamples: int, seed: int) -> Iterator[Tensor]:
    """How often each group was drawn, [groups] long, for each resample."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(resamples):
        drawn = torch.randint(groups, (groups,), generator=generator)
        yield torch.bincount(drawn, minlength=groups)


def _median(values: Tensor, counts: Tensor) -> Tensor:
    """Median of sorted ``values``, each repeated ``counts`` times."""
    upto = counts.cumsum(0)
    total = int(upto[-1])
    middle = torch.searchsorted(upto, torch.tensor([(total - 1) // 2, total // 2]), right=True)
    return values[middle].mean()


def _interval(values: Tensor) -> tuple[float, float]:
    tail = (1 - _LEVEL) / 2
    low, high = values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype)).tolist()
    return low, high
