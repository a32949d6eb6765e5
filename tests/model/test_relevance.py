"""What is stored with a calibrated model, and what it says of a result."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prota.model.relevance import Fit, Relevance, features_of, query_facts
from prota.model.weights import WeightsError
from prota.types import PreparedTokens


def tokens(videos: int = 3) -> PreparedTokens:
    mask = torch.tensor([[True, True], [True, False], [True, True]])[:videos]
    return PreparedTokens(torch.randn(videos, 2, 4), torch.rand(videos, 2, 4), torch.rand(videos, 2), mask)


def test_what_a_result_is_judged_by() -> None:
    background = torch.tensor([[0.0, 0.2]])
    found = features_of(torch.tensor([0.4]), background, torch.tensor([[-3.9, 1.1]]), 16)[0]
    margin = (0.4 - 0.1) / float(background.std())
    assert found.tolist() == pytest.approx([0.4, margin, -3.9, math.log(16), 1.1])


def test_a_fit_is_moved_to_a_model_that_is_more_unsure_of_everything() -> None:
    fit = Fit((0.3, 1.0, 0.5, 4.0, -1.0, -0.4), 0.3, 64, (-0.5, 0.5))
    features = torch.randn(200, 5, dtype=torch.float64)
    moved = features + torch.tensor([0, 0, 0.25, 0, 0])
    assert torch.allclose(fit.moved(0.25).of(moved), fit.of(features))
    assert not torch.allclose(fit.of(moved), fit.of(features))


def test_an_unusual_query_is_judged_as_the_most_unusual_one_seen() -> None:
    fit = Fit((0.0, 0.0, 0.0, 50.0, 0.0, 0.0), 0.5, 8, (-0.1, 0.1))
    rows = torch.tensor([[0.0, 0, -9, 0, 0], [0, 0, -0.1, 0, 0], [0, 0, 9, 0, 0]])
    low, edge, high = fit.of(rows).tolist()
    assert low == edge
    assert high == pytest.approx(1 - edge)


def test_what_was_fitted_before_lengths_counted_does_without_them(tmp_path: Path) -> None:
    old, new = Fit((0.1, -2.0, 3.5, 1e-3, -1.0), 0.4, 64), Fit((0.1, -2.0, 3.5, 1e-3, -1.0, 0.0), 0.4, 64)
    features = torch.randn(20, 5)
    assert torch.allclose(old.of(features), new.of(features))
    Relevance(old, tokens()).save(tmp_path)
    loaded = Relevance.load(tmp_path)
    assert loaded is not None
    assert loaded.fit == old


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert Relevance.load(tmp_path) is None
    relevance = Relevance(Fit((0.1, -2.0, 3.5, 1e-3, -1.0, 0.5), 0.4, 64, (-4.0, -3.5)), tokens())
    relevance.save(tmp_path)
    loaded = Relevance.load(tmp_path)
    assert loaded is not None
    assert loaded.fit == relevance.fit
    for name in ("direction", "spread", "weight"):
        torch.testing.assert_close(
            getattr(loaded.background, name), getattr(relevance.background, name), atol=2e-3, rtol=0
        )
    assert torch.equal(loaded.background.mask, relevance.background.mask)
    path = tmp_path / "relevance.safetensors"
    whole = path.read_bytes()
    for damaged in (b"{}", whole[: len(whole) // 2], whole.replace(b"cutoff", b"cutofg")):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match="calibrate the model again"):
            Relevance.load(tmp_path)
    for weights in ((0.0,) * 4, (0.0,) * 7):
        Relevance(Fit(weights, 0.5, 8), tokens()).save(tmp_path)
        with pytest.raises(WeightsError, match=rf"{len(weights)} weights"):
            Relevance.load(tmp_path)


def test_points_have_no_spread_to_store(tmp_path: Path) -> None:
    points = PreparedTokens(torch.randn(2, 2, 4), None, torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))
    Relevance(Fit((0.0,) * 6, 0.5, 8), points).save(tmp_path)
    loaded = Relevance.load(tmp_path)
    assert loaded is not None
    assert loaded.background.spread is None


def test_facts_are_of_real_words_alone() -> None:
    mask = torch.tensor([[True, True, False]])
    spread = torch.tensor([[[1.0, 1.0], [torch.e, torch.e], [0.0, 0.0]]])
    texts = PreparedTokens(torch.ones(1, 3, 2), spread, torch.ones(1, 3), mask)
    assert query_facts(texts)[0].tolist() == pytest.approx([0.5, math.log(2)])
    points = PreparedTokens(torch.ones(1, 3, 2), None, torch.ones(1, 3), mask)
    assert query_facts(points)[0].tolist() == pytest.approx([0.0, math.log(2)])


def test_what_stands_out_for_a_general_query_is_a_match() -> None:
    """One that fits unrelated videos nearly as well as any."""
    fit = Fit((-9.0, 1.0, 0.1, 0.0, 0.0, 0.0), 0.3, 64, general=2.8)
    scores, facts = torch.tensor([0.5, 0.335, 0.32, 0.1]), torch.zeros(2)
    background = torch.tensor([0.29, 0.31, 0.27, 0.33, 0.30])
    found = Relevance(fit, tokens()).of(scores, background, facts, 8, broad=True)
    assert found[:2] == pytest.approx([0.3, 0.3])
    assert max(found[2:]) < 0.01
    never = replace(fit, general=math.inf)
    for kind, unrelated, broad in ((fit, background, False), (fit, background - 0.28, True), (never, background, True)):
        assert max(Relevance(kind, tokens()).of(scores, unrelated, facts, 8, broad=broad)) < 0.1


def test_what_looks_alike_is_above_unrelated_videos() -> None:
    relevance = Relevance(Fit((0.0,), 0.5, 8), tokens())
    assert relevance.alike(torch.tensor([0.0, 0.2])) == pytest.approx(0.1 + 2.5 * math.sqrt(0.02))
