"""Indexing on a small cluster: the same library as on one machine, whatever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from prota.cluster import indexing
from prota.cluster.indexing import RayWork
from prota.library import upkeep
from prota.library.indexing import IndexOptions, IndexReport
from prota.library.library import Library
from prota.library.segments import SegmentPlan
from prota.library.store import Store
from prota.model import ProTA
from tests.library.worlds import toy_model, write_clips
from tests.small_world import COLOURS, SIDES, write_colour_clip

# Half a second a segment: 64 of them, which is a part, are soon together.
OPTIONS = IndexOptions(SegmentPlan(frames=4, fps=4.0), timeout=60)
NODE = {"num_cpus": 2, "object_store_memory": 2 * 10**8}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one machine; this process belongs to the first."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def model() -> ProTA:
    return toy_model()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short ones, a long one, copies of one under lower and higher names, and two that are broken."""
    folder = tmp_path_factory.mktemp("clips")
    paths = write_clips(folder, *(f"{colour}-{side}" for colour in list(COLOURS)[:4] for side in SIDES))
    write_colour_clip(folder / "long.mp4", "white", "top", frames=230)
    for name in ("a-copy.mp4", "z-copy.mp4"):
        shutil.copy(paths["red-left"], folder / name)
    (folder / "broken.mp4").write_bytes(b"not a video at all")
    (folder / "empty.mp4").touch()
    return folder


def index(folder: Path, model: ProTA, clips: Path, **given: Any) -> IndexReport:
    return Library.open(folder, model).index(clips, OPTIONS, **given)


def rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """All that is stored of each segment."""
    with Store.open(folder) as store:
        table = store.segments(store.columns).drop_columns("row").to_pylist()
    found = {(row["video_id"], row["index"]): row for row in table}
    assert len(found) == len(table), "segments are doubled"
    return found


def records(folder: Path) -> list[Any]:
    with Store.open(folder) as store:
        return store.videos()


def same(one: dict[tuple[str, int], dict[str, Any]], other: dict[tuple[str, int], dict[str, Any]]) -> bool:
    """Whether two libraries hold the same to the last bit; a time that is none equals another."""
    return {key: repr(row) for key, row in one.items()} == {key: repr(row) for key, row in other.items()}


def workers(node: Any) -> dict[int, str]:
    """Processes that a node started for work, and what they call themselves."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = {}
    for process in Path("/proc").iterdir():
        try:
            # The name is in brackets and may hold anything.
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet:
                found[int(process.name)] = (process / "cmdline").read_text().strip("\0")
        except (OSError, ValueError):
            continue
    return {number: name for number, name in found.items() if name.startswith("ray::")}


def test_the_library_is_that_of_a_single_machine(tmp_path: Path, cluster: Cluster, model: ProTA, clips: Path) -> None:
    alone = index(tmp_path / "alone", model, clips)
    together = index(tmp_path / "together", model, clips, work=RayWork)
    assert together.bad.keys() == {str(clips / "broken.mp4"), str(clips / "empty.mp4")}
    assert together.seconds == pytest.approx(alone.seconds)
    assert together.bytes_done == pytest.approx(alone.bytes_done)
    together.seconds, together.bytes_done = alone.seconds, alone.bytes_done
    assert together == alone
    assert together.finished
    assert records(tmp_path / "alone") == records(tmp_path / "together")
    assert same(rows(tmp_path / "alone"), rows(tmp_path / "together"))
    assert max(number for _, number in rows(tmp_path / "together")) > 64, "a video has to come in parts"
    assert upkeep.verify(tmp_path / "together") == []
    # What is known by its date is not looked at, so nobody is asked to do anything.
    again = index(tmp_path / "together", model, clips, work=RayWork)
    assert (again.unchanged, again.indexed, again.bytes_new) == (21, 0, 0)


class Faults:
    """Kills an encoder of a node when some files are done, and the whole node when some more are."""

    def __init__(self, cluster: Cluster, node: Any, killing: int, leaving: int) -> None:
        self.cluster, self.node, self.killing, self.leaving = cluster, node, killing, leaving
        self.killed: list[str] = []

    def __call__(self, report: IndexReport) -> None:
        if not self.killed and report.indexed >= self.killing:
            for number, name in workers(self.node).items():
                if "Encoder" in name or "read_files" in name:
                    os.kill(number, signal.SIGKILL)
                    self.killed.append(name)
        if self.node is not None and report.indexed >= self.leaving:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def test_a_worker_dies_and_then_a_machine(
    tmp_path: Path, cluster: Cluster, model: ProTA, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "TASK_FILES", 1)
    node = cluster.add_node(**NODE)
    faults = Faults(cluster, node, 2, 6)
    report = index(tmp_path / "lib", model, clips, report=faults, work=partial(RayWork, encoders=2))
    assert faults.killed
    assert faults.node is None
    assert (report.indexed, report.duplicates, len(report.bad)) == (17, 2, 2)
    assert upkeep.verify(tmp_path / "lib") == []
    index(tmp_path / "alone", model, clips)
    assert same(rows(tmp_path / "alone"), rows(tmp_path / "lib"))
