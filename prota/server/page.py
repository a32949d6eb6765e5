"""The page, and the description of the API as a page: neither fetches anything from another host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from prota.server.problems import ProblemError

__all__ = ["STATIC", "add_pages"]

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0; }
code, pre { font: 0.9rem/1.4 ui-monospace, monospace; overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; }
td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""


def add_pages(app: FastAPI) -> None:
    """A route for each file of the page, so that no path from a client is ever looked up; and /docs."""
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
        return HTMLResponse(_docs_page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(_STYLE, media_type="text/css")


def _docs_page(document: Mapping[str, Any]) -> str:
    """All operations and schemas of an OpenAPI document, as HTML."""
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(info['title'])}</title>",
        '<link rel="stylesheet" href="/docs/style.css">',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        '<p>Machine-readable: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method.upper(), path, operation))
    parts.append("<h1>Schemas</h1>")
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        shape = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{shape}</pre></details>')
    return "\n".join([*parts, "</html>"])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [_row(parameter) for parameter in operation.get("parameters", ())]
    bodies = operation.get("requestBody", {}).get("content", {})
    rows += [f"<tr><td><code>body</code><td>{escape(kind)}<td>{_schema(body)}" for kind, body in bodies.items()]
    answers = []
    for status, response in operation.get("responses", {}).items():
        for kind, body in response.get("content", {}).items():
            answers.append(f"{escape(status)} {escape(kind)} {_schema(body)}")
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    said = escape(operation.get("description", operation.get("summary", "")))
    return f"<h2><code>{method} {escape(path)}</code></h2><p>{said}</p>{table}<p>→ {'; '.join(answers)}</p>"


def _row(parameter: Mapping[str, Any]) -> str:
    need = "required" if parameter.get("required") else "optional"
    kind = escape(json.dumps({key: value for key, value in parameter["schema"].items() if key != "title"}))
    said = escape(parameter.get("description", ""))
    return f"<tr><td><code>{escape(parameter['name'])}</code><td>{need}<td>{said} <code>{kind}</code>"


def _schema(body: Mapping[str, Any]) -> str:
    schema = body.get("schema", {})
    name = (schema.get("$ref") or schema.get("items", {}).get("$ref") or "").rpartition("/")[2]
    if name:
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    return escape(", ".join(schema.get("properties", {})))
