"""A reader goes on with what it opened, whatever writers do meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prota.library import store as store_module
from prota.library.store import Store
from tests.library.small_library import fill, segments, video


def test_readers_keep_what_they_opened_while_many_small_commits_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MANY_FRAGMENTS", 4)
    reader = Store.open(fill(tmp_path, "abc"))
    with Store.open(tmp_path, write=True) as writer:
        for name in "defghi":
            writer.commit([video(name, 3)], [segments(name, 3)])
    assert reader.count() == 9
    assert [record.path for record in reader.videos()] == [f"/films/{name}.mp4" for name in "abc"]
    np.testing.assert_array_equal(reader.tokens([0]).direction[0], segments("a", 3).direction[0])
    assert reader.segments(where="path = '/films/c.mp4'")["row"].to_pylist() == [6, 7, 8]
