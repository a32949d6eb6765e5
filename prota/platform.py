"""What operating systems do differently: locks, flushing to disk, opening without waiting, child processes."""

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

    # Beyond the content: on Windows nobody else can read the bytes that are locked.
    _LOCKED = 2**30

    def lock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(*error.args) from None

    def sync(path: str | Path) -> None:
        # Windows flushes only what is open for writing, and no folders: NTFS logs names itself.
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
        """Flush a file or a folder (the names in it) to disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def inherit(handle: int) -> dict[str, Any]:
        """Options of `subprocess.Popen` for a child that gets this handle of a pipe, but no Ctrl-C of the terminal."""
        return {"pass_fds": (handle,), "start_new_session": True}

    def limit_memory(count: int) -> None:
        """Of this process: no core dumps, and at most ``count`` bytes of address space (0: any; not on Windows)."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # macOS does not enforce a limit of the address space, and refuses one below what is mapped.
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
    """Exit this process when its parent dies, even in the middle of a job: a killed parent cannot tell."""

    def watch() -> None:
        _outlive(parent)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def open_nonblocking(path: str, flags: int) -> int:
    """An ``opener`` that does not wait: opening a pipe (FIFO) in a file's place would wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
