"""Atomic writes that survive a power cut, and locks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

from prota.platform import lock, sync

__all__ = ["hold", "publish", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically; text as UTF-8."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Rename a file or folder that is complete on disk, and flush the name."""
    os.replace(temporary, path)
    sync(path.parent)


def hold(path: Path) -> TextIO:
    """Take a lock until the file is closed or the process ends; BlockingIOError if another process holds it."""
    file = path.open("a")
    try:
        lock(file.fileno())
    except BlockingIOError:
        file.close()
        raise
    return file
