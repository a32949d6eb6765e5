"""How decoded frames lie on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from prota.data import shards
from prota.data.shards import CacheError, CachePlan, ShardWriter, claim, read_plan, read_shards, shard_problem, tidy
from tests.processes import posix


def fill(folder: Path, counts: list[int], size: int = 4) -> None:
    writer = ShardWriter(folder, size, number=0)
    for number, count in enumerate(counts):
        pictures = np.full((count, size, size, 3), number, dtype=np.uint8)
        writer.add(f"v{number}", (pictures, [0.0] * count, 1.0), (count, number))
    writer.flush()


def test_a_shard_ends_at_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_VIDEOS", 3)
    monkeypatch.setattr(shards, "SHARD_BYTES", 10 * 48)
    # Three videos; then one that is too large beside the next; then one too large by itself.
    fill(tmp_path, [1, 1, 1, 8, 4, 30, 2])
    entries, lengths = read_shards(tmp_path, 4)
    assert list(lengths.values()) == [3, 8, 4, 30, 2]
    for number in range(7):
        entry = entries[f"v{number}"]
        array = np.load(tmp_path / f"{entry.shard}.npy", mmap_mode="r")
        assert (array[entry.offset : entry.offset + entry.count] == number).all()
        assert entry.source == (entry.count, number)
    assert not list(tmp_path.glob("*.tmp"))


def test_leftovers_are_removed_and_shards_kept(tmp_path: Path) -> None:
    fill(tmp_path, [2, 3])
    for name in ("shard-00001.npy", "shard-00002.npy.tmp", "shard-00001.json.tmp", "cache.json.tmp"):
        (tmp_path / name).write_bytes(b"half")
    tidy(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-00000.json", "shard-00000.npy"]
    assert shard_problem(tmp_path, "shard-00000", 5, 4) is None
    assert "unlike its index" in str(shard_problem(tmp_path, "shard-00000", 6, 4))


@posix
def test_a_shard_gets_its_name_when_all_of_it_is_on_disk_and_its_index_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        done.append("flush " + ("folder" if name == tmp_path.name else "pictures" if "npy" in name else "index"))
        fsync(descriptor)

    def named(source: Path, target: Path) -> None:
        done.append(f"name {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", named)
    fill(tmp_path, [2])
    assert done == [
        *("flush pictures", "name shard-00000.npy", "flush folder"),
        *("flush index", "name shard-00000.json", "flush folder"),
    ]


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.os, "fsync", full)
    with pytest.raises(CacheError, match="cannot be written: No space left on device; complete shards are kept"):
        fill(tmp_path, [1])


def test_names_that_are_no_text_can_be_quarantined(tmp_path: Path) -> None:
    quarantine = {"v": {"reason": "caf\udce9/v.mp4: no frames", "source": [1, 2]}}
    shards.write_quarantine(tmp_path, quarantine)
    assert shards.read_quarantine(tmp_path) == quarantine


def test_a_folder_is_claimed_once(tmp_path: Path) -> None:
    # What a writer killed at its first step leaves.
    (tmp_path / "lock").touch()
    (tmp_path / ".cache.json.123.tmp").touch()
    shards.refuse_foreign(tmp_path)
    claim(tmp_path, CachePlan(2, 4))
    claim(tmp_path, CachePlan(2, 4))
    assert read_plan(tmp_path) == CachePlan(2, 4)
    with pytest.raises(CacheError, match="frames = 2, not 3"):
        claim(tmp_path, CachePlan(3, 4))
    with pytest.raises(CacheError, match="extent = centre, not whole"):
        claim(tmp_path, CachePlan(2, 4, extent="whole"))


def test_a_cache_of_an_earlier_version(tmp_path: Path) -> None:
    """Before there was a choice of what a frame shows, and while there were several frames of a stretch."""
    plan = {"frames": 2, "jitter": 1, "size": 4, "max_seconds": 0.0}
    (tmp_path / "cache.json").write_text(json.dumps({"format": 1, "plan": plan}), encoding="utf-8")
    assert read_plan(tmp_path) == CachePlan(2, 4, extent="centre")
    claim(tmp_path, CachePlan(2, 4))
    (tmp_path / "cache.json").write_text(json.dumps({"format": 1, "plan": plan | {"jitter": 3}}), encoding="utf-8")
    with pytest.raises(CacheError, match="delete the folder"):
        read_plan(tmp_path)
