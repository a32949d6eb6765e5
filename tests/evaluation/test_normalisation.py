"""Dual softmax and query bank against plain loops; what they must and must not change."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor

from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.normalisation import dual_softmax, query_bank


@pytest.mark.parametrize(("texts", "videos"), [(4, 4), (5, 3), (2, 6), (1, 1)])
def test_dual_softmax_equals_plain_loops(texts: int, videos: int) -> None:
    scores = torch.rand(texts, videos)
    s = scores.double().tolist()
    to_video, to_text = dual_softmax(scores)
    for a in range(texts):
        for b in range(videos):
            own = math.exp(100.0 * s[a][b])
            over_texts = sum(math.exp(100.0 * s[other][b]) for other in range(texts))
            over_videos = sum(math.exp(100.0 * s[a][other]) for other in range(videos))
            assert float(to_video[a, b]) == pytest.approx(s[a][b] * own / over_texts)
            assert float(to_text[a, b]) == pytest.approx(s[a][b] * own / over_videos)


@pytest.mark.parametrize(("texts", "videos", "bank"), [(4, 4, 3), (6, 5, 9), (3, 7, 1), (8, 2, 4)])
def test_query_bank_equals_plain_loops(texts: int, videos: int, bank: int) -> None:
    """Against the inverted softmax as it is printed; ours is its logarithm over the temperature."""
    scores, bank_scores = torch.randn(texts, videos), torch.randn(bank, videos)
    s, k, beta = scores.double().tolist(), bank_scores.double().tolist(), 20.0
    active = {max(range(videos), key=lambda b: row[b]) for row in k}
    found = query_bank(scores, bank_scores)
    for a in range(texts):
        normalised = max(range(videos), key=lambda b: s[a][b]) in active
        for b in range(videos):
            value = math.exp(beta * s[a][b])
            if normalised:
                value /= sum(math.exp(beta * row[b]) for row in k)
            assert float(found[a, b]) == pytest.approx(math.log(value) / beta)


def test_queries_off_the_bank_keep_their_scores_to_the_bit() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.9, 0.2]])
    found = query_bank(scores, torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.equal(found[1], scores[1].double())
    assert not torch.equal(found[0], scores[0].double())


@pytest.mark.parametrize("value", [0.0, 0.3, 40.0])
def test_constants_stay_at_chance(value: float) -> None:
    scores, labels = torch.full((20, 10), value), torch.arange(10).repeat_interleave(2)
    chance = retrieval_metrics(scores, labels)
    to_video, to_text = dual_softmax(scores)
    bank = query_bank(scores, torch.full((7, 10), value))
    assert retrieval_metrics(to_video, labels).text_to_video == chance.text_to_video
    assert retrieval_metrics(to_text, labels).video_to_text == chance.video_to_text
    assert retrieval_metrics(bank, labels).text_to_video == chance.text_to_video


def with_hub() -> tuple[Tensor, Tensor]:
    """Scores whose diagonal is right but whose video 0 is close to everything; bank texts that fall for it too."""
    scores, bank = 0.2 * torch.eye(12) + 0.3, torch.full((30, 12), 0.3) + 0.01 * torch.rand(30, 12)
    scores[:, 0], bank[:, 0] = 0.6, 0.6
    scores[0, 0] = 0.8
    return scores, bank


def test_a_hub_is_demoted() -> None:
    scores, bank = with_hub()
    labels = torch.arange(12)
    assert retrieval_metrics(scores, labels).text_to_video.r1 == pytest.approx(100 / 12)
    to_video, _ = dual_softmax(scores)
    assert retrieval_metrics(to_video, labels).text_to_video.r1 == 100
    found = query_bank(scores, bank)
    # Every text falls for the hub, the hub is in the activation set, and loses its lead.
    assert bool((found[1:, 0] < found.diagonal()[1:]).all())


def test_permuting_texts_and_videos_permutes_the_result() -> None:
    scores, bank = torch.rand(9, 6), torch.rand(15, 6)
    rows, columns, bank_rows = torch.randperm(9), torch.randperm(6), torch.randperm(15)
    moved = scores[rows][:, columns]
    for before, after in zip(dual_softmax(scores), dual_softmax(moved), strict=True):
        torch.testing.assert_close(after, before[rows][:, columns])
    torch.testing.assert_close(
        query_bank(moved, bank[bank_rows][:, columns]), query_bank(scores, bank)[rows][:, columns]
    )


def test_ties_for_best_do_not_depend_on_the_order_of_videos() -> None:
    scores, bank = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.5, 0.1]])
    columns = [1, 0, 2]
    torch.testing.assert_close(query_bank(scores[:, columns], bank[:, columns]), query_bank(scores, bank)[:, columns])


@pytest.mark.parametrize("function", [dual_softmax, query_bank])
def test_labels_are_not_to_be_had(function: object) -> None:
    """Nothing but scores and a temperature goes in: random scores stay at chance, whatever the pairs are called."""
    assert set(inspect.signature(function).parameters) <= {"scores", "bank_scores", "temperature"}  # type: ignore[arg-type]
    scores = torch.rand(400, 400)
    result = dual_softmax(scores)[0] if function is dual_softmax else query_bank(scores, torch.rand(300, 400))
    for labels in (torch.arange(400), torch.randperm(400)):
        mean_rank = retrieval_metrics(result, labels).text_to_video.mean_rank
        assert mean_rank == pytest.approx(200.5, abs=5 * 400 / 12**0.5 / 20)


def test_extreme_scores_neither_overflow_nor_tie() -> None:
    scores = torch.linspace(-1, 1, 12).reshape(3, 4)
    to_video, to_text = dual_softmax(scores)
    assert len(to_video.unique()) == len(to_text.unique()) == 12
    large = torch.tensor([[5e3, 1e3], [-5e3, 0.0]])
    assert bool(torch.isfinite(query_bank(large, large)).all())
    assert all(bool(torch.isfinite(matrix).all()) for matrix in dual_softmax(large))


def test_the_input_is_left_alone() -> None:
    scores, bank = torch.rand(3, 4).double(), torch.rand(5, 4).double()
    copies = scores.clone(), bank.clone()
    dual_softmax(scores)
    query_bank(scores, bank)
    assert torch.equal(scores, copies[0])
    assert torch.equal(bank, copies[1])


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="matrix"):
        dual_softmax(torch.zeros(3))
    with pytest.raises(ValueError, match="scores contain NaN"):
        dual_softmax(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="would reverse"):
        dual_softmax(-torch.rand(3, 3) - 0.1)
    with pytest.raises(ValueError, match="bank_scores must have 2 columns, one per video of scores, got 3"):
        query_bank(torch.rand(2, 2), torch.rand(2, 3))
    with pytest.raises(ValueError, match="bank_scores must be a non-empty matrix"):
        query_bank(torch.rand(2, 2), torch.rand(0, 2))
