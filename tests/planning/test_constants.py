"""Every figure stands where it says that it was written down."""

from __future__ import annotations

import re

import pytest

from prota.planning.constants import ALL
from tests.processes import REPOSITORY

MEASURED = {name: constant for name, constant in ALL.items() if constant.measured}


@pytest.mark.parametrize("name", MEASURED)
def test_measured_figures_stand_in_their_document(name: str) -> None:
    constant = MEASURED[name]
    assert constant.document is not None
    assert constant.quote
    text = " ".join((REPOSITORY / constant.document).read_text(encoding="utf-8").split())
    assert constant.quote in text
    for script in re.findall(r"benchmarks/\w+\.py", constant.source):
        assert (REPOSITORY / script).is_file(), script


def test_the_number_is_the_quoted_one() -> None:
    """Worked out once more from the quotations alone."""
    expected = {
        "STORED_SEGMENT": 21_689.58,
        "SEARCH_MEMORY": 2_791.73,
        "TWO_STAGES_100K": 0.052,
        "TWO_STAGES_1M": 0.147,
        "EXACT_10K": 0.096,
        "WRITING": 0.00095,
        "GPU_READING": 0.00617,
        "GPU_SCORING": 0.002109375,
        "GPU_MEMORY": 149_250_113_536,
        "CPU_ENCODING": 0.1418333,
        "TEXT_ENCODING": 0.018,
        "GPU_ENCODING": 2_346,
        "THUMBNAIL": 4_245,
        "DECODING_240": 33,
        "DECODING_720": 140,
    }
    assert {name: constant.value for name, constant in MEASURED.items()} == pytest.approx(expected, rel=1e-6)


def test_assumptions_say_so_and_why() -> None:
    assumed = [name for name, constant in ALL.items() if not constant.measured]
    assert assumed == ["CORES_PER_GPU", "EXCHANGE", "HOST_MEMORY", "USABLE", "VERSIONS"]
    assert all(ALL[name].source for name in assumed)
