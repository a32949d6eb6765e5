"""Bootstrap intervals against plain loops, the ordinary bootstrap, and their promised coverage."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from prota.evaluation.intervals import _draws, bootstrap
from prota.evaluation.metrics import direction_metrics
from prota.ranking import Ranks, rank_of_target

METRICS = ["r1", "r5", "r10", "median_rank", "mean_rank"]


def some_ranks(queries: int, candidates: int = 30, ties: bool = False) -> Ranks:
    scores = torch.randn(queries, candidates)
    return rank_of_target(scores.round() if ties else scores, torch.randint(0, candidates, (queries,)))


def plain(places: Tensor) -> Ranks:
    return Ranks(places - 1, torch.zeros_like(places), torch.ones_like(places))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("queries", "videos"), [(40, 7), (25, 25), (9, 2), (5, 1), (1, 1)])
def test_equals_repeating_the_queries_of_the_drawn_videos(queries: int, videos: int, ties: bool) -> None:
    ranks, groups = some_ranks(queries, ties=ties), torch.randint(0, videos, (queries,)) * 3 + 5
    names = groups.unique().tolist()
    resampled = []
    for counts in _draws(len(names), 50, seed=4):
        chosen = [
            query
            for name, count in zip(names, counts.tolist(), strict=True)
            for _ in range(count)
            for query in range(queries)
            if groups[query] == name
        ]
        picked = Ranks(ranks.better[chosen], ranks.tied[chosen], ranks.right[chosen])
        resampled.append(direction_metrics(picked))
    actual = bootstrap(ranks, groups, resamples=50, seed=4)
    assert list(actual) == METRICS
    for name in METRICS:
        cuts = statistics.quantiles([getattr(metrics, name) for metrics in resampled], n=40, method="inclusive")
        assert actual[name] == pytest.approx((cuts[0], cuts[-1]))


def test_one_query_a_video_is_the_ordinary_bootstrap() -> None:
    places = torch.randint(1, 50, (60,))
    generator = torch.Generator().manual_seed(0)
    means = [places[torch.randint(60, (60,), generator=generator)].double().mean() for _ in range(300)]
    low, high = torch.stack(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    actual = bootstrap(plain(places), torch.arange(60), resamples=300)
    assert actual["mean_rank"] == pytest.approx((low, high))


def test_captions_that_agree_widen_the_interval() -> None:
    """20 captions of a video that all rank alike are one piece of evidence, not 20."""
    places = torch.randint(1, 50, (100,)).repeat_interleave(20)
    by_video = bootstrap(plain(places), torch.arange(100).repeat_interleave(20))["mean_rank"]
    by_caption = bootstrap(plain(places), torch.arange(2000))["mean_rank"]
    once = bootstrap(plain(places[::20]), torch.arange(100))["mean_rank"]
    assert by_video == pytest.approx(once)
    assert (by_video[1] - by_video[0]) / (by_caption[1] - by_caption[0]) == pytest.approx(20**0.5, rel=0.15)


def test_the_true_value_is_inside_about_95_times_in_100() -> None:
    """Ranks uniform over 1 to 40 for each video, 3 captions a video that share half of their luck."""
    trials, inside = 200, 0
    for trial in range(trials):
        own = torch.randint(1, 41, (80, 1)).expand(80, 3)
        places = torch.where(torch.rand(80, 3) < 0.5, own, torch.randint(1, 41, (80, 3))).flatten()
        low, high = bootstrap(plain(places), torch.arange(80).repeat_interleave(3), 200, seed=trial)["mean_rank"]
        inside += low <= 20.5 <= high
    assert 0.89 <= inside / trials <= 0.99


def test_the_interval_is_around_the_metric_and_repeats_with_its_seed() -> None:
    ranks, groups = some_ranks(300), torch.randint(0, 100, (300,))
    point, found = vars(direction_metrics(ranks)), bootstrap(ranks, groups)
    for name, (low, high) in found.items():
        assert low <= point[name] <= high
    state = torch.get_rng_state()
    assert bootstrap(ranks, groups) == found
    assert torch.equal(torch.get_rng_state(), state)
    assert bootstrap(ranks, groups, seed=1) != found


def test_the_names_and_the_order_of_the_queries_do_not_matter() -> None:
    ranks, groups = some_ranks(50), torch.randint(0, 20, (50,))
    order = torch.randperm(50)
    shuffled = Ranks(ranks.better[order], ranks.tied[order], ranks.right[order])
    expected = bootstrap(ranks, groups, 100)
    found = bootstrap(shuffled, groups[order] + 1000, 100)
    for name in METRICS:
        assert found[name] == pytest.approx(expected[name])


def test_the_largest_test_set_fits() -> None:
    """59,800 captions of 2,990 videos: MSR-VTT full."""
    places = torch.randint(1, 2991, (59_800,))
    found = bootstrap(plain(places), torch.arange(2990).repeat_interleave(20), resamples=20)
    assert found["mean_rank"] == pytest.approx((1495.5, 1495.5), rel=0.02)


def test_wrong_input_is_refused() -> None:
    ranks = some_ranks(4)
    with pytest.raises(ValueError, match="4 whole numbers, one per query"):
        bootstrap(ranks, torch.arange(3))
    with pytest.raises(ValueError, match="whole numbers"):
        bootstrap(ranks, torch.zeros(4))
    with pytest.raises(ValueError, match="resamples = 1 must be at least 2"):
        bootstrap(ranks, torch.arange(4), resamples=1)
