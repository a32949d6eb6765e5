"""What can be seen and changed without a query: files, folders, moments, example queries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from prota.library.search.view import View
from prota.server import browsing
from prota.server.answering import QueryWorker, Task
from prota.server.jobs import Jobs
from tests.library.worlds import write_clips
from tests.processes import wait_until
from tests.server.test_jobs import JOBS, ended
from tests.server.worlds import World, add_pictures, client_of, index, make_world

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Five clips and four pictures; then one is deleted, one is copied, and two bad ones are added."""
    world = make_world(tmp_path_factory.mktemp("browsing"))
    add_pictures(world)
    (world.videos / "near" / "blue-top.mp4").unlink()
    (world.videos / "far" / "deep").mkdir()
    (world.videos / "far" / "deep" / "copy.mp4").write_bytes((world.videos / "near" / "red-left.mp4").read_bytes())
    for name in ("broken.mp4", "broken too.avi"):
        (world.videos / "far" / name).write_bytes(name.encode())
    os.utime(world.videos / "far" / "long.mp4", (2e9, 2e9))
    index(world, world.videos)
    return world


@pytest.fixture(scope="module")
def browser(kept: World) -> Iterator[TestClient]:
    with client_of(kept, allow=(kept.videos / "far",)) as client:
        yield client


def listed(client: TestClient, **parameters: Any) -> dict[str, Any]:
    answer = client.get("/api/v1/files", params=parameters)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


def names(client: TestClient, **parameters: Any) -> list[str]:
    return [file["name"] for file in listed(client, **parameters)["files"]]


def file_of(client: TestClient, name: str) -> dict[str, Any]:
    (found,) = (file for file in listed(client, find=name)["files"] if file["name"] == name)
    assert isinstance(found, dict)
    return found


def test_all_files_are_listed_with_state_and_reason(browser: TestClient, kept: World) -> None:
    found = listed(browser)
    assert found["states"] == {"indexed": 9, "bad": 2, "gone": 1}
    assert found["total"] == len(found["files"]) == len({file["file"] for file in found["files"]}) == 12
    by_name = {file["name"]: file for file in found["files"]}
    assert by_name["red-left.mp4"]["video"] == by_name["copy.mp4"]["video"]
    assert by_name["broken.mp4"] | {"file": "", "size": 0, "modified": "", "reason": ""} == {
        "file": "", "video": None, "kind": "video", "name": "broken.mp4", "folder": "far", "state": "bad",
        "reason": "", "duration": 0.0, "size": 0, "modified": "", "thumbnail": None, "managed": True,
    }  # fmt: skip
    assert by_name["broken.mp4"]["reason"]
    assert by_name["blue-top.mp4"]["state"] == "gone"
    assert {name for name, file in by_name.items() if file["managed"]} == {
        "broken.mp4", "broken too.avi", "copy.mp4", "green-right.mp4", "long.mp4",
    }  # fmt: skip
    assert browser.get(by_name["long.mp4"]["thumbnail"]).headers["content-type"] == "image/jpeg"
    assert str(kept.folder) not in str(found)


def test_a_list_is_filtered_sorted_and_paged(browser: TestClient) -> None:
    everything = names(browser)
    assert everything == sorted(everything, key=str.casefold)
    assert names(browser, k=5) + names(browser, k=5, offset=5) + names(browser, k=5, offset=10) == everything
    assert names(browser, offset=1000) == []
    assert listed(browser, offset=1000)["total"] == 12
    assert names(browser, find="BROKEN") == ["broken too.avi", "broken.mp4"]
    assert names(browser, state="gone") == ["blue-top.mp4"]
    assert listed(browser, state="gone")["states"]["bad"] == 2
    assert set(names(browser, folder="far")) == {
        "broken too.avi", "broken.mp4", "copy.mp4", "green-right.mp4", "long.mp4",
    }  # fmt: skip
    assert names(browser, folder="deep") == ["copy.mp4"]
    assert names(browser, folder="nowhere") == []
    assert set(names(browser, kind="picture")) == {"red.jpg", "blue.png", "green.webp", "odd.jpg"}
    assert names(browser, order="newest")[0] == "long.mp4"
    assert names(browser, order="longest")[0] == "long.mp4"
    sizes = [file["size"] for file in listed(browser, order="largest")["files"]]
    assert sizes == sorted(sizes, reverse=True)
    for wrong in ({"state": "lost"}, {"order": "best"}, {"offset": -1}, {"k": 0}, {"k": 1000}):
        assert browser.get("/api/v1/files", params=wrong).status_code == 422, wrong


def test_folders_count_what_lies_below_them(browser: TestClient) -> None:
    found = browser.get("/api/v1/folders").json()
    assert {folder["name"]: folder["files"] for folder in found} == {"far": 3, "deep": 1, "near": 2, "photos": 4}
    assert found[0]["name"] == "far", "it has the latest file"
    assert all(browser.get(folder["thumbnail"]).status_code == 200 for folder in found)
    assert browser.get("/api/v1/folders", params={"k": 1}).json() == found[:1]


def test_moments_without_a_query(browser: TestClient) -> None:
    newest = browser.get("/api/v1/moments").json()
    assert newest[0]["title"] == "long"
    assert len({moment["video"] for moment in newest}) == len(newest) == 8, "copies once, and nothing that is gone"
    for moment in newest:
        assert (moment["start"] <= moment["best"] <= moment["end"]) or moment["kind"] == "picture"
        assert "probability" not in moment
        assert browser.get(moment["thumbnail"]).status_code == 200
    ask = {"order": "random", "k": 3, "seed": 7}
    chosen = browser.get("/api/v1/moments", params=ask).json()
    assert len(chosen) == 3
    assert browser.get("/api/v1/moments", params=ask).json() == chosen
    others = [browser.get("/api/v1/moments", params=ask | {"seed": seed}).json() for seed in range(5)]
    assert any(other != chosen for other in others)


def test_examples_are_queries_that_find_something(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen once for a version, and a search that comes meanwhile does not wait for all of them."""
    asked: list[list[Task]] = []
    answer = QueryWorker._answer

    def noting(worker: QueryWorker, tasks: Sequence[Task]) -> list[str | Exception]:
        asked.append(list(tasks))
        return answer(worker, tasks)

    def judged(_: View, query: Any, scores: Sequence[float], __: int) -> list[float]:
        return [0.9 if query.text == "a robot" else 0.8 if query.text == "a cat" else 0.3] * len(scores)

    monkeypatch.setattr(QueryWorker, "_answer", noting)
    monkeypatch.setattr(View, "relevance", judged)
    with client_of(kept) as client:
        found = client.get("/api/v1/examples").json()
        assert found[:1] == ["a robot"]
        assert set(found) <= {"a robot", "a cat"}
        assert client.get("/api/v1/examples").json() == found
    assert sum(len(tasks) for tasks in asked) == len(browsing.QUERIES)
    assert max(len(tasks) for tasks in asked) <= 16


def test_nothing_is_an_example_without_calibration(browser: TestClient) -> None:
    assert browser.get("/api/v1/examples").json() == []


def test_an_empty_library_has_nothing_to_browse(tmp_path: Path) -> None:
    with client_of(World(tmp_path)) as client:
        for path in ("folders", "moments", "examples"):
            assert client.get(f"/api/v1/{path}").json() == []
        assert listed(client)["total"] == 0


def test_only_allowed_folders_can_be_picked(kept: World, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("beach", "Alps", ".hidden"):
        (root / name).mkdir(parents=True)
    (root / "outside").symlink_to(tmp_path)
    write_clips(root, "red-left")
    (root / "photo.JPG").touch()
    (root / "notes.txt").touch()
    real = os.path.realpath(root)

    def picked(path: Path | str | None = None) -> Any:
        return client.get("/api/v1/jobs/folders", params={} if path is None else {"path": str(path)})

    with client_of(kept, allow=(root,)) as client:
        assert picked().json() == {"path": "", "parent": None, "files": 0, "folders": [{"name": real, "path": real}]}
        found = picked(real).json()
        assert [folder["name"] for folder in found["folders"]] == ["Alps", "beach"]
        assert (found["files"], found["parent"]) == (2, "")
        assert picked(f"{real}/Alps").json()["parent"] == real
        for path in (tmp_path, "/", "/etc", f"{real}/..", f"{real}/outside", f"{real}-beside"):
            assert picked(path).status_code == 403, path
        assert picked(f"{real}/nowhere").status_code == 404
        assert picked(f"{real}/red-left.mp4").status_code == 422
    with client_of(kept) as client:
        assert picked().status_code == 403


def test_files_are_removed_and_indexed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path)
    far = world.videos / "far"
    (far / "broken.mp4").write_bytes(b"no video")
    index(world, world.videos)
    remove = "/api/v1/files/remove"
    with client_of(world, allow=(far,)) as client:
        green, pink = file_of(client, "green-right.mp4"), file_of(client, "red-left.mp4")
        for files, status in (
            ([green["file"], pink["file"]], 403), ([green["file"], "0" * 64], 404), ([], 422), (["../x"], 422),
            ([green["file"]] * 101, 422),
        ):  # fmt: skip
            assert client.post(remove, json={"files": files}).status_code == status, files
        monkeypatch.setattr(Jobs, "busy", True)
        assert client.post(remove, json={"files": [green["file"]]}).status_code == 409
        monkeypatch.undo()
        assert len(names(client)) == 6, "nothing of a request that is rejected"
        other = client.post(remove, json={"files": [green["file"]]}, headers={"Origin": "http://evil.example"})
        assert other.status_code == 403
        answer = client.post(remove, json={"files": [green["file"]]})
        assert (answer.status_code, answer.json()) == (200, {"removed": 1})
        wait_until(lambda: "green-right.mp4" not in names(client))
        assert (far / "green-right.mp4").exists()
        broken = file_of(client, "broken.mp4")
        again = client.post(JOBS, json={"files": [broken["file"]]}).json()
        assert (ended(client, again["id"])["unchanged"], again["path"]) == (1, os.path.realpath(far / "broken.mp4"))
        tried = client.post(JOBS, json={"files": [broken["file"]], "retry": True}).json()
        tried = ended(client, tried["id"])
        assert (tried["bad"], tried["reasons"][0]["file"]) == (1, "broken.mp4")
        two = client.post(JOBS, json={"files": [broken["file"], file_of(client, "long.mp4")["file"]]}).json()
        assert (two["path"], ended(client, two["id"])["unchanged"]) == ("2 files", 2)
        for body in ({}, {"files": [broken["file"]], "path": str(far)}, {"files": ["x"]}):
            assert client.post(JOBS, json=body).status_code == 422, body
        assert client.post(JOBS, json={"files": ["0" * 64]}).status_code == 404
        assert client.post(JOBS, json={"files": [pink["file"]]}).status_code == 403
    with client_of(world) as client:
        assert not file_of(client, "long.mp4")["managed"]
        for path, body in ((remove, {"files": [broken["file"]]}), (JOBS, {"files": [broken["file"]]})):
            answer = client.post(path, json=body)
            assert answer.status_code == 403
            assert "--allow" in answer.json()["detail"]
