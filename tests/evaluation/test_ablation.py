"""Reading a table's results without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.evaluation.ablation import read_table
from prota.evaluation.passport import PassportError
from tests.figures.test_ablation import write_result


def test_what_is_there_is_read_in_order(tmp_path: Path) -> None:
    for row, seed in (("prota", 10), ("prota", 9), ("lda", 0), ("lambda=max_xi=-", 0)):
        write_result(tmp_path, row, seed, float(seed))
    (tmp_path / "lda" / "seed-1").mkdir()
    (tmp_path / "lda" / "seed-x").mkdir()
    (tmp_path / "lda" / "seed-x" / "result.json").write_text("not a seed's", encoding="utf-8")
    results = read_table("main", tmp_path)
    assert [(result.row.name, result.values("text_to_video", "r1")) for result in results] == [
        ("lda", [0.0]),
        ("prota", [9.0, 10.0]),
    ]
    assert [result.row.name for result in read_table("temperature", tmp_path)] == ["lambda=max,xi=-"]
    assert read_table("kernels", tmp_path) == []
    (tmp_path / "lda" / "seed-0" / "result.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PassportError, match="is not a result of prota"):
        read_table("main", tmp_path)
