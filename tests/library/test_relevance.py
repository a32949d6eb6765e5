"""A calibrated relevance tells matches from what merely scores best."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prota.library.records import LibraryError
from prota.library.relevance import Relevance, calibrate, features_of, query_uncertainty
from prota.types import PreparedTokens


def world(texts: int = 400, videos: int = 40, signal: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores in which a text's own video stands out, on a level that differs from query to query."""
    owner = torch.arange(texts) % videos
    scores = 0.1 * torch.randn(texts, videos) + torch.randn(texts, 1)
    scores[torch.arange(texts), owner] += signal
    return scores, owner, 0.1 * torch.randn(texts)


def test_stated_probabilities_are_what_happens_and_the_absent_is_refused() -> None:
    result = calibrate(*world())
    assert result.error < 0.06
    assert result.refused > 0.9
    assert result.kept > 0.9
    assert result.trials == 400


def test_without_a_signal_nothing_is_claimed() -> None:
    result = calibrate(*world(signal=0.0))
    assert result.refused > 0.99
    assert result.error < 0.06


def test_the_margin_decides_and_not_the_level_of_a_query() -> None:
    relevance = calibrate(*world()).relevance
    background = torch.randn(1, 200) * 0.1
    near = features_of(torch.tensor([0.25]), background, torch.zeros(1))
    far = features_of(torch.tensor([5.25]), background + 5, torch.zeros(1))
    high = features_of(torch.tensor([0.6]), background, torch.zeros(1))
    assert relevance.of(high) > 0.9
    assert relevance.of(near) < 0.5
    assert relevance.of(far) < 0.5


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert Relevance.load(tmp_path) is None
    relevance = Relevance((0.1, -2.0, 3.5, 1e-3), 0.4)
    relevance.save(tmp_path)
    assert Relevance.load(tmp_path) == relevance
    (tmp_path / "relevance.json").write_text("{}", encoding="utf-8")
    with pytest.raises(LibraryError, match="calibrate the model again"):
        Relevance.load(tmp_path)


def test_too_little_to_learn_from() -> None:
    with pytest.raises(LibraryError, match="at least 4"):
        calibrate(torch.eye(3), torch.arange(3), torch.zeros(3))
    with pytest.raises(LibraryError, match="ended alike"):
        Relevance.fit(torch.randn(5, 3), torch.ones(5, dtype=torch.bool))


def test_uncertainty_is_of_real_words_alone() -> None:
    mask = torch.tensor([[True, True, False]])
    spread = torch.tensor([[[1.0, 1.0], [torch.e, torch.e], [0.0, 0.0]]])
    texts = PreparedTokens(torch.ones(1, 3, 2), spread, torch.ones(1, 3), mask)
    assert query_uncertainty(texts).tolist() == pytest.approx([0.5])
    assert query_uncertainty(PreparedTokens(torch.ones(1, 3, 2), None, torch.ones(1, 3), mask)).tolist() == [0.0]
