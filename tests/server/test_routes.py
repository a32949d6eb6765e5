"""The API over HTTP: search, explain, what the library contains."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from prota.library.library import Library
from prota.server.answering import Search
from prota.video.walk import content_id
from tests.processes import wait_until
from tests.server.worlds import World, client_of, index, make_world, metric
from tests.small_world import write_colour_clip


def titles(answer: dict[str, object]) -> list[str]:
    moments = answer["moments"]
    assert isinstance(moments, list)
    return [moment["title"] for moment in moments]


def test_moments_are_those_of_the_library(client: TestClient, world: World) -> None:
    answer = client.get("/api/v1/search", params={"q": " red  on the left "}).json()
    hits = Library(world.library).search("red on the left", k=24)
    assert answer["query"] == "red on the left"
    assert answer["no_good_match"] is answer["cut"] is False
    assert answer["weaker"] == []
    assert answer["took_ms"] > 0
    assert titles(answer) == [Path(hit.video.path).stem for hit in hits]
    first, hit = answer["moments"][0], hits[0]
    assert (first["segment"], first["video"]) == (hit.row, hit.video.video_id)
    assert first["score"] == pytest.approx(hit.score, abs=1e-6)
    assert first["start"] <= first["best"] <= first["end"] <= first["duration"] + 0.01
    assert first["folder"] in ("near", "far")
    assert first["probability"] is None
    assert client.get(first["thumbnail"]).headers["content-type"] == "image/jpeg"


def test_filters(client: TestClient) -> None:
    def found(**filters: object) -> set[str]:
        return set(titles(client.get("/api/v1/search", params={"q": "red", "k": 100} | filters).json()))

    everything = found()
    assert len(everything) == 5
    assert found(min_duration=5) == {"long"}
    assert found(max_duration=5) == everything - {"long"}
    assert found(folder="far") == {"long", "green-right"}
    assert found(folder="near") == everything - found(folder="far")
    assert found(folder="videos") == everything, "those below it count"
    assert found(folder="videos' OR 1=1 --") == found(folder="nowhere") == set()
    assert found(after="2999-01-01") == found(before="1999-01-01") == set()
    assert found(after="1999-01-01", before="2999-01-01", folder="") == everything
    assert found(before="9999-12-31") == everything
    assert len(client.get("/api/v1/search", params={"q": "red", "k": 2}).json()["moments"]) == 2


@pytest.mark.parametrize(
    "parameters",
    [
        {}, {"q": ""}, {"q": " \t\x00"}, {"q": "a" * 1001}, {"q": "a", "k": 0}, {"q": "a", "k": 101},
        {"q": "a", "min_duration": "nan"}, {"q": "a", "max_duration": "-1"}, {"q": "a", "min_duration": "inf"},
        {"q": "a", "after": "yesterday"}, {"q": "a", "all": "perhaps"},
    ],
)  # fmt: skip
def test_mistakes_are_told(client: TestClient, parameters: dict[str, str]) -> None:
    answer = client.get("/api/v1/search", params=parameters)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 422
    assert answer.json()["detail"]


def test_any_letters_are_words(client: TestClient) -> None:
    for text in ("\U0001f600", "日本語", "' OR 1=1 --", "<script>", "\ud7ff", "a" * 1000, "%00", "+", "\u202e"):
        answer = client.get("/api/v1/search", params={"q": text})
        assert answer.status_code in (200, 422), text
    assert client.get("/api/v1/search", params={"q": "word " * 150}).json()["cut"] is True
    assert client.get("/api/v1/search?q=%ff%fe%80").status_code == 200


def test_together_is_as_alone(world: World) -> None:
    texts = [f"{colour} {'on the very ' * number}side" for number, colour in enumerate(("red", "blue", "green", "a"))]
    with client_of(world, cached=0) as client, ThreadPoolExecutor(12) as pool:

        def ask(text: str) -> list[tuple[str, float]]:
            answer = client.get("/api/v1/search", params={"q": text}).json()
            return [(moment["title"], moment["score"]) for moment in answer["moments"]]

        alone = {text: ask(text) for text in texts}
        together = list(pool.map(ask, texts * 10))
    for text, found in zip(texts * 10, together, strict=True):
        assert [title for title, _ in found] == [title for title, _ in alone[text]]
        assert [score for _, score in found] == pytest.approx([score for _, score in alone[text]], abs=1e-5)


def test_answers_are_kept_until_the_library_changes(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with client_of(world) as client:
        first = client.get("/api/v1/search", params={"q": "red"}).json()
        again = client.get("/api/v1/search", params={"q": "red"}).json()
        assert again | {"took_ms": 0} == first | {"took_ms": 0}
        assert (
            metric(client, "prota_answers_total", kept="yes"),
            metric(client, "prota_answers_total", kept="no"),
        ) == (1, 1)
        write_colour_clip(world.videos / "new.mp4", "red", "right")
        index(world, world.videos)
        wait_until(lambda: client.get("/api/v1/library").json()["version"] > first["version"])
        assert "new" in titles(client.get("/api/v1/search", params={"q": "red"}).json())
        # What is still on someone's screen goes on to be shown.
        old = {"q": "red", "segment": first["moments"][0]["segment"], "version": first["version"]}
        assert client.get("/api/v1/explain", params=old).json()["score"] == pytest.approx(
            first["moments"][0]["score"], abs=1e-5
        )
        assert client.get(first["moments"][0]["thumbnail"]).status_code == 200
        old["version"] = 10**6
        assert client.get("/api/v1/explain", params=old).status_code == 404


def test_an_answer_of_a_part_of_the_library_is_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, answer = iter([True, False]), Search.answer

    def answered(*arguments: Any) -> Any:
        return answer(*arguments).model_copy(update={"partial": next(partial)})

    with client_of(world) as client:
        monkeypatch.setattr(Search, "answer", answered)
        found = [client.get("/api/v1/search", params={"q": "red"}).json()["partial"] for _ in range(3)]
        assert metric(client, "prota_partial_answers_total") == 1
    # The third is the second's.
    assert found == [True, False, False]


def test_reasons_add_up(client: TestClient) -> None:
    moment = client.get("/api/v1/search", params={"q": "a red thing"}).json()["moments"][0]
    why = client.get("/api/v1/explain", params={"q": "a red thing", "segment": moment["segment"]}).json()
    parts = [part["contribution"] for side in ("words", "frames") for part in why[side]] + [why["rest"]["contribution"]]
    assert sum(parts) == pytest.approx(moment["score"], abs=1e-5)
    assert why["score"] == pytest.approx(moment["score"], abs=1e-5)
    assert [word["text"] for word in why["words"]] == ["a", "red", "thing"]
    assert not why["words"][0]["chosen"]
    assert not why["words"][0]["heat"]
    assert [len(word["heat"]) for word in why["words"][1:]] == [len(why["frames"])] * 2
    assert all(0 <= heat <= 1 for word in why["words"] for heat in word["heat"])
    assert all(f"“{word['text']}”" in why["sentence"] for word in why["words"] if word["chosen"])
    assert moment["start"] <= why["start"] <= why["end"] <= moment["end"]
    assert np.array(why["similarities"]).shape == (len(why["words"]), len(why["frames"]))
    assert all(moment["start"] <= frame["time"] <= moment["end"] for frame in why["frames"])
    for row, status in ((10**6, 404), (2**62, 404), (-1, 422), (2**64, 422), ("x", 422)):
        assert client.get("/api/v1/explain", params={"q": "red", "segment": row}).status_code == status


def test_a_clip_is_searched_with_filters(client: TestClient) -> None:
    moment = client.get("/api/v1/search", params={"q": "red"}).json()["moments"][0]
    wanted = {name: moment[name] for name in ("video", "start", "end")}
    folders = set()
    for folder in ("far", "near"):
        answer = client.post("/api/v1/search/like", json=wanted, params={"folder": folder}).json()
        folders |= {one["folder"] for one in answer["moments"]}
        assert {one["folder"] for one in answer["moments"]} <= {folder}
    assert folders
    nothing = client.post("/api/v1/search/like", json=wanted, params={"min_duration": 10_000}).json()
    assert (nothing["moments"], nothing["no_good_match"], nothing["hint"]) == ([], True, None)
    assert client.post("/api/v1/search/like", json=wanted, params={"kind": "sound"}).status_code == 422


def test_more_like_a_moment(client: TestClient) -> None:
    moment = client.get("/api/v1/search", params={"q": "red"}).json()["moments"][0]
    wanted = {name: moment[name] for name in ("video", "start", "end")}
    answer = client.post("/api/v1/search/like", json=wanted).json()
    assert answer["query"] == f"like {moment['title']}"
    assert answer["moments"]
    assert not any(
        other["video"] == moment["video"] and other["start"] < moment["end"] and moment["start"] < other["end"]
        for other in answer["moments"]
    )
    near = client.post("/api/v1/search/like", params={"folder": "near"}, json=wanted).json()["moments"]
    assert {other["folder"] for other in near} == {"near"}
    for change, status in (
        ({"start": 5000, "end": 6000}, 422), ({"end": 0}, 422), ({"video": "0" * 64}, 404), ({"video": "../x"}, 422),
        ({"start": -1}, 422), ({"more": 1}, 422),
    ):  # fmt: skip
        assert client.post("/api/v1/search/like", json=wanted | change).status_code == status, change
    for body in (b"", b"{", b"[]", b'{"video": NaN}', b'"\\ud800"', b"\xff"):
        answer = client.post("/api/v1/search/like", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, body
    huge = b'{"video": "' + b"a" * 10_000 + b'"}'
    assert (
        client.post("/api/v1/search/like", content=huge, headers={"Content-Type": "application/json"}).status_code
        == 413
    )
    assert client.post("/api/v1/search/like", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415


def test_what_stands_for_a_stretch_is_not_found_again(client: TestClient) -> None:
    """Half a second is answered with the segment around it: its neighbours, which show the same, are no find."""
    moments = client.get("/api/v1/search", params={"q": "white", "folder": "far", "k": 100}).json()["moments"]
    (video,) = {moment["video"] for moment in moments if moment["title"] == "long"}
    segments = client.get(f"/api/v1/videos/{video}/segments").json()
    first, second = segments[:2]
    assert second["start"] < first["end"]
    wanted = {"video": video, "start": first["start"], "end": first["start"] + 0.5}
    found = client.post("/api/v1/search/like", params={"k": 100}, json=wanted).json()
    again = [moment for moment in found["moments"] if moment["video"] == video]
    assert again
    assert all(moment["start"] >= first["end"] for moment in again)


def test_more_like_an_upload(client: TestClient, world: World, tmp_path: Path) -> None:
    write_colour_clip(tmp_path / "other.mp4", "red", "left", frames=9)
    answer = client.post("/api/v1/search/like", files={"file": ("../../x.mp4", (tmp_path / "other.mp4").read_bytes())})
    assert answer.status_code == 200, answer.text
    assert answer.json()["query"] == "like the uploaded file"
    assert titles(answer.json())[0] == "red-left"
    pixels = np.full((48, 48, 3), 90, dtype=np.uint8)
    pixels[:, :24] = (220, 30, 30)
    for kind in ("PNG", "JPEG", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, kind)
        answer = client.post("/api/v1/search/like", files={"file": ("picture", file.getvalue())})
        assert answer.status_code == 200, (kind, answer.text)
        assert answer.json()["moments"], kind


def test_an_empty_library_finds_nothing(tmp_path: Path) -> None:
    from tests.server.worlds import World as Location

    with client_of(Location(tmp_path)) as client:
        answer = client.get("/api/v1/search", params={"q": "red"}).json()
        assert answer["moments"] == answer["weaker"] == []
        assert answer["no_good_match"] is True
        assert client.get("/api/v1/explain", params={"q": "red", "segment": 0}).status_code == 404
        assert client.get("/api/v1/segments/0/thumbnail").status_code == 404
        assert client.post("/api/v1/search/like", files={"file": b"\xff\xd8\xff"}).status_code == 404
        wanted = {"video": "0" * 64, "start": 0, "end": 1}
        assert client.post("/api/v1/search/like", json=wanted).status_code == 404
        assert client.get("/api/v1/library").json()["state"] == "ready"


def test_pictures_are_found_beside_videos_and_filters_know_them(visitor: TestClient) -> None:
    def found(**filters: object) -> dict[str, str]:
        moments = visitor.get("/api/v1/search", params={"q": "red", "k": 100} | filters).json()["moments"]
        return {moment["title"]: moment["kind"] for moment in moments}

    pictures = dict.fromkeys(("red", "blue", "green", "odd"), "picture")
    everything = found()
    assert len(everything) == 9
    assert found(kind="picture") == found(folder="photos") == pictures
    assert found(kind="video").keys() == everything.keys() - pictures
    assert found(kind="picture", after="1999-01-01", folder="near") == {}
    # What has no length is neither short nor long.
    assert found(max_duration=1e6) == found(min_duration=0.1) == found(kind="video")
    assert found(min_duration=0, max_duration=5) == found(max_duration=5)
    assert visitor.get("/api/v1/search", params={"q": "red", "kind": "song"}).status_code == 422


def test_more_like_a_picture(visitor: TestClient, gallery: World) -> None:
    moments = visitor.get("/api/v1/search", params={"q": "red", "kind": "picture"}).json()["moments"]
    (picture,) = (moment for moment in moments if moment["title"] == "red")
    assert (picture["start"], picture["best"], picture["end"], picture["duration"]) == (0, 0, 0, 0)
    assert visitor.get(picture["thumbnail"]).headers["content-type"] == "image/jpeg"
    for end in (0, 1):
        answer = visitor.post("/api/v1/search/like", json={"video": picture["video"], "start": 0, "end": end})
        assert answer.status_code == 200, answer.text
        others = {moment["video"] for moment in answer.json()["moments"]}
        assert len(others) == 8
        assert picture["video"] not in others
    for start, end in ((5, 6), (1, 0)):
        wanted = {"video": picture["video"], "start": start, "end": end}
        assert visitor.post("/api/v1/search/like", json=wanted).status_code == 422
    content = (gallery.videos / "photos" / "red.jpg").read_bytes()
    answer = visitor.post("/api/v1/search/like", files={"file": ("x.jpg", content)}).json()
    assert picture["video"] not in {moment["video"] for moment in answer["moments"]}
    why = visitor.get("/api/v1/explain", params={"q": "a red thing", "segment": picture["segment"]}).json()
    assert [frame["time"] for frame in why["frames"]] == [0.0]


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
    view = Library(world.library).view
    (query,) = view.encode(["white below"])
    for segment in scored:
        assert segment["score"] == pytest.approx(view.explain(query, segment["segment"]).score, abs=1e-5)
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
