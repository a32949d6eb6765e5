"""Pairs per second and peak memory of the reference score, beside a naive version with whole pair tensors.

    python benchmarks/score.py [--words 32 --frames 12 --width 512 --threads 0]

Each row runs in a process of its own, so that its peak memory is its own: what scoring needed above what was held
before it (texts, videos and torch itself), and the whole process.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from prota.config.model import DistributionConfig, ScoreConfig
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens, Tokens


def naive_score(texts: PreparedTokens, videos: PreparedTokens, config: ScoreConfig) -> Tensor:
    """ProTA's default score as one would first write it: every intermediate is a tensor [A, B, N, M]."""
    cosine = torch.einsum("and,bmd->abnm", texts.direction, videos.direction)
    assert texts.spread is not None
    assert videos.spread is not None
    text_norm, video_norm = texts.spread.square().sum(-1), videos.spread.square().sum(-1)
    spread = torch.einsum("and,bmd->abnm", texts.spread, videos.spread)
    distance = (2 - 2 * cosine) + text_norm[:, None, :, None] + video_norm[None, :, None, :] - 2 * spread
    similarity = 1 - distance / 2
    squared = 2 - 2 * cosine
    exponents = range(1 - config.kernels // 2, config.kernels + 1 - config.kernels // 2)
    gram = torch.stack([torch.exp(-squared / (config.bandwidth_value * 2.0**k)) for k in exponents]).mean(0)

    def aggregate(values: Tensor, temperature: float | str, mask: Tensor, dim: int) -> Tensor:
        return (values * (float(temperature) * values).masked_fill(~mask, -torch.inf).softmax(dim)).sum(dim)

    words, frames = texts.mask[:, None, :, None], videos.mask[None, :, None, :]
    text = aggregate(similarity, config.lambda_, frames, -1) * aggregate(gram, config.xi, frames, -1)
    video = aggregate(similarity, config.lambda_, words, -2) * aggregate(gram, config.xi, words, -2)
    return 0.5 * ((text * texts.weight[:, None]).sum(-1) + (video * videos.weight[None]).sum(-1))


def resident() -> int:
    """Bytes of memory this process holds now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark reads /proc/self/status and so needs Linux")


def peak_during(work: Callable[[], Tensor]) -> tuple[Tensor, float, int]:
    """The result, the seconds it took, and the most memory held meanwhile, sampled every 2 ms."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return result, seconds, peak


def measure(kind: str, items: int, options: argparse.Namespace) -> dict[str, float]:
    torch.manual_seed(0)
    if options.threads:
        torch.set_num_threads(options.threads)
    config = ScoreConfig()
    head = ScoreHead(options.width, config, DistributionConfig())

    def tokens(length: int) -> Tokens:
        lengths = torch.randint(1, length + 1, (items,))
        lengths[0] = length
        mask = torch.arange(length)[None] < lengths[:, None]
        return Tokens(torch.randn(items, length, options.width), mask)

    with torch.inference_mode():
        texts = head.prepare_texts(tokens(options.words)).without_source()
        videos = head.prepare_videos(tokens(options.frames)).without_source()
        scorers = {
            "reference": lambda: head.reference_score(texts, videos),
            "naive": lambda: naive_score(texts, videos, config),
        }
        head.reference_score(texts[:8], videos[:8])
        # Memory that was freed but not handed back would hide what scoring needs.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        before = resident()
        scores, seconds, peak = peak_during(scorers[kind])
        sample = head.reference_score(texts[:50], videos[:50]) - naive_score(texts[:50], videos[:50], config)
    assert float(sample.abs().max()) < 1e-5, "the two versions disagree"
    rate, above = scores.numel() / seconds, max(0, peak - before)
    return {"seconds": seconds, "pairs_per_second": rate, "above_mb": above / 1e6, "whole_mb": peak / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=32)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--row", nargs=2, metavar=("KIND", "ITEMS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row[0], int(options.row[1]), options)))
        return
    print(f"prota score, N {options.words}, M {options.frames}, D {options.width}, fp32, ragged masks, seed 0")
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(
        f"{'version':<10} {'texts x videos':>15} {'seconds':>9} {'pairs/s':>10} {'scoring MB':>11} {'process MB':>11}"
    )
    for kind, items in (("naive", 200), ("reference", 200), ("naive", 400), ("reference", 400), ("reference", 1000)):
        command = [sys.executable, __file__, *sys.argv[1:], "--row", kind, str(items)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        numbers = f"{row['seconds']:>9.2f} {row['pairs_per_second']:>10.0f}"
        memory = f"{row['above_mb']:>11.0f} {row['whole_mb']:>11.0f}"
        print(f"{kind:<10} {f'{items} x {items}':>15} {numbers} {memory}")


if __name__ == "__main__":
    main()
