"""Filters as SQL, and the one worker that answers queries."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any

import pytest
from fastapi.testclient import TestClient

from prota.library.search.view import View
from prota.server.answering import Filters
from prota.server.view import Folders, LibraryVersion
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of, metric

SEARCH, EXPLAIN, LIKE = "/api/v1/search", "/api/v1/explain", "/api/v1/search/like"


@pytest.fixture
def library() -> LibraryVersion:
    return LibraryVersion(1, None, Folders([("/films/a.mp4", "a")]))  # type: ignore[arg-type]


def test_a_day_is_whole(library: LibraryVersion) -> None:
    day = date(2024, 2, 29)
    assert Filters(after=day, before=day).condition(library) == (
        "modified >= timestamp '2024-02-29 00:00:00' AND modified < timestamp '2024-03-01 00:00:00'"
    )


def test_both_ends_of_a_duration_count(library: LibraryVersion) -> None:
    assert Filters(1.5, 60.0).condition(library) == "duration >= 1.5 AND duration <= 60.0"


def test_no_filter_is_no_condition(library: LibraryVersion) -> None:
    assert Filters().condition(library) is None
    # There is no day after the last, and nothing that was changed later.
    assert Filters(before=date.max).condition(library) is None


def test_all_conditions_hold_at_once(library: LibraryVersion) -> None:
    assert Filters(1.0, folder="films").condition(library) == "duration >= 1.0 AND video_id IN ('a')"


def watched(monkeypatch: pytest.MonkeyPatch, *names: str) -> dict[str, list[str]]:
    """The threads in which the steps of a query run."""
    threads: dict[str, list[str]] = defaultdict(list)

    def watch(name: str) -> None:
        step = getattr(View, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            threads[name].append(threading.current_thread().name)
            return step(*arguments, **options)

        monkeypatch.setattr(View, name, noted)

    for name in names:
        watch(name)
    return threads


def test_a_query_changes_threads_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = ("encode", "search", "relevance", "explain", "scores")
    with client_of(world) as client:
        threads = watched(monkeypatch, *steps)
        moment = client.get(SEARCH, params={"q": "red", "folder": "near"}).json()["moments"][0]
        client.get(EXPLAIN, params={"q": "red", "segment": moment["segment"]})
        client.get(f"/api/v1/videos/{moment['video']}/segments", params={"q": "red"})
        client.post(LIKE, json={name: moment[name] for name in ("video", "start", "end")})
    assert set(threads) == set(steps)
    assert {name for names in threads.values() for name in names} == {"prota-queries"}
    # Later requests use the same text as it was encoded for the first.
    assert len(threads["encode"]) == 1


def test_waiting_queries_are_one_batch(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is encoded once; a request that fails does not fail the others."""
    begun, may_go, encode = threading.Event(), threading.Event(), View.encode
    encoded: list[list[str]] = []

    def held(view: View, texts: list[str]) -> Any:
        encoded.append(list(texts))
        begun.set()
        assert may_go.wait(LIMIT)
        return encode(view, texts)

    (video,) = {one["video"] for one in client.get(SEARCH, params={"q": "long", "folder": "far"}).json()["moments"][:1]}
    scored = metric(client, "prota_scored_batches_total") or 0
    monkeypatch.setattr(View, "encode", held)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(client.get, SEARCH, params={"q": "the first"})
        assert begun.wait(LIMIT)
        texts = ("batch one", "batch two", "batch one")
        others = [pool.submit(client.get, SEARCH, params={"q": text, "k": 3}) for text in texts]
        bad = pool.submit(client.post, LIKE, json={"video": video, "start": 5000, "end": 6000})
        wait_until(lambda: metric(client, "prota_searches_inside") == 5)
        may_go.set()
        assert [future.result(LIMIT).status_code for future in (first, *others)] == [200] * 4
        assert bad.result(LIMIT).status_code == 422
    assert encoded[0] == ["the first"]
    assert sorted(encoded[1]) == ["batch one", "batch two"]
    assert len(encoded) == 2
    assert metric(client, "prota_scored_batches_total") == scored + 2
