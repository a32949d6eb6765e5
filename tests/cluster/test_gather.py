"""A library in parts on a cluster of Ray: the same answers, and what becomes of them when shards die, hang or move."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from prota.cluster.gather import Gather, Shards
from prota.cluster.shards import Slot
from prota.library.finding import Coverage, RowFinder, without_file
from prota.library.records import LibraryError
from prota.library.store import Store
from tests.cluster.conftest import NODE
from tests.cluster.made_up import CPU, fill, head, queries
from tests.processes import LIMIT, wait_until
from tests.server.worlds import client_of, index, make_world
from tests.small_world import write_colour_clip

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(fill(tmp_path_factory.mktemp("gather") / "library")) as opened:
        yield opened


@pytest.fixture
def shards(cluster: Any, request: pytest.FixtureRequest) -> Iterator[Shards]:
    made = Shards(getattr(request, "param", 2), deadline=LIMIT, device="cpu")
    yield made
    made.close()


def process(slot: Slot) -> int:
    return int(ray.get(slot.actor.__ray_call__.remote(lambda _: os.getpid())))


def alive(library: object) -> int:
    """Actors that the cluster has of a library."""
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    return sum(name.startswith(f"{library} ") for name in names)


def slowly(true: Callable[[], bool]) -> None:
    """Until it is true; shards that start need the cores."""
    wait_until(true, pause=0.2)


def rows(found: Any) -> list[list[int]]:
    return [ranked[0].tolist() for ranked in found.ranked]


def test_the_same_as_one_machine_whatever_becomes_of_a_shard(shards: Shards, store: Store) -> None:
    gather = shards.take(store, head(), CPU)
    tokens = queries(store, [0, 7, 22])
    whole = RowFinder(store, head(), CPU, without_file(store.videos()))
    for where in (None, "duration < 30"):
        found, expected = gather.find(tokens, 8, where), whole.find(tokens, 8, where)
        assert rows(found) == rows(expected)
        assert [ranked[1].tolist() for ranked in found.ranked] == [ranked[1].tolist() for ranked in expected.ranked]
        assert found.coverage == Coverage(2, 2)
        assert not found.coverage.partial
    with pytest.raises(LibraryError, match="cannot filter by 'length < 3'"):
        gather.find(tokens, 8, "length < 3")
    # What is wrong with the shards themselves is no failure of a request.
    narrow = tokens.map(lambda tensor: tensor[..., :2] if tensor.dim() == 3 else tensor)
    assert gather.find(narrow, 8).coverage == Coverage(0, 2)
    assert gather.tokens([3]).direction.equal(queries(store, [3]).direction)
    _late(gather, tokens, rows(whole.find(tokens, 8)))
    _killed(gather, tokens, rows(whole.find(tokens, 8)))
    # The actors go with the last who searches them.
    assert shards.present is gather
    assert alive(store.folder) == 2
    del gather
    # The error of before knows it.
    gc.collect()
    wait_until(lambda: alive(store.folder) == 0)
    assert shards.present is None


def _late(gather: Gather, tokens: Any, expected: list[list[int]]) -> None:
    """One that hangs is done without, and not waited for a second time; when it goes on it is asked again."""
    stopped, first = process(gather.slots[1]), gather.slots[0].part.rows
    os.kill(stopped, signal.SIGSTOP)
    gather.deadline = 0.5
    try:
        # On a machine with other work the one that does not hang may be late, too.
        slowly(lambda: gather.find(tokens, 8).coverage == Coverage(1, 2))
        gather.deadline = LIMIT
        found = gather.find(tokens, 8)
        assert found.coverage == Coverage(1, 2)
        assert all(row in first for own in rows(found) for row in own)
        assert gather.up == 1
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: gather.up == 2)
    assert rows(gather.find(tokens, 8)) == expected


def _killed(gather: Gather, tokens: Any, expected: list[list[int]]) -> None:
    killed = process(gather.slots[0])
    os.kill(killed, signal.SIGKILL)
    slowly(lambda: gather.find(tokens, 8).coverage.partial)
    slowly(lambda: gather.up == 2)
    found = gather.find(tokens, 8)
    assert rows(found) == expected
    assert not found.coverage.partial
    assert process(gather.slots[0]) != killed


@pytest.mark.parametrize("shards", [1], indirect=True)
def test_a_shard_that_cannot_be_loaded(shards: Shards, tmp_path: Path) -> None:
    folder = fill(tmp_path / "library")
    opened = Store.open(folder)
    assert len(opened.videos()) == 12
    with Store.open(folder, write=True) as store:
        store.commit([], [], remove=["/films/n0.mp4"])
        store.compact(grace=0)
    with pytest.raises(LibraryError, match=r"cannot be loaded \(.*no longer has its version.*on all machines"):
        shards.take(opened, head(), CPU)


@pytest.mark.parametrize("shards", [2], indirect=True)
def test_a_node_that_comes_gets_shards_and_one_that_goes_loses_them(cluster: Any, shards: Shards, store: Store) -> None:
    gather = shards.take(store, head(), CPU)
    tokens = queries(store, [0])
    expected = rows(gather.find(tokens, 8))
    assert len({slot.node for slot in gather.slots}) == 1
    added = cluster.add_node(**NODE)

    def nodes() -> list[int]:
        found = gather.find(tokens, 8)
        # Nothing is missing while they move.
        assert rows(found) == expected
        assert not found.coverage.partial
        where = [slot.node for slot in gather.slots]
        return sorted(where.count(node) for node in set(where))

    slowly(lambda: nodes() == [1, 1])
    cluster.remove_node(added, allow_graceful=True)
    slowly(lambda: gather.find(tokens, 8).coverage.partial)
    slowly(lambda: gather.up == 2 and len({slot.node for slot in gather.slots}) == 1)
    assert nodes() == [2]


def test_a_server_over_shards(cluster: Any, tmp_path: Path) -> None:
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
        _grow(client, world)
        _partial(client)
    wait_until(lambda: alive(world.library) == 0)


def _grow(client: Any, world: Any) -> None:
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
    # The shards of the version before are gone.
    wait_until(lambda: alive(world.library) == 2)


def _partial(client: Any) -> None:
    """What a dead shard left out is said, and not kept for the next who asks."""
    shards = client.app.state.backend.catalogue._shards
    os.kill(process(shards.present.slots[0]), signal.SIGKILL)
    address = "/api/v1/search?q=something+else"
    answer = client.get(address).json()
    assert (answer["partial"], answer["shards"], answer["shards_answered"]) == (True, 2, 1)
    slowly(lambda: shards.present.up == 2)
    assert client.get(address).json()["partial"] is False
    assert "prota_partial_answers_total" in client.get("/metrics").text
