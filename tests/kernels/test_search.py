"""The fused search finds what sorting all scores finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from prota.config.model import ScoreConfig
from prota.kernels import fused
from prota.kernels import search as kernel
from prota.kernels.search import VideoBank, top_k
from prota.kernels.tiles import operand, pad_words
from prota.ranking import top_k as sorted_top_k
from prota.types import PreparedTokens
from tests.kernels.fused_cases import DEVICE, make, single

pytestmark = pytest.mark.interpreter

pytest.importorskip("triton")
CONFIG = ScoreConfig()


def library(texts: int, words: int, videos: int, frames: int) -> tuple[PreparedTokens, PreparedTokens]:
    """Queries, and a library whose second half repeats its first: every score is there twice."""
    head, queries, clips = make({}, texts, words, videos, frames)
    with torch.no_grad():
        found = single(head.prepare_videos(clips))
        return single(head.prepare_texts(queries)), PreparedTokens.cat([found, found])


SHAPES = [(1, 7, 100, 12, 10), (5, 31, 40, 5, 100), (3, 4, 90, 1, 5), (2, 33, 9, 64, 50), (9, 3, 30, 12, 1)]


@pytest.mark.parametrize(("texts", "words", "videos", "frames", "k"), SHAPES)
def test_the_best_come_first(texts: int, words: int, videos: int, frames: int, k: int) -> None:
    queries, clips = library(texts, words, videos, frames)
    scores, places = top_k(queries, VideoBank.of(clips), k, CONFIG)
    every = fused.score(queries, clips, CONFIG)
    expected, _ = sorted_top_k(every, k)
    assert scores.shape == (texts, min(k, 2 * videos))
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    # Scores closer than rounding may change places.
    torch.testing.assert_close(every.gather(1, places), expected, rtol=0, atol=1e-6)
    assert all(len(set(row)) == len(row) for row in places.tolist())


def signs(items: int, tokens: int) -> PreparedTokens:
    """Unit vectors of ±1/8: their dot products are exact, so that every matrix product gives the same bits."""
    direction = (torch.randint(2, (items, tokens, 64), device=DEVICE) * 2 - 1) / 8
    mask = torch.arange(tokens, device=DEVICE) < torch.randint(1, tokens + 1, (items, 1), device=DEVICE)
    return PreparedTokens(direction * mask[..., None], None, mask / mask.sum(dim=1, keepdim=True), mask)


@pytest.mark.parametrize(("texts", "words", "videos", "frames", "k"), SHAPES)
def test_equal_scores_come_in_the_order_of_their_places(
    texts: int, words: int, videos: int, frames: int, k: int
) -> None:
    """Every video is there twice, in other tiles and at other places of them; one copy may be the last of the k."""
    config, queries, clips = ScoreConfig(similarity="cosine"), signs(texts, words), signs(videos, frames)
    once = fused.score(queries, clips, config)
    scores, places = top_k(queries, VideoBank.of(PreparedTokens.cat([clips, clips])), k, config)
    expected, columns = sorted_top_k(torch.cat([once, once], dim=1), k)
    tied = scores[:, 1:] == scores[:, :-1]
    assert (places[:, 1:] > places[:, :-1])[tied].all()
    # A GPU adds in the order of its tile: copies may differ in the last bits there (see `prota.scoring.search.search`).
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-6)
    if DEVICE == "cpu":
        assert torch.equal(scores, expected)
        assert torch.equal(places, columns)


def test_videos_that_are_not_allowed_are_not_found() -> None:
    queries, clips = library(3, 5, 50, 12)
    allowed = torch.rand(100, device=DEVICE) < 0.3
    scores, places = top_k(queries, VideoBank.of(clips), 20, CONFIG, allowed)
    assert allowed[places].all()
    every = fused.score(queries, clips, CONFIG).masked_fill(~allowed, -1e9)
    torch.testing.assert_close(scores, sorted_top_k(every, 20)[0], rtol=0, atol=1e-6)
    few = torch.zeros(100, dtype=torch.bool, device=DEVICE)
    few[7] = True
    scores, places = top_k(queries, VideoBank.of(clips), 5, CONFIG, few)
    assert (places[:, 0] == 7).all()
    assert torch.isinf(scores[:, 1:]).all()


def test_a_bank_made_in_parts_is_the_bank_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _, clips = library(1, 3, 20, 4)
    whole = VideoBank.of(clips)
    monkeypatch.setattr(kernel, "_PART", 7)
    parts = VideoBank.of(clips)
    assert len(parts) == 40
    for one, other in zip(whole.videos.tensors, parts.videos.tensors, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="at least one"):
        VideoBank.of(clips[:0])


def test_places_beyond_two_to_the_31() -> None:
    """Scores of chosen tiles are written where they belong also when a 32-bit number could not say where."""
    from prota.kernels.triton_forward import forward_kernel

    queries, clips = library(1, 5, 40, 1)
    bank = VideoBank.of(clips)
    texts = operand(pad_words(queries, 16), bank.common)
    tiling = replace(kernel._search_tiling(1, 16, 1, 32, 4), texts=1)
    program = 2**31 // tiling.videos + 7
    try:
        # Only what is written takes memory.
        scores = torch.empty((program + 1) * tiling.videos, device=DEVICE)
    except RuntimeError:
        pytest.skip("needs 8 GiB of address space")
    chosen = torch.zeros(program + 1, dtype=torch.int32, device=DEVICE)
    # As a tile to be repaired, this program alone runs.
    broken = torch.tensor([1, program], dtype=torch.int32, device=DEVICE)
    forward_kernel[(1,)](
        **fused.kernel_arguments(bank.videos, texts, tiling),
        **fused.Maths.of(CONFIG).arguments(careful=True),
        scores=scores, broken=broken, chosen=chosen, allowed=scores,
        OUTPUT="chosen", CHOSEN=program + 1, FILTER=False, REPAIR=True,
    )  # fmt: skip
    expected = fused.score(queries, clips, CONFIG)[0, : tiling.videos]
    torch.testing.assert_close(scores[program * tiling.videos :], expected, rtol=0, atol=1e-6)
