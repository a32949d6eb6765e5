"""How long an answer takes that waits for many shards: a simulation of 1 to 1,000, from times of one real shard.

    python benchmarks/tail_latency.py [--samples FILE.json] [--plot docs/figures/tail-latency.png]

Measured: the times of 2,000 searches in two stages of one shard of made-up segments, one after the other, on this
machine. They are kept in FILE, and read from there where it exists. Simulated: every shard of a request draws its time
from these at random, as if shards knew nothing of each other; and one draw in 200 is a straggler, 4 to 20 times slower
(a compaction, a neighbour, a lost packet): that part is assumed. No queue grows behind a slow shard here, and the
network is free. Four ways to deal with it:

- wait for all shards;
- hedge: what is not there after the 95th percentile of one shard is asked of its replica too, the sooner answer counts;
- deadline: after six times the median of one shard the answer goes out without those that are late, and says so;
- both.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from search import STAMP, World, fill, timed

from prota.config.model import Config
from prota.library.storage.reader import Snapshot
from prota.scoring.score import ScoreHead

SHARDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
REQUESTS = 20_000
STRAGGLERS, SLOWER = 1 / 200, (4.0, 20.0)
HEDGE_AFTER = 0.95
DEADLINE = 6.0
WAYS = {
    "wait for all": (False, False),
    "hedge": (True, False),
    "deadline": (False, True),
    "hedge and deadline": (True, True),
}


def measure(segments: int, queries: int) -> list[float]:
    """Seconds of searches of one shard."""
    world = World()
    head = ScoreHead(STAMP.width, Config().score, Config().distribution).eval()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "library", segments, world)
        store = Snapshot.open(Path(folder) / "library")
        with torch.inference_mode():
            chosen = world.random.integers(store.count(), size=queries).tolist()
            texts = [world.query(store.tokens([row]).direction[0]) for row in chosen]
            stages, _ = timed(store, head, texts)
    return [sum(parts) for parts in zip(*stages.values(), strict=True)]


class Shard:
    """Where times of one shard come from."""

    def __init__(self, samples: list[float], seed: int = 0) -> None:
        self.samples = np.asarray(samples)
        self.random = np.random.default_rng(seed)
        self.patience = float(np.quantile(self.samples, HEDGE_AFTER))
        self.deadline = DEADLINE * float(np.median(self.samples))

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        times = self.random.choice(self.samples, shape)
        late = self.random.random(shape) < STRAGGLERS
        low, high = map(math.log, SLOWER)
        factors = np.exp(self.random.uniform(low, high, int(late.sum())))
        times[late] *= factors
        return times

    def requests(self, shards: int, hedge: bool, deadline: bool) -> dict[str, float]:
        """Percentiles in milliseconds, and what they cost, as shares."""
        answers, asked, missing, partial = [], 0, 0, 0
        # Some at a time: 20,000 requests to 1,000 shards are 160 MB.
        step = max(1, 2_000_000 // shards)
        for start in range(0, REQUESTS, step):
            times = self.draw((min(step, REQUESTS - start), shards))
            if hedge:
                slow = times > self.patience
                asked += int(slow.sum())
                times[slow] = np.minimum(times[slow], self.patience + self.draw((int(slow.sum()),)))
            whole = times.max(axis=1)
            if deadline:
                late = times > self.deadline
                missing += int(late.sum())
                partial += int(late.any(axis=1).sum())
                whole = np.minimum(whole, self.deadline)
            answers.append(whole)
        p50, p99, p999 = (1e3 * float(value) for value in np.quantile(np.concatenate(answers), (0.5, 0.99, 0.999)))
        pairs = REQUESTS * shards
        return {
            "p50": p50, "p99": p99, "p99.9": p999,
            "asked twice": asked / pairs, "shards missing": missing / pairs, "partial answers": partial / REQUESTS,
        }  # fmt: skip

    def expected(self, shards: int, share: float = 0.5) -> float:
        """A percentile of waiting for all, without drawing requests: all of them are there with probability F ** n."""
        drawn = np.sort(self.draw((4_000_000,)))
        return 1e3 * float(np.quantile(drawn, share ** (1 / shards)))


def plot(rows: dict[str, list[dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=110, layout="constrained")
    # Told apart by line and mark: full and hollow, so that marks at one place are both seen.
    styles = (
        ("o", "-", "black", 6, "full"), ("s", "--", "tab:blue", 10, "none"),
        ("^", "-.", "tab:orange", 9, "none"), ("D", ":", "tab:green", 4, "full"),
    )  # fmt: skip
    for (name, ways), (mark, line, colour, size, filled) in zip(rows.items(), styles, strict=True):
        axes.plot(
            SHARDS, [way["p99"] for way in ways], linestyle=line, color=colour, label=f"{name}, p99",
            marker=mark, markersize=size, fillstyle=filled,
        )  # fmt: skip
    middle = [way["p50"] for way in rows["wait for all"]]
    axes.plot(SHARDS, middle, linewidth=0.9, color="grey", marker="x", markersize=4, label="wait for all, p50")
    axes.set(xscale="log", yscale="log", xlabel="shards that a request waits for", ylabel="ms an answer (simulated)")
    axes.set_xticks(SHARDS, [f"{count:,}" for count in SHARDS])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_yticks([tick for tick in (20, 50, 100, 200, 500, 1000, 2000) if tick < axes.get_ylim()[1]])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)


def samples_of(options: argparse.Namespace) -> list[float]:
    if options.samples is not None and options.samples.exists():
        kept: dict[str, Any] = json.loads(options.samples.read_text())
        print(f"samples of {options.samples}: {kept['machine']}, {kept['segments']:,} segments")
        return list(kept["seconds"])
    torch.set_num_threads(options.threads)
    seconds = measure(options.segments, options.queries)
    machine = f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}"
    if options.samples is not None:
        record = {"machine": machine, "segments": options.segments, "seconds": [round(value, 6) for value in seconds]}
        options.samples.write_text(json.dumps(record))
    print(f"measured on {machine}, {options.segments:,} segments")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=50_000, help="of the one shard that is measured")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=Path, help="JSON file of measured times; read where it exists")
    parser.add_argument("--plot", type=Path, help="PNG file")
    options = parser.parse_args()
    shard = Shard(samples_of(options))
    quantiles = np.quantile(shard.samples, (0.5, 0.95, 0.99, 0.999)) * 1e3
    print("one shard, measured: " + ", ".join(f"{q:.1f}" for q in quantiles) + " ms (p50, p95, p99, p99.9)")
    print(f"hedge after {1e3 * shard.patience:.1f} ms, deadline {1e3 * shard.deadline:.1f} ms")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for name, way in WAYS.items():
        for count in SHARDS:
            row = shard.requests(count, *way)
            rows[name].append(row)
            costs = ", ".join(f"{key} {row[key]:.2%}" for key in list(row)[3:] if row[key])
            check = f" (closed form {shard.expected(count):.1f})" if name == "wait for all" else ""
            print(
                f"{name:18s} {count:5,d} shards: p50 {row['p50']:7.1f}{check}, p99 {row['p99']:7.1f}, "
                f"p99.9 {row['p99.9']:7.1f} ms  {costs}",
                flush=True,
            )
    if options.plot is not None:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
