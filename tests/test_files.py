"""Writing in one stroke."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from prota.files import write_atomically
from tests.processes import posix


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prota.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@posix
def test_a_file_is_on_disk_before_its_name_and_its_name_before_anyone_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        done.append(f"flush {'folder' if stat.S_ISDIR(os.fstat(descriptor).st_mode) else 'file'}")
        fsync(descriptor)

    def named(source: Path, target: Path) -> None:
        done.append("name")
        replace(source, target)

    monkeypatch.setattr("prota.files.os.fsync", flushed)
    monkeypatch.setattr("prota.files.os.replace", named)
    write_atomically(tmp_path / "file.json", "text")
    assert done == ["flush file", "name", "flush folder"]


def test_a_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "a long first text")
    write_atomically(path, "short")
    assert path.read_text(encoding="utf-8") == "short"
