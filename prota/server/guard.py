"""Access control for every request: rate, host name, origin and token; and the security headers of every response.

Pages of other sites can make a browser send requests to this server, and read the responses through a host name that
points here (DNS rebinding). Therefore Host must be an address or a known name, Origin must be this server, and other
sites cannot embed anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import ipaddress
import math
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prota.server.options import ServerOptions, is_loopback
from prota.server.problems import problem_response, unexpected_response

__all__ = ["COOKIE", "Guard", "RateLimit", "Right"]

Right = Literal["all", "search", "none"]
"""What the token of a request allows."""

COOKIE = "prota_session"
# Open without a token: health checks, and the page, which asks for the token and contains no data.
_HEALTH = ("/healthz", "/readyz")
_OPEN = ("/", *_HEALTH)
_OPEN_BELOW = "/static/"
# Only this route takes files, and limits their size itself; all other bodies are short JSON.
_UPLOAD, _LARGEST_BODY = "/api/v1/search/like", 2**16
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
        "connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
# A year. Not for names of this machine: other servers on it may speak HTTP.
_STRICT = ("Strict-Transport-Security", "max-age=31536000")
# Of the routes that change nothing, those that are not for searching.
_MAINTENANCE = ("/metrics", "/api/v1/jobs")
# Clients whose rates are remembered.
_CLIENTS = 10_000


class RateLimit:
    """A token bucket for each client address: ``rate`` requests per second, and four times as many at once."""

    def __init__(self, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        """``rate``: 0 for no limit."""
        self.rate, self._most, self._now = rate, max(1.0, 4 * rate), now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Requests left and the time of the last one, by client; the most recent client last."""

    def wait(self, address: str) -> float:
        """Seconds that this client must wait; 0 accepts the request."""
        if not self.rate:
            return 0.0
        client, now = _network(address), self._now()
        left, last = self._left.pop(client, (self._most, now))
        left = min(self._most, left + (now - last) * self.rate)
        accepted = left >= 1
        self._left[client] = (left - accepted, now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if accepted else (1 - left) / self.rate


def _network(address: str) -> str:
    """One client: an IPv4 address, or the network of an IPv6 address, of which anyone has many."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))


class Guard:
    """Middleware that runs before the application."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app = app
        self.tokens: dict[Right, str] = {}
        if options.token is not None:
            self.tokens["all"] = options.token
        if options.search_token is not None:
            self.tokens["search"] = options.search_token
        self.sessions = {right: _session(token) for right, token in self.tokens.items()}
        self.limit = RateLimit(options.rate)
        self.body_timeout, self.body_silence = options.body_timeout, options.body_silence
        own = () if is_loopback(options.host) else (socket.gethostname(), socket.getfqdn(), options.host)
        self.own_names = {name.lower() for name in options.names}
        self.names = {name.lower() for name in ("localhost", *own)} | self.own_names
        # A server on all addresses accepts any address as Host: addresses cannot be rebound.
        self.any_address = not is_loopback(options.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            # No web sockets: uvicorn closes connections that are not accepted.
            return

        begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if scope["scheme"] == "https" and self.any_address:
                    headers.setdefault(*_STRICT)
            await send(message)

        answer = self._refusal(scope)
        timed = _timed(receive, self.body_timeout, self.body_silence)
        bounded = timed if scope["path"] == _UPLOAD else _bounded(timed)
        try:
            await (self.app if answer is None else answer)(scope, bounded, send_guarded)
        except Exception as error:
            # Here, so that this response has the security headers.
            if begun:
                raise
            await unexpected_response(scope, error)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response that rejects a request; None to accept it."""
        scope["prota.right"] = "none" if self.tokens else "all"
        if wait := 0.0 if scope["path"] in _HEALTH else self.limit.wait((scope["client"] or ("",))[0]):
            return problem_response(429, "too many requests", {"Retry-After": str(math.ceil(wait))})
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return problem_response(421, "unknown host name; add it with --name")
        if not self._same_origin(scope, headers, hosts[0]):
            return problem_response(403, "requests from other sites are rejected")
        if not self.tokens:
            return None
        if scope["path"] == "/" and (entered := self._entrance(scope)) is not None:
            return entered
        right = scope["prota.right"] = self._right(headers)
        if right == "all" or scope["path"] in _OPEN or scope["path"].startswith(_OPEN_BELOW):
            return None
        if right == "search":
            return None if _only_searches(scope) else problem_response(403, "this token allows searching only")
        return problem_response(
            401,
            "token required: open the page once with ?token=…, or send Authorization: Bearer …",
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            # Raises if the port is invalid.
            _ = urlsplit(f"//{host}").port
        except ValueError:
            return False
        if any(sign in host for sign in "/@?#\\") or not name:
            return False
        if name.lower() in self.names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self.any_address
        except ValueError:
            return False

    def _same_origin(self, scope: Scope, headers: Headers, host: str) -> bool:
        origins = headers.getlist("origin")
        schemes = {scope["scheme"]}
        if (urlsplit(f"//{host}").hostname or "").lower() in self.own_names:
            # A proxy with such a name may terminate TLS.
            schemes |= {"http", "https"}
        if not {origin.lower() for origin in origins} <= {f"{scheme}://{host}".lower() for scheme in schemes}:
            return False
        # Other sites may link to the page, but not embed or fetch it.
        if scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate":
            return not scope["path"].startswith("/api/") or headers.get("sec-fetch-site") in ("same-origin", "none")
        return headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _right(self, headers: Headers) -> Right:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and (right := _owner(given.strip(), self.tokens)) != "none":
            return right
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return "none"
        return "none" if cookie is None else _owner(cookie.value, self.sessions)

    def _entrance(self, scope: Scope) -> Response | None:
        """Set the cookie and remove the token from the address bar after /?token=….

        A page does it, not a redirect: after a link from another site, browsers send no strict cookie with a redirect.
        """
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=None)
        given = [value for name, value in pairs if name == "token"]
        if scope["method"] != "GET" or not given:
            return None
        right = _owner(given[-1], self.tokens)
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        target = html.escape(f"/?{rest}" if rest else "/")
        page = HTMLResponse(
            f'<!doctype html><meta charset="utf-8"><title>ProTA</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">continue</a>',
            # After a wrong token the page asks again.
            status_code=401 if right == "none" else 200,
        )
        if right != "none":
            secure = scope["scheme"] == "https"
            page.set_cookie(COOKIE, self.sessions[right], httponly=True, samesite="strict", path="/", secure=secure)
        return page


def _only_searches(scope: Scope) -> bool:
    """Whether a request reads what searching needs, and changes nothing."""
    path = scope["path"]
    if scope["method"] not in ("GET", "HEAD"):
        return bool(path == _UPLOAD)
    return not any(path == part or path.startswith(f"{part}/") for part in _MAINTENANCE)


def _session(token: str) -> str:
    """The value of the cookie of those who have entered a token."""
    return hashlib.sha256(f"prota session {token}".encode()).hexdigest()


def _owner(given: str, secrets: Mapping[Right, str]) -> Right:
    """Which secret was given. All are compared, so that the time tells nothing."""
    found: Right = "none"
    for right, secret in secrets.items():
        if _equal(given, secret):
            found = right
    return found


def _bounded(receive: Receive) -> Receive:
    """Limit the size of a body."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > _LARGEST_BODY:
            raise HTTPException(413, "the request is too large", {"Connection": "close"})
        return message

    return bounded


def _timed(receive: Receive, total: float, silence: float) -> Receive:
    """Limit the time to receive a body. Waiting for the client to leave, after the body, is not limited."""
    until, complete = 0.0, False

    async def timed() -> Message:
        nonlocal until, complete
        if complete:
            return await receive()
        now = asyncio.get_running_loop().time()
        until = until or now + total
        try:
            async with asyncio.timeout_at(min(until, now + silence)):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, "the body of the request took too long", {"Connection": "close"}) from None
        complete = not message.get("more_body")
        return message

    return timed


def _equal(given: str, right: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(right.encode()).digest())
