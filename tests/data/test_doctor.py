"""The doctor: everything wrong is counted and named, and nothing starts on less than it claims."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from prota.config.experiment import DataConfig
from prota.data import doctor
from prota.data.doctor import check, inspect_video, require_complete, require_disjoint
from prota.data.splits import Benchmark, DataError, Item, Split

TRAIN = Split(
    "train",
    (
        Item("good", ("a cat", "a cat", "a dog")),
        Item("gone", ("a cat",)),
        Item("broken", ("a house",)),
        Item("still", ("a tree",)),
        Item("silent", ()),
        Item("both", ("a boat",)),
    ),
)
TEST = Split("test", (Item("both", ("a boat",)), Item("fine", ("a car",))))
BENCHMARK = Benchmark("mine", TRAIN, None, TEST)
REASONS = {"broken": "moov atom not found", "still": "too short: 1 frame(s), at least 2 are needed"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("good.mp4", "sub/good.avi", "broken.mp4", "still.mp4", "silent.mp4", "both.mkv", "fine.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def _opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not opened; two of them are known to be bad."""
    monkeypatch.setattr(doctor, "_inspect_all", lambda paths, *_: {video: REASONS.get(video) for video in paths})


@pytest.mark.usefixtures("_opened")
def test_every_finding_is_counted_and_named(folder: Path) -> None:
    inventory = check(BENCHMARK, DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    train, test = inventory.splits
    assert (train.name, train.total, train.found, train.sound) == ("train", 6, 5, 3)
    assert train.missing == ["gone"]
    assert train.corrupt == {"broken": "moov atom not found"}
    assert list(train.too_short) == ["still"]
    assert train.duplicated == {"good": [str(folder / "good.mp4"), str(folder / "sub/good.avi")]}
    assert (train.captions, train.captionless) == (7, ["silent"])
    # "a cat" stands twice at one video and once at another; "a dog" is unique.
    assert train.identical_captions == 3
    assert train.unusable == ["gone", "broken", "still", "silent"]
    assert train.hash == TRAIN.hash
    assert (test.total, test.sound, test.unusable, test.identical_captions) == (2, 2, [], 0)
    assert inventory.shared == {"train+test": ["both"]}
    assert not inventory.complete


@pytest.mark.usefixtures("_opened")
def test_nothing_wrong_is_complete(folder: Path) -> None:
    inventory = check(Benchmark("mine", None, None, TEST), DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    assert inventory.complete
    assert inventory.as_dict()["complete"] is True


@pytest.mark.usefixtures("_opened")
def test_a_leak_alone_is_enough_to_be_incomplete(folder: Path) -> None:
    benchmark = Benchmark("mine", Split("train", (Item("fine", ("a car",)),)), None, TEST)
    inventory = check(benchmark, DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    assert inventory.shared == {"train+test": ["fine"]}
    assert not any(split.unusable or split.one_file for split in inventory.splits)
    assert not inventory.complete


@pytest.mark.usefixtures("_opened")
def test_a_caption_that_one_video_has_twice_is_no_riddle(folder: Path) -> None:
    split = Split("test", (Item("fine", ("a car", "a car")), Item("good", ("a cat",))))
    inventory = check(Benchmark("mine", None, None, split), DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    assert inventory.splits[0].identical_captions == 0


@pytest.mark.usefixtures("_opened")
def test_a_file_under_two_ids_is_a_leak(folder: Path) -> None:
    benchmark = Benchmark(
        "mine", Split("train", (Item("fine.mp4", ("x",)),)), Split("val", (Item("good.mp4", ("y",)),)), TEST
    )
    inventory = check(benchmark, DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    assert inventory.shared == {"train+test": ["fine.mp4"]}


@pytest.mark.usefixtures("_opened")
def test_a_file_under_two_ids_of_one_split_is_named(folder: Path) -> None:
    (folder / "alias.mp4").symlink_to(folder / "fine.mp4")
    twice = Split("test", tuple(Item(name, ("x",)) for name in ("fine", "both", "fine.mp4", "alias")))
    benchmark = Benchmark("mine", None, None, twice)
    inventory = check(benchmark, DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    assert inventory.splits[0].one_file == [["fine", "fine.mp4", "alias"]]
    assert not inventory.complete
    screen = io.StringIO()
    Console(file=screen, width=200).print(inventory.table())
    (row,) = [line for line in screen.getvalue().splitlines() if "one file, two names" in line]
    assert row.split("│")[2].strip() == "1"


@pytest.mark.usefixtures("_opened")
def test_the_inventory_is_json_and_a_table(folder: Path) -> None:
    inventory = check(BENCHMARK, DataConfig(videos=str(folder)), workers=1, timeout=1.0)
    tree = json.loads(json.dumps(inventory.as_dict()))
    assert tree["benchmark"] == "mine"
    assert tree["shared"] == {"train+test": ["both"]}
    assert tree["splits"][0]["found"] == 5
    assert tree["splits"][0]["corrupt"] == {"broken": "moov atom not found"}
    screen = io.StringIO()
    Console(file=screen, width=200).print(inventory.table())
    shown = {line.split("│")[1].strip(): line.split("│")[2:4] for line in screen.getvalue().splitlines() if "│" in line}
    assert [cell.strip() for cell in shown["missing"]] == ["1", "0"]
    assert [cell.strip() for cell in shown["LEAK train+test"]] == ["1", "1"]


def test_no_folder_of_videos() -> None:
    with pytest.raises(DataError, match=r"data\.videos is not set"):
        check(BENCHMARK, DataConfig(), workers=1, timeout=1.0)


class FakePool:
    """Runs jobs in place, with the outcomes of prota.workers.process_pool."""

    def __init__(self, workers: int, timeout: float) -> None:
        assert (workers, timeout) == (2, 5.0)

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, job: Callable[[Any], Any], items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for key, value in items:
            try:
                yield key, SimpleNamespace(value=job(value), error=None, seconds=0.0)
            except ValueError as error:
                yield key, SimpleNamespace(value=None, error=str(error), seconds=0.0)


def fake_timeline(path: Path) -> Any:
    if path.stem == "broken":
        raise ValueError("moov atom not found")
    frames = {"still": 1, "good": 2}.get(path.stem, 30)
    return SimpleNamespace(times=[0.0] * frames, duration=0.05 if path.stem == "silent" else 2.0)


@pytest.fixture
def _fake_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, contents in {
        "video.decode": {"read_timeline": fake_timeline},
        "workers.process_pool": {"DecodePool": FakePool},
    }.items():
        module = ModuleType(f"prota.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, f"prota.{name}", module)


@pytest.mark.usefixtures("_fake_frames")
def test_files_are_opened_in_the_pool_with_progress(folder: Path) -> None:
    progress: list[tuple[int, int]] = []
    inventory = check(
        BENCHMARK,
        DataConfig(videos=str(folder)),
        workers=2,
        timeout=5.0,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    train = inventory.splits[0]
    assert train.corrupt == {"broken": "moov atom not found"}
    assert train.too_short == {
        "still": "too short: 1 frame(s), at least 2 are needed",
        "silent": "too short: 0.050 s, at least 0.1 s are needed",
    }
    assert progress == [(done, 6) for done in range(1, 7)]
    assert inspect_video(folder / "good.mp4") is None


def write_video(path: Path, frames: int) -> None:
    import av

    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        for shade in range(frames):
            picture = np.full((32, 32, 3), 40 * shade, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def test_real_files_in_real_workers(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="writes videos with PyAV")
    write_video(tmp_path / "fine.mp4", 5)
    write_video(tmp_path / "both.mp4", 1)
    (tmp_path / "good.mp4").write_bytes(b"no video at all " * 99)
    (tmp_path / "still.mp4").touch()
    inventory = check(BENCHMARK, DataConfig(videos=str(tmp_path)), workers=1, timeout=30.0)
    train, test = inventory.splits
    assert sorted(train.corrupt) == ["good", "still"]
    assert "empty file" in train.corrupt["still"]
    assert list(train.too_short) == list(test.too_short) == ["both"]
    assert (test.sound, test.corrupt) == (1, {})


def test_missing_videos_stop_unless_allowed() -> None:
    split = Split("test", tuple(Item(f"v{i}", ("x",)) for i in range(10)))
    there = {f"v{i}" for i in range(5)}
    with pytest.raises(DataError, match=r"of 10 test videos 5 are missing \(v5, v6, v7, …\): .*--allow-missing 5"):
        require_complete(split, there, 4)
    rest, missing = require_complete(split, there, 5)
    assert (rest.name, rest.video_ids, missing) == ("test", ["v0", "v1", "v2", "v3", "v4"], 5)
    same, missing = require_complete(split, [f"v{i}" for i in range(12)], 0)
    assert (same, missing) == (split, 0)
    with pytest.raises(DataError, match="all 10 test videos are missing"):
        require_complete(split, [], 10)


def test_videos_without_captions_count_as_missing() -> None:
    with pytest.raises(DataError, match=r"1 are missing \(gone\) and 1 have no caption \(silent\).*--allow-missing 2"):
        require_complete(TRAIN, {"good", "broken", "still", "silent", "both"}, 1)
    rest, missing = require_complete(TRAIN, set(TRAIN.video_ids), 1)
    assert (len(rest), missing) == (5, 1)


def test_a_leak_is_refused() -> None:
    with pytest.raises(DataError, match=r"mine has 1 videos in both splits of train\+test \(both\)"):
        require_disjoint(BENCHMARK)
    require_disjoint(Benchmark("mine", None, None, TEST))
    one, other = (Split(name, (Item(video, ("x",)),)) for name, video in (("train", "a.mp4"), ("test", "a")))
    twice = Benchmark("mine", one, None, other)
    require_disjoint(twice)
    with pytest.raises(DataError, match=r"1 videos in both splits of train\+test \(a\.mp4\)"):
        require_disjoint(twice, {"a.mp4": Path("v/a.mp4"), "a": Path("v/a.mp4")})
    alone = Benchmark("mine", None, None, Split("test", (Item("a.mp4", ("x",)), Item("a", ("y",)))))
    with pytest.raises(DataError, match=r"test: 1 videos are one file under two names \(a\.mp4, a\): list each video"):
        require_disjoint(alone, {"a.mp4": Path("v/a.mp4"), "a": Path("v/a.mp4")})
