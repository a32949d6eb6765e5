"""Generate the reference pages of the site, and the tables of results that come from passports."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import prota

__all__ = ["DOCS", "PAGES", "with_tables"]

DOCS = Path(__file__).resolve().parent
_BLOCK = re.compile(r"(<!-- passports: (.+?) -->\n).*?(<!-- end of passports -->)", re.DOTALL)
_METRICS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "median_rank": "median", "mean_rank": "mean rank"}
_DIRECTIONS = {"text_to_video": "text to video", "video_to_text": "video to text"}


def _table(titles: list[str], rows: list[list[str]]) -> str:
    cells = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in cells) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


# Python


def api() -> str:
    """What `import prota` exports, in the order of the alphabet."""
    parts = ["# Python API\n", "`import prota` exports these names; everything else may change without notice.\n"]
    for name in sorted(prota.__all__, key=str.lower):
        found = getattr(prota, name)
        if inspect.isclass(found):
            parts.append(f"## `{name}`\n\n{_signature(name, found)}{_docstring(found)}")
            parts += [
                f"### `{name}.{member}`\n\n{_signature(f'{name}.{member}', value)}{_docstring(value)}"
                for member, value in _members(found)
            ]
        elif callable(found):
            parts.append(f"## `{name}`\n\n{_signature(name, found)}{_docstring(found)}")
        else:
            parts.append(f"## `{name}`\n\n`{name} = {found!r}`\n")
    return "\n".join(parts)


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that prota defines and documents; not those of pydantic or torch."""
    for name, value in inspect.getmembers_static(owner):
        if name.startswith("_"):
            continue
        target = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(target) and target.__module__.startswith("prota") and target.__doc__:
            yield name, value


def _signature(name: str, found: Any) -> str:
    if isinstance(found, property):
        return ""
    try:
        given = inspect.signature(getattr(found, "__func__", found))
    except ValueError:
        return ""
    kept = [_short(parameter) for parameter in given.parameters.values() if parameter.name not in ("self", "cls")]
    whole = f"{name}{_plain(given.replace(parameters=kept))}"
    if len(whole) > 100:
        whole = "\n    ".join([f"{name}(", *(f"{_plain(each)}," for each in _with_star(kept))]) + "\n"
        whole += _plain(given.replace(parameters=[])).removeprefix("(")
    return f"```python\n{whole}\n```\n\n"


def _plain(part: object) -> str:
    """Annotations without quotes and modules."""
    unquoted = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(part)).replace("Ellipsis", "...")
    return re.sub(r"(: |-> |\[|\| )(?:[a-z_]\w*\.)+", r"\1", unquoted)


def _short(parameter: inspect.Parameter) -> inspect.Parameter:
    """Without the default where that is longer than what it would tell."""
    return parameter.replace(default=...) if len(repr(parameter.default)) > 40 else parameter


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[object]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        yield parameter


def _docstring(found: object) -> str:
    """A docstring in NumPy's format as Markdown."""
    lines = (inspect.getdoc(found) or "").replace("``", "`").splitlines()
    out: list[str] = []
    section = ""
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if below and set(below) == {"-"}:
            section = line
            out += [f"**{line}**", ""]
        elif line and set(line) == {"-"}:
            continue
        elif section in ("Parameters", "Returns", "Raises", "Attributes"):
            named = line and not line.startswith(" ")
            out.append(f"- `{line}`:" if named else f"  {line.strip()}" if line else "")
        else:
            out.append(line)
    return re.sub(r"((?:^>>> .*\n(?:.+\n?)*\n?)+)", r"```pycon\n\1```\n", "\n".join(out) + "\n", flags=re.MULTILINE)


# Settings


def settings() -> str:
    """Every field of an experiment, section by section."""
    from prota.config.experiment import Experiment
    from prota.config.presets import BACKBONES, PRESETS

    parts = [
        "# Settings\n",
        "In a TOML file, as `-s section.field=value` on the command line, or as `overrides=[…]` of `Config.build`.\n",
        f"Presets: {', '.join(map(_code, PRESETS))}. Backbones: {', '.join(map(_code, BACKBONES))}.\n",
    ]
    sections = {name: _section(field.annotation) for name, field in Experiment.model_fields.items()}
    for name, section in sections.items():
        if section is None:
            continue
        rows = [
            [_code(field), _code(_type(info)), _code(_default(info)), info.description or ""]
            for field, info in section.model_fields.items()
        ]
        title = f"{name}.NAME" if name == "sources" else name
        parts += [f"## {title}\n", f"{inspect.getdoc(section)}\n", _table(["field", "type", "default", ""], rows)]
    return "\n".join(parts)


def _section(annotation: Any) -> Any:
    """The section that an annotation names, alone or as the values of a mapping."""
    from prota.config.base import Section

    for kind in (annotation, *get_args(annotation)):
        if inspect.isclass(kind) and issubclass(kind, Section):
            return kind
    return None


def _type(info: Any) -> str:
    limits = {"Ge": "≥", "Gt": ">", "Le": "≤", "Lt": "<"}
    bounds = [
        f"{limits[type(limit).__name__]} {getattr(limit, type(limit).__name__.lower())}"
        for limit in info.metadata
        if type(limit).__name__ in limits
    ]
    return " ".join([_kind(info.annotation), *bounds])


def _kind(annotation: Any) -> str:
    """A type as a reader knows it: ``a, b`` of a literal, ``Path`` of ``pathlib._local.Path | None``."""
    plain = inspect.isclass(annotation) and get_origin(annotation) is None
    name = annotation.__name__ if plain else re.sub(r"\b(\w+\.)+| \| None$", "", str(annotation))
    return re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace("'", ""), name)


def _default(info: Any) -> str:
    return "" if info.is_required() else json.dumps(info.default, ensure_ascii=False, default=str)


# Commands


def commands() -> str:
    """Every command with its arguments and options."""
    import typer.main

    from prota.cli import app

    return "# Commands\n\n" + "\n".join(_command("prota", typer.main.get_command(app))) + _EXIT


_EXIT = """
## Exit status

| status | meaning |
|---|---|
| 0 | success |
| 1 | failure: one line on standard error, or the traceback of a bug |
| 2 | wrong usage or settings |
| 130 | interrupted (Ctrl-C) |
"""


def _command(name: str, command: Any) -> Iterator[str]:
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    if inner:
        if name == "prota":
            yield _table(["command", ""], [[_code(f"prota {key}"), _first(value.help)] for key, value in inner.items()])
        for key, value in inner.items():
            yield from _command(f"{name} {key}", value)
        return
    yield f"## {name}\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    yield _table(["option", "value", "default", ""], [_option(parameter) for parameter in shown])


def _option(parameter: Any) -> list[str]:
    option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if option else [parameter.name.upper()]
    flag = getattr(parameter, "is_flag", False)
    value = "" if flag else parameter.metavar or _kind(parameter.type_descriptor.annotation)
    default = parameter.default if option and not flag and not callable(parameter.default) else None
    return [" ".join(map(_code, names)), value, "" if default in (None, ()) else _code(default), parameter.help or ""]


def _first(text: str | None) -> str:
    return inspect.cleandoc(text or "").split("\n\n")[0]


# HTTP


def http() -> str:
    """Every route and schema of the server's OpenAPI document."""
    from prota.server.app import create_app

    with tempfile.TemporaryDirectory() as folder:
        document = create_app(folder).openapi()
    parts = ["# HTTP\n", "The routes of `prota serve`. A server has the same as `/docs` and `/openapi.json`.\n"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method.upper(), path, operation))
    parts.append("## Schemas\n")
    for name, schema in document["components"]["schemas"].items():
        parts.append(f"### {name}\n\n{schema.get('description', '')}\n")
        rows = [
            [_code(field), _shape(shape), shape.get("description", "")]
            for field, shape in schema.get("properties", {}).items()
        ]
        parts.append(_table(["field", "type", ""], rows) if rows else f"{_shape(schema)}\n")
    return "\n".join(parts)


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [f"## {method} {path}\n", f"{operation.get('description') or operation.get('summary', '')}\n"]
    rows = [
        [_code(given["name"]), given["in"], _shape(given.get("schema", {})), given.get("description", "")]
        for given in operation.get("parameters", ())
    ]
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(["", f"body, {kind}", _shape(body.get("schema", {})), ""])
    if rows:
        parts.append(_table(["parameter", "in", "type", ""], rows))
    answers = [
        [
            status,
            ", ".join(f"{kind}: {_shape(body.get('schema', {}))}" for kind, body in answer.get("content", {}).items()),
        ]
        for status, answer in operation["responses"].items()
    ]
    return "\n".join([*parts, _table(["status", "response"], answers)])


def _shape(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_shape(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return " ".join(map(_code, schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_shape(schema.get('items', {}))}"
    return str(schema.get("type", ""))


PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api,
    "reference/settings.md": settings,
    "reference/cli.md": commands,
    "reference/http.md": http,
}


# Tables of results


def with_tables(page: str, folder: Path) -> str:
    """A page whose tables are those of the passports that it names, relative to its folder."""

    def block(found: re.Match[str]) -> str:
        passports = [json.loads((folder / name).read_text(encoding="utf-8")) for name in found[2].split()]
        return f"{found[1]}{_results(passports)}{found[3]}"

    return _BLOCK.sub(block, page)


def _results(passports: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    notes = []
    for passport in passports:
        captions = f"{passport['queries']:,} texts, {passport['videos']:,} videos"
        ranked = "" if passport["queries"] == passport["videos"] else f", ranked among {passport['candidates']}"
        for direction, title in _DIRECTIONS.items():
            among = ranked if direction == "video_to_text" else ""
            row = [f"{title}, {captions}{among}", *(_value(passport, direction, metric) for metric in _METRICS)]
            if row not in rows:
                rows.append(row)
        environment = passport["environment"]
        hardware, versions = environment["hardware"], environment["versions"]
        command = re.sub(r"^\S*/prota", "prota", environment["command"])
        machine = hardware["gpu"] or f"{hardware['cpu']}, {hardware['device']}"
        notes.append(
            f"- `{command}`: {machine}; torch {versions['torch']}; commit {(environment['commit'] or 'unknown')[:8]}; "
            f"{environment['time'][:10]}; weights {passport['checkpoint']['fingerprint'][:12]}"
        )
    return f"\n{_table(['', *_METRICS.values()], rows)}\n" + "\n".join(notes) + "\n\n"


def _value(passport: dict[str, Any], direction: str, metric: str) -> str:
    figure = passport["metrics"][direction][metric]
    value = f"{figure:g}" if metric == "median_rank" else f"{figure:.1f}"
    interval = passport["intervals"].get(direction, {}).get(metric)
    return f"{value} ({interval[0]:.1f}–{interval[1]:.1f})" if interval and metric in ("r1", "r5", "r10") else value


def main() -> None:
    """Update the tables of all pages; with a folder as the argument, copy all pages and write the reference to it."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        path.write_text(with_tables(page, path.parent), encoding="utf-8")
    for folder in map(Path, sys.argv[1:]):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.py", "*.json", "__pycache__"))
        for name, make in PAGES.items():
            (folder / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
