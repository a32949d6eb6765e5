"""Fused scoring beside the readable reference and what late-interaction systems run today, in one run.

    python benchmarks/kernels.py                 on a GPU where there is one, else on the CPU
    python benchmarks/kernels.py --device cpu
    python benchmarks/kernels.py --tune          times other tilings of the fused forward and backward kernels

Times are medians over repeats. On a GPU the two ceilings of the card, matrix throughput in bf16 and memory bandwidth,
are measured first; "of the limit" is the time that the products, or the reading of the library, would take at that
ceiling, divided by the time taken.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))
from score import naive_score

from prota.config.model import DistributionConfig, ScoreConfig
from prota.kernels import cpu, fused, search
from prota.kernels.tiles import Operand, centre, choose_tiling, operand
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens, Tokens

WORDS, FRAMES, WIDTH, CONFIG = 32, 12, 512, ScoreConfig()
MATHS = fused.Maths.of(CONFIG)
# Of one pair: two products of all its tokens.
PAIR_FLOPS = 2 * 2 * WORDS * FRAMES * WIDTH


def tokens(texts: int, videos: int, device: str, ragged: bool = False) -> tuple[Tokens, Tokens]:
    """Random tokens; ragged: 6 to 20 words and 2 to 10 frames, as captions and short clips have."""
    sides = []
    for items, count, shortest, longest in ((texts, WORDS, 6, 20), (videos, FRAMES, 2, 10)):
        lengths = torch.randint(shortest, longest + 1, (items,)) if ragged else torch.full((items,), count)
        mask = torch.arange(count)[None] < lengths[:, None]
        sides.append(Tokens(torch.randn(items, count, WIDTH, device=device), mask.to(device)))
    return sides[0], sides[1]


@torch.no_grad()
def prepared(texts: int, videos: int, device: str, ragged: bool = False) -> tuple[PreparedTokens, PreparedTokens]:
    torch.manual_seed(0)
    head = ScoreHead(WIDTH, CONFIG, DistributionConfig()).to(device)
    left, right = tokens(texts, videos, device, ragged)
    return head.prepare_texts(left).without_source(), head.prepare_videos(right).without_source()


def milliseconds(work: Callable[[], object], device: str, budget: float = 1.0) -> float:
    """Median over at least three repeats, after one that does not count."""
    work()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget * 1e3 and len(times) < 50):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            work()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        else:
            before = time.perf_counter()
            work()
            times.append((time.perf_counter() - before) * 1e3)
    return statistics.median(times)


def row(name: str, took: float, limit: float | None = None, beside: float | None = None, note: str = "") -> None:
    share = f"{100 * limit / took:5.0f} %" if limit else "       "
    ratio = f"{beside / took:7.1f} x" if beside else "         "
    print(f"{name:58s} {took:10.2f} ms {share} {ratio}  {note}", flush=True)


def attempt(name: str, work: Callable[[], object]) -> None:
    """A row that fails (memory, a compiler that is not there) is shown as failed; the others still run."""
    try:
        work()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        print(f"{name:58s} failed: {type(error).__name__}: {first[:120]}", flush=True)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def max_similarity(texts: Tensor, videos: Tensor) -> Tensor:
    """What late-interaction systems score with: the mean over words of the largest dot product."""
    return torch.einsum("and,bmd->abnm", texts, videos).amax(-1).mean(-1)


def gpu_ceilings() -> tuple[float, float]:
    """Matrix operations per millisecond in bf16, and bytes per millisecond read."""
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    flops = 2 * 8192**3 / milliseconds(lambda: square @ square, "cuda")
    long = torch.ones(2**32, device="cuda", dtype=torch.int8)
    read = long.numel() / milliseconds(lambda: long.view(torch.int64).sum(), "cuda")
    print(f"ceilings: {flops / 1e9:.0f} TFLOP/s in bf16 (8192 x 8192 x 8192), {read / 1e9:.2f} TB/s read", flush=True)
    return flops, read


def gpu_matrix(flops: float) -> None:
    texts, videos = prepared(1000, 1000, "cuda")
    limit, found = 1e6 * PAIR_FLOPS / flops, {}
    half = [items.to(torch.bfloat16).direction for items in (texts, videos)]
    compiled = torch.compile(lambda: naive_score(texts, videos, CONFIG))
    compiled_max = torch.compile(max_similarity)

    def timed(name: str, work: Callable[[], object], beside: str | None = None) -> None:
        found[name] = milliseconds(work, "cuda")
        row(f"1,000 x 1,000  {name}", found[name], limit, found.get(beside or ""))

    common = centre(videos)
    with torch.no_grad():
        attempt("eager", lambda: timed("eager, whole pair tensors, fp32", lambda: naive_score(texts, videos, CONFIG)))
        attempt("compiled", lambda: timed("compiled (torch.compile), fp32", compiled))
        attempt("maxsim", lambda: timed("MaxSim by einsum, bf16", lambda: max_similarity(*half)))
        attempt("maxsim", lambda: timed("MaxSim by einsum, compiled, bf16", lambda: compiled_max(*half)))
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "fp16"), (torch.float32, "fp32 (tf32 x 3)")):
            sides = operand(texts, common, dtype), operand(videos, common, dtype)
            attempt(name, partial(timed, f"fused, {name}", partial(_scored, *sides)))
        sides = operand(texts, common), operand(videos, common)
        attempt("tf32", lambda: timed("fused, tf32", lambda: fused.score_operands(*sides, MATHS, precision="tf32")))
    best = found.get("fused, bf16")
    for name in found:
        if best and not name.startswith("fused"):
            print(f"    fused bf16 against {name}: {found[name] / best:.1f} x")


def _scored(texts: Operand, videos: Operand) -> Tensor:
    return fused.score_operands(texts, videos, MATHS)


def gpu_benchmark_shape(flops: float) -> None:
    texts, videos = prepared(59_800 // 8, 2_990, "cuda")
    common = centre(videos)
    right = operand(videos, common, torch.bfloat16)
    left = operand(texts, common, torch.bfloat16).map(lambda tensor: torch.cat([tensor] * 8))
    count = left.shape[0] * right.shape[0]
    row(f"MSR-VTT full  {left.shape[0]:,} x {right.shape[0]:,}  fused, bf16",
        milliseconds(lambda: _scored(left, right), "cuda"), count * PAIR_FLOPS / flops)  # fmt: skip


def gpu_step(batch: int, name: str, score: Callable[[PreparedTokens, PreparedTokens], Tensor], beside: float) -> float:
    texts, videos = prepared(batch, batch, "cuda")
    into = torch.randn(batch, batch, device="cuda")

    def step() -> None:
        leaves = [items.map(lambda tensor: tensor.detach().clone()) for items in (texts, videos)]
        for items in leaves:
            for tensor in (items.direction, items.spread, items.weight):
                if tensor is not None:
                    tensor.requires_grad_()
        torch.autograd.backward([score(*leaves)], [into])

    torch.cuda.reset_peak_memory_stats()
    took = milliseconds(step, "cuda")
    peak = torch.cuda.max_memory_allocated() / 2**30
    row(f"forward + backward, batch {batch:,}  {name}", took, None, beside, f"peak {peak:.2f} GiB")
    return took


def gpu_training() -> None:
    eager = gpu_step(512, "eager, fp32", lambda left, right: naive_score(left, right, CONFIG), 0.0)
    torch.cuda.empty_cache()
    for batch, beside in ((512, eager), (4096, 0.0)):
        for dtype, name in ((torch.bfloat16, "fused, bf16"), (torch.float32, "fused, fp32 (tf32 x 3)")):
            in_dtype = partial(fused.score, config=CONFIG, dtype=dtype)
            attempt(name, partial(gpu_step, batch, name, in_dtype, beside))


def gpu_search(flops: float, read: float, segments: int) -> None:
    parts = []
    for start in range(0, segments, 50_000):
        count = min(50_000, segments - start)
        direction = torch.nn.functional.normalize(torch.randn(count, FRAMES, WIDTH, device="cuda"), dim=-1)
        spread = 0.004 * torch.randn(count, FRAMES, WIDTH, device="cuda")
        weight = torch.rand(count, FRAMES, device="cuda").softmax(-1)
        mask = torch.ones(count, FRAMES, device="cuda", dtype=torch.uint8)
        half = spread.bfloat16()
        parts.append(Operand(direction.bfloat16(), half, 0.5 * half.float().square().sum(-1), weight, mask))
    whole = Operand(*(torch.cat([part.tensors[index] for part in parts]) for index in range(5)))
    del parts
    bank = search.VideoBank(whole, torch.full((WIDTH,), 0.018, device="cuda"))
    size = sum(tensor.numel() * tensor.element_size() for tensor in whole.tensors)
    queries = prepared(64, 1, "cuda")[0]
    for texts, words in ((1, WORDS), (1, 12), (64, WORDS), (64, 12)):
        some = queries[:texts].map(partial(_shorter, words))
        took = milliseconds(partial(search.top_k, some, bank, 100, CONFIG), "cuda")
        limit = max(size / read, texts * segments * PAIR_FLOPS * words / WORDS / flops)
        row(
            f"top 100 of {segments:,}  {texts} queries of {words} words",
            took,
            limit,
            None,
            f"library {size / 2**30:.1f} GiB",
        )


def gpu_tune() -> None:
    texts, videos = prepared(1000, 1000, "cuda")
    common = centre(videos)
    left, right = operand(texts, common, torch.bfloat16), operand(videos, common, torch.bfloat16)
    small, into = left.map(lambda tensor: tensor[:512]), torch.randn(512, 512, device="cuda")
    few = right.map(lambda tensor: tensor[:512])
    for columns, warps, stages, depth, group in (
        (128, 8, 3, 64, 8), (128, 8, 3, 64, 32), (128, 8, 4, 64, 32), (128, 8, 2, 64, 32), (128, 8, 4, 32, 32),
        (64, 4, 3, 64, 32), (64, 4, 2, 64, 32), (64, 8, 3, 64, 32),
    ):  # fmt: skip
        tiling = choose_tiling(WORDS, FRAMES, WIDTH, 2, columns, warps=warps, stages=stages, group=group)
        tiling = replace(tiling, depth=depth)
        name = f"columns {columns} warps {warps} stages {stages} depth {depth} group {group}"
        work = partial(fused.score_operands, left, right, MATHS, tiling)
        attempt(name, partial(_tuned, f"forward {name}", work))
    for columns, warps, stages in ((64, 8, 3), (64, 8, 2), (32, 4, 3), (32, 8, 3)):
        tiling = choose_tiling(WORDS, FRAMES, WIDTH, 2, columns, warps=warps, stages=stages, group=8)
        name = f"columns {columns} warps {warps} stages {stages}"
        back = partial(fused.gradients, small, few, into, MATHS, tiling)
        attempt(name, partial(_tuned, f"backward at 512 {name}", back))


def _shorter(words: int, tensor: Tensor) -> Tensor:
    return tensor[:, :words].contiguous()


def _tuned(name: str, work: Callable[[], object]) -> None:
    row(name, milliseconds(work, "cuda", 0.2))


@torch.no_grad()
def cpu_rows(texts: int, videos: int, ragged: bool) -> None:
    head = ScoreHead(WIDTH, CONFIG, DistributionConfig())
    left, right = prepared(texts, videos, "cpu", ragged)
    shape = f"{texts:,} x {videos:,}{' ragged' if ragged else ''}"
    reference = milliseconds(lambda: head.reference_score(left, right), "cpu", 2)
    row(f"{shape}  reference", reference)

    def fused_row() -> None:
        took = milliseconds(lambda: cpu.score(left, right, CONFIG), "cpu", 2)
        row(f"{shape}  fused", took, None, reference)

    attempt("fused", fused_row)
    rows, columns = left.direction.flatten(0, 1), right.direction.flatten(0, 1)
    products = milliseconds(lambda: [part @ columns.T for part in torch.split(rows, 2000)], "cpu", 2)
    row(f"{shape}  the two matrix products alone (torch)", 2 * products, None, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--segments", type=int, default=1_000_000, help="stored segments of the search")
    parser.add_argument("--tune", action="store_true", help="time other tilings instead")
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{machine}, {platform.machine()}, torch {torch.__version__}; N {WORDS}, M {FRAMES}, D {WIDTH}")
    print(f"{'':58s} {'median':>13s} {'limit':>7s} {'faster':>9s}")
    if options.device == "cpu":
        for texts, ragged in ((1, False), (1, True), (1000, False), (1000, True)):
            cpu_rows(texts, 1000, ragged)
        return
    if options.tune:
        gpu_tune()
        return
    flops, read = gpu_ceilings()
    attempt("matrix", lambda: gpu_matrix(flops))
    attempt("MSR-VTT full", lambda: gpu_benchmark_shape(flops))
    attempt("training", gpu_training)
    attempt("search", lambda: gpu_search(flops, read, options.segments))


if __name__ == "__main__":
    main()
