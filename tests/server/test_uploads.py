"""Uploads that are too large, of the wrong kind, broken or slow."""

from __future__ import annotations

import asyncio
import io
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from starlette.requests import Request

from prota.server.problems import ProblemError
from prota.server.uploads import kind_of, received
from tests.library.worlds import write_clips
from tests.server.worlds import World, client_of

LIKE = "/api/v1/search/like"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For temporary files: other tests at the same time have theirs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def left_over() -> list[str]:
    return [path.name for path in Path(tempfile.gettempdir()).glob("prota-upload-*")]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\xff\xd8\xff\xe0", ("jpg", True)), (b"\x89PNG\r\n\x1a\n", ("png", True)), (b"RIFF0000WEBP", ("webp", True)),
        (b"\0\0\0\x18ftypisom", ("mp4", False)), (b"\0\0\0\x18ftypavif", ("avif", True)),
        (b"RIFF0000AVI ", ("avi", False)),
        (b"\x1a\x45\xdf\xa3", ("mkv", False)), (b"GIF89a", ("gif", False)), (b"\x47\x40", ("ts", False)),
        (b"RIFF0000WAVE", None), (b"<html>", None), (b"#!/bin/sh", None), (b"%PDF-1.7", None), (b"", None),
        (b"PK\x03\x04", None), (b"#EXTM3U", None), (b"ffconcat version 1.0", None), (b"<svg", None),
    ],
)  # fmt: skip
def test_kinds_are_told_by_content(head: bytes, kind: tuple[str, bool] | None) -> None:
    assert kind_of(head) == kind


@pytest.mark.process
def test_what_is_no_video_is_refused(client: TestClient) -> None:
    generator = np.random.default_rng(0)
    for content in (b"", b"#EXTM3U\nfile:///etc/passwd", b"ffconcat version 1.0\nfile /etc/passwd", b"hello" * 100):
        answer = client.post(LIKE, files={"file": ("x.mp4", content, "video/mp4")})
        assert answer.status_code == 415, content[:10]
    for start in (b"\0\0\0\x18ftypisom", b"\x1a\x45\xdf\xa3", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF0000AVI "):
        answer = client.post(LIKE, files={"file": start + generator.bytes(5000)})
        assert answer.status_code == 422, start
        assert "prota-upload" not in answer.text
    assert left_over() == []


def test_random_bytes(client: TestClient) -> None:
    generator = np.random.default_rng(1)
    for _ in range(30):
        assert client.post(LIKE, files={"file": generator.bytes(200)}).status_code in (415, 422)


def test_forms_that_are_none(client: TestClient) -> None:
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    for body in (
        b"",
        b"--x",
        b"--x\r\n\r\n",
        b"nothing",
        b"--x\r\nContent-Disposition: form-data; name=file\r\n\r\nabc\r\n--x--",
    ):
        assert client.post(LIKE, content=body, headers=kind).status_code in (400, 422), body
    assert client.post(LIKE, content=b"x", headers={"Content-Type": "multipart/form-data"}).status_code == 400
    assert client.post(LIKE, files={"other": b"\xff\xd8\xff"}).status_code == 422
    assert client.post(LIKE, files=[("file", b"a"), ("file", b"b")]).status_code == 400
    assert client.post(LIKE, data={"file": "text"}, files={"other": b"x"}).status_code == 400


def test_sizes_are_limited_whatever_is_announced(world: World) -> None:
    with client_of(world, max_upload=100_000) as client:
        large = b"\0\0\0\x18ftypisom" + b"0" * 300_000
        answer = client.post(LIKE, files={"file": large})
        assert answer.status_code == 413
        assert answer.json()["title"] in ("Content Too Large", "Request Entity Too Large")
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        # In pieces, and without a length.
        pieces = iter([head, *[large[:10_000]] * 40, b"\r\n--x--\r\n"])
        assert client.post(LIKE, content=pieces, headers=kind).status_code == 413
        just = b"\0\0\0\x18ftypisom" + b"0" * 120_000
        assert client.post(LIKE, files={"file": just}).status_code == 413
    assert left_over() == []


def test_no_more_is_taken_in_than_is_allowed() -> None:
    """Who announces no length could else fill the disk before anyone looks at the size."""
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    pieces = [head, *[b"0" * 2**16] * 40, b"\r\n--x--\r\n"]
    taken = 0

    async def receive() -> dict[str, object]:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": pieces[taken - 1], "more_body": taken < len(pieces)}

    async def upload() -> None:
        headers = [(b"content-type", b"multipart/form-data; boundary=x")]
        async with received(Request({"type": "http", "headers": headers}, receive), 2**17):
            pass

    with ThreadPoolExecutor(1) as thread, pytest.raises(ProblemError, match="too large") as caught:
        thread.submit(asyncio.run, upload()).result()
    assert caught.value.status == 413
    # Twice 64 KiB of the file, the room for what is around it, and the piece that was too much.
    assert taken <= 5


def test_pictures_that_are_huge_in_memory(client: TestClient) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    for side in (8_000, 60_000):
        size = side.to_bytes(4, "big")
        header = chunk(b"IHDR", size + size + b"\x08\x02\0\0\0")
        bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 10**6)) + chunk(b"IEND", b"")
        assert client.post(LIKE, files={"file": bomb}).status_code == 413


@pytest.mark.process
def test_a_picture_whose_header_takes_ages_is_not_looked_at_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JPEG of empty comments: Pillow reads each of them before it knows the size."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    whole = file.getvalue()
    content = whole[:2] + b"\xff\xfe\x00\x02" * 500_000 + whole[2:]

    def looked(*_: object, **options: object) -> None:
        raise AssertionError("uploads are decoded in workers")

    monkeypatch.setattr(Image, "open", looked)
    with client_of(world, decode_timeout=0.5) as client:
        answer = client.post(LIKE, files={"file": content})
        assert answer.status_code == 422
        assert client.get("/healthz").status_code == 200
    assert left_over() == []


@pytest.mark.process
def test_decoding_has_an_end(world: World, tmp_path: Path) -> None:
    content = write_clips(tmp_path, "red-left")["red-left"].read_bytes()
    with client_of(world, decode_timeout=1e-4) as client:
        answer = client.post(LIKE, files={"file": content})
        assert answer.status_code == 422
        assert "timed out" in answer.json()["detail"]
    assert left_over() == []


@pytest.mark.process
def test_decoding_may_not_take_all_memory(world: World, tmp_path: Path) -> None:
    content = write_clips(tmp_path, "red-left")["red-left"].read_bytes()
    # Enough for Python to start, not for pictures.
    with client_of(world, decode_memory=200 * 2**20) as client:
        answer = client.post(LIKE, files={"file": content})
        assert answer.status_code == 422
        assert "cannot decode" in answer.json()["detail"]
        assert client.get("/healthz").status_code == 200
    assert left_over() == []


def test_a_picture_of_one_pixel(client: TestClient) -> None:
    file = io.BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    assert client.post(LIKE, files={"file": file.getvalue()}).status_code in (200, 422)


@pytest.mark.process
def test_files_that_decoders_dislike(client: TestClient, shared: Path) -> None:
    folder = shared / "data" / "decode_tests"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**20)
    if not files:
        pytest.skip(f"{folder} is not there")
    # Each starts a process of its own; every few of them are enough here.
    for path in files[:: max(1, len(files) // 12)]:
        status = client.post(LIKE, files={"file": path.read_bytes()}).status_code
        assert status in (200, 413, 415, 422), path
    assert client.get("/healthz").status_code == 200
    assert left_over() == []
