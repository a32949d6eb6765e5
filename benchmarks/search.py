"""A large library: latency of exact and two-stage search, by stage, and what the candidate stage loses.

    python benchmarks/search.py [--segments 10000 100000] [--queries 50] [--folder DIR] [--threads 2]

Segments are made up, but clustered as videos are: topics, videos about them, segments of a video and frames of a
segment differ less and less; queries are words near the frames of some segment. Tokens are written to a real library,
which is compacted and indexed as `prota library compact` does. Text encoding is not part of the times.
"""

from __future__ import annotations

import argparse
import platform
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from prota.config import Config
from prota.library import upkeep
from prota.library.encoding import pooled_vectors, stored_tokens
from prota.library.records import ModelStamp, SegmentBatch, VideoRecord
from prota.library.search import CANDIDATES
from prota.library.store import Store
from prota.scoring.score import ScoreHead
from prota.scoring.search import search
from prota.types import PreparedTokens

WIDTH, FRAMES, WORDS, PER_VIDEO = 512, 12, 12, 20
STAMP = ModelStamp("synthetic", "0" * 64, WIDTH, FRAMES, True)


class World:
    """Where topics, videos, segments and frames lie."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.topics = self._near(np.zeros((2000, WIDTH)), 1.0)

    def _near(self, centre: np.ndarray, spread: float) -> np.ndarray:
        return centre + spread * self.random.standard_normal(centre.shape).astype(np.float32) / np.sqrt(WIDTH)

    def video(self, number: int) -> SegmentBatch:
        topic = self.topics[self.random.integers(len(self.topics))]
        about = self._near(topic, 0.7)
        segments = self._near(np.repeat(about[None], PER_VIDEO, 0), 0.5)
        frames = self._near(np.repeat(segments[:, None], FRAMES, 1), 0.4)
        direction = frames / np.linalg.norm(frames, axis=-1, keepdims=True)
        spread = np.exp(-4 + 0.3 * self.random.standard_normal(direction.shape)).astype(np.float16)
        weight = self.random.dirichlet(np.full(FRAMES, 5.0), PER_VIDEO).astype(np.float32)
        pooled = np.einsum("sm,smd->sd", weight, direction)
        start = 6.0 * np.arange(PER_VIDEO)
        return SegmentBatch(
            video_id=f"{number:064x}", start=start, end=start + 12, times=start[:, None] + np.arange(FRAMES)[None],
            direction=direction.astype(np.float16), spread=spread, weight=weight,
            mask=np.ones((PER_VIDEO, FRAMES), dtype=bool),
            pooled=(pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(np.float32),
            thumbnails=(b"",) * PER_VIDEO,
        )  # fmt: skip

    def query(self, frames: np.ndarray) -> PreparedTokens:
        """Words near some frames of a segment, and some that are near nothing."""
        chosen = frames[self.random.integers(len(frames), size=WORDS)].astype(np.float32)
        words = self._near(chosen, 0.9)
        words[: WORDS // 3] = self._near(np.zeros((WORDS // 3, WIDTH)), 1.0)
        direction = torch.from_numpy(words / np.linalg.norm(words, axis=-1, keepdims=True)).float()[None]
        spread = torch.exp(-4 + 0.3 * torch.randn(1, WORDS, WIDTH))
        return PreparedTokens(direction, spread, torch.rand(1, WORDS).softmax(-1), torch.ones(1, WORDS).bool())


def fill(folder: Path, segments: int, world: World) -> None:
    with Store.create(folder, STAMP) as store:
        for start in range(0, segments // PER_VIDEO, 50):
            batches = [world.video(number) for number in range(start, min(start + 50, segments // PER_VIDEO))]
            records = [
                VideoRecord(batch.video_id, f"/made-up/{batch.video_id}.mp4", 1, 1, "indexed",
                            duration=float(world.random.uniform(60, 200)), segments=PER_VIDEO)
                for batch in batches
            ]  # fmt: skip
            store.commit(records, batches)
    upkeep.compact(folder, grace=0)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3


def measure(folder: Path, queries: int, world: World) -> None:
    head = ScoreHead(WIDTH, Config().score, Config().distribution).eval()
    with Store.open(folder) as store, torch.inference_mode():
        total = store.count()
        texts = [world.query(store.tokens([int(world.random.integers(total))]).direction[0]) for _ in range(queries)]
        truth, exact_times = [], []
        for block in range(0, total, 20_000):
            rows = list(range(block, min(block + 20_000, total)))
            tokens = stored_tokens(store.tokens(rows), torch.device("cpu"))
            for number, text in enumerate(texts):
                before = time.perf_counter()
                scores, places = search(head, text, tokens, 10)
                took = time.perf_counter() - before
                pairs = list(zip(scores[0].tolist(), (places[0] + block).tolist(), strict=True))
                if block == 0:
                    truth.append(pairs)
                    exact_times.append(took)
                else:
                    truth[number] = sorted(truth[number] + pairs, reverse=True)[:10]
                    exact_times[number] += took
            del tokens
        for where in (None, "duration < 130"):
            _two_stages(store, head, texts, truth, where)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(
        f"{total:9,d}  exact, tokens in memory   p50 {percentile(exact_times, 0.5):7.1f} ms  "
        f"p95 {percentile(exact_times, 0.95):7.1f} ms   disk {size / 2**30:.2f} GiB, "
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB",
        flush=True,
    )


def _two_stages(store: Store, head: ScoreHead, texts: list[PreparedTokens], truth: list, where: str | None) -> None:
    stages: dict[str, list[float]] = {"candidates": [], "reading": [], "scoring": [], "all": []}
    found, wanted = 0, 0
    fitting = None if where is None else set(store.segments(["row"], where)["row"].to_pylist())
    for text, best in zip(texts, truth, strict=True):
        marks = [time.perf_counter()]
        rows = np.asarray(store.nearest(pooled_vectors(text)[0].numpy(), CANDIDATES, where))
        marks.append(time.perf_counter())
        tokens = stored_tokens(store.tokens(rows.tolist()), torch.device("cpu"))
        marks.append(time.perf_counter())
        _, places = search(head, text, tokens, 10)
        marks.append(time.perf_counter())
        for name, taken in zip(stages, np.diff(marks).tolist(), strict=False):
            stages[name].append(taken)
        stages["all"].append(marks[-1] - marks[0])
        right = {row for _, row in best if fitting is None or row in fitting}
        found += len(right & set(rows[places[0].numpy()].tolist()))
        wanted += len(right)
    middle = {name: statistics.median(values) * 1e3 for name, values in stages.items()}
    print(
        f"{store.count():9,d}  two stages{' filtered' if where else '':9s}      p50 {middle['all']:7.1f} ms  "
        f"p95 {percentile(stages['all'], 0.95):7.1f} ms   candidates {middle['candidates']:.1f}, reading "
        f"{middle['reading']:.1f}, scoring {middle['scoring']:.1f} ms; recall@10 {found / max(1, wanted):.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where libraries are made and kept; default: temporary")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}; {WORDS} words, {FRAMES} frames")
    root = options.folder or Path(tempfile.mkdtemp())
    try:
        for segments in options.segments:
            folder, world = root / str(segments), World()
            if not (folder / "library.json").exists():
                before = time.perf_counter()
                fill(folder, segments, world)
                print(f"{segments:9,d}  made in {time.perf_counter() - before:.0f} s", flush=True)
            measure(folder, options.queries, world)
    finally:
        if options.folder is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
