"""Leak checks: the score of a pair may depend on its text and its video only.

Evaluations in this field have leaked by pooling a video with the captions of its batch, by normalising over a batch,
and by the position of the true caption. All of these show when the same items are scored in other batches or orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prota.errors import EvaluationError
from prota.evaluation.metrics import RetrievalMetrics, retrieval_metrics

__all__ = ["Check", "Score", "audit"]

Score = Callable[[Sequence[int], Sequence[int]], Tensor]

# Allowed distance from chance in standard errors; hits by chance are few and skewed, so two more are allowed.
_ERRORS, _HITS = 5.0, 2
# Texts scored alone, minimum of wrongly assigned pairs, and the largest side of a matrix of random scores.
_SINGLES, _PAIRS, _RANDOM = 16, 64, 2048


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class _Shown:
    """The block of scores that all others are compared with."""

    texts: list[int]
    videos: list[int]
    scores: Tensor
    allowed: float
    """Largest allowed difference of scores that should be equal."""


def audit(
    score: Score, texts: int, videos: int, *, seed: int = 0, tolerance: float = 1e-4, sample: int = 128
) -> list[Check]:
    """Check a system with at most ``sample`` of ``texts`` texts and ``videos`` videos.

    ``score(text_indices, video_indices)`` must compute the block [len, len] of exactly these texts and videos in this
    order, not look it up in a precomputed matrix. Scores count as equal within ``tolerance`` times their range. The
    checks depend on the seed alone.
    """
    if texts < 3 or videos < 3:
        raise EvaluationError(f"{texts} texts and {videos} videos are too few to audit; at least 3 of each are needed")
    if sample < 3 or tolerance < 0:
        raise ValueError(f"sample = {sample} must be at least 3, tolerance = {tolerance} at least 0")
    generator = torch.Generator().manual_seed(seed)
    rows = _choose(texts, sample, generator)
    # Equal numbers of texts and videos are usually pairs in order, and shown as such.
    columns = rows if texts == videos else _choose(videos, sample, generator)
    scores = _block(score, rows, columns)
    shown = _Shown(rows, columns, scores, tolerance * _range(scores))
    return [
        _permuted_texts(score, shown, generator),
        _permuted_videos(score, shown, generator),
        _sub_matrix(score, shown, generator),
        _single_texts(score, shown, generator),
        _finite(scores),
        _not_constant(scores),
        _constants_give_chance(texts, videos),
        _random_gives_chance(texts, videos, generator),
        _wrong_pairs_give_chance(score, shown, generator),
    ]


def _choose(count: int, most: int, generator: torch.Generator) -> list[int]:
    chosen: list[int] = torch.randperm(count, generator=generator)[:most].sort().values.tolist()
    return chosen


def _block(score: Score, texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    block = score(texts, videos).detach().cpu().double()
    if block.shape != (len(texts), len(videos)):
        raise ValueError(
            f"scores of {len(texts)} texts and {len(videos)} videos must be [{len(texts)}, {len(videos)}], got "
            f"{list(block.shape)}"
        )
    return block


def _range(scores: Tensor) -> float:
    finite = scores[torch.isfinite(scores)]
    spread = float(finite.max() - finite.min()) if len(finite) else 0.0
    return spread or 1.0


def _shuffled(count: int, generator: torch.Generator) -> Tensor:
    """A random order other than the given one."""
    order = torch.randperm(count, generator=generator)
    return order.roll(1) if torch.equal(order, torch.arange(count)) else order


def _pick(items: list[int], places: Tensor) -> list[int]:
    return [items[place] for place in places.tolist()]


def _compared(name: str, found: Tensor, expected: Tensor, allowed: float, *, meaning: str) -> Check:
    # Another check reports NaN and infinities.
    equal = (found == expected) | (found.isnan() & expected.isnan())
    apart = torch.where(equal, 0.0, (found - expected).abs())
    largest = float(apart.nan_to_num(nan=math.inf).max())
    passed = largest <= allowed
    detail = f"{found.numel()} scores differ by at most {largest:.2g}, allowed {allowed:.2g}"
    return Check(name, passed, detail + ("" if passed else f": {meaning}"))


def _permuted_texts(score: Score, shown: _Shown, generator: torch.Generator) -> Check:
    order = _shuffled(len(shown.texts), generator)
    found = _block(score, _pick(shown.texts, order), shown.videos)
    meaning = "scores depend on the order of the texts"
    return _compared("permuting texts permutes rows", found, shown.scores[order], shown.allowed, meaning=meaning)


def _permuted_videos(score: Score, shown: _Shown, generator: torch.Generator) -> Check:
    order = _shuffled(len(shown.videos), generator)
    found = _block(score, shown.texts, _pick(shown.videos, order))
    meaning = "scores depend on the order of the videos"
    return _compared("permuting videos permutes columns", found, shown.scores[:, order], shown.allowed, meaning=meaning)


def _sub_matrix(score: Score, shown: _Shown, generator: torch.Generator) -> Check:
    rows = _shuffled(len(shown.texts), generator)[: (len(shown.texts) + 1) // 2]
    columns = _shuffled(len(shown.videos), generator)[: (len(shown.videos) + 2) // 3]
    found = _block(score, _pick(shown.texts, rows), _pick(shown.videos, columns))
    expected = shown.scores[rows][:, columns]
    meaning = "scores depend on which other texts and videos are shown"
    return _compared("a sub-matrix has the same entries", found, expected, shown.allowed, meaning=meaning)


def _single_texts(score: Score, shown: _Shown, generator: torch.Generator) -> Check:
    rows = torch.randperm(len(shown.texts), generator=generator)[:_SINGLES]
    found = torch.cat([_block(score, [text], shown.videos) for text in _pick(shown.texts, rows)])
    meaning = "scores depend on the other texts of the batch"
    return _compared("one text at a time has the same rows", found, shown.scores[rows], shown.allowed, meaning=meaning)


def _finite(scores: Tensor) -> Check:
    bad = int((~torch.isfinite(scores)).sum())
    return Check("scores are finite", bad == 0, f"{bad} of {scores.numel()} scores are NaN or infinite")


def _not_constant(scores: Tensor) -> Check:
    telling = int((scores != scores[:, :1]).any(dim=1).sum())
    return Check("scores are not constant", telling > 0, f"{telling} of {len(scores)} texts score videos differently")


@dataclass(frozen=True)
class _Chance:
    """The distribution of a metric under chance."""

    expected: float
    error: float
    """Standard error of one trial."""
    hit: float = 0.0
    """The contribution of one hit; 0 for ranks."""

    def allowed(self, inflation: float = 1.0, trials: int = 1) -> tuple[float, float]:
        """Expected value and allowed distance from it, for a mean over trials with inflated variance."""
        return self.expected, _ERRORS * self.error * math.sqrt(inflation / trials) + _HITS * self.hit / trials


def _chance(texts: int, videos: int) -> tuple[Tensor, dict[str, _Chance]]:
    """Assign captions to videos in turn, and compute the chance level of each metric.

    The first of m captions among A has the expected rank (A + 1) / (m + 1).
    """
    video_of_text = torch.arange(texts) % videos
    own = torch.bincount(video_of_text)
    own = own[own > 0].double()
    first, places = 1 / videos, (videos + 1) / 2
    best_variance = own * (texts + 1) * (texts - own) / ((own + 1) ** 2 * (own + 2))
    share = own / texts
    return video_of_text, {
        "text → video R@1": _Chance(100 * first, 100 * math.sqrt(first * (1 - first) / texts), 100 / texts),
        "text → video mean rank": _Chance(places, math.sqrt((videos**2 - 1) / 12 / texts)),
        "video → text R@1": _Chance(
            100 * float(share.mean()), 100 * float((share * (1 - share)).sum().sqrt()) / len(own), 100 / len(own)
        ),
        "video → text mean rank": _Chance(
            float(((texts + 1) / (own + 1)).mean()), float(best_variance.sum().sqrt()) / len(own)
        ),
    }


def _measured(metrics: RetrievalMetrics) -> dict[str, float]:
    to_video, to_text = metrics.text_to_video, metrics.video_to_text
    return {
        "text → video R@1": to_video.r1,
        "text → video mean rank": to_video.mean_rank,
        "video → text R@1": to_text.r1,
        "video → text mean rank": to_text.mean_rank,
    }


def _near(name: str, found: dict[str, float], chance: dict[str, tuple[float, float]], meaning: str) -> Check:
    """Whether all metrics are at chance (value, allowed distance); the detail names the worst one."""

    def excess(metric: str) -> float:
        expected, allowed = chance[metric]
        return abs(found[metric] - expected) - allowed

    worst = max(found, key=lambda metric: excess(metric) / (chance[metric][1] or 1.0))
    passed = excess(worst) <= 0
    detail = f"{worst} is {found[worst]:.4g}, chance {chance[worst][0]:.4g}, allowed ± {chance[worst][1]:.2g}"
    return Check(name, passed, detail + ("" if passed else f": {meaning}"))


def _constants_give_chance(texts: int, videos: int) -> Check:
    texts, videos = min(texts, _RANDOM), min(videos, _RANDOM)
    video_of_text, chance = _chance(texts, videos)
    found = _measured(retrieval_metrics(torch.zeros(texts, videos), video_of_text))
    exact = {metric: (at.expected, 1e-9 * at.expected) for metric, at in chance.items()}
    return _near("constant scores give chance", found, exact, "the metrics handle ties wrongly")


def _random_gives_chance(texts: int, videos: int, generator: torch.Generator) -> Check:
    texts, videos = min(texts, _RANDOM), min(videos, _RANDOM)
    video_of_text, chance = _chance(texts, videos)
    found = _measured(retrieval_metrics(torch.rand(texts, videos, generator=generator), video_of_text))
    allowed = {metric: at.allowed() for metric, at in chance.items()}
    return _near("random scores give chance", found, allowed, "the metrics are wrong")


def _wrong_pairs_give_chance(score: Score, shown: _Shown, generator: torch.Generator) -> Check:
    """Texts with random videos: high scores of pairs at equal positions would depend on positions, not on contents.

    A random assignment makes ranks uniform for any scores; without replacement, the variance of a mean is at most
    n / (n - 1) times that of independent draws. Small samples are drawn several times.
    """
    name, count = "wrong pairs give chance", min(len(shown.texts), len(shown.videos))
    deals = math.ceil(_PAIRS / count)
    totals: dict[str, float] = {}
    for _ in range(deals):
        rows = torch.randperm(len(shown.texts), generator=generator)[:count]
        columns = torch.randperm(len(shown.videos), generator=generator)[:count]
        block = _block(score, _pick(shown.texts, rows), _pick(shown.videos, columns))
        if not bool(torch.isfinite(block).all()):
            return Check(name, False, "NaN and infinite scores cannot be ranked")
        for metric, value in _measured(retrieval_metrics(block, torch.arange(count))).items():
            totals[metric] = totals.get(metric, 0.0) + value / deals
    _, chance = _chance(count, count)
    allowed = {metric: at.allowed(count / (count - 1), deals) for metric, at in chance.items()}
    return _near(name, totals, allowed, "scores depend on the positions of texts and videos")
