"""Systems that leak, each in its own way, are caught by the right check; an honest one passes them all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from prota.config.model import Config
from prota.evaluation import audit as module
from prota.evaluation.audit import Check, Score, audit
from prota.evaluation.metrics import DirectionMetrics, RetrievalMetrics
from prota.model.prota import ProTA

TEXTS, VIDEOS, SUB, SINGLE = "permuting texts", "permuting videos", "a sub-matrix", "one text at a time"
FINITE, CONSTANT = "scores are finite", "scores are not constant"
TIES, RANDOM, PAIRS = "constant scores give", "random scores give", "wrong pairs give"
ALL = [TEXTS, VIDEOS, SUB, SINGLE, FINITE, CONSTANT, TIES, RANDOM, PAIRS]
SIZE, WIDTH = 60, 24


class Features:
    """Made-up texts and videos in pairs: a video has 4 frames, its text is close to one of them."""

    def __init__(self, texts: int = SIZE, videos: int = SIZE) -> None:
        generator = torch.Generator().manual_seed(5)
        self.frames = F.normalize(torch.randn(videos, 4, WIDTH, generator=generator), dim=-1)
        noise = torch.randn(texts, WIDTH, generator=generator)
        self.words = F.normalize(self.frames[torch.arange(texts) % videos, 0] + 0.1 * noise, dim=-1)

    def honest(self, texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        return torch.einsum("ad,bfd->abf", self.words[list(texts)], self.frames[list(videos)]).amax(dim=2)

    def pooled(self, texts: Sequence[int], videos: Sequence[int], by: Tensor) -> Tensor:
        """Frames averaged by their attention to one caption a video, ``by`` [B, D]."""
        frames = self.frames[list(videos)]
        attention = torch.einsum("bd,bfd->bf", by, frames).mul(20).softmax(dim=1)
        return self.words[list(texts)] @ torch.einsum("bf,bfd->bd", attention, frames).T


def failures(checks: list[Check]) -> set[str]:
    assert [next(name for name in ALL if check.name.startswith(name)) for check in checks] == ALL
    return {name for name, check in zip(ALL, checks, strict=True) if not check.passed}


@pytest.mark.parametrize(("texts", "videos"), [(60, 60), (300, 40), (20, 50), (400, 400), (3, 3), (7, 4)])
def test_an_honest_system_passes(texts: int, videos: int) -> None:
    for seed in range(5):
        assert failures(audit(Features(texts, videos).honest, texts, videos, seed=seed)) == set()


@pytest.mark.parametrize("preset", ["global-pooling", "dpa", "prota"])
def test_our_model_passes(preset: str) -> None:
    model = ProTA.from_config(Config.build(preset, "toy")).eval()
    captions = [f"a {'very ' * (index % 3)}short film about {index}" for index in range(12)]
    clips = torch.randint(0, 256, (12, 3, 3, 32, 32), dtype=torch.uint8)

    def score(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        with torch.no_grad():
            shown = model.encode_text([captions[text] for text in texts])
            return model.score(shown, model.encode_video(clips[list(videos)]))

    assert failures(audit(score, 12, 12)) == set()


def with_a_bonus_on_the_diagonal(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    scores = Features().honest(texts, videos)
    return scores + 0.8 * torch.eye(*scores.shape)


def softmax_over_texts(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    scores = Features().honest(texts, videos)
    return scores * (20 * scores).softmax(dim=0)


def softmax_over_videos(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    scores = Features().honest(texts, videos)
    return scores * (20 * scores).softmax(dim=1)


def standardised_over_the_batch(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    scores = Features().honest(texts, videos)
    return (scores - scores.mean()) / (scores.std() + 1e-3)


def pooled_by_the_mean_caption(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    features = Features()
    mean = features.words[list(texts)].mean(dim=0)
    return features.pooled(texts, videos, mean.expand(len(videos), WIDTH))


def pooled_by_the_caption_beside(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    """The classic: each video is pooled by the caption at its own place, which in a test is the true one."""
    features = Features()
    beside = features.words[[texts[place % len(texts)] for place in range(len(videos))]]
    return features.pooled(texts, videos, beside)


def a_little_for_earlier_texts(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    return Features().honest(texts, videos) - 0.01 * torch.arange(len(texts))[:, None]


def a_little_for_earlier_videos(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    return Features().honest(texts, videos) - 0.01 * torch.arange(len(videos))[None]


def sorted_by_the_batch(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
    """Only the pairs at equal places of a square block, and nothing but them."""
    return torch.eye(len(texts), len(videos))


@pytest.mark.parametrize(
    ("system", "caught_by", "not_by"),
    [
        (with_a_bonus_on_the_diagonal, {TEXTS, VIDEOS, SUB, SINGLE, PAIRS}, {FINITE, CONSTANT}),
        (sorted_by_the_batch, {TEXTS, VIDEOS, SUB, SINGLE, PAIRS}, {FINITE, CONSTANT}),
        (softmax_over_texts, {SUB, SINGLE}, {TEXTS, VIDEOS, PAIRS}),
        (softmax_over_videos, {SUB}, {TEXTS, VIDEOS, SINGLE, PAIRS}),
        (standardised_over_the_batch, {SUB, SINGLE}, {TEXTS, VIDEOS, PAIRS}),
        (pooled_by_the_mean_caption, {SUB, SINGLE}, {TEXTS, VIDEOS, PAIRS}),
        (pooled_by_the_caption_beside, {TEXTS, VIDEOS, SUB, SINGLE}, {FINITE, CONSTANT}),
        (a_little_for_earlier_texts, {TEXTS, SUB, SINGLE}, {VIDEOS, PAIRS}),
        (a_little_for_earlier_videos, {VIDEOS, SUB}, {TEXTS, SINGLE, PAIRS}),
    ],
)
def test_leaks_are_caught(system: Score, caught_by: set[str], not_by: set[str]) -> None:
    for seed in range(3):
        checks = audit(system, SIZE, SIZE, seed=seed)
        assert caught_by <= failures(checks)
        assert not not_by & failures(checks)
        assert not {TIES, RANDOM} & failures(checks)
        assert all(check.detail for check in checks)


def test_a_caption_beside_its_video_lifts_wrong_pairs_too() -> None:
    """Where the leak is strong enough to carry the score: the caption is mixed into the video at its place."""
    features = Features()

    def mixed(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        beside = features.words[[texts[place % len(texts)] for place in range(len(videos))]]
        return features.words[list(texts)] @ (features.frames[list(videos)].mean(dim=1) + beside).T

    found = failures(audit(mixed, SIZE, SIZE))
    assert {TEXTS, VIDEOS, SUB, SINGLE, PAIRS} <= found


@pytest.mark.parametrize("count", [3, 4, 8, 20, 64, 200])
def test_wrong_pairs_are_noticed_in_any_number(count: int) -> None:
    def by_place(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        return torch.eye(len(texts), len(videos))

    for seed in range(5):
        assert PAIRS in failures(audit(by_place, count, count, seed=seed))


def test_hubs_are_no_leak() -> None:
    """A video that is near everything is poor, not dishonest."""

    def hub(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        return Features().honest(texts, videos) + 2.0 * torch.tensor([[video % 7 == 0 for video in videos]])

    assert failures(audit(hub, SIZE, SIZE)) == set()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_scores_that_are_not_finite(value: float) -> None:
    """Only what it is: a pair that moves with its text and video is no leak, but cannot be ranked."""

    def broken(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        scores = Features().honest(texts, videos)
        return scores.masked_fill(torch.tensor([[text == 4] * len(videos) for text in texts]), value)

    checks = audit(broken, SIZE, SIZE)
    assert failures(checks) == {FINITE, PAIRS}
    assert f"{SIZE} of {SIZE * SIZE} scores are NaN or infinite" in [check.detail for check in checks]


def test_constant_scores() -> None:
    assert failures(audit(lambda texts, videos: torch.full((len(texts), len(videos)), 0.5), 30, 20)) == {CONSTANT}
    by_text = failures(audit(lambda texts, videos: torch.tensor([[float(t)] * len(videos) for t in texts]), 30, 20))
    assert by_text == {CONSTANT}


def test_metrics_that_favour_ties_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimistic(scores: Tensor, video_of_text: Tensor) -> RetrievalMetrics:
        """The first of the tied: constants look perfect, anything else is right."""
        own = scores.gather(1, video_of_text[:, None])
        places = 1 + (scores > own).sum(dim=1).double()
        direction = DirectionMetrics(100 * float((places == 1).double().mean()), 0, 0, 0, float(places.mean()), 1)
        return RetrievalMetrics(direction, direction)

    monkeypatch.setattr(module, "retrieval_metrics", optimistic)
    assert failures(audit(Features().honest, SIZE, SIZE)) == {TIES}


def test_metrics_that_are_off_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.retrieval_metrics

    def flattering(scores: Tensor, video_of_text: Tensor) -> RetrievalMetrics:
        return real(scores + 0.5 * F.one_hot(video_of_text, scores.shape[1]), video_of_text)

    monkeypatch.setattr(module, "retrieval_metrics", flattering)
    assert RANDOM in failures(audit(Features().honest, SIZE, SIZE))


def test_random_scores_of_many_shapes_are_at_chance() -> None:
    """The tolerance comes from the standard error: no false alarm over many seeds and shapes."""
    for texts, videos in ((5, 5), (40, 7), (7, 40), (500, 100)):
        for seed in range(20):
            generator = torch.Generator().manual_seed(seed)
            check = module._random_gives_chance(texts, videos, generator)
            assert check.passed, (texts, videos, seed, check.detail)


def test_the_tolerance_is_relative_to_the_range() -> None:
    def rounded(factor: float) -> Score:
        def score(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
            return factor * (Features().honest(texts, videos) + 1e-3 * torch.rand(len(texts), len(videos)))

        return score

    for factor in (1e-6, 1.0, 1e6):
        assert {TEXTS, VIDEOS, SUB, SINGLE} <= failures(audit(rounded(factor), SIZE, SIZE))
        assert failures(audit(rounded(factor), SIZE, SIZE, tolerance=1e-2)) == set()


def test_a_seed_asks_the_same_questions_and_leaves_the_world_alone() -> None:
    state = torch.get_rng_state()
    assert audit(Features().honest, SIZE, SIZE, seed=3) == audit(Features().honest, SIZE, SIZE, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_large_sets_are_sampled() -> None:
    largest = 0

    def watched(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        nonlocal largest
        largest = max(largest, len(texts), len(videos))
        return torch.tensor([[(text * 7919 + video * 104729) % 1009 for video in videos] for text in texts]).float()

    audit(watched, 59_800, 2_990, sample=32)
    assert largest == 32


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="too few to audit"):
        audit(Features().honest, 2, 5)
    with pytest.raises(ValueError, match=r"60 texts and 60 videos must be \[60, 60\], got \[1\]"):
        audit(lambda texts, videos: torch.zeros(1), 60, 60)
    with pytest.raises(ValueError, match="sample = 2"):
        audit(Features().honest, 5, 5, sample=2)


def test_one_pair_without_a_number_is_one_too_many() -> None:
    def broken(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        here = torch.tensor([[text == 4 and video == 9 for video in videos] for text in texts])
        return Features().honest(texts, videos).masked_fill(here, float("nan"))

    assert FINITE in failures(audit(broken, SIZE, SIZE))


def test_a_score_that_is_a_number_only_in_company_is_a_leak() -> None:
    """The spread over a batch of one is NaN, which is no small difference but the largest of all."""

    def standardised_by_column(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        honest = Features().honest(texts, videos)
        variance = (honest - honest.mean(dim=0)).square().sum(dim=0) / (len(texts) - 1)
        return honest if len(texts) > 1 else honest / variance.sqrt()

    found = failures(audit(standardised_by_column, SIZE, SIZE))
    assert SINGLE in found
    assert not {TEXTS, VIDEOS, SUB} & found


def test_of_as_many_texts_as_videos_true_pairs_are_shown_together() -> None:
    """A sample of either side alone would seldom have a text and its own video, and a leak between them not show."""
    shown: list[tuple[list[int], list[int]]] = []

    def watched(texts: Sequence[int], videos: Sequence[int]) -> Tensor:
        shown.append((list(texts), list(videos)))
        return Features().honest(texts, videos)

    audit(watched, SIZE, SIZE, sample=8)
    texts, videos = shown[0]
    assert len(texts) == 8
    assert texts == videos
