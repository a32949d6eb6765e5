"""Locks and files as on the system that runs the tests; and a stub of Windows (`tests.windows`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prota.platform import lock, open_nonblocking, sync
from tests.processes import REPOSITORY, python

# What needs an extra that is not installed cannot be imported anywhere.
EVERYTHING = """
import importlib, pkgutil, tests.windows, prota
for module in pkgutil.walk_packages(prota.__path__, "prota."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if str(error).startswith("Windows") or error.name.startswith("prota"):
                raise
print(sum(name.startswith("prota.") for name in importlib.sys.modules))
"""


def test_every_module_can_be_imported_on_windows() -> None:
    command = [sys.executable, "-c", EVERYTHING]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert int(result.stdout) >= 100


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second:
        lock(first.fileno())
        with pytest.raises(BlockingIOError):
            lock(second.fileno())
    with path.open("a") as third:
        lock(third.fileno())


@pytest.mark.process
def test_a_killed_process_frees_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"from prota.files import hold; from pathlib import Path; file = hold(Path({str(path)!r})); print(); input()"
    with python("-c", code, stdin=subprocess.PIPE) as process, path.open("a") as file:
        process.stdout.readline()
        with pytest.raises(BlockingIOError):
            lock(file.fileno())
        process.kill()
        process.wait()
        lock(file.fileno())


def test_files_and_folders_are_flushed_and_missing_ones_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    sync(tmp_path / "file")
    sync(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        sync(tmp_path / "missing")


def test_the_opener_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\x1a")
    with open(tmp_path / "file", "rb", opener=open_nonblocking) as file:
        assert file.read() == b"a\r\nb\x1a"
