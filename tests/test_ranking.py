"""Ranks against brute force, and the tie rule."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prota.ranking import Ranks, rank_of_best, rank_of_target, top_k


def all_orders(scores: list[int], right: set[int], k: int) -> tuple[float, float]:
    """Mean place of the first right candidate, and share of orders with one in the first k, over every tie-break."""
    places = []
    for order in itertools.permutations(range(len(scores))):
        ranked = sorted(order, key=lambda index: -scores[index])
        places.append(1 + min(ranked.index(index) for index in right))
    return sum(places) / len(places), sum(place <= k for place in places) / len(places)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.data())
def test_ties_give_the_expectation_over_all_orders(scores: list[int], data: st.DataObject) -> None:
    right = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    k = data.draw(st.integers(1, 7))
    mask = torch.tensor([[index in right for index in range(len(scores))]])
    ranks = rank_of_best(torch.tensor([scores], dtype=torch.float32), mask)
    place, hit = all_orders(scores, right, k)
    assert float(ranks.expected()) == pytest.approx(place)
    assert float(ranks.hits(k)) == pytest.approx(hit)
    if len(right) == 1:
        single = rank_of_target(torch.tensor([scores], dtype=torch.float32), torch.tensor([next(iter(right))]))
        assert torch.equal(single.expected(), ranks.expected())
        assert torch.equal(single.hits(k), ranks.hits(k))


def test_top_k_keeps_the_order_of_equals() -> None:
    values, columns = top_k(torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]]), 4)
    assert columns.tolist() == [[1, 2, 4, 3]]
    assert values.tolist() == [[3.0, 3.0, 3.0, 2.0]]
    many = torch.tensor([[float(index % 2) for index in range(5000)]])
    assert top_k(many, 2500)[1].tolist() == [list(range(1, 5000, 2))]
    assert top_k(torch.tensor([[1.0, 2.0]]), 10)[1].tolist() == [[1, 0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused(bad: float) -> None:
    scores = torch.tensor([[0.0, bad]])
    with pytest.raises(ValueError, match="NaN or infinity"):
        rank_of_target(scores, torch.tensor([0]))
    with pytest.raises(ValueError, match="NaN or infinity"):
        top_k(scores, 1)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be a non-empty matrix .* got \[0, 3\]"):
        rank_of_target(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="must be floating-point numbers"):
        top_k(torch.zeros(2, 3, dtype=torch.long), 1)
    with pytest.raises(ValueError, match=r"one column per query, 2; got \[1\]"):
        rank_of_target(torch.zeros(2, 3), torch.tensor([0]))
    with pytest.raises(ValueError, match="at least one right candidate"):
        rank_of_best(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="got 0"):
        top_k(torch.zeros(1, 3), 0)
    with pytest.raises(ValueError, match="got 0"):
        Ranks(*torch.ones(3, 1, dtype=torch.long)).hits(0)
