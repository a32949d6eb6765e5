"""The application as a whole: its description, its errors, and requests that nobody thought of."""

from __future__ import annotations

import json
import random
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from fastapi.testclient import TestClient

from prota.server.app import STATIC
from tests.server.worlds import World, client_of

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
        "GET /api/v1/videos/{video}/segments", "GET /api/v1/videos/{video}/stream", "GET /api/v1/library",
        "GET /api/v1/segments/{segment}/thumbnail", "GET /api/v1/jobs", "POST /api/v1/jobs", "GET /api/v1/jobs/{job}",
        "DELETE /api/v1/jobs/{job}", "GET /api/v1/jobs/{job}/events", "GET /healthz", "GET /readyz", "GET /metrics",
    }  # fmt: skip
    for entry in document["paths"].values():
        for operation in entry.values():
            assert operation["description"]
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
    assert set(answer.json()) == {"type", "title", "status", "detail"}
    assert answer.json()["status"] == status
    assert answer.headers["content-security-policy"]


def test_errors_that_nobody_thought_of_tell_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    services = client.app.state.services  # type: ignore[attr-defined]

    def broken(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(services.engine, "at", broken)
    answer = client.get("/api/v1/search", params={"q": "red"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["content-security-policy"]
    assert "secret" not in answer.text
    assert services.desk.inside == 0


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


def test_the_page_is_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for path in sorted(STATIC.iterdir()):
        answer = client.get(f"/static/{path.name}")
        assert answer.content == path.read_bytes()
        assert answer.headers["cache-control"] == "no-cache"
        if path.suffix == ".js":
            assert answer.headers["content-type"].startswith("text/javascript")


def test_what_is_counted(client: TestClient) -> None:
    client.get("/api/v1/search", params={"q": "zebra"})
    client.get("/nowhere/secret")
    text = client.get("/metrics").text
    assert 'prota_requests_total{method="GET",route="/api/v1/search",status="200"}' in text
    assert 'prota_request_seconds_bucket{route="/api/v1/search",le="+Inf"}' in text
    assert "prota_ready 1" in text
    assert "secret" not in text
    assert "zebra" not in text
    assert "# TYPE prota_scored_batches_total counter" in text
