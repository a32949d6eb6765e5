"""How near indexing comes to what decoding and encoding cost: each alone, and both overlapped as `prota index` does.

    python benchmarks/indexing.py MODEL FOLDER [--clips 48] [--rounds 3] [--workers 2] [--threads 2] [--int8]

The three run in turns, so that they have the same neighbours, on the same clips: decoding alone (worker processes, with
their start), encoding alone (frames in memory), and a library made from nothing. The floor of the last is the longer of
the first two, or all of their CPU time spread over the cores where that is more: on a CPU both want the same cores. How
many cores there were is what the busier of the two got, so that other work on the machine slows the floor as well.
"""

from __future__ import annotations

import os

# Before torch is imported, as the command line does it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from prota.config.model import EncoderConfig
from prota.library.indexing.reading import ReadRequest, VideoContent, read_video
from prota.library.library import Library
from prota.library.segments import SegmentPlan
from prota.library.tokens import encode_video
from prota.model.prota import ProTA
from prota.video.walk import FoundFile, walk
from prota.workers.process_pool import DecodePool


@dataclass
class Cost:
    """Seconds, summed over rounds."""

    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Add what happens here; worker processes count when they have ended."""
        wall, cpu = time.perf_counter(), processor_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += processor_time() - cpu

    @property
    def cores(self) -> float:
        return self.cpu / self.wall


def processor_time() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def decoded(files: list[Path], encoder: EncoderConfig, workers: int) -> list[VideoContent]:
    plan = SegmentPlan(encoder.frames)
    requests = ((str(path), ReadRequest(str(path), plan, encoder.image_size, encoder.picture)) for path in files)
    with DecodePool(workers, 300.0) as pool:
        outcomes = [outcome for _, outcome in pool.run(read_video, requests)]
    return [outcome.value for outcome in outcomes if outcome.value is not None]


def measure(model: ProTA, files: list[Path], rounds: int, workers: int) -> tuple[Cost, Cost, Cost, int]:
    """Decoding, encoding, both; and the segments of a round."""
    encoder = model.config.encoder
    decoding, encoding, indexing = Cost(), Cost(), Cost()
    segments = 0
    share = -(-len(files) // rounds)
    for start in range(0, len(files), share):
        some = files[start : start + share]
        with decoding.counted():
            contents = decoded(some, encoder, workers)
        with encoding.counted():
            for content in contents:
                encode_video(model, "x", content)
        del contents
        with tempfile.TemporaryDirectory() as folder:
            library = Library(Path(folder) / "library", model)
            with indexing.counted():
                report = library.index(some, workers=workers)
        segments += report.segments
    return decoding, encoding, indexing, segments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder")
    parser.add_argument("folder", type=Path, help="of videos")
    parser.add_argument("--clips", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--int8", action="store_true", help="let the towers multiply in int8")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    files = [found.path for found in walk([options.folder]) if isinstance(found, FoundFile)][: options.clips]
    model = ProTA.from_pretrained(options.model).eval()
    if options.int8:
        model.use_int8()
    # Not part of any time: in its first pass a model allocates memory and chooses its kernels.
    for content in decoded(files[:1], model.config.encoder, 1):
        encode_video(model, "x", content)
    decoding, encoding, indexing, segments = measure(model, files, options.rounds, options.workers)
    cores = max(decoding.cores, encoding.cores)
    work = (decoding.cpu + encoding.cpu) / cores
    floor = max(decoding.wall, encoding.wall, work)
    print(
        f"{platform.machine()}, {options.threads} threads, {options.workers} workers, torch {torch.__version__}, "
        f"OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}; {len(files)} clips, {segments} segments"
    )
    for name, cost in (("decoding alone", decoding), ("encoding alone", encoding), ("indexing", indexing)):
        print(f"{name:15s} {cost.wall:7.2f} s, {cost.cpu:7.2f} s of CPU on {cost.cores:.2f} cores")
    print(
        f"floor           {floor:7.2f} s: the larger of {decoding.wall:.2f}, {encoding.wall:.2f} and all CPU time on "
        f"{cores:.2f} cores, {work:.2f}\nindexing is at {floor / indexing.wall:.2f} of its floor, with "
        f"{indexing.cpu / (decoding.cpu + encoding.cpu):.2f} times the CPU time of both; "
        f"{len(files) / indexing.wall:.2f} clips a second"
    )


if __name__ == "__main__":
    main()
