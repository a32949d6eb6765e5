"""The API's description as a page, made of the OpenAPI document: nothing is fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

__all__ = ["STYLE", "docs_page"]

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 0; }
code, pre { font: 0.9rem/1.4 ui-monospace, monospace; overflow-x: auto; }
table { border-collapse: collapse; margin: 0.5rem 0; }
td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top; }
"""


def docs_page(document: Mapping[str, Any]) -> str:
    """All operations and shapes of an OpenAPI document, as HTML."""
    info = document["info"]
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(info['title'])}</title>",
        '<link rel="stylesheet" href="/docs/style.css">',
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        '<p>The same for programs: <a href="/openapi.json">openapi.json</a>.</p>',
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method.upper(), path, operation))
    parts.append("<h1>Shapes</h1>")
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        shape = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        parts.append(f'<details id="{escape(name)}"><summary>{escape(name)}</summary><pre>{shape}</pre></details>')
    return "\n".join([*parts, "</html>"])


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [_row(parameter) for parameter in operation.get("parameters", ())]
    bodies = operation.get("requestBody", {}).get("content", {})
    rows += [f"<tr><td><code>body</code><td>{escape(kind)}<td>{_shape(body)}" for kind, body in bodies.items()]
    answers = []
    for status, response in operation.get("responses", {}).items():
        for kind, body in response.get("content", {}).items():
            answers.append(f"{escape(status)} {escape(kind)} {_shape(body)}")
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    said = escape(operation.get("description", operation.get("summary", "")))
    return f"<h2><code>{method} {escape(path)}</code></h2><p>{said}</p>{table}<p>→ {'; '.join(answers)}</p>"


def _row(parameter: Mapping[str, Any]) -> str:
    need = "needed" if parameter.get("required") else "may be given"
    kind = escape(json.dumps({key: value for key, value in parameter["schema"].items() if key != "title"}))
    said = escape(parameter.get("description", ""))
    return f"<tr><td><code>{escape(parameter['name'])}</code><td>{need}<td>{said} <code>{kind}</code>"


def _shape(body: Mapping[str, Any]) -> str:
    schema = body.get("schema", {})
    name = (schema.get("$ref") or schema.get("items", {}).get("$ref") or "").rpartition("/")[2]
    if name:
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    return escape(", ".join(schema.get("properties", {})))
