"""Every script of benchmarks/ starts: it imports what there is and describes its options."""

from __future__ import annotations

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
