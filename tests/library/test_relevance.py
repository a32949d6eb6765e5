"""A calibrated relevance tells matches from what merely scores best."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prota.library.records import LibraryError
from prota.library.relevance import (
    Fit,
    Relevance,
    _logistic,
    _rising,
    calibrate,
    features_of,
    query_uncertainty,
)
from prota.types import PreparedTokens


def world(texts: int = 400, videos: int = 40, signal: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores in which a text's own video stands out, on a level that differs from query to query."""
    owner = torch.arange(texts) % videos
    scores = 0.1 * torch.randn(texts, videos) + torch.randn(texts, 1)
    scores[torch.arange(texts), owner] += signal
    return scores, owner, 0.1 * torch.randn(texts)


def tokens(videos: int = 3) -> PreparedTokens:
    mask = torch.tensor([[True, True], [True, False], [True, True]])[:videos]
    return PreparedTokens(torch.randn(videos, 2, 4), torch.rand(videos, 2, 4), torch.rand(videos, 2), mask)


def test_stated_probabilities_are_what_happens_and_the_absent_is_refused() -> None:
    result = calibrate(*world())
    assert result.error < 0.06
    assert result.refused > 0.9
    assert result.kept > 0.9
    # 40 videos: 20 are the background; the queries of ten others, in libraries of 8 and 16, twice each.
    assert len(set(result.background)) == 20
    assert result.fit.largest == 16
    odd = sum(video % 2 for video in range(40) if video not in result.background)
    assert result.trials == 2 * 2 * 10 * odd


def test_without_a_signal_nothing_is_claimed() -> None:
    scores, owner, uncertainty = world(signal=0.0)
    result = calibrate(scores, owner, uncertainty)
    assert result.error < 0.06
    typical = features_of(scores.amax(dim=1), scores, uncertainty, 16)
    assert float(result.fit.of(typical).max()) < 0.5


def test_a_fit_is_moved_to_a_model_that_is_more_unsure_of_everything() -> None:
    fit = calibrate(*world()).fit
    features = torch.randn(200, 4, dtype=torch.float64)
    moved = features + torch.tensor([0, 0, 0.25, 0])
    assert torch.allclose(fit.moved(0.25).of(moved), fit.of(features))
    assert not torch.allclose(fit.of(moved), fit.of(features))


@pytest.mark.parametrize("against", [0, 1])
def test_a_better_score_is_never_less_of_a_match(against: int) -> None:
    """Where score or margin happen to go against the matches, as they may where a model is weak, they do not count."""
    torch.manual_seed(0)
    labels = torch.arange(400) % 2 == 0
    features = torch.randn(400, 4)
    features[:, 1 - against] += 2 * labels
    features[:, against] -= labels + 0.0
    _, *slopes = _rising(features, labels)
    assert slopes[against] == 0
    assert slopes[1 - against] > 1
    # Otherwise it is the plain fit, to the last bit; what is no score may count against a match.
    features[:, against] *= -1
    features[:, 3] -= labels + 0.0
    assert _rising(features, labels) == _logistic(features, labels)
    assert _rising(features, labels)[4] < 0


def test_the_margin_decides_and_not_the_level_of_a_query() -> None:
    fit = calibrate(*world()).fit
    background = torch.randn(1, 200) * 0.1
    near = features_of(torch.tensor([0.15]), background, torch.zeros(1), 16)
    far = features_of(torch.tensor([5.15]), background + 5, torch.zeros(1), 16)
    high = features_of(torch.tensor([0.6]), background, torch.zeros(1), 16)
    assert fit.of(high) > 0.9
    assert fit.of(near) < 0.5
    assert fit.of(far) < 0.5


def test_the_same_score_means_less_in_a_larger_library() -> None:
    """Stated probabilities are right in libraries of each size, not only on average."""
    scores, owner, uncertainty = world(texts=3000, videos=300, signal=0.25)
    result = calibrate(scores, owner, uncertainty)
    assert result.fit.weights[4] < 0
    relevance = Relevance(result.fit, tokens())
    score, background = torch.tensor([0.3]), 0.1 * torch.randn(64)
    by_size = [relevance.of(score, background, 0.0, size)[0] for size in (8, 32, 128, 100_000)]
    assert by_size[0] > by_size[1] > by_size[2]
    assert by_size[3] == by_size[2], "beyond what it was fitted to, nothing is known"
    assert relevance.of(score, background, 0.0, 2)[0] == by_size[0]


def test_an_unusual_query_is_judged_as_the_most_unusual_one_seen() -> None:
    fit = Fit((0.0, 0.0, 0.0, 50.0, 0.0), 0.5, 8, (-0.1, 0.1))
    low, edge, high = fit.of(torch.tensor([[0.0, 0, -9, 0], [0, 0, -0.1, 0], [0, 0, 9, 0]])).tolist()
    assert low == edge
    assert high == pytest.approx(1 - edge)


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert Relevance.load(tmp_path) is None
    relevance = Relevance(Fit((0.1, -2.0, 3.5, 1e-3, -1.0), 0.4, 64, (-4.0, -3.5)), tokens())
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
        with pytest.raises(LibraryError, match="calibrate the model again"):
            Relevance.load(tmp_path)
    Relevance.remove(tmp_path)
    assert Relevance.load(tmp_path) is None


def test_points_have_no_spread_to_store(tmp_path: Path) -> None:
    points = PreparedTokens(torch.randn(2, 2, 4), None, torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))
    Relevance(Fit((0.0,) * 5, 0.5, 8), points).save(tmp_path)
    loaded = Relevance.load(tmp_path)
    assert loaded is not None
    assert loaded.background.spread is None


def test_too_little_to_learn_from() -> None:
    with pytest.raises(LibraryError, match="at least 4"):
        calibrate(torch.eye(3), torch.arange(3), torch.zeros(3))
    with pytest.raises(LibraryError, match="ended alike"):
        calibrate(torch.zeros(8, 4), torch.arange(8) % 4, torch.zeros(8))


def test_uncertainty_is_of_real_words_alone() -> None:
    mask = torch.tensor([[True, True, False]])
    spread = torch.tensor([[[1.0, 1.0], [torch.e, torch.e], [0.0, 0.0]]])
    texts = PreparedTokens(torch.ones(1, 3, 2), spread, torch.ones(1, 3), mask)
    assert query_uncertainty(texts).tolist() == pytest.approx([0.5])
    assert query_uncertainty(PreparedTokens(torch.ones(1, 3, 2), None, torch.ones(1, 3), mask)).tolist() == [0.0]
