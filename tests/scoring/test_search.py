"""Searching a library block by block finds what sorting all of it finds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prota.config.model import ScoreConfig
from prota.kernels import dispatch
from prota.kernels.search import VideoBank
from prota.ranking import top_k
from prota.scoring import search as module
from prota.scoring.score import ScoreHead
from prota.scoring.search import search
from prota.types import PreparedTokens
from tests.cases import random_head, random_tokens
from tests.kernels.fused_cases import DEVICE


def library(videos: int = 23) -> tuple[ScoreHead, PreparedTokens, PreparedTokens]:
    head = random_head(8, ScoreConfig())
    with torch.no_grad():
        texts = head.prepare_texts(random_tokens([3, 5, 1], 8)).without_source()
        clips = head.prepare_videos(random_tokens([1 + index % 4 for index in range(videos)], 8)).without_source()
    return head, texts, clips


def on_device(
    head: ScoreHead, texts: PreparedTokens, clips: PreparedTokens
) -> tuple[ScoreHead, PreparedTokens, PreparedTokens]:
    """Where the fused kernels search, in a precision that they take."""
    return head.to(DEVICE), texts.to(torch.float32).to(DEVICE), clips.to(torch.float32).to(DEVICE)


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("block", [4, 1000])
def test_blocks_change_nothing(k: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    head, texts, clips = library()
    scores, places = search(head, texts, clips, k)
    expected, columns = top_k(head.score(texts, clips), k)
    assert torch.equal(places, columns)
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-12)


def test_equals_keep_their_order_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 4)
    head, texts, clips = library()
    every = torch.randint(3, (3, 23)).double()
    seen = iter(every.split(4, dim=1))
    monkeypatch.setattr(type(head), "score", lambda *_: next(seen))
    scores, places = search(head, texts, clips, 9)
    expected, columns = top_k(every, 9)
    assert torch.equal(scores, expected)
    assert torch.equal(places, columns)


def test_videos_that_are_not_allowed_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 4)
    head, texts, clips = library()
    allowed = torch.arange(23) % 3 == 1
    scores, places = search(head, texts, clips, 8, allowed=allowed)
    assert allowed[places[torch.isfinite(scores)]].all()
    assert torch.isfinite(scores).sum(dim=1).tolist() == [8, 8, 8]


def test_an_empty_library_no_texts_and_a_senseless_k() -> None:
    head, texts, clips = library()
    scores, places = search(head, texts, clips[:0], 3)
    assert scores.shape == places.shape == (3, 0)
    for videos in (clips, VideoBank.of(clips.to(torch.float32))):
        scores, places = search(head, texts[:0], videos, 3)
        assert scores.shape == places.shape == (0, 3)
        assert places.dtype == torch.long
    with pytest.raises(ValueError, match="k must be"):
        search(head, texts, clips, 0)


@pytest.mark.parametrize(
    ("allowed", "given"),
    [(torch.ones(22, dtype=torch.bool), "22"), (torch.ones(23, dtype=torch.uint8), "uint8")],
)
def test_what_is_allowed_must_be_said_of_every_video(allowed: Tensor, given: str) -> None:
    head, texts, clips = library()
    for videos in (clips, VideoBank.of(clips)):
        with pytest.raises(ValueError, match=rf"each of the 23 videos; got .*{given}"):
            search(head, texts, videos, 3, allowed=allowed)


@pytest.mark.interpreter
def test_a_bank_that_the_kernels_cannot_search_is_refused() -> None:
    """They would find something, and it would be wrong."""
    pytest.importorskip("triton")
    head, texts, clips = on_device(*library())
    points = [PreparedTokens(items.direction, None, items.weight, items.mask) for items in (texts, clips)]
    pooling = random_head(8, ScoreConfig(similarity="cosine", aggregation="pooling"))
    narrow = texts.map(lambda tensor: tensor[..., :4] if tensor.dim() == 3 else tensor)
    words = head.prepare_texts(random_tokens([129], 8).to(DEVICE)).to(torch.float32)
    long = PreparedTokens.cat([texts, words])
    bank, bank_of_points = VideoBank.of(clips), VideoBank.of(points[1])
    for who, queries, videos, reason in (
        (head, texts, bank_of_points, "another kind of model"),
        (head, points[0], bank, "another kind of model"),
        (pooling, points[0], bank_of_points, "pooling"),
        (head, narrow, bank, "width 4, videos 8"),
        (head, long, bank, "129 words"),
        (head, texts, VideoBank.of(clips.to(torch.float64)), "float64"),
    ):
        with pytest.raises(ValueError, match=reason):
            search(who, queries, videos, 3)
    with pytest.raises(ValueError, match="backend='reference' cannot search a VideoBank"):
        search(head, texts, bank, 3, backend="reference")
    with pytest.raises(ValueError, match="backend='cpu' cannot search a VideoBank"), dispatch.using("cpu"):
        search(head, texts, bank, 3)


@pytest.mark.interpreter
@pytest.mark.parametrize("block", [2, 1000])
def test_a_bank_is_searched_by_the_fused_kernels(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(module, "_BLOCK", block)
    head, texts, clips = on_device(*library())
    with dispatch.recorded() as ran:
        scores, places = search(head, texts, VideoBank.of(clips), 6)
    assert ran == ["triton"]
    expected, columns = search(head, texts, clips, 6, backend="reference")
    torch.testing.assert_close(scores, expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(places, columns)
