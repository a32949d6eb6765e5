"""README and docs: links and anchors resolve; generated pages and tables match the code and the passports."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

import prota
from prota.cli import app
from prota.config.experiment import Experiment
from tests.processes import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *REPOSITORY.glob("*.md")])
FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def anchors(page: Path) -> set[str]:
    """What its headings are called, by the rule that GitHub and Python-Markdown share."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
        # The site has the pages below docs, and nothing else.
        assert not page.is_relative_to(DOCS) or target.is_relative_to(DOCS), link


def test_the_site_has_every_page() -> None:
    def pages(nav: Any) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages(entry)]

    listed = pages(tomllib.loads((REPOSITORY / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    written = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*written, *generate.PAGES])


def test_every_experiment_is_in_the_index_and_has_its_parts() -> None:
    folder = DOCS / "experiments"
    index = (folder / "index.md").read_text(encoding="utf-8")
    for path in set(folder.glob("*.md")) - {folder / "index.md"}:
        text = path.read_text(encoding="utf-8")
        title = text.splitlines()[0].removeprefix("# ")
        assert f"[{title}]({path.name})" in index
        assert [part for part in ("**Hypothesis.**", "**Result", "**Decision.**") if part not in text] == [], path.name


def test_tables_of_results_are_those_of_their_passports() -> None:
    named = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert generate.with_tables(text, page.parent) == text, f"{page}: run python docs/generate.py"
        named |= {
            page.parent / name for names in re.findall(r"<!-- passports: (.+?) -->", text) for name in names.split()
        }
    assert named == set(DOCS.rglob("passports/*.json"))


def test_the_reference_has_every_name_command_and_setting() -> None:
    api, settings, cli = (generate.PAGES[f"reference/{name}.md"]() for name in ("api", "settings", "cli"))
    assert set(re.findall(r"^## `(\w+)`$", api, flags=re.MULTILINE)) == set(prota.__all__)
    for section in Experiment.model_fields:
        assert re.search(rf"^## {section}\b", settings, flags=re.MULTILINE), section
    for field in Experiment.model_fields["train"].annotation.model_fields:  # type: ignore[union-attr]
        assert f"| `{field}` |" in settings
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner in getattr(command, "commands", [""]):
            assert f"## prota {name} {inner}".strip() + "\n" in cli


def test_the_reference_has_every_route() -> None:
    routes = re.findall(r"^## (GET|POST) (\S+)$", generate.PAGES["reference/http.md"](), flags=re.MULTILINE)
    assert ("GET", "/api/v1/search") in routes
    assert ("GET", "/metrics") in routes


def test_there_is_one_version() -> None:
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [prota.__version__]
