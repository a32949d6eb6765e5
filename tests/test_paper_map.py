"""docs/paper_map.md, the docstrings and the tests tell the same story about every equation and every gap."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.processes import REPOSITORY

MAP = (REPOSITORY / "docs" / "paper_map.md").read_text(encoding="utf-8")
EQUATIONS = range(1, 17)


def documented() -> Iterator[tuple[str, str]]:
    """(``file.py:Class.function``, docstring) of everything in the package."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield prefix + child.name, ast.get_docstring(child) or ""
                yield from visit(child, f"{prefix}{child.name}.")

    for path in sorted((REPOSITORY / "prota").rglob("*.py")):
        name = path.relative_to(REPOSITORY / "prota").as_posix()
        yield from visit(ast.parse(path.read_text(encoding="utf-8")), f"{name}:")


DOCSTRINGS = dict(documented())
TESTS = {
    f"{path.relative_to(REPOSITORY / 'tests').as_posix()}:{node.name}"
    for path in (REPOSITORY / "tests").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.FunctionDef)
}


def section(title: str) -> list[list[str]]:
    """The rows of the table under a heading, each a list of its cells."""
    body = MAP.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in body.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("number", EQUATIONS)
def test_each_equation_has_one_function_and_its_own_tests(number: int) -> None:
    citing = [name for name, text in DOCSTRINGS.items() if f"Eq. ({number})" in text]
    assert len(citing) == 1, f"Eq. ({number}) is cited by {citing}"
    rows = [row for row in section("Equations") if row[0] == str(number)]
    assert len(rows) == 1
    assert names(rows[0][2]) == citing
    tests = names(rows[0][3])
    assert any(f"test_eq_{number}_" in test for test in tests)
    assert not set(tests) - TESTS


def test_no_other_equation_is_cited() -> None:
    cited = {int(number) for text in DOCSTRINGS.values() for number in re.findall(r"Eq\. \((\d+)\)", text)}
    assert cited == set(EQUATIONS)
    assert [int(row[0]) for row in section("Equations")] == list(EQUATIONS)


def test_each_gap_is_in_the_map_and_in_a_docstring() -> None:
    in_code = {name for name, text in DOCSTRINGS.items() if "Paper gap:" in text}
    in_map = {name for row in section("Gaps, and what was chosen") for name in names(row[0])}
    assert in_map == in_code


def test_every_equation_test_is_in_the_map() -> None:
    listed = {test for row in section("Equations") for test in names(row[3])}
    assert {test for test in TESTS if ":test_eq_" in test} <= listed
