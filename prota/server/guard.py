"""Who may ask: the right host name, no foreign page, the token where there is one; and what browsers are told.

A page of another site can make a browser send requests to this server, and by a name that it points here (DNS
rebinding) even read the answers. So the Host must be an address or one of our names, what a browser says of where a
request comes from must be this server itself, and no other site may embed anything.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prota.server.options import ServerOptions, is_loopback
from prota.server.problems import problem_response, unexpected_response

__all__ = ["COOKIE", "Guard"]

COOKIE = "prota_session"
# Whoever watches over the server need not know the token; the page asks for it, and holds nothing of the library.
_OPEN = ("/", "/healthz", "/readyz")
_OPEN_BELOW = "/static/"
# Only this one takes files, and counts their bytes itself; all else is a line of JSON.
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
}


class Guard:
    """Stands before the application."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self.app = app
        self.token = options.token
        own = () if is_loopback(options.host) else (socket.gethostname(), socket.getfqdn(), options.host)
        self.given = {name.lower() for name in options.names}
        self.names = {name.lower() for name in ("localhost", *own)} | self.given
        # Addresses of this machine cannot be told from others when it listens at all of them; none can be rebound.
        self.any_address = not is_loopback(options.host)
        self.session = hashlib.sha256(f"prota session {options.token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            # There are no web sockets here; a server closes what is not accepted.
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
            await send(message)

        answer = self._refusal(scope)
        bounded = receive if scope["path"] == _UPLOAD else _bounded(receive)
        try:
            await (self.app if answer is None else answer)(scope, bounded, send_guarded)
        except Exception as error:
            # Here, and not further out, so that even this answer carries the headers.
            if begun:
                raise
            await unexpected_response(scope, error)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further; None where it may."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return problem_response(421, "this server does not answer under that host name (--name adds one)")
        if not self._same_origin(scope, headers, hosts[0]):
            return problem_response(403, "requests from pages of other sites are refused")
        if self.token is None:
            return None
        if scope["path"] == "/" and (entered := self._entrance(scope)) is not None:
            return entered
        if scope["path"] in _OPEN or scope["path"].startswith(_OPEN_BELOW) or self._knows_token(headers):
            return None
        return problem_response(
            401,
            "a token is needed: open the page with ?token=… once, or send Authorization: Bearer …",
            {"WWW-Authenticate": "Bearer"},
        )

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            # Raises where the port is none.
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
        if (urlsplit(f"//{host}").hostname or "").lower() in self.given:
            # Under a name of its own there may be a proxy before this server, and TLS ends there.
            schemes |= {"http", "https"}
        if not {origin.lower() for origin in origins} <= {f"{scheme}://{host}".lower() for scheme in schemes}:
            return False
        # A link from elsewhere may lead to the page, but nothing may be embedded or fetched.
        if scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate":
            return not scope["path"].startswith("/api/") or headers.get("sec-fetch-site") in ("same-origin", "none")
        return headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _knows_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self.token or ""):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self.session)

    def _entrance(self, scope: Scope) -> Response | None:
        """Opening /?token=… sets the cookie. What follows is a page and no redirect.

        A browser that came by a link from elsewhere would not send a strict cookie along a redirect; from a page of
        ours it does. The token leaves the address bar with it.
        """
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=None)
        given = [value for name, value in pairs if name == "token"]
        if scope["method"] != "GET" or not given:
            return None
        right = _equal(given[-1], self.token or "")
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        target = html.escape(f"/?{rest}" if rest else "/")
        page = HTMLResponse(
            f'<!doctype html><meta charset="utf-8"><title>ProTA</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">continue</a>',
            # The page asks again for a token that was wrong.
            status_code=200 if right else 401,
        )
        if right:
            page.set_cookie(COOKIE, self.session, httponly=True, samesite="strict", path="/")
        return page


def _bounded(receive: Receive) -> Receive:
    """Of a body that nobody needs so large, no more is taken in."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > _LARGEST_BODY:
            raise HTTPException(413, "the request is too large", {"Connection": "close"})
        return message

    return bounded


def _equal(given: str, right: str) -> bool:
    """In constant time, whatever the lengths."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(right.encode()).digest())
