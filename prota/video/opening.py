"""Open video files, always read-only. In a worker, which cannot open files, its parent has opened the one to decode."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prota.platform import open_nonblocking
from prota.video.timeline import DecodeError

__all__ = ["given", "open_file", "opened"]

_given: dict[Path, int] = {}


def open_file(path: str | Path) -> io.FileIO:
    """A regular file that is not empty, open for reading; a DecodeError otherwise."""
    try:
        file = io.FileIO(path, opener=open_nonblocking)
    except IsADirectoryError:
        raise DecodeError(f"{path}: not a file") from None
    except FileNotFoundError:
        raise DecodeError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        # Windows cannot open folders; a name may contain a zero byte.
        reason = "not a file" if os.path.isdir(path) else getattr(error, "strerror", None) or error
        raise DecodeError(f"{path}: cannot open: {reason}") from None
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return file
    file.close()
    raise DecodeError(f"{path}: " + ("empty file" if stat.S_ISREG(status.st_mode) else "not a file"))


@contextmanager
def given(path: Path, descriptor: int) -> Iterator[None]:
    """Inside, `opened` reads a path from this descriptor, which is closed at the end."""
    _given[path] = descriptor
    try:
        yield
    finally:
        del _given[path]
        os.close(descriptor)


@contextmanager
def opened(path: Path) -> Iterator[io.FileIO]:
    """A file at its beginning. One at a time: the files of a given descriptor share its position."""
    descriptor = _given.get(path)
    with open_file(path) if descriptor is None else io.FileIO(os.dup(descriptor)) as file:
        file.seek(0)
        # FFmpeg recognises some formats by the extension.
        file.name = str(path)
        yield file
