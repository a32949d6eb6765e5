"""Originals over HTTP: ranges, changed files, kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from prota.library.records import VideoRecord
from prota.server import media
from prota.server.media import _media_type, parse_range, stream_video
from prota.server.problems import ProblemError
from prota.video.walk import content_id
from tests.processes import posix, wait_until
from tests.server.worlds import World, client_of, index, make_world
from tests.small_world import write_colour_clip

LIKE = "/api/v1/search/like"


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None), ("", None), ("bytes=0-", (0, 100)), ("bytes=0-0", (0, 1)), ("bytes=99-", (99, 100)),
        ("bytes=5-10", (5, 11)), ("bytes=5-1000", (5, 100)), ("bytes=-1", (99, 100)), ("bytes=-1000", (0, 100)),
        ("bytes = 1 - 2", (1, 3)), ("bytes=0-99999999999999999999", (0, 100)),
        # Ignored.
        ("bytes=-", None), ("bytes=10-5", None), ("bytes=a-b", None), ("bytes=0-1,3-4", None), ("bytes=--1", None),
        ("items=0-1", None), ("bytes=1", None), ("bytes=0x1-0x2", None), ("bytes=1.5-2", None), ("bytes=٣-٤", None),
        ("bytes=" + ",".join(["0-"] * 5000), None), ("bytes=" + "9" * 5000 + "-", None), ("bytes 0-1", None),
    ],
)  # fmt: skip
def test_ranges(header: str | None, span: tuple[int, int] | None) -> None:
    assert parse_range(header, 100) == span


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999-"])
def test_ranges_of_which_nothing_is_there(header: str) -> None:
    with pytest.raises(ProblemError) as told:
        parse_range(header, 100)
    assert told.value.status == 416
    assert told.value.headers["Content-Range"] == "bytes */100"


def test_files_of_other_kinds_are_never_pages() -> None:
    for name in ("x.html", "x.svg", "x.js", "x", "x.mp3", "x.pdf"):
        assert _media_type(f"/films/{name}") == "video/mp4"
    assert _media_type("/films/x.webm") == "video/webm"


def test_the_original_is_streamed(client: TestClient, world: World) -> None:
    path = world.videos / "near" / "red-left.mp4"
    content, address = path.read_bytes(), f"/api/v1/videos/{content_id(path)}/stream"
    whole = client.get(address)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert whole.headers["content-type"] == "video/mp4"
    head = client.head(address)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(content))
    part = client.get(address, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(content)}"
    assert client.head(address, headers={"Range": "bytes=-5"}).headers["content-length"] == "5"
    beyond = client.get(address, headers={"Range": f"bytes={len(content)}-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == f"bytes */{len(content)}"
    assert beyond.headers["content-type"] == "application/problem+json"
    same = client.get(address, headers={"Range": "bytes=0-1", "If-Range": whole.headers["etag"]})
    assert same.status_code == 206
    assert client.get(address, headers={"Range": "bytes=0-1", "If-Range": '"other"'}).content == content
    assert client.post(address).status_code == 405


@posix
def test_files_that_went_or_changed_are_not_streamed(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    path = world.videos / "near" / "red-left.mp4"
    address = f"/api/v1/videos/{content_id(path)}/stream"
    with client_of(world) as client:
        path.write_bytes(b"something else")
        assert client.get(address).status_code == 409
        path.unlink()
        assert client.get(address).status_code == 404
        os.mkfifo(path)
        assert client.get(address).status_code == 409
        path.unlink()
        path.symlink_to("/etc/passwd")
        assert client.get(address).status_code == 409
        path.unlink()
        write_colour_clip(world.videos / "near" / "again.mp4", "red", "right")
        index(world, world.videos)
        wait_until(lambda: client.get(address).json()["detail"] == "no such video in the library")


@pytest.fixture
def swapped(tmp_path: Path) -> Iterator[tuple[TestClient, Path, Path, str]]:
    """A client, an indexed file, a secret of the same size and date that nobody indexed, and the address."""
    world = make_world(tmp_path)
    path, secret = world.videos / "near" / "red-left.mp4", tmp_path / "secret"
    status = path.stat()
    secret.write_bytes(b"secret".ljust(status.st_size, b"."))
    os.utime(secret, ns=(status.st_atime_ns, status.st_mtime_ns))
    with client_of(world) as client:
        yield client, path, secret, f"/api/v1/videos/{content_id(path)}/stream"


@posix
@pytest.mark.parametrize("before", [False, True])
def test_another_file_in_its_place_is_not_streamed(swapped: tuple[TestClient, Path, Path, str], before: bool) -> None:
    """Neither a link to it, to its folder, nor the file itself; whether or not the right one was streamed before."""
    client, path, secret, address = swapped
    content = path.read_bytes()
    if before:
        assert client.get(address).content == content
    path.rename(path.with_suffix(".away"))
    folder = path.parent
    for place in (lambda: path.symlink_to(secret), lambda: path.hardlink_to(secret), lambda: secret.rename(path)):
        place()
        for headers in ({}, {"Range": "bytes=0-5"}):
            answer = client.get(address, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
            assert client.head(address, headers=headers).status_code == 409
        path.rename(secret) if not path.is_symlink() and not secret.exists() else path.unlink()
    folder.rename(folder.with_suffix(".away"))
    folder.symlink_to(secret.parent)
    secret.rename(secret.parent / path.name)
    assert client.get(address).status_code == 409
    folder.unlink()
    folder.with_suffix(".away").rename(folder)
    path.with_suffix(".away").rename(path)
    assert client.get(address).content == content


@posix
def test_the_same_content_is_streamed_behind_a_link_and_with_another_date(
    swapped: tuple[TestClient, Path, Path, str],
) -> None:
    client, path, _, address = swapped
    content = path.read_bytes()
    moved = path.rename(path.with_suffix(".moved"))
    path.symlink_to(moved)
    assert client.get(address).content == content
    os.utime(moved, ns=(0, 0))
    assert client.get(address).content == content


@posix
def test_a_large_file_is_hashed_while_it_is_streamed(
    swapped: tuple[TestClient, Path, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "_QUICK", 0)
    client, path, secret, address = swapped
    path.unlink()
    path.symlink_to(secret)
    assert client.get(address).status_code == 409
    path.unlink()
    secret.rename(path)
    # In a folder without links another file of the same size and date is refused as soon as it is hashed.
    wait_until(lambda: client.get(address).status_code == 409)


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "....//etc/passwd", "%00", "a%00.mp4",
        "%2Fetc%2Fpasswd", "..\\..\\etc\\passwd", "..%255c", "0" * 63, "0" * 65, "G" * 64, "file:///etc/passwd", "~",
        "0" * 64 + "%00", "0" * 64 + "%0a",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", ["/api/v1/videos/{}/stream", "/api/v1/videos/{}", "/static/{}", "/{}"])
def test_no_path_leads_to_a_file(client: TestClient, name: str, address: str) -> None:
    answer = client.get(address.format(name))
    assert answer.status_code in (404, 422)
    assert "root:" not in answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("name", "kind"), [("red.jpg", "jpeg"), ("blue.png", "png"), ("green.webp", "webp"), ("odd.jpg", "png")]
)
def test_pictures_come_as_what_they_are(visitor: TestClient, gallery: World, name: str, kind: str) -> None:
    path = gallery.videos / "photos" / name
    answer = visitor.get(f"/api/v1/videos/{content_id(path)}/stream")
    assert (answer.status_code, answer.content) == (200, path.read_bytes())
    assert answer.headers["content-type"] == f"image/{kind}"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_picture_of_no_known_kind_is_only_bytes(tmp_path: Path) -> None:
    """As a library that somebody else made may say."""
    path = tmp_path / "x.html"
    path.write_text("<script>alert(1)</script>")
    size = path.stat().st_size
    record = VideoRecord("0" * 64, str(path), size, 0, "indexed", codec="svg+xml", segments=1)
    assert record.kind == "picture"
    answer = stream_video(FileIO(path), record, "HEAD")
    assert answer.headers["content-type"] == "application/octet-stream"
