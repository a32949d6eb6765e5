"""The shape of the tree: import direction, cycles, names. Sizes are kept small by ruff (C901, PLR0917)."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import imported
from tests.processes import REPOSITORY

PACKAGE = REPOSITORY / "prota"
# Lower lines know nothing of higher ones.
LEVELS = [
    {"errors"},
    {"config", "files", "platform", "models"},
    {"types", "runtime"},
    {"video", "workers", "encoders", "kernels"},
    {"scoring"},
    {"model"},
    {"losses", "ranking", "runs"},
    {"data", "training", "evaluation", "library"},
    {"cluster", "figures", "samples", "server", "cli"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
FORBIDDEN_NAMES = ("utils", "util", "helpers", "helper", "common", "misc")

FILES = sorted(PACKAGE.rglob("*.py"))


def unit(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST) -> set[str]:
    """Modules, and names that may be modules, of all imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def imported_units(tree: ast.AST) -> set[str]:
    return {name.split(".")[1] for name in imported_names(tree) if name.startswith("prota.")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    own = unit(path)
    if own in ("__init__", "__main__"):
        return
    assert own in LEVEL, f"{own} is not in the design: give it a level"
    for other in imported_units(ast.parse(path.read_text(encoding="utf-8"))):
        assert LEVEL[other] <= LEVEL[own], f"{own} must not import {other}"


def cycles(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_have_no_import_cycle() -> None:
    modules = {".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path for path in FILES}
    graph = {
        name: {other for other in imported_names(ast.parse(path.read_text(encoding="utf-8"))) if other in modules}
        for name, path in modules.items()
    }
    assert cycles(graph) == []


def test_packages_have_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        imports = imported_units(ast.parse(path.read_text(encoding="utf-8")))
        graph.setdefault(unit(path), set()).update(imports - {unit(path)})
    assert len(graph) > 15
    assert cycles(graph) == []


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(cycles({"a": {"b"}, "b": {"a"}})) == {"a", "b"}


def test_no_module_is_named_after_nothing() -> None:
    for path in FILES:
        for part in path.relative_to(PACKAGE).parts:
            name = part.removesuffix(".py")
            assert name not in FORBIDDEN_NAMES, path
            assert not name.startswith("legacy_"), path
            assert not name.rstrip("0123456789").endswith("_v"), path


def test_every_module_says_what_it_is() -> None:
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_importing_prota_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "numpy", "safetensors", "huggingface_hub")
    assert imported("import prota, prota.config.model", heavy) == []


def test_unknown_names_of_the_package_are_refused() -> None:
    import prota

    assert prota.Config is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = prota.Nothing
