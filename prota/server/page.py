"""The page and the API description at /docs; neither loads anything from another host."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from prota.server.docs import STYLE, docs_page
from prota.server.problems import ProblemError

__all__ = ["STATIC", "add_pages"]

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def add_pages(app: FastAPI) -> None:
    """Add a route for each file of the page, so that paths from clients are never looked up; and /docs."""
    files = {path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.is_file()}

    async def page(request: Request) -> Response:
        path = files.get(request.url.path.removeprefix("/static/") if request.url.path != "/" else "index.html")
        if path is None:
            raise ProblemError(404, "the page is not installed; the API is described at /docs")
        kind = _TYPES.get(path.suffix, "application/octet-stream")
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache"})

    for place in ("/", *(f"/static/{name}" for name in files)):
        app.add_api_route(place, page, methods=["GET", "HEAD"], include_in_schema=False, response_class=Response)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(STYLE, media_type="text/css")
