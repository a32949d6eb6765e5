"""The shape of the tree: who may import whom, how large things may grow, what may not exist."""

from __future__ import annotations

import ast
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
FILE_LINES, FUNCTION_LINES, KERNEL_LINES = 400, 60, 120

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


def test_modules_do_not_import_each_other_in_circles() -> None:
    modules = {".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path for path in FILES}
    graph = {
        name: {other for other in imported_names(ast.parse(path.read_text(encoding="utf-8"))) if other in modules}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " → ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= FILE_LINES, f"{path.name} has {text.count(chr(10))} lines"
    limit = KERNEL_LINES if unit(path) == "kernels" else FUNCTION_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= limit, f"{path.name}: {node.name} has {length} lines"


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


def test_tests_mirror_the_package() -> None:
    """A test file stands where its subject stands; the rest tests the whole or carries the oracle."""
    whole = {
        "architecture",
        "paper_map",
        "readme",
        "oracle",
        "properties",
        "equations",
        "peer_parity",
        "commands",
        "page",
        "leftovers",
    }
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        relative = path.relative_to(REPOSITORY / "tests")
        subject = path.stem.removeprefix("test_")
        if subject not in whole:
            assert (PACKAGE / relative.parent / f"{subject}.py").is_file(), relative
