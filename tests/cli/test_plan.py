"""`prota plan` as a user runs it."""

from __future__ import annotations

import json

from prota.planning.constants import ALL
from tests.cli.test_commands import prota, succeeds
from tests.conftest import imported


def test_the_table_and_its_notes() -> None:
    said = succeeds("plan", "--hours", "1e6", "--queries-per-second", 200, "--replicas", 2)
    for part in (
        "1,000,000 hours",
        "600,000,000",
        "15.6 TB",
        "22.1 TB, 2 copies",
        "a typical answer",
        "object storage",
    ):
        assert part in said
    assert "cores that search" in succeeds("plan", "--hours", 100, "--device", "cpu")


def test_json_carries_every_constant_with_its_source() -> None:
    record = json.loads(succeeds("plan", "--hours", 1000, "--json"))
    assert record["plan"]["segments"] == 600_000
    assert record["wanted"]["hours"] == 1000
    assert set(record["constants"]) == set(ALL)
    assert all(constant["source"] for constant in record["constants"].values())
    assert record["constants"]["GPU_READING"]["measured"]
    assert not record["constants"]["EXCHANGE"]["measured"]


def test_what_is_wrong_is_one_line() -> None:
    for arguments, part in (
        (("--hours", "-3"), "hours = -3.0 is not allowed"),
        (("--hours", "1e3", "--device", "cpu", "--target-ms", "50"), "allowed: above 93"),
        ((), "--hours"),
        (("--hours", "1", "--tokens", "fp8"), "fp8"),
    ):
        result = prota("plan", *arguments)
        assert result.returncode == 2, result
        assert part in result.stderr
        assert result.stderr.count("\n") == 1


def test_planning_needs_neither_torch_nor_ray() -> None:
    assert imported("import prota.planning.advice", ("torch", "ray", "lance", "transformers")) == []
