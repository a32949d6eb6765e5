"""Indexing on a Ray cluster: what it costs beside the plain path, what a second worker brings, and what deaths cost.

    python benchmarks/cluster_indexing.py speed FOLDER [--clips 400] [--rounds 3] [--model prota-small]
    python benchmarks/cluster_indexing.py faults FOLDER [--clips 200] [--library s3://…] [--network]
    python benchmarks/cluster_indexing.py memory FOLDER [--clips 64]

FOLDER gets the clips and the libraries. `speed` makes a library from nothing in turns: plainly with one decoder
process, on a cluster of this machine with one decoder and one encoder, and with two of each; one thread everywhere. It
tells seconds in all, and the clips per second between a fifth and four fifths of them: what remains of the difference
when there are many. Give it many: while encoders start, decoders run ahead, as far as Ray's memory allows.

`faults` runs a cluster of two nodes, kills an encoder in the middle, then a whole node, and counts what was encoded in
vain: the segments of fragments that nobody names. The library must verify, and equal the plain one. With --network the
second node has a network namespace of its own, as if it were another machine (Linux, root, `ip`), and does not die: its
cable is cut.

`memory` sends many times more frames than Ray's object store holds through it, and tells what was moved to disk for
want of room, and how much memory this process took.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Ray's workers are nice to other processes, which on a busy machine would be measured instead.
os.environ.setdefault("RAY_worker_niceness", "0")
# Nodes of `ray start` would ask for a token.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import argparse
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import ray
import torch
from lance.file import LanceFileReader
from ray.cluster_utils import Cluster

from prota.cluster.executor import RayExecutor
from prota.config.model import Config
from prota.library import manage
from prota.library.indexing import IndexReport
from prota.library.library import Library
from prota.library.storage.location import Location
from prota.library.storage.reader import Snapshot
from prota.model.prota import ProTA
from prota.models import shipped

STORE_BYTES = 3 * 10**8


def write_clips(folder: Path, count: int, seconds: int, side: int) -> None:
    """Moving noise, so that a decoder has something to do; each clip has its own."""
    import av

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:04d}.mp4"
        if path.exists():
            continue
        picture = np.random.default_rng(number).integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
        picture = np.kron(picture, np.ones((8, 8, 1), dtype=np.uint8))
        with av.open(str(folder / "new.mp4"), "w") as file:
            stream = file.add_stream("libx264", rate=10, options={"crf": "30", "preset": "ultrafast"})
            stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
            for shift in range(10 * seconds):
                frame = av.VideoFrame.from_ndarray(np.roll(picture, 2 * shift, axis=1), format="rgb24")
                file.mux(stream.encode(frame))
            file.mux(stream.encode(None))
        (folder / "new.mp4").rename(path)


def model_called(name: str) -> ProTA:
    if name != "toy":
        return ProTA.from_pretrained(name).eval()
    torch.manual_seed(0)
    return ProTA.from_config(Config.build("prota", "toy", ["encoder.frames=4"])).eval()


@contextmanager
def cluster_of(*cores: int, store: int = STORE_BYTES) -> Iterator[tuple[Cluster, list[Any]]]:
    """A node for each number of cores, on this machine; this process belongs to the first."""
    given = {"object_store_memory": store}
    cluster = Cluster(True, head_node_args={"num_cpus": cores[0], "include_dashboard": False, **given})
    try:
        nodes = [cluster.add_node(num_cpus=count, **given) for count in cores[1:]]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


@dataclass
class Watch:
    """When results came."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, report: IndexReport) -> None:
        if not self.seen or report.done != self.seen[-1][1]:
            self.seen.append((time.perf_counter(), report.done))

    @property
    def rate(self) -> float:
        """Clips a second between a fifth and four fifths: results come in batches, the last ones together."""
        last = self.seen[-1][1]
        middle = [(when, done) for when, done in self.seen if 0.2 * last <= done <= 0.8 * last]
        (start, first), (end, then) = middle[0], middle[-1]
        return (then - first) / max(1e-9, end - start)


def measured(model: ProTA, clips: Path, folder: Path, executor: Any = None) -> tuple[float, float]:
    """Seconds in all, and clips a second in the middle."""
    shutil.rmtree(folder, ignore_errors=True)
    watch, started = Watch(), time.perf_counter()
    report = Library(folder, model).index(clips, workers=1, report=watch, executor=executor)
    assert report.finished, report
    assert not report.bad, report.bad
    wall = time.perf_counter() - started
    print(f"{wall:.1f} s, {watch.rate:.2f} clips/s, {'plain' if executor is None else executor.keywords}", flush=True)
    return wall, watch.rate


def speed(options: argparse.Namespace) -> None:
    clips, model = options.folder / "clips", model_called(options.model)
    write_clips(clips, options.clips, 6, 256)
    ways: dict[str, list[tuple[float, float]]] = {"plain": [], "Ray, 1 + 1": [], "Ray, 2 + 2": []}
    for _ in range(options.rounds):
        ways["plain"].append(measured(model, clips, options.folder / "library"))
        for count in (1, 2):
            with cluster_of(2 * count):
                executor = partial(RayExecutor, decoders=count, encoders=count)
                ways[f"Ray, {count} + {count}"].append(measured(model, clips, options.folder / "library", executor))
    print(
        f"{options.clips} clips, {options.rounds} rounds in turns, model {options.model}, {os.cpu_count()} cores, load"
    )
    for name, times in ways.items():
        walls, rates = zip(*times, strict=True)
        print(f"{name:12s} {np.median(walls):7.1f} s, {np.median(rates):6.2f} clips/s in the middle; all {times}")
    plain, one, two = (float(np.median([rate for _, rate in times])) for times in ways.values())
    print(f"one worker on Ray is at {one / plain:.2f} of the plain rate; two are at {two / one:.2f} of one")


def encoders() -> list[int]:
    """Processes that encode, on any node."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # Ray's workers call themselves after what they do; the command that reads this does not.
            if (process / "cmdline").read_text().startswith("ray::Encoder"):
                found.append(int(process.name))
    return found


class Faults:
    """Kills an encoder, wherever it is, when a third of the clips is done, and a node when two thirds are."""

    def __init__(self, clips: int, lose_node: Callable[[], object]) -> None:
        self.clips, self.lose_node, self.killed, self.lost = clips, lose_node, False, False
        self.started = time.perf_counter()

    def __call__(self, report: IndexReport) -> None:
        if not self.killed and report.indexed >= self.clips / 3:
            os.kill(encoders()[0], signal.SIGKILL)
            self.killed = True
            self.tell(f"{report.indexed} clips indexed: an encoder killed")
        if self.killed and not self.lost and report.indexed >= 2 * self.clips / 3:
            self.lose_node()
            self.lost = True
            self.tell(f"{report.indexed} clips indexed: a node lost")

    def tell(self, what: str) -> None:
        print(f"{time.perf_counter() - self.started:6.1f} s: {what}", flush=True)


@contextmanager
def two_nodes() -> Iterator[Callable[[], object]]:
    """Two nodes of this machine; what is yielded kills the second."""
    with cluster_of(2, 2) as (cluster, [node]):
        yield partial(cluster.remove_node, node, allow_graceful=False)


@contextmanager
def two_machines() -> Iterator[Callable[[], object]]:
    """Two nodes that reach each other over a virtual cable alone; what is yielded cuts it."""
    name, cable, ends = "prota-bench", "prota0", ("10.77.0.1", "10.77.0.2")
    inside = ["ip", "netns", "exec", name]
    set_up = (
        f"ip netns add {name}", f"ip link add {cable} type veth peer name prota1 netns {name}",
        f"ip addr add {ends[0]}/24 dev {cable}", f"ip link set {cable} up",
        f"ip -n {name} addr add {ends[1]}/24 dev prota1", f"ip -n {name} link set prota1 up",
        f"ip -n {name} link set lo up",
    )  # fmt: skip
    nodes = []
    try:
        for command in set_up:
            subprocess.run(command.split(), check=True)
        nodes.append(_start_node("--head", "--node-ip-address", ends[0], "--port", "6399", "--include-dashboard=false"))
        _wait_for_nodes(f"{ends[0]}:6399", 1)
        nodes.append(_start_node("--address", f"{ends[0]}:6399", "--node-ip-address", ends[1], inside=inside))
        _wait_for_nodes(f"{ends[0]}:6399", 2)
        yield partial(subprocess.run, ["ip", "link", "set", cable, "down"], check=True)
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            with suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            node.wait()
        # The cable goes with its other end; alone where that was never made.
        for command in (f"ip netns del {name}", f"ip link del {cable}"):
            subprocess.run(command.split(), check=False, stderr=subprocess.DEVNULL)


def _start_node(*options: str, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    command = ["ray", "start", "--block", "--num-cpus", "2", "--object-store-memory", str(STORE_BYTES), *options]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*inside, *command], stdout=quiet, stderr=quiet, start_new_session=True)


def _wait_for_nodes(address: str, count: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
    while sum(node["Alive"] for node in ray.nodes()) < count:
        assert time.monotonic() < end, f"{count} nodes did not come together"
        time.sleep(0.5)


def contents(library: str) -> dict[tuple[str, int], str]:
    """All that is stored of each segment."""
    store = Snapshot.open(Location.of(library))
    rows = store.segments(store.columns).drop_columns("row").to_pylist()
    found = {(row["video_id"], row["index"]): repr(row) for row in rows}
    assert len(found) == len(rows), "segments are doubled"
    return found


def in_vain(library: str) -> tuple[int, int]:
    """Fragments that workers wrote and nobody adopted, and their rows."""
    place = Location.of(library)
    dataset = lance.dataset(place.dataset("segments"), storage_options=place.options)
    versions = (dataset.checkout_version(version["version"]) for version in dataset.versions())
    named = {file.path for version in versions for one in version.get_fragments() for file in one.data_files()}
    written = {path.name for path in Path(place.dataset("segments"), "data").iterdir()}
    orphans = written - named
    rows = sum(LanceFileReader(f"{place.dataset('segments')}/data/{name}").metadata().num_rows for name in orphans)
    return len(orphans), rows


def faults(options: argparse.Namespace) -> None:
    clips, model = options.folder / "small", model_called("toy")
    write_clips(clips, options.clips, 2, 64)
    library = options.library or str(options.folder / "together")
    for folder in ("together", "alone"):
        shutil.rmtree(options.folder / folder, ignore_errors=True)
    with two_machines() if options.network else two_nodes() as lose_node:
        deaths = Faults(options.clips, lose_node)
        report = Library(library, model).index(clips, report=deaths, executor=partial(RayExecutor, encoders=2))
        deaths.tell(f"{report.indexed} clips indexed, {report.segments} segments, {len(report.bad)} bad: done")
    assert deaths.killed, "no encoder was killed"
    assert deaths.lost, "no node was lost"
    print("verify:", manage.verify(library) or "nothing wrong")
    if options.library is None:
        print("encoded in vain: {} fragments with {} segments".format(*in_vain(library)))
    again = Library(library, model).index(clips)
    print(f"indexed again: {again.indexed} new, {again.unchanged} unchanged")
    Library(options.folder / "alone", model).index(clips)
    alone = contents(str(options.folder / "alone"))
    print(f"equal to the plain library of {len(alone)} segments, bit for bit:", alone == contents(library))


class Gauge:
    """MiB that Ray had moved from its object store to disk at most, looked at every fifth of a second."""

    def __init__(self, session: Path) -> None:
        """``session``: the folder of Ray's session."""
        self.session, self.spilled = session, 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Gauge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            with suppress(FileNotFoundError):
                files = (path for path in self.session.glob("ray_spilled_objects_*/*"))
                self.spilled = max(self.spilled, sum(path.stat().st_size for path in files) / 2**20)


def memory(options: argparse.Namespace) -> None:
    clips, side, fps = options.folder / "clips", 224, 10.0
    write_clips(clips, options.clips, 6, 256)
    torch.manual_seed(0)
    config = Config.build("prota", "toy", ["encoder.frames=4", f"encoder.image_size={side}"])
    model = ProTA.from_config(config).eval()
    shutil.rmtree(options.folder / "library", ignore_errors=True)
    with cluster_of(2, store=10**8) as (cluster, _), Gauge(Path(cluster.head_node.get_session_dir_path())) as gauge:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = Library(options.folder / "library", model).index(clips, frames=4, fps=fps, executor=RayExecutor)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    frames = round(report.seconds * fps) * side * side * 3
    print(
        f"{report.indexed} clips, {report.segments} segments, about {frames / 2**20:.0f} MiB of frames through an "
        f"object store of 95 MiB, {gauge.spilled:.0f} MiB spilled; "
        f"this process grew by {grown / 1024:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "faults", "memory"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=0, help="default: 400, 200 for faults, 64 for memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=shipped.DEFAULT, help="for speed: toy, or what prota index --model takes")
    parser.add_argument("--library", help="for faults: where, if not in the folder; it must be empty")
    parser.add_argument("--network", action="store_true", help="for faults: a network between two nodes, which is cut")
    options = parser.parse_args()
    options.clips = options.clips or {"speed": 400, "faults": 200, "memory": 64}[options.what]
    torch.set_num_threads(1)
    {"speed": speed, "faults": faults, "memory": memory}[options.what](options)


if __name__ == "__main__":
    main()
