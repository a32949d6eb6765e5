"""A large library: latency of exact and two-stage search, by stage, and what the candidate stage loses.

    python benchmarks/search.py [--segments 10000 100000] [--queries 50] [--folder DIR] [--threads 2]
                                [--results FILE.json] [--plot FILE.png]
    python benchmarks/search.py --library DIR --model MODEL --captions FILE [--int8]

Segments are made up, but clustered as videos are: topics, videos about them, segments of a video and frames of a
segment differ less and less; queries are words near the frames of some segment. Tokens are written to a real library,
which is indexed as `prota library compact` does. Text encoding is not part of the times. Results are added to those of
a file, sizes that are there already are not measured again, and the plot shows all of them.

The second form takes a library of real videos and a caption a line, and compares the two ways for several numbers of
candidates: what a larger library would lose can be seen only from how far down the list the right ones come.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from prota.config.model import Config
from prota.library import manage
from prota.library.records import ModelStamp, SegmentBatch, VideoRecord
from prota.library.search.rows import CANDIDATES, FILTERED_CANDIDATES
from prota.library.storage.reader import Snapshot
from prota.library.storage.schema import segment_rows
from prota.library.storage.writer import FRAGMENT_ROWS, Writer
from prota.library.tokens import pooled_vectors, stored_tokens
from prota.scoring.score import ScoreHead
from prota.scoring.search import search
from prota.types import PreparedTokens

WIDTH, FRAMES, WORDS, PER_VIDEO = 384, 12, 12, 20
STAMP = ModelStamp("synthetic", "0" * 64, WIDTH, FRAMES, True)
FILTER = "duration < 130"
# Enough that, of those, ten pass a filter that half of all videos pass.
TRUE_BEST = 100
CPU = torch.device("cpu")


class World:
    """Where topics, videos, segments and frames lie."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.topics = self._near(np.zeros((2000, WIDTH), np.float32), 1.0)

    def _noise(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.random.standard_normal(shape, dtype=np.float32)

    def _near(self, centre: np.ndarray, spread: float) -> np.ndarray:
        return centre + np.float32(spread / np.sqrt(WIDTH)) * self._noise(centre.shape)

    def video(self, number: int) -> SegmentBatch:
        topic = self.topics[self.random.integers(len(self.topics))]
        about = self._near(topic, 0.7)
        segments = self._near(np.repeat(about[None], PER_VIDEO, 0), 0.5)
        frames = self._near(np.repeat(segments[:, None], FRAMES, 1), 0.4)
        direction = frames / np.linalg.norm(frames, axis=-1, keepdims=True)
        spread = np.exp(-4 + np.float32(0.3) * self._noise(direction.shape)).astype(np.float16)
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
        words[: WORDS // 3] = self._near(np.zeros((WORDS // 3, WIDTH), np.float32), 1.0)
        direction = torch.from_numpy(words / np.linalg.norm(words, axis=-1, keepdims=True)).float()[None]
        spread = torch.exp(-4 + 0.3 * torch.randn(1, WORDS, WIDTH))
        return PreparedTokens(direction, spread, torch.rand(1, WORDS).softmax(-1), torch.ones(1, WORDS).bool())


def rows_of(world: World, records: list[VideoRecord]) -> Iterator[pa.RecordBatch]:
    return (segment_rows(world.video(int(record.video_id, 16)), record, STAMP) for record in records)


def fill(folder: Path, segments: int, world: World) -> None:
    """A library whose commits are as large as its files get: smaller ones would be joined, and so written twice."""
    videos = segments // PER_VIDEO
    per_commit = -(-FRAGMENT_ROWS // PER_VIDEO)
    with Writer.create(folder, STAMP) as store:
        for start in range(0, videos, per_commit):
            records = [
                VideoRecord(f"{number:064x}", f"/made-up/{number}.mp4", 1, 1, "indexed",
                            duration=float(world.random.uniform(60, 200)), segments=PER_VIDEO)
                for number in range(start, min(start + per_commit, videos))
            ]  # fmt: skip
            store.commit_rows(records, [record.video_id for record in records], partial(rows_of, world, records))
    manage.compact(folder, grace=0)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3


def timed(
    store: Snapshot,
    head: ScoreHead,
    texts: list[PreparedTokens],
    where: str | None = None,
    candidates: int = CANDIDATES,
) -> tuple[dict[str, list[float]], list[list[int]]]:
    """Seconds of each stage of each search, and the ten rows found for each text."""
    stages: dict[str, list[float]] = {"candidates": [], "reading": [], "scoring": []}
    found = []
    # The first reads the index from the disk, which a search in a program of its own does too, once.
    for number, text in enumerate([texts[0], *texts]):
        marks = [time.perf_counter()]
        rows = np.asarray(store.nearest(pooled_vectors(text)[0].numpy(), candidates, where))
        marks.append(time.perf_counter())
        tokens = stored_tokens(store.tokens(rows.tolist()), CPU)
        marks.append(time.perf_counter())
        _, places = search(head, text, tokens, 10)
        marks.append(time.perf_counter())
        if number:
            found.append(rows[places[0].numpy()].tolist())
            for name, taken in zip(stages, np.diff(marks).tolist(), strict=True):
                stages[name].append(taken)
    return stages, found


def two_stages(
    store: Snapshot,
    head: ScoreHead,
    texts: list[PreparedTokens],
    where: str | None = None,
    candidates: int = CANDIDATES,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Milliseconds, and the ten rows found for each text."""
    stages, found = timed(store, head, texts, where, candidates)
    whole = [sum(parts) for parts in zip(*stages.values(), strict=True)]
    times: dict[str, Any] = {name: statistics.median(values) * 1e3 for name, values in stages.items()}
    return times | {"p50": percentile(whole, 0.5), "p95": percentile(whole, 0.95)}, found


def exact(store: Snapshot, head: ScoreHead, texts: list[PreparedTokens]) -> tuple[dict[str, Any], list[list[int]]]:
    """Milliseconds of scoring every segment with its tokens in memory, and the best rows of each text."""
    best: list[list[tuple[float, int]]] = [[] for _ in texts]
    times = [0.0] * len(texts)
    for start, tokens in blocks(store):
        for number, text in enumerate(texts):
            before = time.perf_counter()
            scores, places = search(head, text, tokens, TRUE_BEST)
            times[number] += time.perf_counter() - before
            here = zip(scores[0].tolist(), (places[0] + start).tolist(), strict=True)
            best[number] = sorted([*best[number], *here], reverse=True)[:TRUE_BEST]
    rows = [[row for _, row in pairs] for pairs in best]
    return {"p50": percentile(times, 0.5), "p95": percentile(times, 0.95)}, rows


def blocks(store: Snapshot, size: int = 10_000) -> Iterator[tuple[int, PreparedTokens]]:
    """All tokens, some at a time: a million segments are more than the memory holds."""
    for start in range(0, store.count(), size):
        rows = range(start, min(start + size, store.count()))
        yield start, stored_tokens(store.tokens(np.arange(rows.start, rows.stop)), CPU)


def recall(found: list[list[int]], truth: list[list[int]]) -> float:
    """Of the ten best, the share that was found."""
    hits = sum(len(set(ours) & set(best[:10])) for ours, best in zip(found, truth, strict=True))
    return hits / max(1, sum(min(10, len(best)) for best in truth))


def measure(folder: Path, queries: int, world: World) -> dict[str, Any]:
    head = ScoreHead(WIDTH, Config().score, Config().distribution).eval()
    store = Snapshot.open(folder)
    with torch.inference_mode():
        total = store.count()
        texts = [world.query(store.tokens([int(world.random.integers(total))]).direction[0]) for _ in range(queries)]
        plain, found = two_stages(store, head, texts)
        filtered, found_filtered = two_stages(store, head, texts, FILTER, FILTERED_CANDIDATES)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        full, truth = exact(store, head, texts)
        fitting = set(store.segments(["row"], FILTER)["row"].to_pylist())
    plain["recall"] = recall(found, truth)
    filtered["recall"] = recall(found_filtered, [[row for row in best if row in fitting] for best in truth])
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**30
    shown = {"two stages": plain, "two stages, filtered": filtered, "exact": full}
    return {"segments": total, "queries": queries, "disk": size, "peak": peak, "ways": shown}


def tell(row: dict[str, Any]) -> None:
    print(
        f"{row['segments']:9,d} segments, {row['disk']:.2f} GiB on disk, peak memory (two stages) {row['peak']:.2f} GiB"
    )
    for name, way in row["ways"].items():
        line = f"{'':9s} {name:22s} p50 {way['p50']:8.1f} ms  p95 {way['p95']:8.1f} ms"
        if "recall" in way:
            parts = ", ".join(f"{stage} {way[stage]:.1f}" for stage in ("candidates", "reading", "scoring"))
            line += f"   {parts} ms; recall@10 {way['recall']:.4f}"
        print(line, flush=True)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Latency by size, both axes logarithmic; ways differ by line and mark, not by colour alone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(rows, key=lambda row: int(row["segments"]))
    sizes = [row["segments"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), dpi=140, layout="constrained")
    looks = {"exact": ("s", "--", "#b04a00"), "two stages": ("o", "-", "#004488")}
    for name, (mark, line, colour) in looks.items():
        middle = [row["ways"][name]["p50"] for row in rows]
        slow = [row["ways"][name]["p95"] for row in rows]
        axes.fill_between(sizes, middle, slow, color=colour, alpha=0.15, linewidth=0)
        axes.plot(sizes, middle, marker=mark, linestyle=line, color=colour, label=name)
        axes.annotate(f"{middle[-1]:,.0f} ms", (sizes[-1], middle[-1]), xytext=(6, -3), textcoords="offset points")
    axes.axhline(80, color="black", linewidth=0.8, linestyle=":")
    axes.annotate("80 ms", (sizes[-1] * 2.2, 80), xytext=(0, -10), textcoords="offset points", ha="right", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="segments in the library", ylabel="ms a query (line p50, shade to p95)")
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 2.3)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def compare(folder: Path, model_name: str, captions: list[str], int8: bool) -> None:
    """Recall on a library of real videos, for several numbers of candidates."""
    from prota.library.library import Library
    from prota.model.prota import ProTA

    model = ProTA.from_pretrained(model_name).eval()
    library = Library(folder, model.use_int8() if int8 else model)
    store = library.view.snapshot
    with torch.inference_mode():
        texts = [query.tokens for caption in captions for query in library.view.encode([caption])]
        full, truth = exact(store, library.model.head, texts)
        print(f"{store.count():,} segments, {len(texts)} captions; exact p50 {full['p50']:.1f} ms")
        for candidates in (20, 50, 100, 200, CANDIDATES):
            times, found = two_stages(store, library.model.head, texts, candidates=candidates)
            share = candidates / store.count()
            print(f"{candidates:5d} candidates ({share:.1%}): recall@10 {recall(found, truth):.4f}, "
                  f"best one found {best_found(found, truth):.4f}, p50 {times['p50']:.1f} ms", flush=True)  # fmt: skip


def best_found(found: list[list[int]], truth: list[list[int]]) -> float:
    return sum(best[0] in ours for ours, best in zip(found, truth, strict=True)) / len(truth)


def run(options: argparse.Namespace) -> None:
    root = options.folder or Path(tempfile.mkdtemp())
    known = options.results is not None and options.results.exists()
    rows: list[dict[str, Any]] = json.loads(options.results.read_text()) if known else []
    try:
        for segments in options.segments:
            if any(row["segments"] == segments for row in rows):
                continue
            folder, world = root / str(segments), World()
            if not (folder / "library.json").exists():
                before = time.perf_counter()
                fill(folder, segments, world)
                print(f"{segments:9,d} segments made in {time.perf_counter() - before:.0f} s", flush=True)
            rows.append(measure(folder, options.queries, world))
            tell(rows[-1])
            if options.results is not None:
                options.results.write_text(json.dumps(rows, indent=2))
    finally:
        if options.folder is None:
            shutil.rmtree(root, ignore_errors=True)
    if options.plot is not None:
        plot(rows, options.plot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where libraries are made and kept; default: temporary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, help="JSON file of results, read and added to")
    parser.add_argument("--plot", type=Path, help="PNG file: how latency grows")
    parser.add_argument("--library", type=Path, help="a library of real videos")
    parser.add_argument("--model", help="that made it")
    parser.add_argument("--captions", type=Path, help="a query a line")
    parser.add_argument("--int8", action="store_true", help="the library was made with the model's int8 towers")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}; {WORDS} words, {FRAMES} frames")
    if options.library is None:
        run(options)
    elif options.model is None or options.captions is None:
        parser.error("--library needs --model and --captions")
    else:
        captions = options.captions.read_text(encoding="utf-8").splitlines()[: options.queries]
        compare(options.library, options.model, captions, options.int8)


if __name__ == "__main__":
    main()
