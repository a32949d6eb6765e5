"""Foreign hosts, foreign pages, wrong tokens, and what browsers are told."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from prota.server.guard import COOKIE, RateLimit
from tests.server.worlds import World, client_of

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def locked(world: World) -> Iterator[TestClient]:
    """Of a server that others can reach."""
    with client_of(world, host="0.0.0.0", token=TOKEN, names=("films.example",)) as client:
        yield client


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.9.9.9"]
)
def test_loopback_is_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/library", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.0.7:8000", "",
        "evil.example@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1:x", "127.0.0.1:99999", "[::1", "2130706433",
        "0.0.0.0", "127.0.0.1/", "evil.example#127.0.0.1", "127.0.0.1, evil.example", "localhost.",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/api/v1/search?q=red", "/healthz", "/docs", "/nowhere"])
def test_foreign_hosts_are_not(client: TestClient, host: str, path: str) -> None:
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/problem+json"


def test_two_hosts_are_none(client: TestClient) -> None:
    headers = [("Host", "127.0.0.1"), ("Host", "evil.example")]
    assert client.get("/healthz", headers=headers).status_code == 421


def test_a_body_that_nobody_needs_so_large(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", content=b'{"path": "' + b"x" * 2**17 + b'"}')
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 2**12

    assert client.post("/api/v1/jobs", content=chunks()).status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:9000"}, {"Origin": ""},
        {"Origin": "https://127.0.0.1:8000"}, {"Origin": "http://127.0.0.1:8000.evil.example"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, {"Sec-Fetch-Site": "nonsense"},
    ],
)  # fmt: skip
def test_foreign_pages_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/api/v1/search?q=red", headers=headers).status_code == 403
    assert client.post("/api/v1/jobs", json={"path": "/"}, headers=headers).status_code == 403
    assert client.delete("/api/v1/jobs/0123456789abcdef", headers=headers).status_code == 403


def test_tls_may_end_at_a_proxy_that_has_our_name(world: World) -> None:
    with client_of(world, names=("films.example",)) as client:
        for host, status in (("films.example", 200), ("localhost", 403)):
            headers = {"Host": host, "Origin": f"https://{host}", "Sec-Fetch-Site": "same-origin"}
            assert client.get("/api/v1/search?q=red", headers=headers).status_code == status
        foreign = {"Host": "films.example", "Origin": "https://elsewhere.example"}
        assert client.get("/api/v1/search?q=red", headers=foreign).status_code == 403


def test_our_own_page_and_links_to_it_are_not(client: TestClient) -> None:
    own = {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
    assert client.get("/api/v1/search?q=red", headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/docs", headers=link).status_code == 200
    assert client.get("/docs", headers=link | {"Sec-Fetch-Mode": "no-cors"}).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/api/v1/search?q=red", "/nowhere", "/api/v1/search", "/metrics", "/static/app.js", "/static/none"],
)
def test_browsers_are_told_to_be_strict(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert "http" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["permissions-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN},
        {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Authorization": "Bearer "},
        {"Cookie": f"{COOKIE}={TOKEN}"}, {"Cookie": f"{COOKIE}="}, {"Cookie": f"token={TOKEN}"}, {"Cookie": "\x01=;;="},
        {"Authorization": "Bearer \xff"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/v1/search?q=red", "/api/v1/library", "/metrics", "/docs", "/openapi.json"])
def test_without_the_token_nothing_is_told(locked: TestClient, headers: dict[str, str], path: str) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = locked.get(path, headers=raw)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


def test_a_token_in_any_other_address_is_not_taken(locked: TestClient) -> None:
    assert locked.get(f"/api/v1/library?token={TOKEN}").status_code == 401


def test_with_the_token(locked: TestClient) -> None:
    shown = {"Authorization": f"Bearer {TOKEN}"}
    assert locked.get("/api/v1/search?q=red", headers=shown).status_code == 200
    for host in ("192.168.0.7:8000", "films.example", "[fe80::1]:8000"):
        assert locked.get("/api/v1/library", headers=shown | {"Host": host}).status_code == 200
    assert locked.get("/api/v1/library", headers=shown | {"Host": "evil.example"}).status_code == 421
    assert locked.get("/healthz").status_code == locked.get("/readyz").status_code == 200


def test_opening_the_page_with_the_token_once(world: World) -> None:
    with client_of(world, token=TOKEN) as client:
        entered = client.get("/", params={"token": "wrong-wrong-wrong"})
        assert entered.status_code == 401
        assert "set-cookie" not in entered.headers
        entered = client.get("/", params={"token": TOKEN, "q": '"><script>alert(1)</script>'})
        assert entered.status_code == 200
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert TOKEN not in entered.text
        assert "<script" not in entered.text
        assert "url=/?q=%22%3E%3Cscript" in entered.text
        assert client.get("/api/v1/library").status_code == 200
        assert client.get("/api/v1/library", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/search/like"])
@pytest.mark.parametrize("limits", [{"body_silence": 0.05}, {"body_timeout": 0.1}])
def test_a_body_that_comes_slowly_is_not_waited_for(path: str, limits: dict[str, float], world: World) -> None:
    """One that stops, and one that never ends."""
    kind = b"multipart/form-data; boundary=x" if path.endswith("like") else b"application/json"
    pieces = iter([b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'])
    sent: list[Message] = []

    async def receive() -> Message:
        piece = next(pieces, None)
        if piece is None and "body_silence" in limits:
            await asyncio.Event().wait()
        if piece is None:
            await asyncio.sleep(0.01)
        return {"type": "http.request", "body": piece or b"0", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"content-type", kind)], "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 9), "http_version": "1.1",
    }  # fmt: skip
    with client_of(world, allow=(world.videos,), **limits) as client:
        asking = client.portal
        assert asking is not None
        asking.call(client.app, scope, receive, send)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_tokens_are_compared_in_constant_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of hmac decides, whatever is sent."""
    shown = {"Authorization": f"Bearer {TOKEN}"}
    with client_of(world, token=TOKEN) as client:
        for answer in (True, False):
            monkeypatch.setattr(hmac, "compare_digest", lambda *_, answer=answer: answer)
            for headers in (shown, {"Authorization": "Bearer wrong"}, {"Cookie": f"{COOKIE}=wrong"}):
                assert client.get("/api/v1/library", headers=headers).status_code == (200 if answer else 401)
            for token in (TOKEN, "wrong"):
                client.cookies.clear()
                assert client.get("/", params={"token": token}).status_code == (200 if answer else 401)
                client.cookies.clear()


SEARCHING = "only-for-those-who-search"


class TestTwoTokens:
    @pytest.fixture(scope="class")
    def shared(self, world: World) -> Iterator[TestClient]:
        with client_of(world, token=TOKEN, search_token=SEARCHING, allow=(world.videos,)) as client:
            yield client

    def test_one_of_them_searches_only(self, shared: TestClient) -> None:
        shown = {"Authorization": f"Bearer {SEARCHING}"}
        (moment,) = shared.get("/api/v1/search?q=red&k=1", headers=shown).json()["moments"]
        for path in ("/", "/docs", "/api/v1/library", "/api/v1/files", moment["thumbnail"]):
            assert shared.get(path, headers=shown).status_code == 200
        like = {"video": moment["video"], "start": moment["start"], "end": moment["end"]}
        assert shared.post("/api/v1/search/like", json=like, headers=shown).status_code == 200
        for method, path in (
            ("POST", "/api/v1/jobs"), ("GET", "/api/v1/jobs"), ("GET", "/api/v1/jobs/folders"), ("GET", "/metrics"),
            ("DELETE", "/api/v1/jobs/0123456789abcdef"), ("POST", "/api/v1/files/remove"), ("PUT", "/api/v1/search"),
        ):  # fmt: skip
            answer = shared.request(method, path, headers=shown)
            assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")
        # Absolute paths are for those who may index.
        assert shared.get("/api/v1/library", headers=shown).json()["allow"] == []
        assert not any(file["managed"] for file in shared.get("/api/v1/files", headers=shown).json()["files"])

    def test_the_other_does_everything(self, shared: TestClient, world: World) -> None:
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert shared.get("/metrics", headers=shown).status_code == 200
        assert shared.get("/api/v1/library", headers=shown).json()["allow"] == [str(world.videos)]
        assert all(file["managed"] for file in shared.get("/api/v1/files", headers=shown).json()["files"])
        assert shared.get("/api/v1/jobs", headers=shown).json() == []

    def test_a_cookie_allows_what_its_token_does(self, shared: TestClient) -> None:
        for token, status in ((TOKEN, 200), (SEARCHING, 403), ("wrong", 401)):
            shared.cookies.clear()
            shared.get("/", params={"token": token})
            assert shared.get("/metrics").status_code == status
        shared.cookies.clear()


class TestRates:
    def test_a_client_has_a_rate_and_a_burst(self) -> None:
        clock = [0.0]
        limit = RateLimit(2.0, lambda: clock[0])
        assert [limit.wait("192.0.2.1") for _ in range(9)] == [0.0] * 8 + [0.5]
        # Another client is another bucket; an IPv6 client has a network of addresses.
        assert limit.wait("192.0.2.2") == 0
        assert [limit.wait(f"2001:db8::{place}") for place in range(1, 10)] == [0.0] * 8 + [0.5]
        clock[0] = 0.5
        assert [limit.wait("192.0.2.1") for _ in range(2)] == [0.0, 0.5]
        clock[0] = 1000.0
        assert [limit.wait("192.0.2.1") for _ in range(9)] == [0.0] * 8 + [0.5]

    def test_it_remembers_a_bounded_number_of_clients(self) -> None:
        limit = RateLimit(0.1, lambda: 0.0)
        assert [limit.wait("first"), limit.wait("first")] == [0.0, 10.0]
        for number in range(10_000):
            limit.wait(f"client {number}")
        assert limit.wait("first") == 0.0

    def test_more_is_rejected_before_anything_is_done(self, world: World) -> None:
        with client_of(world, token=TOKEN, rate=1.0) as client:
            answers = [client.get("/api/v1/library") for _ in range(6)]
            assert {answer.status_code for answer in answers} == {401, 429}
            assert answers[-1].headers["retry-after"] == "1"
            assert answers[-1].headers["content-type"] == "application/problem+json"
            assert answers[-1].headers["x-content-type-options"] == "nosniff"
            assert client.get("/healthz").status_code == 200
