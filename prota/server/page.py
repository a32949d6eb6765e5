"""The page, and the description of the API at /docs; neither loads anything from another host."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from prota.server.problems import ProblemError

__all__ = ["STATIC", "add_pages"]

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; --line: light-dark(#ddd, #3a3d42); --sunk: light-dark(#f4f4f1, #23252a); }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; background: light-dark(#fff, #16181b); color: light-dark(#1b1c1e, #ececee); }
a { color: light-dark(#3153c4, #9db4ff); }
h2 { margin: 3rem 0 0.5rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2rem 0 0.25rem; }
h3 + p, ul { margin-top: 0.25rem; }
nav { columns: 15rem; }
section { break-inside: avoid; }
code, pre { font: 0.875rem/1.45 ui-monospace, monospace; }
pre { margin: 0.5rem 0; padding: 0.75rem 1rem; white-space: pre-wrap; background: var(--sunk); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; font-size: 0.9375rem; }
th, td { padding: 0.25rem 1rem 0.25rem 0; vertical-align: top; text-align: left; border-bottom: 1px solid var(--line); }
th:nth-child(1), th:nth-child(2) { width: 22%; }
summary { cursor: pointer; font-weight: 600; padding: 0.25rem 0; }
"""  # noqa: E501 (a rule a line)
_BASE = "http://127.0.0.1:8000"
_INTRODUCTION = f"""
<p>All routes below <code>/api/v1</code> take and return JSON. A server with a token needs the header
<code>Authorization: Bearer TOKEN</code>. Try a search:</p>
<pre>curl '{_BASE}/api/v1/search?q=a+dog+jumps+into+water&amp;k=5'</pre>
<p>Errors have the type <code>application/problem+json</code> (RFC 9457). Programs check <code>status</code> and
<code>code</code>; <code>detail</code> is for people. The status 503 has a <code>Retry-After</code> header: the model is
being loaded, or too many requests are waiting.</p>
<p>A segment is named by its row in one <code>version</code> of the library. Pass the version of a search on to
<code>explain</code> and <code>thumbnail</code>; after a 404, search again.</p>
<p>For programs: <a href="/openapi.json">openapi.json</a>.</p>"""


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
        return HTMLResponse(_docs_page(app.openapi()))

    @app.get("/docs/style.css", include_in_schema=False)
    async def style() -> Response:
        return Response(_STYLE, media_type="text/css")


def _docs_page(document: Mapping[str, Any]) -> str:
    """All operations and schemas of an OpenAPI document, as HTML."""
    info, schemas = document["info"], document["components"]["schemas"]
    title = f"{info['title']} {info['version']}: HTTP API"
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{escape(title)}</title><link rel="stylesheet" href="/docs/style.css">',
        f"<main><h1>{escape(title)}</h1><p>{escape(info['description'])}</p>{_INTRODUCTION}",
    ]
    contents, sections = [], []
    for tag in document["tags"]:
        own = [operation for operation in operations if tag["name"] in operation[2]["tags"]]
        links = (f'<li><a href="#{one["operationId"]}">{escape(one["summary"])}</a>' for _, _, one in own)
        contents.append(f"<section><b>{escape(tag['name'].capitalize())}</b><ul>{''.join(links)}</ul></section>")
        sections.append(f"<h2>{escape(tag['name'].capitalize())}</h2><p>{escape(tag['description'])}</p>")
        sections += [_operation(*one, schemas) for one in own]
    parts += ["<h2>Contents</h2><nav>", *contents, "</nav>", *sections, "<h2>Schemas</h2>"]
    for name, schema in schemas.items():
        said = f"<p>{escape(schema.get('description', ''))}</p>"
        required = schema.get("required", ())
        rows = [_row(field, inner, field in required) for field, inner in schema.get("properties", {}).items()]
        parts.append(f'<details id="{name}"><summary>{name}</summary>{said}{_table(rows)}</details>')
    return "\n".join([*parts, "</main></html>"])


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in operation["description"].split("\n\n"))
    parts = [
        f'<h3 id="{operation["operationId"]}">{escape(operation["summary"])}</h3>',
        f"<p><code>{method} {escape(path)}</code></p>{paragraphs}",
        _table([
            _row(one["name"], {"description": ""} | one["schema"], one.get("required", False))
            for one in operation.get("parameters", ())
        ]),
    ]  # fmt: skip
    bodies = operation.get("requestBody", {}).get("content", {})
    for kind, body in bodies.items():
        parts.append(f"<p>Body as <code>{escape(kind)}</code>:</p>{_fields(body['schema'], schemas)}")
    parts.append(f"<pre>{escape(_curl(method, path, operation, schemas))}</pre>")
    for status, response in operation["responses"].items():
        for kind, body in response.get("content", {}).items() if status[0] == "2" else ():
            schema = body.get("schema", {})
            parts.append(f"<p>→ {status}, <code>{escape(kind)}</code> {_type(schema)}</p>")
            example = _example(schema, schemas)
            parts.append("" if example is None else f"<pre>{escape(json.dumps(example, indent=2))}</pre>")
    return "".join(parts)


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    named = _named(schema, schemas)
    required = named.get("required", ())
    return _table([_row(name, field, name in required) for name, field in named.get("properties", {}).items()])


def _curl(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    query = {}
    for parameter in operation.get("parameters", ()):
        examples = parameter["schema"].get("examples", ())
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(examples[0])))
        elif examples and parameter.get("required"):
            query[parameter["name"]] = examples[0]
    address = f"'{_BASE}{path}{'?' if query else ''}{urlencode(query)}'"
    command = "curl" if method == "GET" else f"curl -X {method}"
    bodies = operation.get("requestBody", {}).get("content", {})
    lines = [
        f"{command} {address} -F file=@photo.jpg" if kind.startswith("multipart")
        else f"{command} {address} --json '{json.dumps(_example(body['schema'], schemas))}'"
        for kind, body in bodies.items()
    ]  # fmt: skip
    return "\n".join(lines or [f"{command} {address}"])


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """The example of a schema, with its fields in their order; None if it has none."""
    if schema.get("type") == "array":
        inner = _example(schema["items"], schemas)
        return None if inner is None else [inner]
    return _ordered(next(iter(_named(schema, schemas).get("examples", ())), None), schema, schemas)


def _ordered(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_ordered(item, schema["items"], schemas) for item in value]
    fields = _named(schema, schemas).get("properties", {})
    if not isinstance(value, dict):
        return value
    return {name: _ordered(value[name], inner, schemas) for name, inner in fields.items() if name in value}


def _named(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference names, or the schema itself."""
    found: Mapping[str, Any] = schemas[_name(schema)] if "$ref" in schema else schema
    return found


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _table(rows: list[str]) -> str:
    return f"<table><tr><th>name<th>type<th>description{''.join(rows)}</table>" if rows else ""


def _row(name: str, schema: Mapping[str, Any], required: bool) -> str:
    if not required and "anyOf" in schema:
        # What is left out is null.
        schema = {**schema, "anyOf": [choice for choice in schema["anyOf"] if choice.get("type") != "null"]}
    limits = "; ".join(_limits(schema, required))
    said = escape("; ".join(filter(None, (schema.get("description", ""), limits))))
    return f"<tr><td><code>{escape(name)}</code><td>{_type(schema)}<td>{said}"


def _limits(schema: Mapping[str, Any], required: bool) -> Iterator[str]:
    if "minimum" in schema and schema.get("maximum", 1e9) < 1e9:
        yield f"{schema['minimum']} to {schema['maximum']}"
    if schema.get("default") is not None:
        yield f"default: {json.dumps(schema['default'])}"
    elif not required:
        yield "optional"


def _type(schema: Mapping[str, Any]) -> str:
    """The type of a value, as HTML."""
    if "$ref" in schema:
        return f'<a href="#{_name(schema)}">{_name(schema)}</a>'
    if "enum" in schema:
        return escape(" | ".join(schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return escape(str(schema.get("format", schema.get("type", ""))))
