"""A stub of Windows: importing this takes from prota and its tests what Python lacks there; other packages keep it.

`python -m pytest -p tests.windows` runs tests so; the processes that they start run as on Linux.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import importlib
import os
import signal
import socket
import subprocess  # noqa: F401 (as that of Linux: it looks for msvcrt)
import sys
from multiprocessing import connection, reduction
from types import ModuleType
from typing import Any
from unittest import mock

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
NAMES = {
    os: {
        "O_CLOEXEC", "O_DIRECTORY", "O_DSYNC", "O_NOATIME", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "chown",
        "chroot", "fchmod", "fchown", "fdatasync", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups",
        "getloadavg", "getpgid", "getpgrp", "getpriority", "getsid", "getuid", "killpg", "lchown", "lockf", "mkfifo",
        "mknod", "nice", "openpty", "posix_fadvise", "posix_fallocate", "posix_spawn", "pread", "preadv", "pwrite",
        "pwritev", "readv", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sendfile", "setpgid",
        "setpriority", "setsid", "statvfs", "sync", "sysconf", "uname", "wait", "wait3", "wait4", "writev",
    },
    signal: {"SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1", "SIGUSR2", "alarm", "pause", "setitimer"},
    socket: {"AF_UNIX", "recv_fds", "send_fds"},
}  # fmt: skip


def _ours(space: dict[str, Any] | None) -> bool:
    name = (space or {}).get("__name__", "")
    return name != __name__ and name.split(".")[0] in ("prota", "tests")


def _without(names: set[str]) -> type[ModuleType]:
    class Windows(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in names and _ours(sys._getframe(1).f_globals):
                raise AttributeError(f"Windows has no {name}", name=name, obj=self)
            return super().__getattribute__(name)

    return Windows


def _msvcrt() -> ModuleType:
    """Its `locking`, by a lock of Linux; where another has it, EACCES."""

    def locking(descriptor: int, mode: int, count: int) -> None:
        try:
            fcntl.flock(descriptor, mode)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error

    module: Any = ModuleType("msvcrt")
    module.locking, module.LK_NBLCK = locking, fcntl.LOCK_EX | fcntl.LOCK_NB
    return module


def _apply() -> None:
    # Modules that are imported already keep what they took.
    assert not [name for name in sys.modules if name.startswith("prota.")]
    import_, open_, fsync = builtins.__import__, os.open, os.fsync

    def imported(name: str, globals: Any = None, *arguments: Any, **options: Any) -> ModuleType:
        if name in MODULES and _ours(globals):
            raise ModuleNotFoundError(f"Windows has no {name}", name=name)
        return import_(name, globals, *arguments, **options)

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        if _ours(sys._getframe(1).f_globals) and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open_(path, *arguments, **options)

    def flushed(file: Any) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(file)

    builtins.__import__, os.open, os.fsync = imported, opened, flushed
    for module, names in NAMES.items():
        module.__class__ = _without(names)
    # Only this module asks which system it runs on.
    connection.PipeConnection = connection.Connection
    sys.modules["msvcrt"] = _msvcrt()
    with mock.patch("sys.platform", "win32"):
        platform: Any = importlib.import_module("prota.platform")
    del sys.modules["msvcrt"]
    # Processes are those of Linux.
    platform.send_file, platform.receive_file = reduction.send_handle, reduction.recv_handle
    platform.inherit = lambda handle: {"pass_fds": (handle,), "start_new_session": True}


_apply()
