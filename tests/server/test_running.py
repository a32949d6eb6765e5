"""A real server in a process of its own: killed, started again, and asked the same."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from prota.server import running
from tests.processes import LIMIT, python, wait_until
from tests.server.worlds import World

pytestmark = pytest.mark.process
QUERIES = ("red on the left", "a blue thing", "green")


@contextmanager
def serving(world: World, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address, and the line it printed."""
    with python("-m", "prota", "serve", "-l", world.library, "--port", 0, "--device", "cpu", *options) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://([^/]+):(\d+)", said)
        assert found is not None, said
        yield process, f"http://127.0.0.1:{found[2]}", said


def ready(address: str, page: str = "readyz") -> bool:
    try:
        return httpx.get(f"{address}/{page}", timeout=LIMIT).status_code == 200
    except httpx.TransportError:
        return False


def ask(address: str) -> list[dict[str, object]]:
    answers = []
    for query in QUERIES:
        answer = httpx.get(f"{address}/api/v1/search", params={"q": query}, timeout=LIMIT).json()
        answers.append(answer | {"took_ms": 0})
    return answers


def test_killed_and_started_again_it_answers_the_same(world: World) -> None:
    with serving(world) as (process, address, said):
        assert "token" not in said
        wait_until(lambda: ready(address))
        before = ask(address)
        assert all(answer["moments"] for answer in before)
        # A client that breaks off, and one that speaks no HTTP.
        port = int(address.rpartition(":")[2])
        for message in (b"GET /api/v1/search?q=red HTTP/1.1\r\n", b"\x16\x03\x01\x00nonsense\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(message)
        assert ready(address)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with serving(world) as (process, address, _):
        wait_until(lambda: ready(address))
        assert ask(address) == before
        process.terminate()
        process.communicate()
        assert process.returncode in (0, -signal.SIGTERM)


def test_a_host_that_others_reach_gets_a_token_that_no_log_shows(world: World) -> None:
    with serving(world, "--host", "0.0.0.0") as (process, address, said):
        found = re.search(r"\?token=([\w-]{32})", said)
        assert found is not None
        wait_until(lambda: ready(address))
        assert httpx.get(f"{address}/api/v1/library", timeout=LIMIT).status_code == 401
        with httpx.Client(base_url=address, timeout=LIMIT) as client:
            assert client.get("/", params={"token": found[1]}).status_code == 200
            assert client.get("/api/v1/library").status_code == 200
            client.get("/", params={"token": "wrong" * 5})
        process.terminate()
        out, complained = process.communicate()
        assert found[1] not in out + complained


def test_the_page_is_there_before_the_model(world: World, tmp_path: Path) -> None:
    """Of a model that takes for ever to read."""
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "config.json")
    with serving(world, "--model", str(tmp_path / "model")) as (_, address, _):
        wait_until(lambda: ready(address, "healthz"))
        assert httpx.get(address, timeout=LIMIT).status_code == 200
        assert httpx.get(f"{address}/api/v1/library", timeout=LIMIT).json()["state"] == "loading"
        assert not ready(address)


def test_who_does_not_say_what_is_wanted_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at first, and not after a first request; who waits for an answer, or takes time to send a body, is."""
    # Longer than a busy machine lets a thread wait for its turn, and shorter than the pauses below.
    monkeypatch.setattr(running, "_HEAD", 1.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await asyncio.sleep(1.2)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=running._Impatient, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        with socket.create_connection(listening.getsockname(), timeout=LIMIT) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\na")
            time.sleep(1.2)
            client.sendall(b"bc")
            # Head and body may come apart.
            answer = client.recv(1000)
            while not answer.endswith(b"ok"):
                answer += client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            client.sendall(b"GET / HT")
            assert client.recv(1000) == b""
        for part in (b"", b"GET / HT"):
            with socket.create_connection(listening.getsockname(), timeout=LIMIT) as client:
                client.sendall(part)
                assert client.recv(1000) == b""
    finally:
        server.should_exit = True
        thread.join(LIMIT)
    assert not thread.is_alive()
