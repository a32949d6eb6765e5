"""What the library holds, over HTTP."""

from __future__ import annotations

import io

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from prota.library.library import Library
from prota.library.walk import content_id
from tests.server.worlds import World


def test_the_library_tells_what_it_is(client: TestClient) -> None:
    told = client.get("/api/v1/library").json()
    assert (told["videos"], told["state"], told["model"]) == (5, "ready", "model")
    assert told["folders"] == ["far", "near"]
    assert told["segments"] > 5
    assert told["hours"] > 0
    assert told["allow"] == []


def test_a_video(client: TestClient, world: World) -> None:
    path = world.videos / "far" / "long.mp4"
    told = client.get(f"/api/v1/videos/{content_id(path)}").json()
    assert (told["title"], told["folder"], told["width"], told["codec"]) == ("long", "far", 48, "h264")
    assert told["size"] == path.stat().st_size
    assert told["duration"] == pytest.approx(12, abs=0.5)
    assert client.head(told["stream"]).status_code == 200
    assert str(world.folder) not in str(told)
    assert client.get(f"/api/v1/videos/{'0' * 64}").status_code == 404


def test_a_timeline(client: TestClient, world: World) -> None:
    address = f"/api/v1/videos/{content_id(world.videos / 'far' / 'long.mp4')}/segments"
    bare = client.get(address).json()
    assert len(bare) > 3
    assert all(segment["score"] is None for segment in bare)
    assert [segment["start"] for segment in bare] == sorted(segment["start"] for segment in bare)
    scored = client.get(address, params={"q": "white below"}).json()
    searcher = Library.open(world.library).searcher
    query = searcher.encode("white below")
    for segment in scored:
        assert segment["score"] == pytest.approx(searcher.explain(query, segment["segment"]).score, abs=1e-5)
    assert client.get(f"/api/v1/videos/{'0' * 64}/segments").status_code == 404
    assert client.get(address, params={"q": " "}).status_code == 422


def test_thumbnails_are_kept_by_browsers(client: TestClient) -> None:
    answer = client.get("/api/v1/segments/0/thumbnail")
    assert Image.open(io.BytesIO(answer.content)).format == "JPEG"
    tag = answer.headers["etag"]
    assert "max-age" in answer.headers["cache-control"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = client.get("/api/v1/segments/0/thumbnail", headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/v1/segments/0/thumbnail", headers={"If-None-Match": '"x"'}).status_code == 200
    for row, status in ((10**6, 404), (-1, 422), (2**64, 422), ("x", 422)):
        assert client.get(f"/api/v1/segments/{row}/thumbnail").status_code == status
    assert client.get("/api/v1/segments/0/thumbnail?version=999").status_code == 404


def test_names_that_are_scripts_are_only_names(client: TestClient) -> None:
    moments = client.get("/api/v1/search", params={"q": "red"}).json()["moments"]
    (odd,) = [moment for moment in moments if "img" in moment["title"]]
    assert odd["title"] == "<img src=x onerror=alert(1)>"
    assert client.get(f"/api/v1/videos/{odd['video']}").headers["content-type"] == "application/json"
    assert client.get(f"/api/v1/videos/{odd['video']}/stream").headers["content-type"] == "video/mp4"


def test_pictures_are_told_apart(visitor: TestClient, gallery: World) -> None:
    told = visitor.get("/api/v1/library").json()
    assert (told["videos"], told["pictures"]) == (5, 4)
    assert "photos" in told["folders"]
    details = visitor.get(f"/api/v1/videos/{content_id(gallery.videos / 'photos' / 'blue.png')}").json()
    assert (details["kind"], details["duration"], details["segments"]) == ("picture", 0, 1)
    assert (details["width"], details["height"], details["codec"]) == (60, 40, "png")
    segments = visitor.get(f"/api/v1/videos/{details['video']}/segments", params={"q": "blue"}).json()
    assert [(segment["start"], segment["end"]) for segment in segments] == [(0, 0)]
    video = visitor.get(f"/api/v1/videos/{content_id(gallery.videos / 'far' / 'long.mp4')}").json()
    assert video["kind"] == "video"
    kinds = visitor.get("/openapi.json").json()["components"]["schemas"]["MomentFound"]["properties"]["kind"]["enum"]
    assert set(kinds) == {"video", "picture"}
