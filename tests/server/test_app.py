"""The application as a whole: its description, its errors, and requests that nobody thought of."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import ssl
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import schemathesis
import uvicorn
from fastapi.testclient import TestClient
from pydantic import BaseModel

from prota.errors import ClusterError, ProtaError, UsageError
from prota.library.manage import verify
from prota.library.storage.writer import Writer
from prota.server import app as app_module
from prota.server import schemas
from prota.server.app import create_app, run
from prota.server.options import ServerOptions
from prota.server.page import STATIC
from tests.library.worlds import write_clips
from tests.processes import LIMIT, wait_until
from tests.server.worlds import World, client_of, metric, serving
from tests.small_world import COLOURS, SIDES

QUERIES = ("red on the left", "a blue thing", "green")
ODD: list[Any] = [
    *(
        "",
        " ",
        "a",
        "red on the left",
        "0",
        "-1",
        "1e400",
        "nan",
        "true",
        "null",
        "\0",
        "\n",
        "é",
        "\U0001f600",
        "../..",
        "'",
    ),
    *(
        '"',
        "%",
        "%25",
        "<b>",
        "0" * 64,
        "f" * 64,
        "0" * 16,
        "2024-02-30",
        "2024-02-29",
        "0001-01-01",
        "9999-12-31",
        "[]",
    ),
    *("{}", "9" * 30, "1.5", "a" * 2000, "1" * 4301, str(2**63), str(-(2**63)), "１２", "\u202e", ";", "&", "#", "?"),
]
BODIES: list[Any] = [
    None,
    0,
    1.5,
    True,
    "x",
    [],
    {},
    [[]],
    {"path": None},
    {"path": ["/"]},
    {"path": "/"},
    {"video": "0" * 64},
]


@pytest.fixture(scope="module")
def document(client: TestClient) -> dict[str, Any]:
    found = client.get("/openapi.json").json()
    assert isinstance(found, dict)
    return found


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    operations = {f"{method.upper()} {path}" for path, entry in document["paths"].items() for method in entry}
    assert operations == {
        "GET /api/v1/search", "POST /api/v1/search/like", "GET /api/v1/explain", "GET /api/v1/videos/{video}",
        "GET /api/v1/videos/{video}/play", "GET /api/v1/videos/{video}/frame", "GET /api/v1/videos/{video}/clip",
        "GET /api/v1/videos/{video}/segments", "GET /api/v1/videos/{video}/stream", "GET /api/v1/library",
        "GET /api/v1/segments/{segment}/thumbnail", "GET /api/v1/jobs", "POST /api/v1/jobs", "GET /api/v1/jobs/{job}",
        "GET /api/v1/files", "POST /api/v1/files/remove", "GET /api/v1/folders", "GET /api/v1/moments",
        "GET /api/v1/examples", "GET /api/v1/jobs/folders",
        "DELETE /api/v1/jobs/{job}", "GET /api/v1/jobs/{job}/events", "GET /healthz", "GET /readyz", "GET /metrics",
    }  # fmt: skip
    for entry in document["paths"].values():
        for operation in entry.values():
            assert operation["description"]
            assert operation["summary"] != operation["operationId"].replace("_", " ").title()
            assert "HTTPValidationError" not in json.dumps(operation)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404), ("GET", "/api", 404), ("GET", "/api/v1/nowhere", 404), ("PUT", "/", 405),
        ("DELETE", "/api/v1/jobs", 405), ("TRACE", "/healthz", 405), ("GET", "/api/v1/search/like", 405),
        ("POST", "/api/v1/search", 405),
        ("OPTIONS", "/api/v1/search", 405), ("GET", "/api/v1/search/", 404),
        ("GET", "http://127.0.0.1:8000//evil.example/", 404),
        ("GET", "/static/", 404), ("GET", "/static", 404), ("GET", "/redoc", 404), ("GET", "/API/V1/SEARCH", 404),
    ],
)  # fmt: skip
def test_errors_have_one_shape(client: TestClient, method: str, path: str, status: int) -> None:
    answer = client.request(method, path, follow_redirects=False)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) == {"type", "title", "status", "detail", "code"}
    assert answer.json()["status"] == status
    assert answer.headers["content-security-policy"]


@pytest.mark.parametrize("stage", ["prota.server.view.Catalogue.at", "prota.library.search.view.View.search"])
def test_a_bug_is_logged_with_its_traceback_and_reported_without(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stage: str
) -> None:
    """On the event loop and in the worker."""

    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(stage, broken)
    with caplog.at_level(logging.ERROR, "prota.server"):
        answer = client.get("/api/v1/search", params={"q": f"red {stage}"})
    assert (answer.status_code, answer.json()["code"]) == (500, "bug")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["content-security-policy"]
    assert "secret" not in answer.text
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is RuntimeError
    assert metric(client, "prota_searches_inside") == 0


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UsageError("no such thing"), 422, "usage"),
        (ClusterError("no answer"), 503, "cluster"),
        (ProtaError("something else"), 503, "error"),
    ],
)
def test_errors_keep_their_code(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: ProtaError, status: int, code: str
) -> None:
    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr("prota.library.search.view.View.search", failing)
    answer = client.get("/api/v1/search", params={"q": f"red {code}"})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert ("retry-after" in answer.headers) is (status == 503)


def test_the_code_of_a_cause_is_reported(client: TestClient) -> None:
    answer = client.get("/api/v1/search", params={"q": " "})
    assert (answer.status_code, answer.json()["code"]) == (422, "library")
    assert client.get("/nowhere").json()["code"] == "request"


def test_requests_that_nobody_thought_of(client: TestClient, document: dict[str, Any]) -> None:
    """Every operation of the document with odd values for every parameter: refused or answered, never broken."""
    chance = random.Random(0)
    for _ in range(25):
        for path, entry in document["paths"].items():
            for method, operation in entry.items():
                status, said = ask(client, chance, method, path, operation)
                assert status < 500 or status == 503, said
                assert status != 503 or "too many" in said, said


def ask(
    client: TestClient, chance: random.Random, method: str, path: str, operation: dict[str, Any]
) -> tuple[int, str]:
    """One request, and all that is needed to send it again."""
    query = {}
    for parameter in operation.get("parameters", ()):
        value = chance.choice(ODD)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="") or "x")
        elif parameter.get("required") or chance.random() < 0.4:
            query[parameter["name"]] = "red" if parameter["name"] == "q" and chance.random() < 0.5 else value
    arguments: dict[str, Any] = {"params": query}
    if "requestBody" in operation:
        body = chance.choice([*BODIES, {name: chance.choice(ODD) for name in ("video", "start", "end", "path")}])
        arguments["json"] = body
    answer = client.request(method, path, **arguments)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
    elif "application/json" in answer.headers.get("content-type", ""):
        answer.json()
    return answer.status_code, f"{method} {path} {arguments} {answer.text[:200]}"


@pytest.mark.filterwarnings("ignore")
def test_schemathesis_finds_nothing(world: World) -> None:
    """As `st run` would, with few examples."""
    from hypothesis import HealthCheck, given, settings

    with client_of(world) as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
        for result in schema.get_all_operations():
            operation = result.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                keywords = case.as_transport_kwargs(base_url="http://127.0.0.1:8000")
                keywords.pop("cookies", None)
                if keywords.get("files"):
                    # It also makes numbers and lists of what is a file; whatever it is, it is sent as one.
                    keywords["files"] = {"file": repr(case.body).encode("utf-8", "replace")}
                method, address = keywords.pop("method"), keywords.pop("url")
                answer = client.request(method, address, **{k: v for k, v in keywords.items() if v is not None})
                assert answer.status_code < 500, (method, address, answer.text)

            check()


def test_the_description_needs_no_other_host(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "GET /api/v1/search" in page.text
    assert "<script" not in page.text
    assert "http://" not in page.text.replace("http://127.0.0.1", "")
    assert "https://" not in page.text
    assert client.get("/docs/style.css").headers["content-type"].startswith("text/css")


def test_the_description_shows_routes_and_their_examples_before_schemas(client: TestClient) -> None:
    page = client.get("/docs").text
    assert page.index("GET /api/v1/search") < page.index("curl -X POST") < page.index("GET /metrics")
    assert page.index("GET /metrics") < page.index("<h2>Schemas")
    links = set(re.findall(r'href="#(\w+)"', page))
    assert len(links) > 20
    assert links <= set(re.findall(r'id="(\w+)"', page))


@pytest.mark.parametrize("model", [model for model in vars(schemas).values() if getattr(model, "model_config", None)])
def test_examples_are_valid(model: type[BaseModel]) -> None:
    (example,) = model.model_json_schema()["examples"]
    assert model.model_validate(example).model_dump(mode="json") == example


def test_the_page_is_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for path in sorted(STATIC.iterdir()):
        answer = client.get(f"/static/{path.name}")
        assert answer.content == path.read_bytes()
        assert answer.headers["cache-control"] == "no-cache"
        if path.suffix == ".js":
            assert answer.headers["content-type"].startswith("text/javascript")


def test_metrics(client: TestClient) -> None:
    client.get("/api/v1/search", params={"q": "zebra"})
    client.request("BREW", "/nowhere/secret")
    route = "/api/v1/search"
    counted = metric(client, "prota_requests_total", method="GET", route=route, status="200")
    assert counted
    for name in ("prota_request_seconds_bucket", "prota_request_seconds_count"):
        le = {"le": "+Inf"} if name.endswith("bucket") else {}
        assert metric(client, name, route=route, **le) >= counted
    assert metric(client, "prota_requests_total", method="other", route="none", status="404") == 1
    assert metric(client, "prota_ready") == 1
    assert metric(client, "prota_library_segments") == client.get("/api/v1/library").json()["segments"]
    for name in ("encoded_batches", "encoded_queries", "scored_batches"):
        assert metric(client, f"prota_{name}_total"), name
    for name in ("refused_total", "partial_answers_total", "searches_inside", "shards", "shards_up"):
        assert metric(client, f"prota_{name}") == 0, name
    text = client.get("/metrics").text
    assert "secret" not in text
    assert "zebra" not in text


def test_two_applications_count_apart(tmp_path: Path) -> None:
    first, second = (TestClient(create_app(tmp_path / name), base_url="http://127.0.0.1:8000") for name in "ab")
    health = {"method": "GET", "route": "/healthz", "status": "200"}
    for count in (1, 2):
        first.get("/healthz")
        assert metric(first, "prota_requests_total", **health) == count
    assert metric(second, "prota_requests_total", **health) is None


def ready(address: str, page: str = "readyz") -> bool:
    try:
        return httpx.get(f"{address}/{page}", timeout=LIMIT).status_code == 200
    except httpx.TransportError:
        return False


def answers_of(address: str) -> list[dict[str, object]]:
    answers = []
    for query in QUERIES:
        answer = httpx.get(f"{address}/api/v1/search", params={"q": query}, timeout=LIMIT).json()
        answers.append(answer | {"took_ms": 0})
    return answers


@pytest.mark.process
def test_killed_and_started_again_it_answers_the_same(world: World) -> None:
    with serving(world) as (process, address, said):
        assert "token" not in said
        wait_until(lambda: ready(address))
        before = answers_of(address)
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
        assert answers_of(address) == before
        process.terminate()
        process.communicate()
        assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.process
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


@pytest.mark.process
def test_the_page_is_there_before_the_model(world: World, tmp_path: Path) -> None:
    """Of a model that takes for ever to read."""
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model" / "config.json")
    with serving(world, "--model", str(tmp_path / "model")) as (_, address, _):
        wait_until(lambda: ready(address, "healthz"))
        assert httpx.get(address, timeout=LIMIT).status_code == 200
        assert httpx.get(f"{address}/api/v1/library", timeout=LIMIT).json()["state"] == "loading"
        assert not ready(address)


@pytest.mark.process
def test_connections_without_a_full_request_head_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once and after a first request; but not while a body is sent or a response is computed."""
    # Longer than a busy machine lets a thread wait for its turn, and shorter than the pauses below.
    monkeypatch.setattr(app_module, "_HEAD", 1.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await asyncio.sleep(1.2)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, http=app_module._TimeLimitedProtocol, log_level="warning", lifespan="off")
    )
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


def certificate(folder: Path) -> tuple[Path, Path]:
    """Of 127.0.0.1, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=127.0.0.1")
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, today, today + timedelta(days=2))
    own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = builder.add_extension(own, critical=False).sign(key, hashes.SHA256())
    chain, secret, pem = folder / "chain.pem", folder / "key.pem", serialization.Encoding.PEM
    chain.write_bytes(signed.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    secret.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    return chain, secret


@pytest.mark.process
def test_over_tls_with_a_log_that_has_no_secrets(world: World, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    token, log = "correct-horse-battery-staple", tmp_path / "access.log"
    (tmp_path / "token").write_text(f"{token}\n")
    options = ("--tls-certificate", chain, "--tls-key", key, "--token", f"@{tmp_path / 'token'}", "--access-log", log)
    context = ssl.create_default_context(cafile=str(chain))
    with serving(world, *map(str, options)) as (_, address, _), httpx.Client(verify=context, timeout=LIMIT) as client:
        assert address.startswith("https://")
        wait_until(lambda: client.get(f"{address}/readyz").status_code == 200)
        entered = client.get(address, params={"token": token})
        assert "Secure" in entered.headers["set-cookie"]
        # Names of this machine may have other servers.
        assert "strict-transport-security" not in entered.headers
        own = {"Origin": address, "Sec-Fetch-Site": "same-origin"}
        assert client.get(f"{address}/api/v1/search", params={"q": "a secret"}, headers=own).status_code == 200
        assert client.get(f"{address}/api/v1/no%0Asuch").status_code == 404
        with pytest.raises(httpx.TransportError):
            httpx.get(address.replace("https", "http"), timeout=LIMIT)
    text = log.read_text()
    assert token not in text
    assert "secret" not in text
    lines = [line.split(" ") for line in text.splitlines()]
    assert all(len(line) == 8 for line in lines)
    assert ["127.0.0.1", "all", "GET", "/api/v1/search", "200"] in [line[1:6] for line in lines]
    assert ["127.0.0.1", "all", "GET", "/api/v1/no%0Asuch", "404"] in [line[1:6] for line in lines]
    assert ["127.0.0.1", "none", "GET", "/", "200"] in [line[1:6] for line in lines]


@pytest.mark.parametrize(
    "wrong",
    [
        {"search_token": "x" * 20}, {"token": "x" * 20, "search_token": "x" * 20}, {"tls_key": Path("key.pem")},
        {"token": "x" * 20, "search_token": "y"},
    ],
)  # fmt: skip
def test_options_that_do_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServerOptions(**wrong)


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    for name in ("gone.pem", __file__):
        with pytest.raises(ProtaError, match="cannot use the TLS certificate"):
            run(tmp_path, ServerOptions(port=0, tls_certificate=tmp_path / name))


@pytest.mark.process
def test_it_finishes_answers_and_stops_jobs_at_a_commit(world: World, tmp_path: Path) -> None:
    write_clips(tmp_path / "more", *(f"{colour}-{side}" for colour in COLOURS for side in SIDES))
    shutil.copytree(world.library, tmp_path / "library")
    with serving(replace(world, folder=tmp_path), "--allow", str(tmp_path)) as (process, address, _):
        wait_until(lambda: ready(address))
        port = int(address.rpartition(":")[2])
        answer = httpx.get(f"{address}/api/v1/search", params={"q": "red", "k": 1}, timeout=LIMIT).json()
        like = json.dumps({name: answer["moments"][0][name] for name in ("video", "start", "end")}).encode()
        with (
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as asking,
            socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as raw,
        ):
            # A request that is there in part when the signal comes.
            asking.sendall(
                f"POST /api/v1/search/like HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(like)}\r\nExpect: 100-continue\r\n\r\n".encode()
            )
            assert asking.recv(2**16).startswith(b"HTTP/1.1 100")
            job = httpx.post(f"{address}/api/v1/jobs", json={"path": str(tmp_path / "more")}, timeout=LIMIT).json()
            head = f"GET /api/v1/jobs/{job['id']}/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            raw.sendall(head.encode())
            # The stream of its events ends with the job, so the server need not wait for it.
            received = raw.recv(2**16)
            process.terminate()
            while piece := raw.recv(2**16):
                received += piece
            asking.sendall(like)
            answered = b""
            while piece := asking.recv(2**16):
                answered += piece
        process.communicate()
        assert process.returncode in (0, -signal.SIGTERM)
    assert received.endswith(b"0\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 200")
    assert verify(tmp_path / "library") == []
    with Writer.open(tmp_path / "library", wait=LIMIT):
        pass
