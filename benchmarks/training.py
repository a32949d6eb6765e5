"""Steps per second, waiting for data and peak memory of training, with and without cached gradients.

    python benchmarks/training.py configs/subset-tuned.toml --batches 128 1024 --micro 0 64

Each row trains a fresh model for some steps from the frame cache, after a few steps that do not count. Memory is what
torch allocated at most on the GPU; on a CPU that column stays empty.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from prota.config.experiment import Experiment
from prota.runtime import start_world
from prota.training.checkpoint import RunFolder
from prota.training.trainer import TrainingLoop


class Watch:
    """Takes down every step."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def computed(self, *_: object) -> None: ...

    def started(self, *_: object) -> None: ...

    def validated(self, _: dict[str, Any]) -> None: ...

    def stepped(self, record: dict[str, Any]) -> None:
        self.records.append(record)


def measure(config: Path, overrides: list[str], steps: int, warm: int) -> str:
    world = start_world()
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    experiment = Experiment.load(config, overrides)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TrainingLoop(experiment, RunFolder(folder), world)
        try:
            trainer.fit(watch, lambda: len(watch.records) >= warm + steps)
        except torch.cuda.OutOfMemoryError:
            return f"{'out of memory':>8}"
    counted = watch.records[warm:]
    seconds = statistics.median(record["seconds"] for record in counted)
    waited = sum(r["data_wait"] * r["seconds"] for r in counted) / sum(r["seconds"] for r in counted)
    gpu = world.device.type == "cuda"
    memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if gpu else ""
    rate = experiment.train.batch_size / seconds
    return f"{1 / seconds:>8.2f} {rate:>8.0f} {waited:>9.1%} {memory:>9} {counted[-1]['total']:>8.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[128])
    parser.add_argument("--micro", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--set", "-s", action="append", default=[])
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{options.config}, {device}, torch {torch.__version__}, median of {options.steps} steps, seed 0\n")
    print(f"{'batch':>6} {'micro':>6} {'steps/s':>8} {'pairs/s':>8} {'data wait':>9} {'peak GiB':>9} {'loss':>8}")
    for batch in options.batches:
        for micro in options.micro:
            overrides = [*options.set, f"train.batch_size={batch}", f"train.micro_batch={micro}", "train.epochs=30"]
            row = measure(options.config, overrides, options.steps, options.warm)
            print(f"{batch:>6} {micro or 'whole':>6} {row}", flush=True)


if __name__ == "__main__":
    main()
