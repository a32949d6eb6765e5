"""Calibrate the probability that a match is right, on validation videos in simulated libraries of many sizes.

Half of the trials have the right video in the library. Queries are captions, and single words from the captions of
few videos: *cat* scores lower than any sentence about a cat. Both kinds have equal weight.

Without captions, queries are those of a list of everyday ones, asked of a library (`Queries.everyday`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.errors import EvaluationError
from prota.model.prota import ProTA
from prota.model.relevance import LENGTH, RISING, SMALLEST, UNCERTAINTY, Fit, Relevance, features_of, query_facts

__all__ = ["Calibration", "Quality", "Queries", "calibrate", "everyday_queries", "facts_of", "key_words", "measure"]

_BACKGROUND = 64
_BINS = 10
# A word in at least this share of a video's captions is true of it.
_CLEAR = 0.3
# A word in the captions of at most this share of the videos distinguishes them.
_RARE = 0.1
# With fewer captions per video, a missing word says nothing.
_CAPTIONS = 5
# Words needed in either half to calibrate short queries.
_WORDS = 10
_TEXTS_AT_ONCE = 256
# Share of the captions that are less general than a general query.
_GENERAL = 0.97
# Without captions: the share of a library that an everyday query may be true of.
_UNSURE = 0.05


@dataclass(frozen=True)
class Queries:
    """Texts of one kind, their scores and the truth."""

    scores: Tensor
    """[texts, videos]."""
    shares: Tensor
    """[texts, videos]: share of each video's captions that contain the text."""
    facts: Tensor
    """`query_facts`, [texts, 2]."""

    @classmethod
    def captions(cls, scores: Tensor, video_of_text: Tensor, facts: Tensor) -> Queries:
        """Captions: each is true of its own video only."""
        return cls(scores, F.one_hot(video_of_text, scores.shape[1]).float(), facts)

    @classmethod
    def everyday(cls, scores: Tensor, facts: Tensor) -> Queries:
        """Queries whose relevant videos are unknown.

        A query counts as true of a video if each is the other's best: of the queries, by how far the video's score
        stands above the query's other scores. What scores nearly as high may be true as well, and counts as neither.
        """
        spread = scores.std(dim=1, keepdim=True).clamp(min=1e-6)
        margins = (scores - scores.mean(dim=1, keepdim=True)) / spread
        best, rows = margins.argmax(dim=1), torch.arange(len(scores))
        own = rows[margins.argmax(dim=0)[best] == rows]
        shares = torch.zeros_like(scores)
        shares[margins >= margins.quantile(1 - _UNSURE, dim=1, keepdim=True)] = _CLEAR / 2
        shares[own, best[own]] = 1.0
        return cls(scores, shares, facts)


@dataclass(frozen=True)
class Quality:
    """Quality of a fit on unseen queries and videos."""

    error: float
    """Expected calibration error."""
    refused: float
    """Share of queries without a right video that get "no good match"."""
    kept: float
    """Share of right results that are shown."""
    trials: int


@dataclass(frozen=True)
class Calibration:
    """A fit and its quality."""

    fit: Fit
    background: list[int]
    """Indices of the videos whose tokens are stored."""
    captions: Quality
    words: Quality | None
    """None if there were too few words."""


@dataclass(frozen=True)
class _Trials:
    """The best match of each query in simulated libraries."""

    features: Tensor
    right: Tensor
    query: Tensor
    owner: Tensor
    absent: Tensor
    weight: Tensor

    def part(self, chosen: Tensor) -> _Trials:
        return _Trials(*(column[chosen] for column in vars(self).values()))

    @staticmethod
    def none() -> _Trials:
        number, place, truth = (torch.zeros(0, dtype=kind) for kind in (torch.float64, torch.int64, torch.bool))
        return _Trials(torch.zeros(0, LENGTH + 1, dtype=torch.float64), truth, place, place, truth, number)

    @staticmethod
    def join(parts: Sequence[_Trials]) -> _Trials:
        return _Trials(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def everyday_queries() -> list[str]:
    """Queries that people type; most are about things that a given library does not have."""
    return resources.files("prota.evaluation").joinpath("everyday.txt").read_text(encoding="utf-8").splitlines()


def key_words(captions: Sequence[Sequence[str]]) -> tuple[list[str], Tensor]:
    """Words that distinguish videos by their captions, and `Queries.shares` of them.

    No words if videos have too few captions.
    """
    if not captions or sum(map(len, captions)) < _CAPTIONS * len(captions):
        return [], torch.zeros(0, len(captions))
    counts = [Counter(word for text in texts for word in set(_words(text))) for texts in captions]
    mentions = Counter(word for count in counts for word in count)
    pairs = list(zip(counts, captions, strict=True))
    clear = {word for count, texts in pairs for word in count if count[word] >= _CLEAR * len(texts)}
    found = sorted(word for word in clear if mentions[word] <= _RARE * len(captions))
    shares = [[count[word] / max(1, len(texts)) for count, texts in pairs] for word in found]
    return found, torch.tensor(shares).view(len(found), len(captions))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{3,}", text.casefold())


@torch.inference_mode()
def facts_of(model: ProTA, texts: Sequence[str]) -> Tensor:
    """`query_facts` of texts, in batches, on the CPU."""
    parts = [texts[start : start + _TEXTS_AT_ONCE] for start in range(0, len(texts), _TEXTS_AT_ONCE)]
    return torch.cat([query_facts(model.encode_text(part)).float().cpu() for part in parts])


def calibrate(captions: Queries, words: Queries | None = None) -> Calibration:
    """Fit on half of the videos and queries to measure the quality, then on all of them."""
    videos = captions.scores.shape[1]
    if videos < 4:
        raise EvaluationError(f"{videos} videos are too few to calibrate; at least 4 are needed")
    generator = torch.Generator().manual_seed(0)
    count = min(_BACKGROUND, videos // 2)
    background, rest = torch.split(torch.randperm(videos, generator=generator), [count, videos - count])
    sizes = _sizes(len(rest))
    kinds = [_in_libraries(captions, captions.scores[:, background], rest, sizes=sizes, generator=generator)]
    if words is not None:
        found = _in_libraries(words, words.scores[:, background], rest, sizes=sizes, generator=generator)
        if min(len(set(found.query[found.owner % 2 == half].tolist())) for half in (0, 1)) >= _WORDS:
            kinds.append(found)
    half = _fit([trials.part(trials.owner % 2 == 0) for trials in kinds], sizes[-1])
    qualities = [_quality(half, trials.part(trials.owner % 2 == 1)) for trials in kinds]
    fit = replace(_fit(kinds, sizes[-1]), general=_general(captions.scores[:, background]))
    return Calibration(fit, background.tolist(), qualities[0], qualities[1] if kinds[1:] else None)


def _general(unrelated: Tensor) -> float:
    """`Fit.general`: hardly a caption is as general as that; infinite if scores may be negative."""
    shares = unrelated.mean(dim=1) / unrelated.std(dim=1).clamp(min=1e-6)
    return float(shares.quantile(_GENERAL)) if shares.quantile(0.5) > 0 else math.inf


def measure(relevance: Relevance, queries: Queries, unrelated: Tensor) -> Quality:
    """Quality of a relevance on unseen queries and videos; ``unrelated``: their scores with its background."""
    videos = queries.scores.shape[1]
    sizes = [size for size in _sizes(videos) if size <= relevance.fit.largest]
    everything, generator = torch.arange(videos), torch.Generator().manual_seed(0)
    return _quality(relevance.fit, _in_libraries(queries, unrelated, everything, sizes=sizes, generator=generator))


def _sizes(videos: int) -> list[int]:
    """Sizes of simulated libraries."""
    sizes = [size for size in (2**power for power in range(1, 31)) if size <= videos]
    return [size for size in sizes if size >= SMALLEST] or sizes


def _in_libraries(
    queries: Queries, unrelated: Tensor, rest: Tensor, *, sizes: Sequence[int], generator: torch.Generator
) -> _Trials:
    """Each query in libraries of each size, drawn from the ``rest``, with and without a video that it is true of."""
    shares, scores = queries.shares[:, rest], queries.scores.double()
    # The same owner for all sizes, so that a query stays in one half of the videos.
    chances = torch.rand(shares.shape, generator=generator).masked_fill(shares < _CLEAR, -1)
    luck, places = chances.max(dim=1)
    parts = [_Trials.none()]
    for size in sizes:
        known = ((luck >= 0) & ((shares == 0).sum(dim=1) >= size - 1)).nonzero()[:, 0]
        if not len(known):
            continue
        owner = rest[places[known]]
        own = scores[known, owner]
        keys = torch.rand(len(known), len(rest), generator=generator).masked_fill(shares[known] > 0, -1)
        others = scores[known].gather(1, rest[keys.topk(size - 1, dim=1).indices]).amax(dim=1)
        background, facts = unrelated[known].double(), queries.facts[known].double()
        features = [features_of(best, background, facts, size) for best in (torch.maximum(own, others), others)]
        right = torch.cat([own > others, torch.zeros(len(own), dtype=torch.bool)])
        absent = torch.arange(2 * len(own)) >= len(own)
        weight = torch.ones(2 * len(own), dtype=torch.float64)
        parts.append(_Trials(torch.cat(features), right, known.repeat(2), owner.repeat(2), absent, weight))
    return _Trials.join(parts)


def _fit(kinds: Sequence[_Trials], largest: int) -> Fit:
    """Fit trials of one or two kinds of queries, with equal weight."""
    trials = _Trials.join([replace(one, weight=one.weight / max(1, len(one.weight))) for one in kinds])
    if not all(len(one.right) for one in kinds):
        raise EvaluationError("cannot calibrate: too few queries match a video; use more videos")
    usual = [one.features[:, UNCERTAINTY].quantile(torch.tensor([0.01, 0.99], dtype=torch.float64)) for one in kinds]
    low, high = min(float(ends[0]) for ends in usual), max(float(ends[1]) for ends in usual)
    # Captions have similar lengths, and say nothing about shorter queries.
    used = [feature for feature in range(trials.features.shape[1]) if len(kinds) > 1 or feature != LENGTH]
    fit = Fit(_rising(trials.features, trials.right, trials.weight, used), 0.5, largest, (low, high))
    probability = fit.of(trials.features)
    cutoffs = [step / 100 for step in range(1, 100)]
    # Maximises refused + kept.
    best = max(cutoffs, key=lambda cutoff: sum(_refused_and_kept(probability, trials, cutoff)))
    return replace(fit, cutoff=best)


def _rising(features: Tensor, labels: Tensor, weight: Tensor, used: Sequence[int]) -> tuple[float, ...]:
    """`_logistic` of the features ``used``, with slopes of at least 0 for those in `RISING`."""
    used = list(used)
    while True:
        constant, *slopes = _logistic(features[:, used], labels, weight)
        falling = [feature for feature, slope in zip(used, slopes, strict=True) if feature in RISING and slope < 0]
        if not falling:
            found = dict(zip(used, slopes, strict=True))
            return (constant, *(found.get(feature, 0.0) for feature in range(features.shape[1])))
        used.remove(falling[0])


def _logistic(features: Tensor, labels: Tensor, weight: Tensor) -> tuple[float, ...]:
    """Logistic regression with slight L2 regularisation: features [n, k], labels [n] bool → a constant and k slopes."""
    if labels.all() or not labels.any():
        raise EvaluationError("cannot calibrate: all trials have the same outcome; use more videos")
    features, weight = features.double(), weight / weight.sum()
    mean, deviation = features.mean(dim=0), features.std(dim=0).clamp(min=1e-9)
    design = F.pad((features - mean) / deviation, (1, 0), value=1.0)
    weights = torch.zeros(design.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.binary_cross_entropy_with_logits(design @ weights, labels.double(), weight, reduction="sum")
        value = value + 1e-4 * weights[1:].square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    slopes = weights.detach()[1:] / deviation
    constant = float(weights.detach()[0] - (slopes * mean).sum())
    return (constant, *(float(slope) for slope in slopes))


def _quality(fit: Fit, unseen: _Trials) -> Quality:
    probability = fit.of(unseen.features)
    refused, kept = _refused_and_kept(probability, unseen, fit.cutoff)
    return Quality(_expected_error(probability, unseen.right.double()), refused, kept, len(probability))


def _refused_and_kept(probability: Tensor, trials: _Trials, cutoff: float) -> tuple[float, float]:
    shown = (probability >= cutoff).double()

    def share(of: Tensor) -> float:
        weight = trials.weight * of
        return float((shown * weight).sum() / weight.sum()) if of.any() else 0.0

    return 1 - share(trials.absent), share(trials.right)


def _expected_error(probability: Tensor, truth: Tensor) -> float:
    bins = (probability * _BINS).long().clamp(max=_BINS - 1)
    error = 0.0
    for number in range(_BINS):
        inside = bins == number
        if inside.any():
            error += float(inside.double().mean() * (probability[inside].mean() - truth[inside].mean()).abs())
    return error
