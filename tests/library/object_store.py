"""An S3-compatible server on loopback, and a way to it on which answers get lost, late and wrong."""

from __future__ import annotations

import http.client
import itertools
import logging
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.processes import LIMIT

BUCKET = "films"
KEY_ID, SECRET = "AKIAPROTATESTKEY", "very-secret-access-key"
DENIED = f"<?xml version='1.0'?><Error><Code>AccessDenied</Code><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"

Fault = Literal["500 before", "500 after", "dropped before", "dropped after", "late", "403"]
"""What happens to a request; before or after the server has done what it asks for."""
Chooser = Callable[[str, str], Fault | None]
"""The fault for a method and a path."""


class Way(BaseHTTPRequestHandler):
    """Hands requests on to the real server, or does not, or loses what it answers."""

    protocol_version = "HTTP/1.1"
    # An answer leaves at once: the kernel would wait 40 ms for more of it.
    disable_nagle_algorithm = True
    server: Proxy

    def do_GET(self) -> None:
        self._pass_on()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.signers.update(re.findall(r"Credential=([^/]+)/", self.headers.get("Authorization", "")))
        fault = self.server.fault(self.command, self.path)
        if fault == "late":
            time.sleep(self.server.delay)
        if fault == "403":
            self._answer(403, {"Content-Type": "application/xml"}, DENIED.encode())
        elif fault == "500 before":
            self._answer(500, {}, b"no")
        elif fault != "dropped before":
            status, headers, answer = self._ask(body)
            if fault == "500 after":
                self._answer(500, {}, b"no")
            elif fault != "dropped after":
                self._answer(status, headers, answer)
        self.close_connection = self.close_connection or str(fault).startswith("dropped")

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        # One at a time: moto compares an ETag and writes in two steps, and between them another could come.
        with self.server.turn:
            connection = http.client.HTTPConnection(*self.server.target, timeout=LIMIT)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            answer = response.read()
            connection.close()
        return response.status, dict(response.getheaders()), answer

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Proxy(ThreadingHTTPServer):
    """The way to a server."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), Way)
        self.target, self.turn, self.delay = target, threading.Lock(), 0.5
        self.choose: Chooser = lambda method, path: None
        self.faults: Counter[str] = Counter()
        self.requests = 0
        self.signers: set[str] = set()
        """Whose keys requests were signed with."""
        self.client: Any = None
        """By which a test looks at the bucket itself."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fault(self, method: str, path: str) -> Fault | None:
        # Not under the lock: what chooses may send requests of its own.
        fault = self.choose(method, path)
        with self.turn:
            self.requests += 1
            if fault is not None:
                self.faults[fault] += 1
        return fault

    def objects(self, address: str) -> list[str]:
        """The keys of all objects at a place."""
        found = self.client.list_objects_v2(Bucket=BUCKET, Prefix=address.removeprefix(f"s3://{BUCKET}/") + "/")
        return [entry["Key"] for entry in found["Contents"]]

    def handle_error(self, *_: Any) -> None:
        """Clients that went away are what this is for."""

    @contextmanager
    def faulty(self, choose: Chooser) -> Iterator[Counter[str]]:
        """For a while, requests meet these faults."""
        self.faults, self.choose = Counter(), choose
        try:
            yield self.faults
        finally:
            self.choose = lambda method, path: None


def now_and_then(share: float, seed: int = 0) -> Chooser:
    """Each kind of fault that clients must live through, on this share of the requests, the same for the same seed."""
    chance = random.Random(seed)
    kinds: list[Fault] = ["500 before", "500 after", "dropped before", "dropped after", "late"]
    return lambda method, path: chance.choice(kinds) if chance.random() < share else None


def once(fault: Fault, method: str, end: str) -> Chooser:
    """This fault for the first request of such a method and path."""
    left = [fault]
    return lambda asked, path: left.pop() if left and asked == method and path.endswith(end) else None


def whenever(method: str, fault: Fault) -> Chooser:
    """This fault for all requests of a method."""
    return lambda asked, path: fault if asked == method else None


def is_change(method: str, path: str) -> bool:
    """Whether a request changes an object that counts; Lance writes its hints in the background, some and some not."""
    return method not in ("GET", "HEAD") and not path.endswith("hint.json")


def _changes() -> Callable[[str, str], int]:
    """Counts requests that change objects: the number of this one, 0 for one that does not."""
    numbers, turn = itertools.count(1), threading.Lock()

    def number(method: str, path: str) -> int:
        with turn:
            return next(numbers) if is_change(method, path) else 0

    return number


def from_change(first: int) -> Chooser:
    """From the n-th change on all changes are refused, as if the one that sends them had died."""
    number = _changes()
    return lambda method, path: "403" if number(method, path) >= first else None


def before_change(chosen: int, act: Callable[[], object]) -> Chooser:
    """Something happens before the n-th change; the requests that it sends itself count, but not again."""
    number = _changes()

    def choose(method: str, path: str) -> None:
        if number(method, path) == chosen:
            act()

    return choose


def before_first(end: str, act: Callable[[], object]) -> Chooser:
    """Something happens before the first change of an object of such a name."""
    left = [act]

    def choose(method: str, path: str) -> None:
        if method == "PUT" and path.endswith(end) and left:
            left.pop()()

    return choose


@contextmanager
def serving() -> Iterator[Proxy]:
    """A server with a bucket, and the environment that leads to it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    proxy = Proxy(server.get_host_and_port())
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        for name, value in {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        proxy.client = boto3.client("s3", endpoint_url=proxy.url)
        proxy.client.create_bucket(Bucket=BUCKET)
        yield proxy
    proxy.shutdown()
    proxy.server_close()
    server.stop()
