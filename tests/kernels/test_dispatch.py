"""Who computes a score, by device, dtype and settings, or as told; and that tests can see who did."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from prota.config.model import DistributionConfig, ScoreConfig
from prota.kernels import cpu_build, dispatch
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens
from tests.kernels.fused_cases import DEVICE, make, single

COMPILED = DEVICE == "cpu" and not isinstance(cpu_build.load(), str)
HOME = "triton" if DEVICE == "cuda" else "cpu" if COMPILED else "reference"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def prepared(**score: object) -> tuple[ScoreHead, PreparedTokens, PreparedTokens]:
    head, texts, videos = make(dict(score), 3, 5, 4, 6)
    with torch.no_grad():
        return head, head.prepare_texts(texts), head.prepare_videos(videos)


@pytest.mark.interpreter
@needs_triton
@torch.no_grad()
def test_each_backend_runs_when_it_is_asked_for_and_all_agree() -> None:
    head, texts, videos = prepared()
    texts, videos = single(texts), single(videos)
    backends = ["reference", "triton", *(["cpu"] if COMPILED else [])]
    found = []
    for backend in backends:
        with dispatch.recorded() as ran:
            found.append(head.score(texts, videos, backend))
        assert ran == [backend]
    for scores in found[1:]:
        torch.testing.assert_close(scores, found[0], rtol=0, atol=2e-6)


@pytest.mark.interpreter
@needs_triton
@pytest.mark.parametrize("similarity", ["squared", "offset", "printed"])
@torch.no_grad()
def test_what_is_no_number_is_no_match(similarity: str) -> None:
    """A video with a frame whose spread is NaN must not come first; the others keep their scores."""
    head, texts, videos = prepared(similarity=similarity)
    texts, videos = single(texts), single(videos)
    whole = head.score(texts, videos, "reference")
    assert videos.spread is not None
    spread = videos.spread.clone()
    spread[1, 0] = torch.nan
    broken = dataclasses.replace(videos, spread=spread)
    kept = [place for place in range(len(videos)) if place != 1]
    for backend in ("reference", *(["cpu"] if COMPILED else [])):
        scores = head.score(texts, broken, backend)
        assert bool(scores[:, 1].isnan().all()), backend
        torch.testing.assert_close(scores[:, kept], whole[:, kept], rtol=0, atol=2e-6)
    # Here what all spreads have in common is taken from them first, so that it concerns all.
    assert bool(head.score(texts, broken, "triton").isnan().all())


@torch.no_grad()
def test_auto_takes_the_fused_path_of_the_device() -> None:
    head, texts, videos = prepared()
    with dispatch.recorded() as ran:
        head.score(single(texts), single(videos))
        head.score(texts, videos)
    assert ran == [HOME, "reference"], "float64 is the reference's"


@pytest.mark.interpreter
@needs_triton
def test_using_changes_what_auto_means_and_nothing_else() -> None:
    head, texts, videos = prepared()
    texts, videos = single(texts), single(videos)
    with torch.no_grad(), dispatch.recorded() as ran:
        with dispatch.using("reference"):
            head.score(texts, videos)
            head.score(texts, videos, "triton")
        head.score(texts, videos)
    assert ran == ["reference", "triton", HOME]
    with pytest.raises(ValueError, match="one of auto, reference, triton, cpu"), dispatch.using("gpu"):
        pass


def test_one_thread_does_not_choose_for_another() -> None:
    head, texts, videos = prepared()
    with ThreadPoolExecutor(1) as other, dispatch.using("reference"):
        chosen = other.submit(dispatch.choose, head.config, single(texts), single(videos), "auto").result()
    assert chosen == HOME


def test_tokens_that_cannot_be_compared_are_refused_by_every_backend() -> None:
    head, texts, videos = prepared()
    narrow = videos.without_source().map(lambda tensor: tensor[..., :16] if tensor.dim() == 3 else tensor)
    for backend in ("auto", "reference", "triton", "cpu"):
        with pytest.raises(ValueError, match=rf"texts are on {DEVICE}.*, videos on meta: move them to one device"):
            head.score(texts, videos.to("meta"), backend)
        with pytest.raises(ValueError, match="texts have width 32, videos 16: prepare them with the same model"):
            head.score(texts, narrow, backend)


@pytest.mark.interpreter
@needs_triton
def test_a_softmax_too_flat_for_the_kernels_is_left_to_the_reference() -> None:
    """What stands for padding would weigh something beside so little sharpness."""
    for name in ("lambda_", "xi"):
        head, texts, videos = prepared(**{name: 1e-9})
        with pytest.raises(ValueError, match="below 1e-07"):
            head.score(single(texts), single(videos), "triton")
        head, texts, videos = prepared(**{name: 1e-7, "similarity": "printed"})
        with torch.no_grad():
            actual = head.score(single(texts), single(videos), "triton")
            torch.testing.assert_close(actual.double(), head.reference_score(texts, videos), rtol=0, atol=2e-6)


@pytest.mark.interpreter
@needs_triton
def test_gpus_that_are_too_old_are_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    head, texts, videos = prepared()
    monkeypatch.setattr(dispatch, "_on_gpu", lambda tokens: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert dispatch.choose(head.config, single(texts), single(videos), "auto") == "reference"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert dispatch.choose(head.config, single(texts), single(videos), "auto") == "triton"


def test_what_a_backend_cannot_is_refused_where_it_was_asked_for() -> None:
    head, texts, videos = prepared(similarity="cosine", aggregation="pooling")
    texts, videos = (items.to(torch.float32) for items in (texts, videos))
    for backend in ("triton", "cpu"):
        with pytest.raises(ValueError, match=f"backend='{backend}' cannot compute this score: .*pooling"):
            head.score(texts, videos, backend)
    with dispatch.recorded() as ran:
        head.float().score(texts, videos)
    assert ran == ["reference"]


@pytest.mark.interpreter
@needs_triton
def test_too_many_tokens_and_other_dtypes_are_left_to_the_reference() -> None:
    def lacks(words: int, frames: int, dtype: torch.dtype = torch.float32) -> str:
        head, texts, videos = make({}, 1, words, 1, frames, width=8)
        with torch.no_grad(), pytest.raises(ValueError, match="cannot compute") as error:
            head.score(head.prepare_texts(texts).to(dtype), head.prepare_videos(videos).to(dtype), "triton")
        return str(error.value)

    assert "129 words" in lacks(129, 3)
    assert "65 frames" in lacks(3, 65)
    assert "float64" in lacks(3, 3, torch.float64)


def test_without_triton_the_reference_serves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(dispatch, "_said", set())
    head, texts, videos = prepared()
    texts, videos = single(texts), single(videos)
    with pytest.raises(ValueError, match="triton is not installed"):
        head.score(texts, videos, "triton")
    # As if these tokens were on a GPU.
    monkeypatch.setattr(dispatch, "_on_gpu", lambda tokens: True)
    with caplog.at_level(logging.WARNING), dispatch.recorded() as ran:
        for _ in range(3):
            assert dispatch.choose(head.config, texts, videos, "auto") == "reference"
    assert not ran
    assert [record.getMessage() for record in caplog.records] == [
        "scores are computed by the reference, not by the fused kernels: triton is not installed"
    ]


@pytest.mark.process
def test_importing_needs_neither_triton_nor_a_compiler() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import prota.model.prota, prota.scoring.search, prota.kernels.fused, prota.kernels.search\n"
        "from prota.kernels import cpu_build\n"
        "print('triton.language' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "False"), result.stderr


def test_training_and_evaluation_score_through_the_model() -> None:
    """Gradients make the CPU path step aside; a GPU's kernels have them."""
    head = ScoreHead(16, ScoreConfig(), DistributionConfig()).to(DEVICE)
    _, texts, videos = make({}, 3, 4, 3, 5, width=16)
    left, right = (head.prepare_texts(texts.to(torch.float32)), head.prepare_videos(videos.to(torch.float32)))
    with dispatch.recorded() as ran:
        head.score(left, right).sum().backward()
    assert ran == ["triton" if DEVICE == "cuda" else "reference"]
    assert head.text.gaussian.log_var[0].weight.grad.abs().sum() > 0
