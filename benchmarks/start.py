"""How long commands take to start, beside `import torch`: medians of processes that are started in turns.

    prota samples clips && prota index clips --library lib
    python benchmarks/start.py lib clips/cat.mp4 --rounds 7

Each round runs every command once, so that all meet the same machine. Seconds of the clock, seconds of all CPUs, and
their ratios to `import torch`; then the same where no bytecode is read or written, as in a container that is read-only.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

Times = tuple[float, float]
Start = Callable[[list[str], dict[str, str]], None]


def clocks() -> Times:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def run(command: list[str], env: dict[str, str]) -> None:
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def serve(command: list[str], env: dict[str, str]) -> None:
    """Until the server has loaded the model; then end it."""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        address = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        while not is_ready(address):
            time.sleep(0.02)
        server.send_signal(signal.SIGKILL)


def is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def measure(start: Start, command: list[str], env: dict[str, str]) -> Times:
    before = clocks()
    start(command, env)
    after = clocks()
    return after[0] - before[0], after[1] - before[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("clip")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        captions = Path(folder) / "captions.txt"
        captions.write_text("a cat\na dog\n", encoding="utf-8")
        python, there = sys.executable, ["--library", given.library, "--device", "cpu"]
        prota = [python, "-m", "prota"]
        commands: dict[str, tuple[Start, list[str]]] = {
            "import torch": (run, [python, "-c", "import torch"]),
            "prota --version": (run, [*prota, "--version"]),
            "prota search WORDS": (run, [*prota, "search", "a cat", *there]),
            "prota search --like CLIP": (run, [*prota, "search", "--like", given.clip, *there]),
            "prota index, nothing new": (run, [*prota, "index", given.clip, *there]),
            "prota match": (run, [*prota, "match", given.clip, str(captions), "--device", "cpu"]),
            "prota serve, ready": (serve, [*prota, "serve", "--port", "0", *there]),
        }
        # Empty for good: bytecode is looked for there and not written.
        without = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(Path(folder) / "none")}
        cached = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        for title, env in (("bytecode cached", cached), ("no bytecode", os.environ | without)):
            taken: dict[str, list[Times]] = {name: [] for name in commands}
            if env is cached:
                for start, command in commands.values():
                    start(command, env)
            for _ in range(given.rounds):
                for name, (start, command) in commands.items():
                    taken[name].append(measure(start, command, env))
            show(title, taken)


def show(title: str, taken: dict[str, list[Times]]) -> None:
    print(f"{title:<28}{'clock':>10}{'ratio':>8}{'CPU':>10}{'ratio':>8}", flush=True)
    middle = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in taken.items()}
    base = middle["import torch"]
    for name, (clock, cpu) in middle.items():
        print(f"{name:<28}{clock:8.2f} s{clock / base[0]:8.2f}{cpu:8.2f} s{cpu / base[1]:8.2f}", flush=True)
    print()


if __name__ == "__main__":
    main()
