"""Loading in the background, taking over new versions, and libraries that cannot be opened."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from prota.library.indexing import IndexOptions
from prota.library.library import Library
from prota.library.segments import SegmentPlan
from prota.server.app import create_app
from prota.server.engine import Engine
from prota.server.jobs import order_for
from prota.server.options import ServerOptions
from tests.conftest import imported
from tests.library.object_store import BUCKET, serving
from tests.library.worlds import toy_model, write_clips
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of, index, make_world

pytestmark = pytest.mark.process


def test_making_an_application_imports_no_torch() -> None:
    code = "from pathlib import Path; from prota.server.app import create_app; create_app(Path('nowhere'))"
    assert imported(code, ("torch", "transformers", "lance")) == []


def test_what_can_be_seen_while_the_model_loads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()
    load = Engine._load

    def slow(engine: Engine, store: Any) -> None:
        assert may_go.wait(LIMIT)
        load(engine, store)

    monkeypatch.setattr(Engine, "_load", slow)
    app = create_app(world.library, ServerOptions(device="cpu", refresh=0.05))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: client.get("/api/v1/library").json()["videos"] == 5)
        assert client.get("/api/v1/library").json()["state"] == "loading"
        assert client.get("/healthz").status_code == 200
        for address in ("/readyz", "/api/v1/search?q=red", "/api/v1/explain?q=red&segment=0"):
            answer = client.get(address)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "being loaded" in answer.json()["detail"]
        # What needs no model is there.
        assert client.get("/api/v1/segments/0/thumbnail").status_code == 200
        may_go.set()
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/api/v1/search?q=red").status_code == 200


def test_a_library_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "library.json").write_text("{}", encoding="utf-8")
    app = create_app(tmp_path / "library", ServerOptions(device="cpu", refresh=0.05))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: client.get("/api/v1/library").json()["state"] == "failed")
        assert "does not describe a library" in client.get("/api/v1/library").json()["detail"]
        assert client.get("/readyz").status_code == client.get("/api/v1/search?q=red").status_code == 503
        # Anyone may ask whether it is ready.
        assert str(tmp_path) not in client.get("/readyz").text
        assert client.get("/healthz").status_code == 200
        # Once it is mended, it is served.
        shutil.rmtree(tmp_path / "library")
        wait_until(lambda: client.get("/api/v1/library").json()["state"] == "ready")


def test_a_model_that_lies_elsewhere_now(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    moved = world.model.rename(tmp_path / "moved")
    app = create_app(world.library, ServerOptions(device="cpu", refresh=0.05))
    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        wait_until(lambda: client.get("/api/v1/library").json()["state"] == "failed")
    with client_of(world, model=str(moved), allow=(world.videos,)) as client:
        assert client.get("/api/v1/search?q=red").status_code == 200
        job = client.post("/api/v1/jobs", json={"path": str(world.videos)}).json()
        wait_until(lambda: client.get(f"/api/v1/jobs/{job['id']}").json()["state"] == "done")


def test_a_library_made_anew_with_another_model(tmp_path: Path) -> None:
    world = make_world(tmp_path / "one")
    with client_of(world) as client:
        before = client.get("/api/v1/search?q=red").json()
        other = World(tmp_path / "two")
        toy_model(seed=1).save_pretrained(other.model)
        write_clips(other.videos, "black-top", "orange-left", "yellow-right")
        index(other, other.videos)
        shutil.rmtree(world.library)
        shutil.copytree(other.library, world.library)
        wait_until(lambda: client.get("/api/v1/library").json()["videos"] == 3)
        wait_until(lambda: client.get("/readyz").status_code == 200)
        after = client.get("/api/v1/search?q=red").json()
        assert {moment["title"] for moment in after["moments"]} == {"black-top", "orange-left", "yellow-right"}
        assert {moment["score"] for moment in before["moments"]}.isdisjoint(
            moment["score"] for moment in after["moments"]
        )


@pytest.mark.s3
def test_a_library_on_object_storage(world: World) -> None:
    with serving():
        place = f"s3://{BUCKET}/server/library"
        library = Library.open(place, world.model)
        library.index(world.videos / "near" / "red-left.mp4", IndexOptions(SegmentPlan(4)))
        app = create_app(place, ServerOptions(device="cpu", refresh=0.3))
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert len(client.get("/api/v1/search?q=red&all=true").json()["moments"]) == 1
            library.index(world.videos / "far" / "green-right.mp4", IndexOptions(SegmentPlan(4)))
            wait_until(lambda: client.get("/api/v1/library").json()["videos"] == 2)
            assert client.get("/api/v1/segments/1/thumbnail").status_code == 200
        # What jobs are told.
        assert order_for(place, None, "cpu", (), 1.0).library == place
