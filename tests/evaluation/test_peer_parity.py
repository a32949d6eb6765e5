"""Our metrics beside those that peers publish: equal without ties, and where the two part with them.

The peers' rule, as CLIP4Clip and its successors use it: sort each row of the negated scores, and take as a query's
place every column whose value equals that of the diagonal.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prota.evaluation.metrics import DirectionMetrics, retrieval_metrics

METRICS = ["r1", "r5", "r10", "median_rank", "mean_rank"]


def peer_places(scores: np.ndarray) -> np.ndarray:
    ascending = np.sort(-scores, axis=1)
    own = np.diag(-scores)[:, None]
    return np.nonzero(ascending - own == 0)[1]


def peer_metrics(scores: np.ndarray) -> dict[str, float]:
    places = peer_places(scores)
    recalls = {f"r{k}": 100 * float((places < k).mean()) for k in (1, 5, 10)}
    return {**recalls, "median_rank": float(np.median(places)) + 1, "mean_rank": float(places.mean()) + 1}


def ours(scores: np.ndarray) -> DirectionMetrics:
    return retrieval_metrics(torch.from_numpy(scores), torch.arange(len(scores))).text_to_video


def same(actual: DirectionMetrics, expected: dict[str, float]) -> None:
    assert {name: getattr(actual, name) for name in METRICS} == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 2, 11, 100, 1000])
@pytest.mark.parametrize("signal", [0.0, 2.0])
def test_without_ties_the_two_are_equal(size: int, signal: float) -> None:
    scores = np.random.default_rng(size).normal(size=(size, size)) + signal * np.eye(size)
    metrics = retrieval_metrics(torch.from_numpy(scores), torch.arange(size))
    same(metrics.text_to_video, peer_metrics(scores))
    same(metrics.video_to_text, peer_metrics(scores.T))


def test_a_tie_makes_the_peers_count_a_query_twice() -> None:
    """Text 0 cannot tell the videos apart; text 1 is right. Two queries become three."""
    scores = np.array([[1.0, 1.0], [0.0, 1.0]])
    assert peer_places(scores).tolist() == [0, 1, 0]
    assert peer_metrics(scores)["r1"] == pytest.approx(100 * 2 / 3)
    assert peer_metrics(scores)["mean_rank"] == pytest.approx(4 / 3)
    # Ours: text 0 is right with chance one half, at place 1.5 on average, and counts once.
    assert ours(scores).r1 == pytest.approx(75.0)
    assert ours(scores).mean_rank == pytest.approx(1.25)
    assert ours(scores).queries == 2


def test_queries_with_many_ties_outvote_the_others() -> None:
    """Nine queries answered perfectly, one that knows nothing: the peers count its ten ties as ten queries."""
    scores = np.eye(10)
    scores[9] = 0.0
    assert len(peer_places(scores)) == 9 + 10
    assert peer_metrics(scores)["r1"] == pytest.approx(100 * 10 / 19)
    assert ours(scores).r1 == pytest.approx(100 * (9 + 0.1) / 10)
    assert peer_metrics(scores)["mean_rank"] == pytest.approx((9 * 1 + 55) / 19)
    assert ours(scores).mean_rank == pytest.approx((9 * 1 + 5.5) / 10)


def test_ties_between_wrong_answers_change_nothing() -> None:
    scores = np.array([[0.5, 0.1, 0.1], [0.9, 0.5, 0.9], [0.7, 0.7, 0.8]])
    same(ours(scores), peer_metrics(scores))
