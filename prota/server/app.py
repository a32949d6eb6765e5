"""The application: an API under /api/v1, the page, health checks and metrics; and the server."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

import prota
from prota.errors import ProtaError, one_line
from prota.library.storage.location import Where
from prota.server.answering import QueryWorker
from prota.server.browsing import Examples
from prota.server.guard import Guard
from prota.server.jobs import Jobs, order_for
from prota.server.media import Originals
from prota.server.options import ServerOptions
from prota.server.page import add_pages
from prota.server.problems import Problem, add_problem_handlers
from prota.server.queueing import BoundedPool
from prota.server.routes import Backend, router
from prota.server.screening import Screening
from prota.server.view import Catalogue

if TYPE_CHECKING:
    import torch

    from prota.cluster.shards import ShardedFinder
    from prota.library.storage.reader import Snapshot
    from prota.scoring.score import ScoreHead

__all__ = ["create_app", "run"]

# Threads for requests that need no model.
_READERS = 2
# Uploads that are decoded at a time, and the limit of running and waiting ones.
_DECODERS, _DECODING_LIMIT = 1, 5
# Seconds to finish answers at shutdown, less than containers are given; a stream that is paused would never end.
_GRACE = 8
# Characters of a path in the access log.
_LOGGED = 200
# Seconds to send the head of a request, from the connection or the first byte.
_HEAD = 10.0
_TAGS = [
    {"name": "search", "description": "Find moments with text, a moment of the library, or an uploaded file."},
    {"name": "library", "description": "Videos and pictures of the library, their segments and files."},
    {"name": "jobs", "description": "Index folders in the background, without interrupting searches."},
    {"name": "monitoring", "description": "Health checks and metrics."},
]
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


def create_app(library: Where, options: ServerOptions | None = None) -> FastAPI:
    """The application for a library, which may be created later; the library is loaded at startup."""
    backend, registry = _backend(library, options or ServerOptions()), CollectorRegistry()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        backend.catalogue.start()
        yield
        backend.close()

    problem: dict[str, Any] = {
        "description": "an error",
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
    app = FastAPI(
        title="ProTA",
        version=prota.__version__,
        description="Search videos with natural language.",
        openapi_tags=_TAGS,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        responses={"4XX": problem, 503: problem},
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.backend = backend

    def unavailable(error: ProtaError) -> str:
        # A writer may have removed the files of this version; the next version may be readable.
        backend.catalogue.refresh_soon()
        return one_line(error).replace(str(backend.catalogue.folder), "the library")

    add_problem_handlers(app, unavailable)
    app.include_router(router)

    @app.get(
        "/metrics",
        tags=["monitoring"],
        response_class=Response,
        summary="Get metrics",
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Return metrics in the text format of Prometheus."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    add_pages(app)
    registry.register(_BackendMetrics(backend))
    # Middleware that is added last runs first.
    app.add_middleware(Guard, options=backend.options)
    app.add_middleware(_RequestMetrics, registry=registry, log=_access_log(backend.options.access_log))
    return app


def _backend(library: Where, options: ServerOptions) -> Backend:
    shards = partial(_sharded, options) if options.ray else None
    catalogue = Catalogue(library, options.model, device=options.device, refresh=options.refresh, shards=shards)
    order = order_for(
        library, options.model, device=options.device, within=options.roots, timeout=options.index_timeout
    )
    worker, originals = QueryWorker(options.cached), Originals()
    return Backend(
        options,
        catalogue,
        worker,
        BoundedPool("prota-read", _READERS, options.queue_limit),
        BoundedPool("prota-decode", _DECODERS, _DECODING_LIMIT),
        Jobs(order, catalogue.refresh_soon),
        Examples(worker),
        originals,
        Screening(originals, options),
    )


def _sharded(options: ServerOptions, store: Snapshot, head: ScoreHead, device: torch.device) -> ShardedFinder:
    from prota.cluster.shards import ShardedFinder

    gpus = options.device != "cpu"
    return ShardedFinder(store, head, device, shards=options.shards, deadline=options.deadline, gpus=gpus)


class _BackendMetrics(Collector):
    """Counters of the backend, read when metrics are requested."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterable[Metric]:
        catalogue, worker = self._backend.catalogue, self._backend.worker
        requests, decoding, screening = self._backend.requests, self._backend.decoding, self._backend.screening
        rejected = requests.rejected + decoding.rejected + screening.rejected
        current, (up, shards) = catalogue.current, catalogue.shards
        answers = CounterMetricFamily("prota_answers", "Searches by whether the answer was cached.", labels=["kept"])
        answers.add_metric(["yes"], worker.hits)
        answers.add_metric(["no"], worker.misses)
        yield answers
        for name, text, count in (
            ("partial_answers", "Searches without the answer of some shard.", worker.partial),
            ("refused", "Requests rejected because too many were running or waiting.", rejected),
            ("encoded_batches", "Batches of texts that were encoded.", worker.encoded_batches),
            ("encoded_queries", "Texts that were encoded.", worker.encoded_queries),
            ("scored_batches", "Batches of queries that were scored.", worker.scored_batches),
        ):
            yield CounterMetricFamily(f"prota_{name}", text, value=count)
        for name, text, value in (
            ("searches_inside", "Requests about the library that are running or waiting.", requests.active),
            ("library_version", "Version of the library; -1: none.", current.version if current else -1),
            ("library_segments", "Segments of the library.", current.segments if current else 0),
            ("shards", "Shards of the library on a cluster.", shards),
            ("shards_up", "Shards that respond.", up),
            ("ready", "Whether the server can search.", catalogue.state == "ready"),
        ):
            yield GaugeMetricFamily(f"prota_{name}", text, value=value)


def _access_log(place: str) -> logging.Logger | None:
    """The log of requests; None without one."""
    if not place:
        return None
    log, text = logging.Logger("prota.access", logging.INFO), "%(asctime)s %(message)s"
    # A file that was moved away, as by logrotate, is opened anew.
    file = logging.handlers.WatchedFileHandler
    try:
        handler = logging.StreamHandler() if place == "-" else file(place, encoding="utf-8")
    except OSError as error:
        raise ProtaError(f"cannot write the access log {place} ({error.strerror})") from None
    formatter = logging.Formatter(text, "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log.addHandler(handler)
    return log


class _RequestMetrics:
    """Middleware that counts and times requests by route, because clients may send any number of paths, and logs them.

    A line of the log: time, client, right of the token, method, path, status, bytes, milliseconds; no query string,
    which has what people search for, and once the token.
    """

    def __init__(self, app: ASGIApp, registry: CollectorRegistry, log: logging.Logger | None = None) -> None:
        self.app, self.log = app, log
        text = "Requests by route, method and status."
        self.requests = Counter("prota_requests", text, ["route", "method", "status"], registry=registry)
        text = "Time to answer requests, by route."
        self.seconds = Histogram("prota_request_seconds", text, ["route"], buckets=_BUCKETS, registry=registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.perf_counter(), 500, 0

        async def send_noting(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        finally:
            route = str(getattr(scope.get("route"), "path", "none"))
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self.requests.labels(route, method, str(status)).inc()
            took = time.perf_counter() - started
            self.seconds.labels(route).observe(took)
            if self.log is not None:
                # Still quoted, so that a path cannot make lines of its own.
                path = scope.get("raw_path", b"-").partition(b"?")[0].decode("ascii", "replace")[:_LOGGED]
                client, right = (scope["client"] or ("-",))[0], scope.get("prota.right", "none")
                self.log.info("%s %s %s %s %d %d %.1f", client, right, method, path, status, sent, 1000 * took)


class _TimeLimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Close connections that do not send a full request head in time; many of them would block other clients."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEAD, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def run(library: Where, options: ServerOptions) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    listening = _listen(options.host, options.port)
    host, port = options.host, listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
        host, f"[{host}]" if ":" in host else host
    )
    app, tls = create_app(library, options), options.tls_certificate
    if tls is not None:
        _check_tls(tls, options.tls_key)
    config = uvicorn.Config(
        app,
        ssl_certfile=tls,
        ssl_keyfile=options.tls_key,
        http=_TimeLimitedProtocol,
        log_level="warning",
        # URLs contain queries, and once the token.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE,
    )
    entrance = f"/?token={options.token}" if options.token else "/"
    scheme = "http" if tls is None else "https"
    print(f"serving {library} at {scheme}://{shown}:{port}{entrance} (Ctrl-C to stop)", flush=True)
    _Server(config, app.state.backend.jobs.close).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server whose jobs stop at a commit, and whose streams of their events end, while it finishes its answers."""

    def __init__(self, config: uvicorn.Config, stop_jobs: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop_jobs = stop_jobs

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # In a thread: this is a signal handler.
        threading.Thread(target=self._stop_jobs, daemon=True).start()
        super().handle_exit(sig, frame)


def _check_tls(certificate: Path, key: Path | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ProtaError(
            f"cannot use the TLS certificate {certificate} ({said})",
            hint="give PEM files: --tls-certificate with the chain, --tls-key with its private key",
        ) from None


def _listen(host: str, port: int) -> socket.socket:
    """Open the port before anything is loaded, so that an error is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise ProtaError(
            f"cannot listen on {host}:{port} ({error.strerror})", hint="choose another --port or --host"
        ) from None
    listening.listen(512)
    return listening
