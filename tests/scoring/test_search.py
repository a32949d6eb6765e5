"""Searching a library block by block finds what sorting all of it finds."""

from __future__ import annotations

import pytest
import torch

from prota.config import ScoreConfig
from prota.kernels import dispatch
from prota.kernels.search import VideoBank
from prota.ranking import top_k
from prota.scoring import search as module
from prota.scoring.score import ScoreHead
from prota.scoring.search import search
from prota.types import PreparedTokens
from tests.cases import random_head, random_tokens


def library(videos: int = 23) -> tuple[ScoreHead, PreparedTokens, PreparedTokens]:
    head = random_head(8, ScoreConfig())
    with torch.no_grad():
        texts = head.prepare_texts(random_tokens([3, 5, 1], 8)).without_source()
        clips = head.prepare_videos(random_tokens([1 + index % 4 for index in range(videos)], 8)).without_source()
    return head, texts, clips


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
    scores, places = search(head, texts, clips, 8, allowed)
    assert allowed[places[torch.isfinite(scores)]].all()
    assert torch.isfinite(scores).sum(dim=1).tolist() == [8, 8, 8]


def test_an_empty_library_and_a_senseless_k() -> None:
    head, texts, clips = library()
    scores, places = search(head, texts, clips[:0], 3)
    assert scores.shape == places.shape == (3, 0)
    with pytest.raises(ValueError, match="allowed: 1 or more"):
        search(head, texts, clips, 0)


def test_a_bank_is_searched_by_the_fused_kernels() -> None:
    pytest.importorskip("triton")
    head, texts, clips = library()
    texts, clips = texts.to(torch.float32), clips.to(torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head, texts, clips = head.to(device), texts.to(device), clips.to(device)
    with dispatch.recorded() as ran:
        scores, places = search(head, texts, VideoBank.of(clips), 6)
    assert ran == ["triton"]
    expected, columns = search(head, texts, clips, 6, backend="reference")
    torch.testing.assert_close(scores, expected, rtol=2e-6, atol=2e-6)
    assert torch.equal(places, columns)
