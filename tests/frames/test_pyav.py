"""How PyAV is asked for frames: what packets announce, where seeks land, and how often a file is scanned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prota.frames import pyav
from prota.frames.decode import DecodeError, decode_chosen, decode_frames, read_timeline
from tests.frames.clips import number_of, write_clip


def announce_a_ghost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet more than there are frames."""
    real = pyav._packets

    def with_a_ghost(*arguments: Any) -> tuple[list[Any], list[int]]:
        stamps, keyframes = real(*arguments)
        return [*stamps, stamps[0] + 1], keyframes

    monkeypatch.setattr(pyav, "_packets", with_a_ghost)


def test_packets_that_are_never_shown_do_not_shift_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    announce_a_ghost(monkeypatch)
    assert len(read_timeline(path, backend="pyav").times) == 31
    with pytest.raises(DecodeError, match="announced but never shown"):
        decode_frames(path, [1], backend="pyav")
    timeline, chosen, frames = decode_chosen(path, lambda timeline: [1, len(timeline.times) - 1], backend="pyav")
    assert len(timeline.times) == 30
    assert chosen == [1, 29] == [number_of(frame) for frame in frames]


def test_a_seek_that_lands_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4", options={"g": "4"})
    seeks = []

    class Astray:
        """A container whose seek goes too far."""

        def __init__(self, container: Any) -> None:
            self.container = container

        def __getattr__(self, name: str) -> Any:
            return getattr(self.container, name)

        def seek(self, stamp: int, stream: Any) -> None:
            seeks.append(stamp)
            self.container.seek(2 * stamp, stream=stream)

    real = pyav._opened

    @contextmanager
    def opened(*arguments: Any) -> Iterator[tuple[Any, Any]]:
        with real(*arguments) as (container, stream):
            yield Astray(container), stream

    monkeypatch.setattr(pyav, "_opened", opened)
    _, frames = decode_frames(path, [2, 13, 25], backend="pyav")
    assert seeks
    assert [number_of(frame) for frame in frames] == [2, 13, 25]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files as they are scanned, by their packets or by decoding them."""
    names: list[str] = []

    def watched(make: Callable[[Path], pyav.Index]) -> Callable[[Path], pyav.Index]:
        def noted(path: Path) -> pyav.Index:
            names.append(path.name)
            return make(path)

        return noted

    for name in ("_scanned_index", "_decoded_index"):
        monkeypatch.setattr(pyav, name, watched(getattr(pyav, name)))
    return names


def test_parts_of_one_file_scan_it_once(tmp_path: Path, scans: list[str]) -> None:
    first, second = write_clip(tmp_path / "first.mp4"), write_clip(tmp_path / "second.mp4")
    for start in (0, 10, 20):
        _, frames = decode_frames(first, range(start, start + 10), backend="pyav")
        assert [number_of(frame) for frame in frames] == list(range(start, start + 10))
    assert scans == ["first.mp4"]
    read_timeline(second, backend="pyav")
    read_timeline(first, backend="pyav")
    assert scans == ["first.mp4", "second.mp4", "first.mp4"], "one is kept, not all"


def test_a_file_that_changed_is_scanned_again(tmp_path: Path, scans: list[str]) -> None:
    path = write_clip(tmp_path / "clip.mp4", 30)
    assert len(read_timeline(path, backend="pyav").times) == 30
    write_clip(path, 20)
    assert len(read_timeline(path, backend="pyav").times) == 20
    os.utime(path, ns=(0, 0))
    read_timeline(path, backend="pyav")
    assert len(scans) == 3
    path.write_bytes(b"no video any more")
    for _ in range(2):
        with pytest.raises(DecodeError, match="cannot be opened"):
            read_timeline(path, backend="pyav")


def test_a_timeline_that_came_from_decoding_is_kept_too(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    announce_a_ghost(monkeypatch)
    for _ in range(2):
        timeline, chosen, _ = decode_chosen(path, lambda timeline: [1, len(timeline.times) - 1], backend="pyav")
        assert chosen == [1, 29]
    assert len(scans) == 2, "packets, then pictures, and no third time"
    with pytest.raises(ValueError, match="read-only"):
        timeline.times += np.float64(1.0)
