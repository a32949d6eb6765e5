"""Faults below Lance: processes that die between two changes of the file system, and what a power cut would leave."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from tests.processes import LIMIT, REPOSITORY

POINTS = int(os.environ.get("PROTA_TEST_POINTS", "8"))
"""At how many points of a piece of work faults are tried; 0: at every tenth change of a file."""


def die_at_changes(work: Callable[[Path], object], template: Path, into: Path, points: int) -> Iterator[Path]:
    """Copies of a folder in which `work` died before one of its changes of the file system, and one where it did not.

    `points` of its changes are chosen, the first and the last among them. `work` must be importable. Beside each copy
    lies a log of its changes, for `cut_power`. A template that does not exist stands for an empty folder.
    """
    library = compiled(into)
    command = [sys.executable, "-m", __name__, library, work.__module__, work.__qualname__, template, into, points]
    environment = os.environ | {"LD_PRELOAD": str(library)}
    subprocess.run(list(map(str, command)), check=True, cwd=REPOSITORY, env=environment, timeout=LIMIT)
    yield from sorted((path for path in into.iterdir() if path.is_dir()), key=lambda path: int(path.name))


def compiled(into: Path) -> Path:
    """The library to preload."""
    library, source = into / "faults.so", Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def cut_power(folder: Path) -> None:
    """Files lose content that was not flushed, and folders lose entries that were not."""
    dirty: set[int] = set()
    added: dict[str, int] = {}
    for line in folder.with_suffix(".log").read_text().splitlines():
        what, number, path = line.split(" ", 2)
        inode = int(number)
        if what == "W":
            dirty.add(inode)
        elif what == "E":
            added[path] = inode
        elif what == "R":
            added.pop(path, None)
        else:
            dirty.discard(inode)
            added = {path: entry for path, entry in added.items() if _inode(Path(path).parent) != inode}
    for path, entry in added.items():
        for found in Path(path).parent.glob("*") if Path(path).parent.exists() else ():
            if found == Path(path) or _inode(found) == entry:
                shutil.rmtree(found, ignore_errors=True)
                found.unlink(missing_ok=True)
    for found in folder.rglob("*"):
        if found.is_file() and _inode(found) in dirty:
            os.truncate(found, 0)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _main(library: str, module: str, name: str, template: str, into: str, number_of_points: str) -> None:
    work, faults, points = getattr(import_module(module), name), ctypes.CDLL(library), int(number_of_points)

    def run(number: int, folder: Path) -> int:
        """Its exit status; the whole run tells how many changes there are."""
        shutil.copytree(template, folder) if Path(template).exists() else folder.mkdir()
        # Lance must not have been used before: its threads would be missing in the copy of this process.
        child = os.fork()
        if not child:
            log = folder.with_suffix(".log")
            faults.faults_begin(os.fsencode(folder), ctypes.c_long(number), os.fsencode(log))
            work(folder)
            folder.with_suffix(".count").write_text(str(faults.faults_count()))
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    whole = Path(into) / "0"
    assert run(0, whole) == 0
    changes = int(whole.with_suffix(".count").read_text())
    whole.rename(Path(into) / str(changes + 1))
    whole.with_suffix(".log").rename(Path(into) / f"{changes + 1}.log")
    points = points or max(2, changes // 10)
    for number in sorted({1 + round(place * (changes - 1) / (points - 1)) for place in range(points)}):
        assert run(number, Path(into) / str(number)) == 137, f"{name} failed at change {number}"


if __name__ == "__main__":
    _main(*sys.argv[1:])
