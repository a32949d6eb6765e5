"""Differences of operating systems: locks, flushing to disk, opening without blocking, child processes."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = [
    "Connection",
    "end_with",
    "inherit",
    "limit_memory",
    "lock",
    "lower_priority",
    "open_nonblocking",
    "sync",
]

PARENT_CHECK = 0.5

if sys.platform == "win32":
    import msvcrt
    import subprocess
    from multiprocessing.connection import PipeConnection as Connection

    # Beyond the content: on Windows no other process can read locked bytes.
    _LOCKED = 2**30

    def lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None

    def sync(path: str | Path) -> None:
        # Windows flushes only files opened for writing, and no folders: NTFS journals names.
        if not os.path.isdir(path):
            descriptor = os.open(path, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def inherit(handle: int) -> dict[str, Any]:
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}

    def limit_memory(count: int) -> None:
        pass

    def lower_priority(by: int) -> None:
        pass

    def _outlive(process: int) -> None:
        import _winapi

        try:
            handle = _winapi.OpenProcess(_winapi.SYNCHRONIZE, False, process)
        except OSError:
            return
        _winapi.WaitForSingleObject(handle, _winapi.INFINITE)

else:
    import fcntl
    import resource
    from multiprocessing.connection import Connection

    def lock(descriptor: int) -> None:
        """Lock an open file until it is closed or the process ends; BlockingIOError if another process holds it."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync(path: str | Path) -> None:
        """Flush a file, or the names in a folder, to disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def inherit(handle: int) -> dict[str, Any]:
        """Options of `subprocess.Popen` for a child that inherits this pipe, but gets no Ctrl-C of the terminal."""
        return {"pass_fds": (handle,), "start_new_session": True}

    def limit_memory(count: int) -> None:
        """Disable core dumps and limit the address space to ``count`` bytes (0: no limit; not on Windows)."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # macOS does not enforce the limit, and rejects one below the mapped size.
        if count and sys.platform != "darwin":
            resource.setrlimit(resource.RLIMIT_AS, (count, count))

    def lower_priority(by: int) -> None:
        """Yield the CPU to other processes (not on Windows)."""
        os.nice(by)

    def _outlive(process: int) -> None:
        """Return when the parent has ended."""
        while os.getppid() == process:
            time.sleep(PARENT_CHECK)


def end_with(parent: int) -> None:
    """Exit this process when its parent dies, even in the middle of a job."""

    def watch() -> None:
        _outlive(parent)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def open_nonblocking(path: str, flags: int) -> int:
    """An ``opener`` that does not block: opening a FIFO would wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
