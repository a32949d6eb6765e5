"""How `prota serve` holds up: many clients at once, on loopback, against a library of made-up segments.

    python benchmarks/serve.py --segments 10000 --clients 50 --seconds 60
    python benchmarks/serve.py --segments 10000 --clients 50 --seconds 60 --index VIDEOS

Every client asks as fast as it is answered: words of its own, so that no answer is kept from before. Tokens are random,
which costs a search what real ones do. With --index a folder is indexed beside it. At the end the server is killed
(SIGKILL), started again, and asked the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from prota.library.records import ModelStamp, SegmentBatch, VideoRecord
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stamp_of
from prota.model.prota import ProTA
from prota.models import shipped

WORDS = [
    *("a", "the", "man", "woman", "dog", "plays", "runs", "guitar", "water", "car", "red", "blue", "kitchen", "cooks"),
    *("cuts", "street", "night", "game", "sings", "talks"),
]
PORT = 8731


def made_up(number: int, count: int, stamp: ModelStamp) -> tuple[VideoRecord, SegmentBatch]:
    """A video of random tokens."""
    rng = np.random.default_rng(number)
    M, D = stamp.frames, stamp.width
    direction = rng.normal(size=(count, M, D)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    pooled = direction.sum(1)
    start = 6.0 * np.arange(count)
    segments = SegmentBatch(
        video_id=f"{number:064x}",
        start=start,
        end=start + 12,
        times=start[:, None] + np.arange(M, dtype=np.float32),
        direction=direction.astype(np.float16),
        spread=rng.uniform(0.1, 0.5, size=(count, M, D)).astype(np.float16) if stamp.spread else None,
        weight=np.full((count, M), 1 / M, dtype=np.float32),
        mask=np.ones((count, M), dtype=bool),
        pooled=(pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).astype(np.float32),
        thumbnails=(b"",) * count,
    )
    length = float(segments.end[-1])
    record = VideoRecord(
        f"{number:064x}", f"/films/{number // 100}/{number}.mp4", 1, 10**18, "indexed", duration=length, segments=count
    )
    return record, segments


def fill(folder: Path, segments: int, model: str) -> None:
    stamp = stamp_of(ProTA.from_pretrained(model), model)
    with Writer.create(folder, stamp) as store:
        for first in range(0, segments // 10, 100):
            videos = [made_up(number, 10, stamp) for number in range(first, min(first + 100, segments // 10))]
            store.commit([record for record, _ in videos], [batch for _, batch in videos])


@contextmanager
def serving(library: Path, allow: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "prota", "serve", "-l", str(library), "--port", str(PORT)]
    process = subprocess.Popen([*command, *(["--allow", str(allow)] if allow else [])], stdout=subprocess.DEVNULL)
    try:
        started = time.monotonic()
        page = None
        while True:
            try:
                answer = httpx.get(f"http://127.0.0.1:{PORT}/readyz")
                page = page or time.monotonic() - started
                if answer.status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        print(f"first answer after {page:.2f} s, ready after {time.monotonic() - started:.1f} s")
        yield process
    finally:
        process.kill()
        process.wait()


def memory(process: subprocess.Popen[bytes]) -> float:
    """Megabytes it has in memory."""
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def load(clients: int, seconds: float) -> tuple[list[float], Counter[int]]:
    """Times of all answers, and how many there were of each status."""
    times: list[float] = []
    statuses: Counter[int] = Counter()
    until = time.monotonic() + seconds

    async def one(number: int) -> None:
        chance = random.Random(number)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60) as client:
            while time.monotonic() < until:
                started = time.perf_counter()
                answer = await client.get("/api/v1/search", params={"q": " ".join(chance.choices(WORDS, k=6))})
                times.append(time.perf_counter() - started)
                statuses[answer.status_code] += 1

    await asyncio.gather(*(one(number) for number in range(clients)))
    return times, statuses


def asked() -> list[Any]:
    answers = []
    for words in ("a man plays a guitar", "a red car at night", "a woman cooks"):
        answer = httpx.get(f"http://127.0.0.1:{PORT}/api/v1/search", params={"q": words}).json()
        answers.append(answer | {"took_ms": 0})
    return answers


def stop_job(library: Path) -> None:
    """End the job, and wait until the server has all that it brought: the library is to stay as it is from here on."""
    address = f"http://127.0.0.1:{PORT}/api/v1"
    job = httpx.get(f"{address}/jobs").json()[0]
    print("job:", json.dumps(job))
    httpx.delete(f"{address}/jobs/{job['id']}")
    while httpx.get(f"{address}/jobs/{job['id']}").json()["state"] in ("waiting", "running"):
        time.sleep(0.2)
    store = Snapshot.open(library)
    while httpx.get(f"{address}/library").json()["version"] != store.version:
        time.sleep(0.2)


def measure(process: subprocess.Popen[bytes], options: argparse.Namespace) -> None:
    asyncio.run(load(options.clients, 2.0))
    before = memory(process)
    if options.index:
        answer = httpx.post(f"http://127.0.0.1:{PORT}/api/v1/jobs", json={"path": str(options.index.resolve())})
        print("indexing beside it:", answer.json()["state"])
    times, statuses = asyncio.run(load(options.clients, options.seconds))
    p50, p95, p99 = (1000 * float(np.quantile(times, share)) for share in (0.5, 0.95, 0.99))
    print(
        f"{options.clients} clients, {options.seconds:g} s, {options.segments:,} segments: {dict(statuses)}, "
        f"{len(times) / options.seconds:.1f} answers/s, p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms; "
        f"memory {before:.0f} → {memory(process):.0f} MB"
    )
    if options.index:
        stop_job(options.library)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--model", default=shipped.DEFAULT)
    parser.add_argument("--index", type=Path, help="folder of videos to index meanwhile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.library = library = Path(folder) / "library"
        fill(library, options.segments, options.model)
        with serving(library, options.index) as process:
            measure(process, options)
            before = asked()
            process.send_signal(signal.SIGKILL)
            process.wait()
        with serving(library, options.index):
            print("after SIGKILL and a new start:", "the same answers" if asked() == before else "OTHER ANSWERS")


if __name__ == "__main__":
    main()
