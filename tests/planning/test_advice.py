"""Sentences appear when their threshold is passed, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from prota.planning.advice import advice
from prota.planning.estimate import Wanted, estimate


def notes(**wanted: Any) -> str:
    asked = Wanted(**wanted)
    return "\n".join(advice(asked, estimate(asked)))


def test_a_small_library_needs_no_advice() -> None:
    assert notes(hours=100) == ""
    assert notes(hours=10, device="cpu") == ""


@pytest.mark.parametrize(
    ("said", "below", "above"),
    [
        ("candidate stage: above 20,000", {"hours": 33, "device": "cpu"}, {"hours": 34, "device": "cpu"}),
        ("beyond what was measured", {"hours": 1600, "device": "cpu", "target_ms": 1e3},
         {"hours": 1700, "device": "cpu", "target_ms": 1e3}),
        ("more than one machine", {"hours": 6e3, "queries_per_second": 1}, {"hours": 7e3, "queries_per_second": 1}),
        ("tail latency", {"hours": 6e4, "queries_per_second": 1}, {"hours": 7e4, "queries_per_second": 1}),
        ("92 cores would keep up", {"hours": 6e3, "queries_per_second": 1}, {"hours": 7e3, "queries_per_second": 1}),
        ("object storage", {"hours": 1e5}, {"hours": 2e5}),
        ("tiered storage", {"hours": 6e6}, {"hours": 7e6}),
        ("int8 tokens: not built", {"hours": 1e4}, {"hours": 1e6}),
        ("candidate stage on GPUs: not built", {"hours": 1e4}, {"hours": 1e6}),
        ("IVF_PQ", {"hours": 1e3, "device": "cpu"}, {"hours": 1e6, "device": "cpu"}),
        ("a billion segments", {"hours": 1.6e6}, {"hours": 1.7e6}),
    ],
)  # fmt: skip
def test_a_note_appears_with_its_threshold(said: str, below: dict[str, Any], above: dict[str, Any]) -> None:
    assert said not in notes(**below)
    assert said in notes(**above)


def test_the_next_smaller_tokens_are_named() -> None:
    large = {"hours": 1e6, "queries_per_second": 200}
    # 18,432 → 9,312 bytes; 5.6 TB by half of 134.3 GB of a GPU are 84.
    assert "10.1 → 5.1 TiB of GPU memory, which 84 GPUs hold" in notes(**large)
    assert "asks for 317 GPUs then" in notes(**large)
    assert "product-quantised tokens: not built" in notes(**large, tokens="int8")
    assert "int8 tokens are an estimate" in notes(**large, tokens="int8")
    assert "not built; 0." not in notes(**large, tokens="pq")
