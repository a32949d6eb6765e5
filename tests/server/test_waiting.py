"""Places, batches, and what is kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient

from prota.server.problems import ProblemError
from prota.server.services import Services
from prota.server.waiting import Batcher, Desk, Kept
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of


def test_a_full_desk_refuses_at_once() -> None:
    desk = Desk("test", threads=1, waiting=1)
    with desk.place(), desk.place():
        with pytest.raises(ProblemError) as told, desk.place():
            pass
        assert told.value.status == 503
        assert told.value.headers == {"Retry-After": "1"}
    with desk.place():
        assert desk.inside == 1
    assert (desk.inside, desk.refused) == (0, 1)


def test_what_comes_meanwhile_is_done_in_one_go() -> None:
    begun, may_go = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def work(items: Sequence[int]) -> list[int]:
        seen.append(list(items))
        begun.set()
        assert may_go.wait(LIMIT)
        return [item * 10 for item in items]

    batcher = Batcher(work, largest=3)
    first = batcher.submit(0)
    assert begun.wait(LIMIT)
    others = [batcher.submit(item) for item in range(1, 6)]
    gone = batcher.submit(99)
    gone.cancel()
    may_go.set()
    assert [future.result(LIMIT) for future in (first, *others)] == [0, 10, 20, 30, 40, 50]
    assert seen == [[0], [1, 2, 3], [4, 5]]
    assert (batcher.batches, batcher.items) == (3, 6)
    batcher.close()


def test_one_bad_item_spoils_only_itself() -> None:
    hold = threading.Event()

    def work(items: Sequence[int]) -> list[float]:
        hold.wait(LIMIT)
        return [1 / item for item in items]

    batcher = Batcher(work)
    futures = [batcher.submit(item) for item in (1, 2, 0, 4)]
    hold.set()
    assert [futures[place].result(LIMIT) for place in (0, 1, 3)] == [1, 0.5, 0.25]
    with pytest.raises(ZeroDivisionError):
        futures[2].result(LIMIT)
    batcher.close()


def test_the_longest_unused_goes_first() -> None:
    kept: Kept[int] = Kept(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
    assert (kept.hits, kept.misses) == (3, 1)
    none: Kept[int] = Kept(0)
    none.put("a", 1)
    assert none.get("a") is None


def test_overload_is_answered_and_health_goes_on(world: World) -> None:
    with client_of(world, searchers=1, waiting=2, cached=0) as client, ThreadPoolExecutor(8) as pool:
        services = client.app.state.services  # type: ignore[attr-defined]
        assert isinstance(services, Services)
        may_go = threading.Event()
        blocked = services.desk._pool.submit(may_go.wait, LIMIT)

        def ask(_: int) -> tuple[int, str]:
            answer = client.get("/api/v1/search", params={"q": "red"})
            return answer.status_code, answer.headers.get("retry-after", "")

        asked = [pool.submit(ask, number) for number in range(8)]
        wait_until(lambda: services.desk.refused == 5)
        # Searches hang, and yet:
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/v1/library").status_code == 200
        assert "prota_searches_inside 3" in client.get("/metrics").text
        may_go.set()
        blocked.result(LIMIT)
        answers = sorted(future.result(LIMIT) for future in asked)
        assert answers == [(200, "")] * 3 + [(503, "1")] * 5
        assert ask(0) == (200, "")
        assert services.desk.inside == 0


def test_queries_of_many_are_encoded_together(client: TestClient) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]
    before = services.engine.batcher.batches
    with ThreadPoolExecutor(16) as pool:
        statuses = list(
            pool.map(lambda n: client.get("/api/v1/search", params={"q": f"number {n}"}).status_code, range(48))
        )
    assert statuses == [200] * 48
    assert services.engine.batcher.batches - before < 48
