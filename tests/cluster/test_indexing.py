"""Indexing on a small cluster: the same library as on one machine, whatever dies meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from prota.cluster import executor as module
from prota.cluster.executor import RayExecutor
from prota.errors import ClusterError
from prota.library import manage
from prota.library.indexing import IndexReport
from prota.library.indexing.executor import Read
from prota.library.library import Library
from prota.library.records import LibraryError
from prota.library.storage.location import Where
from prota.library.storage.reader import Snapshot
from prota.model.prota import ProTA
from tests.cluster.conftest import NODE, workers
from tests.library.object_store import BUCKET, Proxy, now_and_then
from tests.library.worlds import broken_model, toy_model, write_clips, write_picture
from tests.processes import LIMIT
from tests.small_world import COLOURS, SIDES, write_colour_clip
from tests.video.clips import write_clip

# Half a second a segment: 64 of them, which is a part, are soon together.
OPTIONS = {"frames": 4, "fps": 4.0, "timeout": LIMIT}
pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def model() -> ProTA:
    return toy_model(0, "encoder.picture=whole")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short ones, one of them wide, a long one, copies of one under lower and higher names, and two that are broken."""
    folder = tmp_path_factory.mktemp("clips")
    paths = write_clips(folder, *(f"{colour}-{side}" for colour in list(COLOURS)[:4] for side in SIDES))
    write_clip(paths["blue-top"], size=(96, 48))
    write_colour_clip(folder / "long.mp4", "white", "top", frames=230)
    for name in ("a-copy.mp4", "z-copy.mp4"):
        shutil.copy(paths["red-left"], folder / name)
    (folder / "broken.mp4").write_bytes(b"not a video at all")
    (folder / "empty.mp4").touch()
    return folder


def index(folder: Where, model: ProTA, clips: Path, **given: Any) -> IndexReport:
    return Library(folder, model).index(clips, **OPTIONS, **given)


def rows(folder: Where) -> dict[tuple[str, int], dict[str, Any]]:
    """All that is stored of each segment."""
    store = Snapshot.open(folder)
    table = store.segments(store.columns).drop_columns("row").to_pylist()
    found = {(row["video_id"], row["index"]): row for row in table}
    assert len(found) == len(table), "segments are doubled"
    return found


def records(folder: Where) -> list[Any]:
    store = Snapshot.open(folder)
    return store.videos()


def same(one: dict[tuple[str, int], dict[str, Any]], other: dict[tuple[str, int], dict[str, Any]]) -> bool:
    """Whether two libraries hold the same to the last bit; a time that is none equals another."""
    return {key: repr(row) for key, row in one.items()} == {key: repr(row) for key, row in other.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: ProTA, clips: Path) -> tuple[Path, IndexReport]:
    """The library of a single machine."""
    folder = tmp_path_factory.mktemp("alone") / "lib"
    return folder, index(folder, model, clips)


def test_the_library_is_that_of_a_single_machine(
    tmp_path: Path, cluster: Cluster, model: ProTA, clips: Path, alone: tuple[Path, IndexReport]
) -> None:
    folder, report = alone
    together = index(tmp_path / "together", model, clips, executor=partial(RayExecutor, encoders=1))
    assert together.bad.keys() == {str(clips / "broken.mp4"), str(clips / "empty.mp4")}
    assert together.seconds == pytest.approx(report.seconds)
    assert together.bytes_done == pytest.approx(report.bytes_done)
    assert replace(together, seconds=report.seconds, bytes_done=report.bytes_done) == report
    assert together.finished
    assert records(folder) == records(tmp_path / "together")
    assert same(rows(folder), rows(tmp_path / "together"))
    assert max(number for _, number in rows(tmp_path / "together")) > 64, "a video has to come in parts"
    assert manage.verify(tmp_path / "together") == []
    # What is known by its date is not looked at, so nobody is asked to do anything.
    again = index(tmp_path / "together", model, clips, executor=RayExecutor)
    assert (again.unchanged, again.indexed, again.bytes_new) == (21, 0, 0)


class Faults:
    """Kills an encoder, wherever it is, when some files are done, and a whole node when some more are."""

    def __init__(self, cluster: Cluster, node: Any, killing: int, leaving: int) -> None:
        self.cluster, self.node, self.killing, self.leaving = cluster, node, killing, leaving
        self.killed: list[int] = []

    def __call__(self, report: IndexReport) -> None:
        if not self.killed and report.indexed >= self.killing:
            number = next(number for node in self.cluster.list_all_nodes() for number in workers(node, "Encoder"))
            os.kill(number, signal.SIGKILL)
            self.killed.append(number)
        if self.node is not None and report.indexed >= self.leaving:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


def test_a_worker_dies_and_then_a_machine(
    tmp_path: Path,
    cluster: Cluster,
    model: ProTA,
    clips: Path,
    alone: tuple[Path, IndexReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = cluster.add_node(**NODE)
    faults = Faults(cluster, node, 2, 6)
    report = index(tmp_path / "lib", model, clips, report=faults, executor=partial(RayExecutor, encoders=2))
    assert faults.killed
    assert faults.node is None
    assert (report.indexed, report.duplicates, len(report.bad)) == (17, 2, 2)
    assert manage.verify(tmp_path / "lib") == []
    assert same(rows(alone[0]), rows(tmp_path / "lib"))


def test_a_run_that_was_stopped_is_continued_by_anyone(
    cluster: Cluster, proxy: Proxy, model: ProTA, clips: Path, alone: tuple[Path, IndexReport]
) -> None:
    """On an object store, to which the connection is bad."""
    library = f"s3://{BUCKET}/stopped"
    done: list[int] = []
    with proxy.faulty(now_and_then(0.1)) as faults:
        first = index(
            library, model, clips, report=lambda now: done.append(now.indexed),
            should_stop=lambda: bool(done) and done[-1] > 0, executor=RayExecutor,
        )  # fmt: skip
    assert not first.finished
    assert 0 < first.indexed < 17
    assert faults.total() > 0
    assert manage.verify(library) == []
    second = index(library, model, clips)
    assert first.indexed + second.indexed == 17, "what was finished is not done again"
    assert same(rows(alone[0]), rows(library))


def test_silence_after_a_loss_ends_the_run(
    tmp_path: Path, cluster: Cluster, model: ProTA, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, one = [{"Alive": True}] * 2, [{"Alive": True}, {"Alive": False}]
    seen = iter([two, two, two, one])
    monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs))
    monkeypatch.setattr(ray, "nodes", lambda: next(seen))
    monkeypatch.setattr(module, "LOST", -1.0)
    with pytest.raises(ClusterError, match="the cluster lost a machine"):
        index(tmp_path / "lib", model, clips, executor=RayExecutor)
    assert next(seen, None) is None, "all looked at"


def test_a_file_that_one_machine_does_not_see(
    tmp_path: Path, cluster: Cluster, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends: there may be thousands, and they are not bad. One that is gone everywhere is."""
    (path,) = write_clips(tmp_path / "v", "red-left").values()
    report = index(tmp_path / "lib", model, path, report=lambda _: path.unlink(missing_ok=True), executor=RayExecutor)
    assert report.bad.keys() == {str(path)}
    write_clips(tmp_path / "v", "red-left")
    # This machine still has what is gone from the others.
    monkeypatch.setattr(os.path, "lexists", lambda _: True)
    with pytest.raises(LibraryError, match=r"machine .* cannot access .*red-left.mp4"):
        index(tmp_path / "lib", model, path, report=lambda _: path.unlink(missing_ok=True), executor=RayExecutor)
    with pytest.raises(LibraryError, match="the cluster has no GPU for --device cuda"):
        index(tmp_path / "lib", model, tmp_path / "v", executor=partial(RayExecutor, device="cuda"))


def test_an_error_of_the_model_stops_the_run(tmp_path: Path, cluster: Cluster) -> None:
    write_clips(tmp_path / "v", "red-left")
    model = broken_model()
    with pytest.raises(LibraryError, match="cannot be stored"):
        index(tmp_path / "lib", model, tmp_path / "v", executor=RayExecutor)
    assert records(tmp_path / "lib") == []


def test_a_bug_keeps_its_traceback(
    tmp_path: Path, cluster: Cluster, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.setattr(module, "read_part", misread)
    with pytest.raises(TypeError, match=r"(?s)ray::misread.*Traceback|ray::misread.*File"):
        index(tmp_path / "lib", model, tmp_path / "v", executor=RayExecutor)


def test_a_cluster_that_fails_says_how_to_resume(
    tmp_path: Path, cluster: Cluster, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder that dies each time it is started."""
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.setattr(module, "Encoder", Deadly)
    monkeypatch.setattr(module, "RESTARTS", 0)
    with pytest.raises(ClusterError, match="the same command resumes"):
        index(tmp_path / "lib", model, tmp_path / "v", executor=RayExecutor)


def misread(task: Read, timeout: float) -> tuple[None, None]:
    raise TypeError("a bug")


class Deadly:
    def __init__(self, *_: object) -> None: ...

    def check_library(self) -> None:
        os._exit(1)


def test_pictures_are_those_of_a_single_machine(tmp_path: Path, cluster: Cluster, model: ProTA) -> None:
    for number, kind in enumerate(("jpg", "png", "webp", "jpg")):
        write_picture(tmp_path / "v" / f"{number}.{kind}", ("red", "green", "blue", "white")[number])
    shutil.copy(tmp_path / "v" / "0.jpg", tmp_path / "v" / "copy.jpg")
    (tmp_path / "v" / "broken.png").write_bytes(b"no picture")
    write_clips(tmp_path / "v", "red-left")
    write_picture(tmp_path / "v" / "red-left.jpg")
    alone = index(tmp_path / "alone", model, tmp_path / "v")
    together = index(tmp_path / "together", model, tmp_path / "v", executor=partial(RayExecutor, encoders=1))
    assert (together.indexed, together.pictures, together.duplicates, len(together.bad)) == (5, 4, 1, 1)
    assert (alone.indexed, alone.pictures, alone.bad) == (5, 4, together.bad)
    assert records(tmp_path / "alone") == records(tmp_path / "together")
    assert same(rows(tmp_path / "alone"), rows(tmp_path / "together"))
    assert manage.verify(tmp_path / "together") == []
