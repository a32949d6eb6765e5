"""What a shard holds, without a cluster: a part of the rows, found as the whole finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.cluster import shards
from prota.cluster.gather import merged
from prota.cluster.shards import Part, Shard, default_shards, divide
from prota.library.finding import RowFinder, without_file
from prota.library.records import LibraryError
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from tests.cluster.made_up import CPU, fill, head, queries


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("shards") / "library")


@pytest.mark.parametrize(("rows", "parts"), [(10, 3), (10, 10), (3, 5), (1, 1), (0, 4)])
def test_all_rows_are_in_one_part(rows: int, parts: int) -> None:
    ranges = divide(rows, parts)
    assert [row for part in ranges for row in part] == list(range(rows))
    assert len(ranges) == min(rows, parts)
    assert len({len(part) for part in ranges}) <= 2


def test_how_many_shards() -> None:
    assert default_shards(10**6, nodes=2, cpus=16, gpus=3) == 3
    assert default_shards(10**6, nodes=2, cpus=16, gpus=0) == 16
    assert default_shards(50_000, nodes=2, cpus=16, gpus=0) == 3
    assert default_shards(5, nodes=2, cpus=16, gpus=0) == 2
    assert default_shards(0, nodes=0, cpus=0, gpus=0) == 1


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("where", [None, "duration < 30"])
def test_parts_find_what_the_whole_finds(
    folder: Path, where: str | None, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if staged:
        monkeypatch.setattr(shards, "EXACT_SEGMENTS", 0)
    store = Snapshot.open(folder)
    # The candidate stage leaves them to who looks at the videos, as on one machine.
    hidden = frozenset[str]() if staged else without_file(store.videos())
    tokens = queries(store, [0, 7, 22])
    whole = RowFinder(store, head(), CPU, hidden).find(tokens, 8, where)
    # Equal segments are in several parts.
    assert any(len(set(scores.tolist())) < len(scores) for _, scores in whole.ranked)
    for number in (1, 2, 7):
        parts = [Part(store.folder, store.stamp, store.head, rows, hidden) for rows in divide(store.count(), number)]
        found = [Shard(part, head()).find(tokens, 8, where, False) for part in parts]
        for ours, theirs in zip(merged(found, 3, 8), whole.ranked, strict=True):
            assert ours[0].tolist() == theirs[0].tolist()
            assert ours[1].tolist() == theirs[1].tolist()


def test_a_shard_keeps_its_version(tmp_path: Path) -> None:
    """Ray builds it again when it dies, and rows mean something else in another version."""
    folder = fill(tmp_path / "library")
    store = Snapshot.open(folder)
    part = Part(store.folder, store.stamp, store.head, range(5, 40))
    tokens = queries(store, [6])
    before = Shard(part, head()).find(tokens, 5, None, False)
    with Writer.open(folder) as store:
        store.commit([], [], remove=["/films/n0.mp4", "/films/n1.mp4"])
    after = Shard(part, head()).find(tokens, 5, None, False)
    assert [rows.tolist() for rows, _ in before] == [rows.tolist() for rows, _ in after] != [[]]
    with Writer.open(folder) as store:
        store.compact(grace=0)
    with pytest.raises(LibraryError, match=f"no longer has its version {part.version.version}"):
        Shard(part, head())
