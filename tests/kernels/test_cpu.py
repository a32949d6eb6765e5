"""The fused CPU score against the readable one in float64: every setting, odd shapes, masks, extremes, builds."""

from __future__ import annotations

import ctypes
import logging
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prota.config.model import DistributionConfig, ScoreConfig
from prota.kernels import cpu, cpu_build
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens, Tokens
from tests.cases import SCORE_VARIANTS, random_head

SUPPORTED = {name: row for name, row in SCORE_VARIANTS.items() if row.get("aggregation") != "pooling"}
# Errors are about 3e-7 of the largest score, as those of the reference in float32: rounding to 6e-8 times a few sums.
TOLERANCE = 2e-6


@pytest.fixture(autouse=True)
def _values_only() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _compiled(request: pytest.FixtureRequest) -> None:
    reason = cpu_build.load()
    if isinstance(reason, str) and "without_compiler" not in request.node.name:
        pytest.skip(reason)


def some_mask(items: int, length: int, masks: str) -> Tensor:
    if masks == "full":
        return torch.ones(items, length, dtype=torch.bool)
    if masks == "ragged":
        return torch.arange(length)[None] < torch.randint(1, length + 1, (items, 1))
    mask = torch.rand(items, length) < 0.5
    mask[torch.arange(items), torch.randint(length, (items,))] = True
    return mask


def prepared(
    head: ScoreHead, texts: int, videos: int, words: int, frames: int, width: int, masks: str = "ragged"
) -> tuple[PreparedTokens, PreparedTokens]:
    """Float64, from tokens whose padding is not a number."""

    def tokens(items: int, length: int) -> Tokens:
        mask = some_mask(items, length, masks)
        values = torch.randn(items, length, width, dtype=torch.float64)
        return Tokens(values.masked_fill(~mask.unsqueeze(-1), torch.nan), mask)

    text, video = head.prepare_texts(tokens(texts, words)), head.prepare_videos(tokens(videos, frames))
    return text.without_source(), video.without_source()


def agree(head: ScoreHead, texts: PreparedTokens, videos: PreparedTokens, tolerance: float = TOLERANCE) -> None:
    """The kernel on float32 tokens, the reference on the same numbers in float64; relative to the largest score."""
    texts, videos = texts.to(torch.float32), videos.to(torch.float32)
    assert cpu.supports(head.config, texts, videos) is None
    actual = cpu.score(texts, videos, head.config)
    expected = head.reference_score(texts.to(torch.float64), videos.to(torch.float64))
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs().max()
    assert error <= tolerance * max(1.0, float(expected.abs().max())), float(error)


@pytest.mark.parametrize("masks", ["full", "ragged", "scattered"])
@pytest.mark.parametrize("variant", SUPPORTED)
def test_every_setting(variant: str, masks: str) -> None:
    head = random_head(24, ScoreConfig(**SUPPORTED[variant]))
    agree(head, *prepared(head, 5, 19, 9, 6, 24, masks))


@pytest.mark.parametrize("words", [1, 7, 31, 33])
@pytest.mark.parametrize("frames", [1, 5, 12, 64])
@pytest.mark.parametrize(("texts", "videos"), [(1, 1), (3, 1), (1, 129), (129, 3)])
def test_odd_shapes(words: int, frames: int, texts: int, videos: int) -> None:
    head = random_head(37, ScoreConfig())
    agree(head, *prepared(head, texts, videos, words, frames, 37))


@pytest.mark.parametrize("width", [1, 3, 15, 16, 17, 384, 512])
def test_widths(width: int) -> None:
    head = random_head(width, ScoreConfig())
    agree(head, *prepared(head, 4, 20, 8, 5, width))


@pytest.mark.parametrize(("texts", "videos"), [(1, 1), (1, 300), (64, 70), (70, 3)])
def test_threads_change_nothing(texts: int, videos: int) -> None:
    head = random_head(256, ScoreConfig())
    sides = [side.to(torch.float32) for side in prepared(head, texts, videos, 6, 5, 256)]
    before, scores = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 16):
            torch.set_num_threads(threads)
            scores.append(cpu.score(*sides, head.config))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(score, scores[0]) for score in scores)


@pytest.mark.parametrize("lambda_", [1e-3, 1e4, 1e6, "max"])
@pytest.mark.parametrize("similarity", ["cosine", "squared", "printed"])
def test_extreme_sharpness(lambda_: float | str, similarity: str) -> None:
    """Few numbers decide where a softmax is sharp, and rounding may then decide between two of them."""
    head = random_head(32, ScoreConfig(similarity=similarity, lambda_=lambda_, xi=lambda_))
    agree(head, *prepared(head, 6, 20, 8, 5, 32), tolerance=2e-5)


@pytest.mark.parametrize("similarity", ["squared", "offset", "printed"])
@pytest.mark.parametrize("log_var", [-10.0, 0.0, 4.0])
def test_extreme_spreads(similarity: str, log_var: float) -> None:
    """Wide Gaussians that differ little: the kernel sums squared differences, so that nothing cancels."""
    config = ScoreConfig(similarity=similarity)
    head = ScoreHead(64, config, DistributionConfig(log_var_init=log_var)).double()
    for side in (head.text, head.video):
        assert side.gaussian is not None
        torch.nn.init.normal_(side.gaussian.log_var[-1].weight, std=1e-3)
    agree(head, *prepared(head, 5, 18, 7, 6, 64))


def test_rows_of_one_pair_far_apart() -> None:
    """Similarities of one text reach from 1 to -1e6: weights of the worst tokens would underflow beside the best."""
    head = random_head(16, ScoreConfig())
    texts, videos = prepared(head, 3, 17, 6, 5, 16, "full")
    assert texts.spread is not None
    texts.spread[:, 1::2] += 500.0
    agree(head, texts, videos)


def test_equal_tokens() -> None:
    head = random_head(16, ScoreConfig(similarity="cosine", intra="softmax", bandwidth_value=1e-3))
    token = torch.randn(16, dtype=torch.float64).expand(2, 3, 16)
    tokens = Tokens(token.contiguous(), torch.ones(2, 3, dtype=torch.bool))
    texts, videos = head.prepare_texts(tokens).to(torch.float32), head.prepare_videos(tokens).to(torch.float32)
    torch.testing.assert_close(cpu.score(texts, videos, head.config), torch.ones(2, 2), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("similarity", "nearest"), [("offset", 1.5), ("printed", 0.0)])
def test_distances_of_zero(similarity: str, nearest: float) -> None:
    """The root of nothing but the epsilon of the reference: 1e-6."""
    direction, spread = torch.zeros(1, 2, 16), torch.ones(1, 2, 16)
    direction[..., 0] = 1.0
    tokens = PreparedTokens(direction, spread, torch.full((1, 2), 0.5), torch.ones(1, 2, dtype=torch.bool))
    score = cpu.score(tokens, tokens, ScoreConfig(similarity=similarity))
    assert float(score) == pytest.approx(nearest - 1e-6, abs=3e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    head = random_head(16, ScoreConfig()).float()
    texts, videos = (side.to(dtype) for side in prepared(head.double(), 3, 18, 5, 4, 16))
    expected = head.reference_score(texts, videos)
    torch.testing.assert_close(cpu.score(texts, videos, head.config), expected, rtol=0, atol=TOLERANCE)


def test_tensors_of_any_layout() -> None:
    head = random_head(16, ScoreConfig())
    texts, videos = (side.to(torch.float32) for side in prepared(head, 4, 20, 7, 5, 16))
    expected = cpu.score(texts, videos, head.config)
    strided = videos.map(lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1))
    assert not strided.direction.is_contiguous()
    assert torch.equal(cpu.score(texts[1:], strided[3:], head.config), expected[1:, 3:])


@pytest.mark.parametrize("variant", SUPPORTED)
def test_a_score_depends_on_its_pair_alone(variant: str) -> None:
    """To the last bit, so that identical videos tie: by itself, among others, at another place, as row or as lane."""
    head = random_head(20, ScoreConfig(**SUPPORTED[variant]))
    texts, videos = (side.to(torch.float32) for side in prepared(head, 5, 33, 7, 5, 20))

    def scores(texts: PreparedTokens, videos: PreparedTokens) -> Tensor:
        return cpu.score(texts, videos, head.config)

    whole, order = scores(texts, videos), torch.randperm(33)
    assert torch.equal(scores(texts, videos[order]), whole[:, order])
    for size in (1, 3, 16):
        parts = [scores(texts, videos[start : start + size]) for start in range(0, 33, size)]
        assert torch.equal(torch.cat(parts, dim=1), whole)
    assert float(scores(texts[4:], videos[17:18])) == float(whole[4, 17])


def test_no_items() -> None:
    head = random_head(8, ScoreConfig())
    texts, videos = (side.to(torch.float32) for side in prepared(head, 3, 2, 4, 3, 8))
    assert cpu.score(texts[:0], videos, head.config).shape == (0, 2)
    assert cpu.score(texts, videos[:0], head.config).shape == (3, 0)


def test_what_is_not_supported_is_said() -> None:
    head = random_head(8, ScoreConfig())
    double = prepared(head, 2, 3, 4, 3, 8)
    texts, videos = (side.to(torch.float32) for side in double)
    points = PreparedTokens(texts.direction, None, texts.weight, texts.mask)
    wide = PreparedTokens(torch.zeros(3, 3, 9), torch.zeros(3, 3, 9), videos.weight, videos.mask)
    usual = ScoreConfig()
    for (config, *sides), reason in (
        ((ScoreConfig(similarity="cosine", aggregation="pooling"), points, points), "pooling"),
        ((ScoreConfig(lambda_=1e-30), texts, videos), "below"),
        ((usual, *double), "float64"),
        ((usual, texts.to("meta"), videos), "on meta"),
        ((usual, points, videos), "another kind of model"),
        ((usual, texts, wide), "width 8, videos 9"),
    ):
        assert reason in (cpu.supports(config, *sides) or ""), reason
        with pytest.raises(ValueError, match="cannot score this"):
            cpu.score(*sides, config)


def test_gradients_are_left_to_the_reference() -> None:
    head = random_head(8, ScoreConfig())
    texts, videos = (side.to(torch.float32) for side in prepared(head, 2, 3, 4, 3, 8))
    texts.direction.requires_grad_()
    assert cpu.supports(head.config, texts, videos) is None
    with torch.enable_grad():
        assert "texts want gradients" in (cpu.supports(head.config, texts, videos) or "")


@pytest.mark.process
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other vector lengths are those of x86 CPUs")
@pytest.mark.parametrize("target", ["-march=x86-64", "-march=x86-64-v3"])
def test_shorter_vectors(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C for CPUs with vectors of 4 and 8 numbers gives the same scores."""
    if target.endswith("v3") and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU has no AVX2")
    library = cpu.declare(ctypes.CDLL(str(cpu_build.build(tmp_path, (target,)))))
    monkeypatch.setattr(cpu, "_library", lambda: library)
    for variant in ("prota", "printed", "dpa", "normalised", "lambda-max", "probabilistic-dot"):
        head = random_head(21, ScoreConfig(**SUPPORTED[variant]))
        agree(head, *prepared(head, 5, 19, 9, 6, 21, "scattered"))
        agree(head, *prepared(head, 19, 3, 4, 7, 21, "ragged"))


@pytest.mark.process
def test_a_build_is_kept_and_found_again(tmp_path: Path) -> None:
    path = cpu_build.build(tmp_path / "cache")
    made = path.stat().st_mtime_ns
    assert cpu_build.build(tmp_path / "cache") == path
    assert path.stat().st_mtime_ns == made
    assert list(tmp_path.glob("cache/*")) == [path], "nothing half done is left"


@pytest.mark.process
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other CPU is an x86 one")
def test_a_build_of_another_cpu_is_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a home folder that machines share. This compiler takes CPU for the machine that it runs on."""
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {" ".join(cpu_build._compiler())} "$@" $CPU\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    cpus = ("-march=x86-64", "-march=x86-64-v3", "-march=x86-64-v3 -mno-fma", "-march=native")
    builds = []
    for instructions in (*cpus, *cpus):
        monkeypatch.setenv("CPU", instructions)
        builds.append(cpu_build.build(tmp_path / "cache"))
    assert builds[:4] == builds[4:]
    assert len(set(builds)) == 4
    assert hasattr(ctypes.CDLL(str(builds[-1])), "prota_score")


@pytest.mark.process
def test_two_processes_may_build_at_once(tmp_path: Path) -> None:
    code = "import sys, pathlib; from prota.kernels import cpu_build; print(cpu_build.build(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0]
    assert len(paths) == 1
    assert hasattr(ctypes.CDLL(paths.pop()), "prota_score")


@pytest.mark.process
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_have_written_is_not_loaded(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "prota" / "kernels"
    planted = cpu_build.build(folder)
    assert folder.stat().st_mode & 0o077 == planted.stat().st_mode & 0o077 == 0
    planted.write_bytes(b"something else")
    (folder if what == "folder" else planted).chmod(0o777)
    with pytest.raises(PermissionError, match="others"):
        cpu_build.build(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not isinstance(cpu_build.load.__wrapped__(), str)
    assert planted.read_bytes() == b"something else"


@pytest.mark.process
def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not isinstance(cpu_build.load.__wrapped__(), str)


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("no-such-compiler", "needs a C compiler: no-such-compiler not found"),
        ("false", "could not be compiled: status 1"),
        (f"{sys.executable} -c pass", "could not be built"),
    ],
)
def test_why_there_is_no_kernel_without_compiler(
    compiler: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    lack = cpu_build.load.__wrapped__()
    assert isinstance(lack, str)
    assert reason in lack
    assert "\n" not in lack
    head = random_head(8, ScoreConfig())
    texts, videos = (side.to(torch.float32) for side in prepared(head, 2, 3, 4, 3, 8))
    monkeypatch.setattr(cpu, "_library", lambda: lack)
    assert cpu.supports(head.config, texts, videos) == lack


def test_that_there_is_no_kernel_is_said_without_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cpu_build, "load", lambda: "no compiler")
    with caplog.at_level(logging.WARNING):
        assert cpu._library.__wrapped__() == "no compiler"
    assert [record.getMessage() for record in caplog.records] == [
        "scores are computed by the reference, not by the fused pass for CPUs: no compiler"
    ]
