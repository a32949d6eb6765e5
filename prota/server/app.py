"""The application: an API under /api/v1, the page, health, metrics and a description of it all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from prota.library.storage.location import Where
from prota.server import job_routes, library_routes, search_routes
from prota.server.docs import STYLE, docs_page
from prota.server.engine import Engine
from prota.server.jobs import Jobs, order_for
from prota.server.metrics import CONTENT_TYPE, Measured, Metrics
from prota.server.options import ServerOptions
from prota.server.problems import Problem, ProblemError, add_problem_handlers
from prota.server.schemas import Answer, Health
from prota.server.searching import best_segments
from prota.server.security import Guard
from prota.server.services import Given, Services
from prota.server.waiting import Batcher, Desk, Kept

if TYPE_CHECKING:
    import torch

    from prota.cluster.shards import ShardedFinder
    from prota.library.storage.reader import Snapshot
    from prota.scoring.score import ScoreHead

__all__ = ["STATIC", "create_app"]

STATIC = Path(__file__).parent / "static"
# Uploads that are decoded at a time, and that may wait.
_DECODERS, _DECODERS_WAITING = 1, 4
# More would keep the first of them waiting for little: one pass over the library serves these nearly as well.
_SCORED_TOGETHER = 16
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def create_app(library: Where, options: ServerOptions | None = None) -> FastAPI:
    """The application over the library at a place, which need not be there yet; it loads when it is started."""
    services = _services(library, options or ServerOptions())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        services.engine.start()
        yield
        services.jobs.close()
        services.engine.close()
        services.scoring.close()
        for desk in (services.desk, services.decoding):
            desk.close()

    problem: dict[str, Any] = {
        "description": "what went wrong",
        "content": {"application/problem+json": {"schema": Problem.model_json_schema()}},
    }
    app = FastAPI(
        title="ProTA",
        version=_version(),
        description="Finds the moments of videos that some words mean.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        responses={"4XX": problem, 503: problem},
        # Its own answer for what is not valid would be described beside ours.
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = services
    add_problem_handlers(app)
    for router in (search_routes.router, library_routes.router, job_routes.router):
        app.include_router(router)
    _add_watch(app)
    _add_docs(app)
    _add_page(app)
    # The last that is added stands first.
    app.add_middleware(Guard, options=services.options)
    app.add_middleware(Measured, metrics=services.metrics)
    return app


def _version() -> str:
    try:
        return version("prota")
    except PackageNotFoundError:
        return "0"


def _sharded(options: ServerOptions, store: Snapshot, head: ScoreHead, device: torch.device) -> ShardedFinder:
    from prota.cluster.shards import ShardedFinder

    gpus = options.device != "cpu"
    return ShardedFinder(store, head, device, shards=options.shards, deadline=options.deadline, gpus=gpus)


def _services(library: Where, options: ServerOptions) -> Services:
    shards = partial(_sharded, options) if options.ray else None
    engine = Engine(library, options.model, options.device, options.cached, options.refresh, shards)
    order = order_for(library, options.model, options.device, options.roots, options.index_timeout)
    desk = Desk("prota-search", options.searchers, options.waiting)
    decoding = Desk("prota-decode", _DECODERS, _DECODERS_WAITING)
    jobs, answers, metrics = Jobs(order, engine.look), Kept[Answer](options.cached), Metrics()
    scoring = Batcher(best_segments, _SCORED_TOGETHER)
    services = Services(options, engine, jobs, desk, decoding, answers, scoring, metrics)
    metrics.describe(
        {
            "prota_requests_total": "Requests by route, method and status.",
            "prota_request_seconds": "How long requests took, by route.",
            "prota_answers_total": "Searches, and whether their answer was kept from before.",
            "prota_partial_answers_total": "Searches that a part of the library did not answer.",
        }
    )
    metrics.value("prota_searches_inside", lambda: desk.inside)
    metrics.value("prota_refused_total", lambda: desk.refused + decoding.refused)
    metrics.value("prota_encoded_batches_total", lambda: engine.batcher.batches)
    metrics.value("prota_encoded_queries_total", lambda: engine.batcher.items)
    metrics.value("prota_scored_batches_total", lambda: scoring.batches)
    metrics.value("prota_library_version", lambda: engine.version)
    metrics.value("prota_library_segments", lambda: engine.view.store.count() if engine.view else 0)
    metrics.value("prota_shards", lambda: engine.shards[1])
    metrics.value("prota_shards_up", lambda: engine.shards[0])
    metrics.value("prota_ready", lambda: engine.state == "ready")
    return services


def _add_watch(app: FastAPI) -> None:
    @app.get("/healthz", tags=["watch"])
    async def healthz() -> Health:
        """Whether the server is there."""
        return Health(status="ok")

    @app.get("/readyz", tags=["watch"])
    async def readyz(given: Given) -> Health:
        """Whether it can search."""
        if given.engine.state == "failed":
            # Anyone may ask this, and the reason names files.
            raise ProblemError(503, "the library cannot be opened; the log and the page say why", {"Retry-After": "10"})
        if given.engine.state != "ready":
            raise given.engine.not_ready()
        return Health(status="ready")

    @app.get("/metrics", tags=["watch"], response_class=Response)
    async def metrics(given: Given) -> Response:
        """Counts and times, as Prometheus reads them."""
        return Response(given.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")


def _add_page(app: FastAPI) -> None:
    """A route for each file that is there now: no path that a client writes is ever looked up."""
    files = {path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.is_file()}

    async def page(request: Request) -> Response:
        path = files.get(request.url.path.removeprefix("/static/") if request.url.path != "/" else "index.html")
        if path is None:
            raise ProblemError(404, "the page is not installed; the API is described at /docs")
        kind = _TYPES.get(path.suffix, "application/octet-stream")
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache"})

    for place in ("/", *(f"/static/{name}" for name in files)):
        app.add_api_route(place, page, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)
