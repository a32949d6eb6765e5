"""How processes divide work; what they exchange is tested where it is used, in tests/evaluation/test_scoring.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prota.runtime import ALONE, start_world


def test_every_item_is_one_process_s() -> None:
    for count in range(12):
        for size in range(1, 15):
            parts = [list(replace(ALONE, rank=rank, size=size).part(count)) for rank in range(size)]
            assert [item for part in parts for item in part] == list(range(count))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            # The first process, which shows the progress, is never idle where another is not.
            assert len(parts[0]) == max(map(len, parts))


def test_one_process_alone_exchanges_with_itself() -> None:
    assert ALONE.together(lambda: 3) == 3
    assert ALONE.exchange("a") == ["a"]
    assert ALONE.collect("a") == ["a"]
    with pytest.raises(ValueError, match="as it was"):
        ALONE.together(lambda: _fail("as it was"))


def _fail(message: str) -> None:
    raise ValueError(message)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert start_world("cpu", by_cpu=True) == ALONE
    with pytest.raises(ValueError, match="--device cuda:77: torch sees"):
        start_world("cuda:77")
