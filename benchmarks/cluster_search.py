"""How a library in parts on a Ray cluster holds up, against one machine: `prota serve --ray` on made-up segments.

    python benchmarks/cluster_search.py same --segments 100000 --shards 5
    python benchmarks/cluster_search.py ratio --segments 20000
    python benchmarks/cluster_search.py load --segments 100000 --shards 5 --clients 8

`same` compares the best ten with those of one machine, on clustered segments (those of benchmarks/search.py). `ratio`
times one process without Ray, one shard and two, a thread each; where others work on the machine, the processor's time
of the busiest shard tells more. `load` asks a server all the time while a shard is killed, another one hangs, a node is
added, a new version is committed, and the node is killed (nodes are processes of this machine), and counts what was not
answered, or not by all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ray
import torch
from ray.cluster_utils import Cluster
from search import WIDTH, World
from search import fill as fill_clustered
from serve import WORDS, fill, made_up

from prota.cluster.shards import ShardedFinder
from prota.config.model import Config
from prota.library.search.rows import RowFinder
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.models import shipped
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens

CPU = torch.device("cpu")
BEST = 10


@contextmanager
def cluster(cpus: int) -> Iterator[Cluster]:
    node = {"num_cpus": cpus, "object_store_memory": 200_000_000, "include_dashboard": False}
    started = Cluster(initialize_head=True, connect=False, head_node_args=node)
    ray.init(address=started.address, log_to_driver=False, logging_level="error")
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def asked(store: Snapshot, number: int) -> list[PreparedTokens]:
    """Words near some frames of a segment each, and some that are near nothing."""
    world = World(seed=1)
    rows = [int(row) for row in world.random.integers(store.count(), size=number)]
    return [world.query(store.tokens([row]).direction[0]) for row in rows]


@contextmanager
def shards(number: int, store: Snapshot, head: ScoreHead) -> Iterator[ShardedFinder]:
    started = time.perf_counter()
    finder = ShardedFinder(store, head, CPU, shards=number, deadline=120.0, gpus=False)
    finder.warm()
    taken = time.perf_counter() - started
    print(f"{number} shards of {store.count() / number:,.0f} rows are ready after {taken:.1f} s", flush=True)
    try:
        yield finder
    finally:
        finder.close()


def same(store: Snapshot, head: ScoreHead, options: argparse.Namespace) -> None:
    queries = asked(store, options.queries)
    one = RowFinder(store, head, CPU)
    truth = [one.find(tokens, BEST, exact=True).ranked[0] for tokens in queries]
    staged = [one.find(tokens, BEST).ranked[0] for tokens in queries]
    del one
    with cluster(2), shards(options.shards, store, head) as finder:
        found = [finder.find(tokens, BEST).ranked[0] for tokens in queries]
        print(f"a query at a time: {timed(partial(finder.find, count=BEST), queries)}")
    equal = sum(ours[0].tolist() == theirs[0].tolist() for ours, theirs in zip(found, truth, strict=True))
    bits = sum(ours[1].tolist() == theirs[1].tolist() for ours, theirs in zip(found, truth, strict=True))
    print(
        f"of {len(queries)} queries {equal} have the best {BEST} rows of one machine that scores all, {bits} its scores"
    )
    for name, rows in (("shards", found), ("one machine as it searches", staged)):
        hits = sum(len(set(ours[0].tolist()) & set(best[0].tolist())) for ours, best in zip(rows, truth, strict=True))
        print(f"recall@{BEST} of {name}: {hits / (BEST * len(queries)):.4f}")


def timed(find: Callable[[PreparedTokens], Any], queries: list[PreparedTokens]) -> str:
    times = []
    for tokens in [queries[0], *queries]:
        before = time.perf_counter()
        find(tokens)
        times.append(time.perf_counter() - before)
    least, p50, p95 = (1000 * float(np.quantile(times[1:], share)) for share in (0.0, 0.5, 0.95))
    return f"least {least:.1f} ms, p50 {p50:.1f} ms, p95 {p95:.1f} ms"


def processor(finder: ShardedFinder) -> list[float]:
    """Seconds that each shard has worked."""
    times: list[float] = ray.get(
        [shard.actor.__ray_call__.remote(lambda _: time.process_time()) for shard in finder.shards]
    )
    return times


def ratio(store: Snapshot, head: ScoreHead, options: argparse.Namespace) -> None:
    """Alternately, as other work on the machine comes and goes."""
    torch.set_num_threads(1)
    queries = asked(store, options.queries)
    # Each scored with others, as a busy server does, and alone.
    batches = {1: queries, 8: [PreparedTokens.cat(queries[place : place + 8]) for place in range(0, len(queries), 8)]}
    for _ in range(options.rounds):
        for size, batch in batches.items():
            one = RowFinder(store, head, CPU)
            one.warm()
            start = time.process_time()
            told = timed(partial(one.find, count=BEST), batch)
            worked = (time.process_time() - start) / (len(batch) + 1)
            print(f"batches of {size}, one process: {told}; {1000 * worked:.1f} ms of work", flush=True)
            del one
        for number in (1, 2):
            with cluster(number), shards(number, store, head) as finder:
                for size, batch in batches.items():
                    before = processor(finder)
                    told = timed(partial(finder.find, count=BEST), batch)
                    worked = max(np.subtract(processor(finder), before)) / (len(batch) + 1)
                    print(f"batches of {size}, {number} shards: {told}; {1000 * worked:.1f} ms of work", flush=True)


@dataclass(frozen=True)
class Asked:
    """A request, and what came of it."""

    at: float
    """When the answer was there."""
    seconds: float
    status: int
    partial: bool
    shards: int
    """That answered."""
    version: int


class Load:
    """Clients that ask all the time, each as fast as it is answered."""

    def __init__(self, port: int, clients: int) -> None:
        self.address, self.clients = f"http://127.0.0.1:{port}", clients
        self.answers: list[Asked] = []
        self._ended = False

    async def ask(self, number: int) -> None:
        chance = np.random.default_rng(number)
        async with httpx.AsyncClient(base_url=self.address, timeout=120) as client:
            while not self._ended:
                before = time.monotonic()
                try:
                    words = " ".join(chance.choice(WORDS, 6))
                    answer = await client.get("/api/v1/search", params={"q": words})
                    status, found = answer.status_code, answer.json() if answer.status_code == 200 else {}
                except httpx.HTTPError:
                    status, found = 0, {}
                now, shards = time.monotonic(), found.get("shards_answered", 0)
                partial, version = found.get("partial", False), found.get("version", -1)
                self.answers.append(Asked(now, now - before, status, partial, shards, version))

    @contextmanager
    def going(self) -> Iterator[None]:
        """In a thread: nodes can only be added in the main one."""

        async def all_of_them() -> None:
            await asyncio.gather(*(self.ask(number) for number in range(self.clients)))

        thread = threading.Thread(target=lambda: asyncio.run(all_of_them()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended = True
            thread.join()

    def tell(self, what: str, since: float) -> None:
        some = [answer for answer in self.answers if answer.at >= since]
        times = [answer.seconds for answer in some] or [0.0]
        p50, p95, most = (1000 * float(np.quantile(times, share)) for share in (0.5, 0.95, 1.0))
        statuses = Counter(answer.status for answer in some)
        parts = Counter(answer.shards for answer in some if answer.partial)
        print(
            f"{what}: {len(some)} requests, statuses {dict(statuses)}, partial by shards that answered {dict(parts)}; "
            f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, longest {most:.0f} ms",
            flush=True,
        )


def until(true: Callable[[], bool], seconds: float = 240.0) -> float:
    """Seconds that it took."""
    started = time.monotonic()
    while not true():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"it did not happen within {seconds:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - started


def actors(nodes: Cluster) -> list[tuple[int, str]]:
    """Processes and nodes of all shards."""
    raylets = {node.all_processes["raylet"][0].process.pid: node.node_id for node in nodes.list_all_nodes()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and (process / "cmdline").read_text().startswith("ray::Shard"):
                found.append((int(process.name), raylets[parent]))
    return found


def gauge(port: int, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


def trouble(load: Load, nodes: Cluster, library: Path, options: argparse.Namespace) -> None:
    """All that may happen, one after the other, while clients ask."""
    port, start = options.port, time.monotonic()
    time.sleep(options.seconds)
    load.tell("nothing happens", start)

    for what, fault in (("killed", signal.SIGKILL), ("stopped, so that it hangs", signal.SIGSTOP)):
        start = time.monotonic()
        os.kill(actors(nodes)[0][0], fault)
        whole_again(load, port, options.shards, start, f"a shard {what}")

    added = nodes.add_node(num_cpus=2, object_store_memory=200_000_000)
    start, before = time.monotonic(), load.answers[-1].version
    with Writer.open(library) as store:
        record, batch = made_up(10**6, 10, store.stamp)
        store.commit([record], [batch])
    taken = until(lambda: load.answers[-1].version > before)
    gone = until(lambda: len(actors(nodes)) == options.shards)
    print(f"a new version: answers come from it {taken:.1f} s after the commit; the old shards go {gone:.1f} s later")
    print(f"on two nodes now: {sorted(Counter(node for _, node in actors(nodes)).values())} shards")
    load.tell("a new version", start)

    start = time.monotonic()
    nodes.remove_node(added, allow_graceful=False)
    whole_again(load, port, options.shards, start, "the node killed")


def whole_again(load: Load, port: int, shards: int, start: float, what: str) -> None:
    """Wait until a fault has been noticed and mended."""
    until(lambda: any(answer.partial and answer.at > start for answer in load.answers))
    until(lambda: gauge(port, "prota_shards_up") == shards)
    last = max(answer.at for answer in load.answers if answer.partial)
    print(f"{what}: all answers are whole again {last - start:.1f} s later")
    time.sleep(2)
    load.tell(what, start)


def under_load(library: Path, options: argparse.Namespace) -> None:
    with cluster(2) as nodes:
        command = [sys.executable, "-m", "prota", "serve", "-l", str(library), "--port", str(options.port)]
        command += ["--ray", nodes.address, "--shards", str(options.shards), "--device", "cpu"]
        command += ["--deadline", str(options.deadline)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:

            def ready() -> bool:
                try:
                    return httpx.get(f"http://127.0.0.1:{options.port}/readyz", timeout=60).status_code == 200
                except httpx.TransportError:
                    return False

            print(f"ready after {until(ready):.1f} s")
            load = Load(options.port, options.clients)
            with load.going():
                trouble(load, nodes, library, options)
            load.tell("all in all", 0.0)
        finally:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["same", "ratio", "load"])
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--queries", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--deadline", type=float, default=5.0)
    parser.add_argument("--port", type=int, default=8741)
    parser.add_argument("--folder", type=Path, help="where libraries are made and kept; default: temporary")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, ray {ray.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        kind = "random" if options.what == "load" else "clustered"
        library = (options.folder or Path(temporary)) / f"{kind}-{options.segments}"
        made = (library / "library.json").exists()
        if options.what == "load":
            if not made:
                fill(library, options.segments, shipped.DEFAULT)
            under_load(library, options)
            return
        if not made:
            fill_clustered(library, options.segments, World())
        head = ScoreHead(WIDTH, Config().score, Config().distribution).eval()
        store = Snapshot.open(library)
        with torch.inference_mode():
            (same if options.what == "same" else ratio)(store, head, options)


if __name__ == "__main__":
    main()
