"""Metrics against a brute-force ranking, chance level, ties, several captions per video."""

from __future__ import annotations

import statistics

import pytest
import torch

from prota.evaluation.metrics import DirectionMetrics, retrieval_metrics


def brute_force(ranks: list[int]) -> DirectionMetrics:
    def recall(k: int) -> float:
        return 100 * sum(rank <= k for rank in ranks) / len(ranks)

    return DirectionMetrics(
        recall(1), recall(5), recall(10), statistics.median(ranks), statistics.fmean(ranks), len(ranks)
    )


def same(actual: DirectionMetrics, expected: DirectionMetrics) -> None:
    assert vars(actual) == pytest.approx(vars(expected))


@pytest.mark.parametrize(("texts", "videos"), [(7, 7), (40, 13), (13, 40), (1, 1), (60, 2)])
def test_metrics_equal_a_sorted_list(texts: int, videos: int) -> None:
    scores = torch.randn(texts, videos)
    video_of_text = torch.randint(0, videos, (texts,))
    actual = retrieval_metrics(scores, video_of_text)
    text_ranks = []
    for text in range(texts):
        order = sorted(range(videos), key=lambda video: -scores[text, video])
        text_ranks.append(1 + order.index(int(video_of_text[text])))
    same(actual.text_to_video, brute_force(text_ranks))
    video_ranks, grouped_ranks = [], []
    described = sorted(set(video_of_text.tolist()))
    for video in described:
        own = (video_of_text == video).nonzero().flatten().tolist()
        order = sorted(range(texts), key=lambda text: -scores[text, video])
        video_ranks.append(1 + min(order.index(text) for text in own))
        order = list(dict.fromkeys(int(video_of_text[text]) for text in order))
        grouped_ranks.append(1 + order.index(video))
    same(actual.video_to_text, brute_force(video_ranks))
    same(retrieval_metrics(scores, video_of_text, "videos").video_to_text, brute_force(grouped_ranks))


@pytest.mark.parametrize("candidates", ["captions", "videos"])
def test_constant_scores_give_chance_level(candidates: str) -> None:
    videos, each = 50, 3
    video_of_text = torch.arange(videos).repeat_interleave(each)
    metrics = retrieval_metrics(torch.full((videos * each, videos), 0.3), video_of_text, candidates)
    chance = DirectionMetrics(2.0, 10.0, 20.0, 25.5, 25.5, videos * each)
    same(metrics.text_to_video, chance)
    if candidates == "videos":
        same(metrics.video_to_text, DirectionMetrics(2.0, 10.0, 20.0, 25.5, 25.5, videos))
    else:
        # The first of 3 among 150 in random order: place (150 + 1) / (3 + 1), first with chance 3 in 150.
        assert metrics.video_to_text.mean_rank == pytest.approx(151 / 4)
        assert metrics.video_to_text.r1 == pytest.approx(100 * 3 / 150)


def test_random_scores_are_near_chance() -> None:
    scores = torch.randn(2000, 2000)
    metrics = retrieval_metrics(scores, torch.arange(2000))
    assert metrics.text_to_video.mean_rank == pytest.approx(1000.5, rel=0.05)
    assert metrics.video_to_text.r10 < 1.5


def test_a_duplicated_video_costs_half_a_rank() -> None:
    scores = torch.eye(3)
    scores = torch.cat([scores, scores[:, :1]], dim=1)
    metrics = retrieval_metrics(scores, torch.arange(3))
    # Video 3 is a copy of video 0: text 0 finds either first.
    assert metrics.text_to_video.mean_rank == pytest.approx((1.5 + 1 + 1) / 3)
    assert metrics.text_to_video.r1 == pytest.approx(100 * (0.5 + 1 + 1) / 3)
    assert metrics.video_to_text.queries == 3


def test_the_median_of_an_even_number_is_between() -> None:
    scores = torch.tensor([[2.0, 1.0], [2.0, 1.0]])
    assert retrieval_metrics(scores, torch.tensor([0, 1])).text_to_video.median_rank == 1.5


def test_permuting_texts_and_videos_changes_nothing() -> None:
    scores, video_of_text = torch.randn(30, 12), torch.randint(0, 12, (30,))
    rows, columns = torch.randperm(30), torch.randperm(12)
    place = torch.empty(12, dtype=torch.long)
    place[columns] = torch.arange(12)
    permuted = retrieval_metrics(scores[rows][:, columns], place[video_of_text[rows]])
    original = retrieval_metrics(scores, video_of_text)
    same(permuted.text_to_video, original.text_to_video)
    same(permuted.video_to_text, original.video_to_text)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="3 whole numbers, one per text"):
        retrieval_metrics(torch.zeros(3, 2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="must be captions or videos"):
        retrieval_metrics(torch.zeros(2, 2), torch.tensor([0, 1]), "video")
    with pytest.raises(ValueError, match="must be a matrix"):
        retrieval_metrics(torch.zeros(2), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="indices of the 2 videos"):
        retrieval_metrics(torch.zeros(3, 2), torch.tensor([0, 1, 2]))
