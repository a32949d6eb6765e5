"""A calibrated relevance tells matches from what merely scores best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from prota.errors import EvaluationError
from prota.evaluation import calibration
from prota.evaluation.calibration import Queries, _logistic, _rising, calibrate, everyday_queries, key_words, measure
from prota.model.relevance import Relevance, features_of
from prota.types import PreparedTokens

ALL = range(5)


def world(texts: int = 400, videos: int = 40, signal: float = 0.5) -> Queries:
    """Scores in which a text's own video stands out, on a level that differs from query to query."""
    owner = torch.arange(texts) % videos
    scores = 0.1 * torch.randn(texts, videos) + torch.randn(texts, 1)
    scores[torch.arange(texts), owner] += signal
    facts = torch.stack([0.1 * torch.randn(texts), 2.5 + 0.2 * torch.randn(texts)], dim=1)
    return Queries.captions(scores, owner, facts)


def words(count: int = 120, videos: int = 40, signal: float = 0.5) -> Queries:
    """Short queries, each true of two videos, and mentioned by few captions of a third."""
    shares = torch.zeros(count, videos)
    places = torch.arange(count)
    shares[places, places % videos] = 0.8
    shares[places, (places + 7) % videos] = 0.4
    shares[places, (places + 11) % videos] = 0.1
    scores = 0.1 * torch.randn(count, videos) + torch.randn(count, 1) + signal * (shares >= 0.3)
    return Queries(scores, shares, torch.tensor([0.0, 1.1]).repeat(count, 1))


def test_stated_probabilities_are_what_happens_and_the_absent_is_refused() -> None:
    result = calibrate(world())
    assert result.captions.error < 0.06
    assert result.captions.refused > 0.9
    assert result.captions.kept > 0.9
    # 40 videos: 20 are the background; the queries of ten others, in libraries of 8 and 16, twice each.
    assert len(set(result.background)) == 20
    assert result.fit.largest == 16
    odd = sum(video % 2 for video in range(40) if video not in result.background)
    assert result.captions.trials == 2 * 2 * 10 * odd
    assert result.words is None
    assert result.fit.weights[5] == 0, "captions say nothing about queries of another length"


def test_without_a_signal_nothing_is_claimed() -> None:
    queries = world(signal=0.0)
    result = calibrate(queries)
    assert result.captions.error < 0.06
    typical = features_of(queries.scores.amax(dim=1), queries.scores, queries.facts, 16)
    assert float(result.fit.of(typical).max()) < 0.5


def test_short_queries_are_judged_by_what_is_usual_for_them() -> None:
    """A word's own videos stand out far less than a caption's, and are shown all the same."""
    torch.manual_seed(0)
    captions, short = world(texts=4000, videos=80, signal=1.0), words(160, 80, signal=0.35)
    alone, both = calibrate(captions), calibrate(captions, short)
    assert both.words is not None
    assert both.words.kept > 0.7
    assert both.words.refused > 0.7
    assert both.words.error < 0.12
    assert both.captions.kept > 0.9
    features = features_of(torch.tensor([0.4]), 0.1 * torch.randn(1, 64), torch.tensor([[0.0, 1.1]]), 8)
    assert float(both.fit.of(features)) > float(alone.fit.of(features))
    assert both.fit.weights[5] < 0, "the longer a query, the more it takes"


def test_a_few_words_are_not_learned_from() -> None:
    result = calibrate(world(), words(16))
    assert result.words is None
    assert result.fit.weights[5] == 0
    # Many, but true of videos that are none of a library.
    nowhere = words(100)
    nowhere.shares[:] = 0
    nowhere.shares[:, result.background[0]] = 1
    assert calibrate(world(), nowhere).fit.weights[5] == 0


def test_no_word_is_in_both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is true of two videos would be fitted on and then measured with."""
    seen = []
    plain = calibration._in_libraries

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(plain(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(calibration, "_in_libraries", watched)
    calibrate(world(), words())
    assert len(seen) == 2
    for trials in seen:
        even, odd = (set(trials.query[trials.owner % 2 == half].tolist()) for half in (0, 1))
        assert even
        assert odd
        assert not even & odd


def test_kinds_of_queries_count_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    captions, short = world(), words()
    seen = []
    plain = calibration._logistic

    def watched(features: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> tuple[float, ...]:
        is_word = features[:, 4] < 1.2
        seen.append((float(weight[is_word].sum()), float(weight[~is_word].sum())))
        return plain(features, labels, weight)

    monkeypatch.setattr(calibration, "_logistic", watched)
    calibrate(captions, short)
    assert len(seen) >= 2
    for of_words, of_captions in seen:
        assert of_words == pytest.approx(of_captions)


def test_a_library_without_a_word_has_no_video_that_mentions_it() -> None:
    """What some captions of a video say is neither right nor wrong to find."""
    torch.manual_seed(0)
    short = words(200, 40, signal=0.0)
    # Whoever mentions a word at all scores far above the others: were it in the library, it would be found.
    short.scores[(short.shares > 0) & (short.shares < 0.3)] += 100
    rest, unrelated = torch.arange(20, 40), short.scores[:, :20]
    found = calibration._in_libraries(short, unrelated, rest, sizes=[8], generator=torch.Generator().manual_seed(0))
    assert len(found.right) > 50
    assert float(found.features[:, 0].max()) < 50


def test_a_relevance_is_measured_on_what_it_knows_nothing_of() -> None:
    torch.manual_seed(0)
    captions, unseen = world(texts=3000, videos=120), world(texts=3000, videos=120)
    tokens = PreparedTokens(torch.randn(3, 2, 4), None, torch.rand(3, 2), torch.ones(3, 2, dtype=torch.bool))
    fit = calibrate(captions).fit
    background = 0.1 * torch.randn(3000, 64) + unseen.scores.median(dim=1, keepdim=True).values
    found = measure(Relevance(fit, tokens), unseen, background)
    # Libraries of 8, 16 and 32, as it was fitted to, though there are videos for larger ones.
    assert fit.largest == 32
    assert found.trials == 2 * 3 * 3000
    assert found.error < 0.06
    assert found.kept > 0.9
    wrong = measure(Relevance(replace(fit, weights=(-9.0, *fit.weights[1:])), tokens), unseen, background)
    assert wrong.error > found.error


def test_words_that_tell_videos_apart() -> None:
    dogs = ["A man with a DOG", "someone walks", "a man", "a dog"]
    captions = [[f"a man and his dog{letter}", *dogs] for letter in "abcdefghijklmnopqrs"]
    captions.append(["a cat sits", "the cat", "a man and a cat", "cats", "a man 4x4"])
    found, shares = key_words(captions)
    assert found == ["cat"], "everyone has man and dog, doga and cats are named by too few captions"
    assert shares.shape == (1, 20)
    assert shares[0, 19] == pytest.approx(0.6)
    assert shares[0, :19].sum() == 0


def test_one_caption_does_not_tell_what_is_not_there() -> None:
    found, shares = key_words([["a cat"], ["a dog"], ["a house"]] * 10)
    assert found == []
    assert shares.shape == (0, 30)
    assert key_words([])[0] == []
    assert key_words([["a cat"] * 9, []] * 10)[1].isfinite().all()


@pytest.mark.parametrize("against", [0, 1])
def test_a_better_score_is_never_less_of_a_match(against: int) -> None:
    """Where score or margin happen to go against the matches, as they may where a model is weak, they do not count."""
    torch.manual_seed(0)
    labels, weight = torch.arange(400) % 2 == 0, torch.ones(400, dtype=torch.float64)
    features = torch.randn(400, 5)
    features[:, 1 - against] += 2 * labels
    features[:, against] -= labels + 0.0
    _, *slopes = _rising(features, labels, weight, ALL)
    assert slopes[against] == 0
    assert slopes[1 - against] > 1
    # Otherwise it is the plain fit, to the last bit; what is no score may count against a match.
    features[:, against] *= -1
    features[:, 3] -= labels + 0.0
    assert _rising(features, labels, weight, ALL) == _logistic(features, labels, weight)
    assert _rising(features, labels, weight, ALL)[4] < 0


def test_the_margin_decides_and_not_the_level_of_a_query() -> None:
    fit, facts = calibrate(world()).fit, torch.tensor([[0.0, 2.5]])
    background = torch.randn(1, 200) * 0.1
    near = features_of(torch.tensor([0.15]), background, facts, 16)
    far = features_of(torch.tensor([5.15]), background + 5, facts, 16)
    high = features_of(torch.tensor([0.6]), background, facts, 16)
    assert fit.of(high) > 0.9
    assert fit.of(near) < 0.5
    assert fit.of(far) < 0.5


def test_the_same_score_means_less_in_a_larger_library() -> None:
    """Stated probabilities are right in libraries of each size, not only on average."""
    result = calibrate(world(texts=3000, videos=300, signal=0.25))
    assert result.fit.weights[4] < 0
    tokens = PreparedTokens(torch.randn(3, 2, 4), None, torch.rand(3, 2), torch.ones(3, 2, dtype=torch.bool))
    relevance, facts = Relevance(result.fit, tokens), torch.tensor([0.0, 2.5])
    score, background = torch.tensor([0.3]), 0.1 * torch.randn(64)
    by_size = [relevance.of(score, background, facts, size)[0] for size in (8, 32, 128, 100_000)]
    assert by_size[0] > by_size[1] > by_size[2]
    assert by_size[3] == by_size[2], "beyond what it was fitted to, nothing is known"
    assert relevance.of(score, background, facts, 2)[0] == by_size[0]


def test_too_little_to_learn_from() -> None:
    with pytest.raises(EvaluationError, match="at least 4"):
        calibrate(Queries.captions(torch.eye(3), torch.arange(3), torch.zeros(3, 2)))
    with pytest.raises(EvaluationError, match="same outcome"):
        calibrate(Queries.captions(torch.zeros(8, 4), torch.arange(8) % 4, torch.zeros(8, 2)))


def test_a_match_at_the_cutoff_counts_as_shown() -> None:
    """As it is in a search."""
    yes, no = torch.tensor([True, True]), torch.tensor([False, True])
    trials = calibration._Trials(torch.zeros(2, 1), yes, yes, yes, no, torch.ones(2, dtype=torch.float64))
    refused, kept = calibration._refused_and_kept(torch.tensor([0.5, 0.5]), trials, 0.5)
    assert (refused, kept) == (0.0, 1.0)


def test_everyday_queries_are_true_of_what_is_best_both_ways() -> None:
    """A query that answers nothing particular owns no video; near misses are neither true nor false."""
    scores = torch.randn(40, 60, generator=torch.Generator().manual_seed(0)) * 0.05
    for number in range(10):
        scores[number, number] = 1.0
    # Louder everywhere, which says nothing.
    scores[30] += 3.0
    queries = Queries.everyday(scores, torch.zeros(40, 2))
    owned = {(row, column) for row, column in (queries.shares == 1).nonzero().tolist()}
    assert {(number, number) for number in range(10)} <= owned
    assert all(row >= 10 or row == column for row, column in owned)
    assert (queries.shares > 0).sum(dim=1).max() <= 4
    assert len(everyday_queries()) == len(set(everyday_queries())) > 200
