"""A library in shards finds what the whole finds, also while actors are killed, hang, move to another node or end."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import ray

from prota.cluster import shards
from prota.cluster.shards import Shard, ShardedFinder, ShardSpec, default_shards, divide, merged
from prota.errors import ClusterError
from prota.library.records import LibraryError
from prota.library.search.rows import Coverage, RowFinder, TopRows
from prota.library.storage.reader import Snapshot
from prota.library.storage.versions import read_library
from prota.library.storage.writer import Writer
from prota.types import PreparedTokens
from tests.cluster.conftest import NODE, workers
from tests.cluster.made_up import CPU, fill, head, queries
from tests.processes import LIMIT, gone, python, wait_until
from tests.server.worlds import client_of, index, make_world
from tests.small_world import write_colour_clip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return Snapshot.open(fill(tmp_path_factory.mktemp("shards") / "library"))


def spec_of(store: Snapshot, rows: range, hidden: frozenset[str] = frozenset()) -> ShardSpec:
    return ShardSpec(store.location, read_library(store.location), store.stamp, store.head, rows, hidden)


def rows_of(found: TopRows) -> list[list[int]]:
    return [rows.tolist() for rows, _ in found.ranked]


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
    store: Snapshot, where: str | None, staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if staged:
        monkeypatch.setattr(shards, "EXACT_SEGMENTS", 0)
    # The candidate stage keeps hidden videos; the view drops them, as on one machine.
    hidden = frozenset[str]() if staged else store.hidden
    tokens = queries(store, [0, 7, 22])
    whole = RowFinder(store, head(), CPU, hidden=hidden).find(tokens, 8, where)
    # Equal segments are in several parts.
    assert any(len(set(scores.tolist())) < len(scores) for _, scores in whole.ranked)
    for number in (1, 2, 7):
        specs = [spec_of(store, rows, hidden) for rows in divide(store.count(), number)]
        found = [Shard(spec, head()).find(tokens, 8, where, False) for spec in specs]
        for ours, theirs in zip(merged(found, 3, 8), whole.ranked, strict=True):
            assert ours[0].tolist() == theirs[0].tolist()
            assert ours[1].tolist() == theirs[1].tolist()


def test_a_restarted_shard_has_the_version_of_before_or_none(tmp_path: Path) -> None:
    """Rows mean something else in another version, and in another library whose versions have the same numbers."""
    folder = fill(tmp_path / "library")
    store = Snapshot.open(folder)
    spec = spec_of(store, range(5, 40))
    tokens = queries(store, [6])
    before = Shard(spec, head()).find(tokens, 5, None, False)
    with Writer.open(folder) as store:
        store.commit([], [], remove=["/films/n0.mp4", "/films/n1.mp4"])
    after = Shard(spec, head()).find(tokens, 5, None, False)
    assert [rows.tolist() for rows, _ in before] == [rows.tolist() for rows, _ in after] != [[]]
    shutil.move(folder, tmp_path / "moved")
    shard = Shard(spec, head())
    with pytest.raises(LibraryError):
        shard.ready()
    shutil.move(tmp_path / "moved", folder)
    # The folder is back, so the same actor can load its rows.
    assert [rows.tolist() for rows, _ in shard.find(tokens, 5, None, False)] == [rows.tolist() for rows, _ in before]
    with Writer.open(folder) as store:
        store.compact(grace=0)
    with pytest.raises(LibraryError):
        Shard(spec, head()).ready()
    # The other library was made at another second.
    made = spec.library["created"]
    shutil.rmtree(folder)
    wait_until(lambda: time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) > made[:19])
    store = Snapshot.open(fill(folder))
    numbers = attrgetter("version", "videos", "segments")
    assert numbers(store.head) == numbers(spec.version)
    with pytest.raises(LibraryError):
        Shard(spec, head()).find(tokens, 5, None, False)


@pytest.fixture
def running(cluster: Any) -> Iterator[Callable[[], list[int]]]:
    """Counts the shards of each node. Each test ends them."""

    def count() -> list[int]:
        return [len(workers(node, "ray::Shard")) for node in cluster.list_all_nodes()]

    yield count
    slowly(lambda: sum(count()) == 0)


@pytest.fixture
def start(running: object, store: Snapshot) -> Iterator[Callable[[], ShardedFinder]]:
    """Starts shards of the library."""
    started: list[ShardedFinder] = []

    def make() -> ShardedFinder:
        finder = ShardedFinder(store, head(), CPU, shards=2, deadline=LIMIT)
        started.append(finder)
        finder.warm()
        return finder

    yield make
    for finder in started:
        finder.close()


def process(finder: ShardedFinder, place: int) -> int:
    return int(ray.get(finder.shards[place].actor.__ray_call__.remote(lambda _: os.getpid())))


def slowly(true: Callable[[], object]) -> None:
    """Until it is true; shards that start need the cores."""
    wait_until(true, pause=0.2)


def heals(finder: ShardedFinder, tokens: PreparedTokens, expected: TopRows) -> None:
    """In the end all shards answer, and what the whole library answers."""
    slowly(lambda: finder.up == len(finder.shards))
    found = finder.find(tokens, 8)
    assert found.coverage == Coverage(2, 2)
    assert rows_of(found) == rows_of(expected)


@pytest.mark.ray
def test_shards_answer_as_one_machine_and_end_with_the_last_search(
    running: Callable[[], list[int]], store: Snapshot
) -> None:
    finder = ShardedFinder(store, head(), CPU, shards=2, deadline=LIMIT)
    finder.warm()
    tokens = queries(store, [0, 7, 22])
    whole = RowFinder(store, head(), CPU, hidden=store.hidden)
    for where in (None, "duration < 30"):
        found, expected = finder.find(tokens, 8, where), whole.find(tokens, 8, where)
        assert rows_of(found) == rows_of(expected)
        assert [scores.tolist() for _, scores in found.ranked] == [scores.tolist() for _, scores in expected.ranked]
        assert found.coverage == Coverage(2, 2)
        assert not found.coverage.partial
    with pytest.raises(LibraryError):
        finder.find(tokens, 8, "length < 3")
    # What is wrong with the shards themselves is no failure of a request.
    narrow = tokens.map(lambda tensor: tensor[..., :2] if tensor.dim() == 3 else tensor)
    assert finder.find(narrow, 8).coverage == Coverage(0, 2)
    assert finder.tokens([3]).direction.equal(queries(store, [3]).direction)
    assert sum(running()) == 2
    del finder
    # The error of the filter refers to it.
    gc.collect()
    slowly(lambda: sum(running()) == 0)


@pytest.mark.ray
def test_a_shard_is_killed_late_or_hangs(
    start: Callable[[], ShardedFinder], store: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = start()
    tokens = queries(store, [0, 7, 22])
    expected = RowFinder(store, head(), CPU, hidden=store.hidden).find(tokens, 8)
    first = divide(store.count(), 2)[0]
    killed = process(finder, 0)
    os.kill(killed, signal.SIGKILL)
    slowly(lambda: finder.find(tokens, 8).coverage.partial)
    heals(finder, tokens, expected)
    assert process(finder, 0) != killed
    late = process(finder, 1)
    os.kill(late, signal.SIGSTOP)
    try:
        _without_the_second(finder, tokens, first)
    finally:
        os.kill(late, signal.SIGCONT)
    heals(finder, tokens, expected)
    assert process(finder, 1) == late
    os.kill(late, signal.SIGSTOP)
    _without_the_second(finder, tokens, first)
    monkeypatch.setattr(shards, "HANGS", 1.0)
    finder.deadline = 1.0
    slowly(lambda: finder.find(tokens, 8) and gone(late))
    finder.deadline = LIMIT
    heals(finder, tokens, expected)


def _without_the_second(finder: ShardedFinder, tokens: PreparedTokens, first: range) -> None:
    """Its rows are missing, and it is waited for once only: the second search returns long before its deadline."""
    finder.deadline = 0.5
    # On a machine with other work the one that does not hang may be late, too.
    slowly(lambda: finder.find(tokens, 8).coverage == Coverage(1, 2))
    finder.deadline = LIMIT
    found = finder.find(tokens, 8)
    assert found.coverage == Coverage(1, 2)
    assert all(row in first for own in rows_of(found) for row in own)
    assert finder.up == 1


@pytest.mark.ray
def test_a_shard_that_cannot_be_loaded(running: object, tmp_path: Path) -> None:
    folder = fill(tmp_path / "library")
    opened = Snapshot.open(folder)
    assert len(opened.videos()) == 12
    with Writer.open(folder) as store:
        store.commit([], [], remove=["/films/n0.mp4"])
        store.compact(grace=0)
    with pytest.raises(LibraryError):
        ShardedFinder(opened, head(), CPU, shards=1).warm()
    # Closed by another thread while they load.
    finder = ShardedFinder(Snapshot.open(folder), head(), CPU, shards=1)
    finder.close()
    with pytest.raises(ClusterError):
        finder.warm()


@pytest.mark.ray
def test_a_node_is_lost(
    cluster: Any, running: Callable[[], list[int]], start: Callable[[], ShardedFinder], store: Snapshot
) -> None:
    added = cluster.add_node(**NODE)
    finder = start()
    tokens = queries(store, [0])
    expected = finder.find(tokens, 8)
    assert expected.coverage == Coverage(2, 2)
    assert running() == [1, 1]
    cluster.remove_node(added, allow_graceful=False)
    slowly(lambda: finder.find(tokens, 8).coverage.partial)
    heals(finder, tokens, expected)
    assert running() == [2]


_OWNER = """
import sys, ray
from prota.cluster.shards import ShardedFinder
from prota.library.storage.reader import Snapshot
from tests.cluster.made_up import CPU, head
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
finder = ShardedFinder(Snapshot.open(sys.argv[2]), head(), CPU, shards=2)
finder.warm()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.ray
def test_shards_end_with_a_killed_owner(cluster: Any, running: Callable[[], list[int]], store: Snapshot) -> None:
    with python("-c", _OWNER, cluster.address, store.location, stdin=-1, stderr=None) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        assert sum(running()) == 2
        owner.kill()
        slowly(lambda: sum(running()) == 0)


@pytest.mark.ray
def test_a_server_over_shards(running: Callable[[], list[int]], tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with client_of(world) as client:
        asked = ("/api/v1/search?q=red+on+the+left", "/api/v1/search?q=red&folder=far", "/api/v1/search?q=red&k=1")
        expected = [client.get(address).json()["moments"] for address in asked]
    with client_of(world, ray=True, shards=2, deadline=LIMIT) as client:
        for address, moments in zip(asked, expected, strict=True):
            answer = client.get(address).json()
            assert (answer["partial"], answer["shards"], answer["shards_answered"]) == (False, 2, 2)
            assert answer["moments"] == moments
        first = expected[0][0]
        stretch = {"video": first["video"], "start": first["start"], "end": first["end"]}
        assert client.post("/api/v1/search/like", json=stretch).json()["shards_answered"] == 2
        assert client.get(f"/api/v1/explain?q=red&segment={first['segment']}").status_code == 200
        assert "prota_shards_up 2" in client.get("/metrics").text
        _new_version(client, world)
        # The shards of the version before are gone.
        slowly(lambda: sum(running()) == 2)
        _partial(client)


def _new_version(client: Any, world: Any) -> None:
    """A new version is taken over while it is searched: every request is answered, by one version or the other."""
    before = client.get("/api/v1/library").json()["version"]
    write_colour_clip(world.videos / "near" / "new.mp4", "yellow", "top")
    index(world, world.videos)
    numbers = itertools.count()

    def version() -> int:
        answer = client.get(f"/api/v1/search?q=yellow+{next(numbers)}")
        assert answer.status_code == 200
        assert not answer.json()["partial"]
        return int(answer.json()["version"])

    slowly(lambda: version() > before)


def _partial(client: Any) -> None:
    """A partial answer says so, and is not cached."""
    address = "/api/v1/search?q=something+else"
    os.kill(process(client.app.state.backend.catalogue.current.view.finder, 0), signal.SIGKILL)
    answer = client.get(address).json()
    assert (answer["partial"], answer["shards"], answer["shards_answered"]) == (True, 2, 1)
    slowly(lambda: "prota_shards_up 2" in client.get("/metrics").text)
    assert client.get(address).json()["partial"] is False
    assert "prota_partial_answers_total" in client.get("/metrics").text
