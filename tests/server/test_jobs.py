"""Indexing beside the server: allowed folders only, progress, cancelling."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from prota.server import jobs as module
from prota.server.jobs import Jobs, order_for
from prota.server.problems import ProblemError
from tests.library.worlds import toy_model, write_clips, write_picture
from tests.processes import wait_until
from tests.server.worlds import World, client_of, make_world

pytestmark = pytest.mark.process

JOBS = "/api/v1/jobs"


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs of which none ever begins."""
    begin = threading.Event()
    monkeypatch.setattr(Jobs, "_do", lambda *_: begin.wait())
    jobs = Jobs(
        order_for(tmp_path / "library", None, device="cpu", within=(os.path.realpath(tmp_path),), timeout=1.0),
        lambda: None,
    )
    yield jobs
    begin.set()
    jobs.close()


def test_only_so_many_jobs_may_wait(waiting: Jobs, tmp_path: Path) -> None:
    first, *_ = [waiting.add([str(tmp_path)]) for _ in range(module._MOST_WAITING)]
    with pytest.raises(ProblemError, match="too many jobs are waiting") as caught:
        waiting.add([str(tmp_path)])
    assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "30"})
    waiting.cancel(first.id)
    assert waiting.add([str(tmp_path)]).state == "waiting"


def test_jobs_that_have_ended_are_not_remembered_for_ever(
    waiting: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    oldest = waiting.add([str(tmp_path)])
    for _ in range(10):
        waiting.cancel(waiting.add([str(tmp_path)]).id)
    newest = waiting.add([str(tmp_path)])
    assert len(waiting.all()) == 4
    assert waiting.all()[0] is newest
    assert waiting.get(oldest.id) is oldest, "it still waits"


def add(client: TestClient, path: Path | str, **more: object) -> dict[str, Any]:
    answer = client.post(JOBS, json={"path": str(path)} | more)
    assert answer.status_code == 202, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


def ended(client: TestClient, job: str) -> dict[str, Any]:
    wait_until(lambda: client.get(f"{JOBS}/{job}").json()["state"] not in ("waiting", "running"))
    found = client.get(f"{JOBS}/{job}").json()
    assert isinstance(found, dict)
    return found


def test_a_folder_is_indexed_and_found(tmp_path: Path) -> None:
    """From nothing: the first job makes the library."""
    toy_model().save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "films", "red-left", "blue-top")
    (tmp_path / "films" / "late.mp4").write_bytes(b"no video")
    (tmp_path / "elsewhere").mkdir()
    write_clips(tmp_path / "elsewhere", "green-right")
    (tmp_path / "films" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "films" / "link.mp4").symlink_to(tmp_path / "elsewhere" / "green-right.mp4")
    world = World(tmp_path)
    with client_of(world, allow=(tmp_path / "films",), model=str(world.model)) as client:
        assert client.get("/api/v1/library").json()["allow"] == [str(tmp_path / "films")]
        job = add(client, tmp_path / "films")
        assert job["state"] in ("waiting", "running")
        with client.stream("GET", f"{JOBS}/{job['id']}/events") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            told = [json.loads(line.removeprefix("data: ")) for line in events.iter_lines() if line.startswith("data")]
        assert told[-1]["state"] == "done", told[-1]
        assert told[-1] == client.get(f"{JOBS}/{job['id']}").json()
        # Links that lead out of what was allowed were passed over.
        assert (told[-1]["found"], told[-1]["indexed"], told[-1]["share"]) == (3, 2, 1.0)
        assert told[-1]["bad"] == 1
        assert [bad["file"] for bad in told[-1]["reasons"]] == ["late.mp4"]
        assert told[-1]["reasons"][0]["reason"]
        shares = [record["share"] for record in told]
        assert shares == sorted(shares)
        wait_until(lambda: client.get("/api/v1/library").json()["videos"] == 2)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        found = client.get("/api/v1/search", params={"q": "red"}).json()
        assert {moment["title"] for moment in found["moments"]} == {"red-left", "blue-top"}
        assert ended(client, add(client, tmp_path / "films" / "red-left.mp4")["id"])["unchanged"] == 1
        assert [record["state"] for record in client.get(JOBS).json()] == ["done", "done"]


def test_pictures_come_along_unless_they_are_left_out(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "films", "red-left")
    write_picture(tmp_path / "films" / "photo.jpg")
    world = World(tmp_path)
    with client_of(world, allow=(tmp_path / "films",), model=str(world.model)) as client:
        first = ended(client, add(client, tmp_path / "films", pictures=False)["id"])
        assert (first["state"], first["found"], first["indexed"], first["pictures"]) == ("done", 1, 1, 0)
        second = ended(client, add(client, tmp_path / "films")["id"])
        assert (second["found"], second["indexed"], second["unchanged"], second["pictures"]) == (2, 1, 1, 1)
        assert client.post(JOBS, json={"path": str(tmp_path), "pictures": "all"}).status_code == 422


def test_only_what_was_allowed(world: World, tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_clips(root / "in", "red-left")
    (tmp_path / "root-beside").mkdir()
    (root / "way-out").symlink_to("/etc")
    (root / "loop").symlink_to(root / "loop")
    with client_of(world, allow=(root,)) as client:
        for path in (
            "/", "/etc", "/etc/passwd", tmp_path, f"{root}/..", f"{root}/../root-beside", f"{root}-beside",
            f"{root}/way-out", f"{root}/way-out/passwd", f"{root}/in/../../..", "/nowhere/at/all", f"{root}/../nowhere",
        ):  # fmt: skip
            answer = client.post(JOBS, json={"path": str(path)})
            assert answer.status_code == 403, path
            assert answer.headers["content-type"] == "application/problem+json"
        for path in ("", "in", "./in", "~", "~root", f"{root}/in\0", "\0", "file:///etc", "a" * 5000, "\ud800"):
            body = json.dumps({"path": path})
            answer = client.post(JOBS, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 422, path
            assert path or answer.json()["detail"].startswith("path: "), "which field it is"
        for path in (f"{root}/nowhere", f"{root}/loop/x", f"{root}/{'a' * 300}"):
            assert client.post(JOBS, json={"path": path}).status_code in (403, 404), path
        assert client.get(JOBS).json() == []
    with client_of(world) as client:
        answer = client.post(JOBS, json={"path": str(root)})
        assert answer.status_code == 403
        assert "--allow" in answer.json()["detail"]


def test_roots_that_are_links_are_what_they_lead_to(world: World, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with client_of(world, allow=(tmp_path / "link",)) as client:
        assert add(client, tmp_path / "link")["path"] == os.path.realpath(tmp_path / "real")
        assert add(client, tmp_path / "real")["path"] == os.path.realpath(tmp_path / "real")


def test_cancelling(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    sides, colours = ("left", "right", "top", "bottom"), ("red", "blue", "pink", "white", "black", "orange")
    write_clips(tmp_path / "many", *(f"{colour}-{side}" for colour in colours for side in sides))
    with client_of(world, allow=(tmp_path,)) as client:
        first, second = add(client, tmp_path / "many"), add(client, world.videos)
        assert client.delete(f"{JOBS}/{second['id']}").json()["state"] == "cancelled"
        wait_until(lambda: client.get(f"{JOBS}/{first['id']}").json()["state"] == "running")
        assert client.delete(f"{JOBS}/{first['id']}").status_code == 200
        assert ended(client, first["id"])["state"] == "cancelled"
        assert client.delete(f"{JOBS}/{first['id']}").json()["state"] == "cancelled"
        assert client.get(f"{JOBS}/{second['id']}").json()["found"] == 0
        # The library is whole, and open to the next.
        third = ended(client, add(client, world.videos)["id"])
        assert (third["state"], third["unchanged"]) == ("done", 5)


def test_a_job_that_fails_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_clips(tmp_path / "films", "red-left")
    with client_of(World(tmp_path), allow=(tmp_path,), model="magic") as client:
        job = ended(client, add(client, tmp_path / "films")["id"])
        assert job["state"] == "failed"
        assert "magic: no such folder" in job["detail"]
        assert not caplog.records
        assert client.get("/api/v1/library").json()["state"] == "ready"


def test_a_bug_in_a_job_is_logged_with_its_traceback(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    command = module.command

    def broken(order: module.IndexOrder) -> list[str]:
        python, option, code, *arguments = command(order)
        bug = "from prota.library.library import Library; Library.index = None"
        return [python, option, code.replace("; main()", f"; {bug}; main()"), *arguments]

    monkeypatch.setattr(module, "command", broken)
    with client_of(world, allow=(tmp_path,)) as client, caplog.at_level(logging.ERROR, "prota.server"):
        assert ended(client, add(client, tmp_path)["id"])["state"] == "failed"
    (record,) = caplog.records
    assert "TypeError" in record.getMessage()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(("job", "status"), [("0" * 16, 404), ("x", 422), ("..%2f", 404), ("0" * 17, 422)])
def test_jobs_that_are_none(client: TestClient, method: str, job: str, status: int) -> None:
    assert client.request(method, f"{JOBS}/{job}").status_code == status
    assert client.get(f"{JOBS}/{job}/events").status_code == status


def test_a_server_that_ends_ends_its_jobs(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with client_of(world, allow=(tmp_path,)) as client:
        add(client, world.videos)
        jobs = client.app.state.backend.jobs  # type: ignore[attr-defined]
        wait_until(lambda: jobs.all()[0].process is not None)
        process = jobs.all()[0].process
    assert process.poll() is not None
