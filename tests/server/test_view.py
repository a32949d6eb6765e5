"""Loading in the background, new versions, libraries that cannot be opened, and folders as filters."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from prota.library.library import Library
from prota.server import view
from prota.server.app import create_app
from prota.server.jobs import order_for
from prota.server.options import ServerOptions
from prota.server.view import Catalogue, Folders
from tests.conftest import imported
from tests.library.object_store import BUCKET, serving
from tests.library.worlds import toy_model, write_clips
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of, index, make_world


@pytest.mark.process
def test_making_an_application_imports_no_torch() -> None:
    code = "from pathlib import Path; from prota.server.app import create_app; create_app(Path('nowhere'))"
    assert imported(code, ("torch", "transformers", "lance")) == []


@pytest.mark.process
def test_what_can_be_seen_while_the_model_loads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()
    load = Catalogue._load

    def slow(catalogue: Catalogue, store: Any) -> Any:
        assert may_go.wait(LIMIT)
        return load(catalogue, store)

    monkeypatch.setattr(Catalogue, "_load", slow)
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
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


@pytest.mark.process
@pytest.mark.s3
def test_a_library_on_object_storage(world: World) -> None:
    with serving():
        place = f"s3://{BUCKET}/server/library"
        library = Library(place, world.model)
        library.index(world.videos / "near" / "red-left.mp4", frames=4)
        app = create_app(place, ServerOptions(device="cpu", refresh=0.3))
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            wait_until(lambda: client.get("/readyz").status_code == 200)
            assert len(client.get("/api/v1/search?q=red&all=true").json()["moments"]) == 1
            library.index(world.videos / "far" / "green-right.mp4", frames=4)
            wait_until(lambda: client.get("/api/v1/library").json()["videos"] == 2)
            assert client.get("/api/v1/segments/1/thumbnail").status_code == 200
        # What jobs are told.
        assert order_for(place, None, device="cpu", within=(), timeout=1.0).library == place


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Two clips in one folder, two in another, and a copy of the first in a third, with a name like any other."""
    base = tmp_path_factory.mktemp("folders")
    write_clips(base / "it's a" / "take", "red-left", "blue-top")
    write_clips(base / "b" / "take" / "deep", "green-right", "pink-left")
    opened = Library(base / "lib", toy_model())
    opened.index(base, frames=4)
    (base / "best").mkdir()
    shutil.copy(base / "it's a" / "take" / "red-left.mp4", base / "best" / "copy.mp4")
    opened.index(base, frames=4)
    return opened


def found(library: Library, name: str) -> set[str]:
    files = [record for record in library.view.snapshot.videos() if record.state == "indexed"]
    names = {record.video_id: Path(record.path).stem for record in files if "copy" not in record.path}
    there = Folders((record.path, record.video_id) for record in files)
    assert there.names == ["best", "deep", "take"]
    return {names[hit.video.video_id] for hit in library.search("red", 20, where=there.condition(name)).hits}


@pytest.mark.parametrize(("videos", "tops"), [(500, 50), (0, 50), (0, 0)])
def test_what_lies_in_or_below_a_folder_of_that_name(
    library: Library, monkeypatch: pytest.MonkeyPatch, videos: int, tops: int
) -> None:
    """The same whether few videos, few folders or many of both are asked for."""
    monkeypatch.setattr(view, "_FEW_VIDEOS", videos)
    monkeypatch.setattr(view, "_FEW_FOLDERS", tops)
    assert found(library, "best") == {"red-left"}
    assert found(library, "take") == {"red-left", "blue-top", "green-right", "pink-left"}
    assert found(library, "deep") == {"green-right", "pink-left"}
    assert found(library, "it's a") == {"red-left", "blue-top"}
    assert found(library, "nowhere") == found(library, "") == set()


def test_a_folder_below_one_of_the_same_name_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "_FEW_VIDEOS", 0)
    there = Folders([("/v/take/take/a.mp4", "1")])
    assert there.condition("take") == "(starts_with(path, '/v/take/'))"
