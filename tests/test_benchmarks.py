"""Every script of benchmarks/ starts: it imports what there is and describes its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import REPOSITORY, python

pytestmark = pytest.mark.process


@pytest.mark.parametrize("script", sorted((REPOSITORY / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_describes_its_options(script: Path) -> None:
    if script.stem.startswith("cluster_"):
        pytest.importorskip("ray")
    with python(script, "--help") as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "usage:" in output


def test_a_small_search_is_measured(tmp_path: Path) -> None:
    script, results = REPOSITORY / "benchmarks" / "search.py", tmp_path / "results.json"
    with python(script, "--segments", "200", "--queries", "2", "--results", results) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(results.read_text(encoding="utf-8"))
