"""Slots, batches and the cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prota.library.search.view import View
from prota.server.problems import ProblemError
from prota.server.queueing import Batcher, BoundedPool, LruCache
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of, metric


def test_a_full_pool_rejects_at_once() -> None:
    pool = BoundedPool("test", threads=1, limit=2)
    with pool.slot(), pool.slot():
        with pytest.raises(ProblemError) as told, pool.slot():
            pass
        assert told.value.status == 503
        assert told.value.headers == {"Retry-After": "1"}
    with pool.slot():
        assert pool.active == 1
    assert (pool.active, pool.rejected) == (0, 1)
    pool.close()


def test_what_comes_meanwhile_is_done_in_one_go() -> None:
    begun, may_go = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def work(items: Sequence[int]) -> list[int]:
        seen.append(list(items))
        begun.set()
        assert may_go.wait(LIMIT)
        return [item * 10 for item in items]

    batcher = Batcher[int, int]("test", work, largest=3)
    first = batcher.submit(0)
    assert begun.wait(LIMIT)
    others = [batcher.submit(item) for item in range(1, 6)]
    gone = batcher.submit(99)
    gone.cancel()
    may_go.set()
    assert [future.result(LIMIT) for future in (first, *others)] == [0, 10, 20, 30, 40, 50]
    assert seen == [[0], [1, 2, 3], [4, 5]]
    batcher.close()


@pytest.mark.parametrize("raised", [True, False])
def test_one_bad_item_fails_alone(raised: bool) -> None:
    """Whether the batch fails with it, or reports it."""
    hold = threading.Event()

    def work(items: Sequence[int]) -> list[float | Exception]:
        hold.wait(LIMIT)
        return [1 / item if item or raised else ZeroDivisionError() for item in items]

    batcher: Batcher[int, float] = Batcher("test", work, 64)
    futures = [batcher.submit(item) for item in (1, 2, 0, 4)]
    hold.set()
    assert [futures[place].result(LIMIT) for place in (0, 1, 3)] == [1, 0.5, 0.25]
    with pytest.raises(ZeroDivisionError):
        futures[2].result(LIMIT)
    batcher.close()


def test_the_least_recently_used_goes_first() -> None:
    cache: LruCache[int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    none: LruCache[int] = LruCache(0)
    none.put("a", 1)
    assert none.get("a") is None


def test_overload_is_rejected_and_the_rest_is_served(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go, encode = threading.Event(), View.encode

    def held(*arguments: Any) -> Any:
        assert may_go.wait(LIMIT)
        return encode(*arguments)

    monkeypatch.setattr(View, "encode", held)
    with client_of(world, queue_limit=3, cached=0) as client, ThreadPoolExecutor(8) as pool:

        def ask(_: int) -> tuple[int, str]:
            answer = client.get("/api/v1/search", params={"q": "red"})
            return answer.status_code, answer.headers.get("retry-after", "")

        asked = [pool.submit(ask, number) for number in range(8)]
        wait_until(lambda: metric(client, "prota_refused_total") == 5)
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/v1/library").status_code == 200
        assert metric(client, "prota_searches_inside") == 3
        may_go.set()
        assert sorted(future.result(LIMIT) for future in asked) == [(200, "")] * 3 + [(503, "1")] * 5
        assert ask(0) == (200, "")
        assert metric(client, "prota_searches_inside") == 0
