"""Differences of operating systems: locks, flushing to disk, opening files, child processes and their limits."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
import threading
import time
from collections.abc import Iterable
from io import FileIO
from multiprocessing import reduction
from pathlib import Path
from typing import Any

__all__ = [
    "Connection",
    "confine",
    "end_with",
    "inherit",
    "limit_memory",
    "limit_silence",
    "lock",
    "lower_priority",
    "open_nonblocking",
    "open_without_links",
    "receive_file",
    "send_file",
    "sync",
    "unconfined",
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

    def send_file(connection: Connection[Any, Any], descriptor: int, process: int) -> None:
        reduction.send_handle(connection, msvcrt.get_osfhandle(descriptor), process)

    def receive_file(connection: Connection[Any, Any]) -> int:
        return msvcrt.open_osfhandle(reduction.recv_handle(connection), os.O_RDONLY)

    def open_without_links(path: str) -> tuple[FileIO, bool]:
        # Windows opens no names below an open folder.
        return FileIO(path, opener=open_nonblocking), True

    def limit_silence(connection: Connection[Any, Any], seconds: int) -> None:
        pass

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
    import socket
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

    def send_file(connection: Connection[Any, Any], descriptor: int, process: int) -> None:
        """Give an open file to the process at the other end, which calls `receive_file`."""
        reduction.send_handle(connection, descriptor, process)

    def receive_file(connection: Connection[Any, Any]) -> int:
        """The descriptor of a file that the process at the other end sends."""
        return reduction.recv_handle(connection)

    def open_without_links(path: str) -> tuple[FileIO, bool]:
        """Open a file once, without blocking; and whether a part of its path is a link, or cannot be checked."""
        *folders, name = Path(path).parts
        parent = os.open(folders[0], os.O_RDONLY)
        try:
            for folder in folders[1:]:
                below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = below
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return FileIO(os.open(name, flags, dir_fd=parent), "rb"), False
        except OSError as error:
            # A folder that may be entered but not read.
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK, errno.EACCES):
                raise
            return FileIO(path, opener=open_nonblocking), True
        finally:
            os.close(parent)

    def limit_silence(connection: Connection[Any, Any], seconds: int) -> None:
        """Raise BlockingIOError if the other end stops in the middle of a message (not on Windows)."""
        with socket.socket(fileno=os.dup(connection.fileno())) as end:
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", seconds, 0))

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


# Landlock (since Linux 5.13): system calls, which all architectures number alike, and flags, from linux/landlock.h.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ONLY_VERSION, _BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Rights to files that exist in version 1, 2, …; later versions have those of the last.
_FILE_RIGHTS = tuple((1 << count) - 1 for count in (13, 14, 15, 15, 16))
# seccomp: the architecture as the kernel numbers it, and what programs, networks, other processes and the attributes of
# files are reached by. By number: x86-64, AArch64.
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FORBIDDEN = {
    "socket": (41, 198), "socketpair": (53, 199), "bind": (49, 200), "listen": (50, 201), "connect": (42, 203),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "truncate": (76, 45),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97), "setns": (308, 268),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}  # fmt: skip
_CLONE, _CLONE3, _LIMITS, _NEW_THREAD = (56, 220), 435, (302, 261), 0x10000
_NO_NEW_PRIVILEGES, _GET_SECCOMP, _SET_SECCOMP, _FILTER = 38, 21, 22, 2
_ALLOW, _REFUSE, _MISSING, _KILL = 0x7FFF0000, 0x50000 + 1, 0x50000 + 38, 0x80000000


def unconfined() -> str:
    """Why `confine` cannot confine processes here; empty if it can."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES or struct.calcsize("P") != 8:
        return "needs Linux on x86-64 or AArch64"
    try:
        _landlock_version()
        _prctl(_GET_SECCOMP)
    except OSError as error:
        return f"Landlock and seccomp are not available: {error.strerror}"
    return ""


def confine(readable: Iterable[Path]) -> str:
    """Take rights from this process for good: it can use what is open, and read below ``readable``.

    It cannot open other files, write, connect to networks, start programs or reach other processes. Returns why it is
    not confined; empty if it is.
    """
    if reason := unconfined():
        return reason
    if len(os.listdir("/proc/self/task")) > 1:
        # Landlock confines a thread and those that it starts.
        return "other threads are running"
    try:
        _prctl(_NO_NEW_PRIVILEGES, 1)
        _restrict_files(readable)
        _drop_capabilities()
        _filter_calls(list(_ARCHITECTURES).index(platform.machine()))
    except OSError as error:
        return str(error.strerror)
    return ""


def _landlock_version() -> int:
    return _call(_CREATE_RULESET, None, 0, _ONLY_VERSION)


def _restrict_files(readable: Iterable[Path]) -> None:
    version = _landlock_version()
    rights = _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]
    # Also TCP, and sockets and signals of processes outside.
    attributes = struct.pack("QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    rules = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for folder in readable:
            place = os.open(folder, os.O_RDONLY)
            try:
                _call(_ADD_RULE, rules, _BENEATH, struct.pack("=Qi", _READ_FILE | _READ_FOLDER, place), 0)
            finally:
                os.close(place)
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _drop_capabilities() -> None:
    """Those of root, such as to mount and to ignore permissions."""
    third_version, this_thread, none = 0x20080522, 0, bytes(24)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(struct.pack("=Ii", third_version, this_thread), none):
        raise _last_error()


def _filter_calls(machine: int) -> None:
    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, at_least, any_bit, answer = 0x20, 0x15, 0x35, 0x45, 0x06
    # Of struct seccomp_data: the number of the call, the architecture, the first argument.
    number, architecture, first = 0, 4, 16
    program = [step(load, architecture), step(equal, list(_ARCHITECTURES.values())[machine], 1, 0)]
    program += [step(answer, _KILL), step(load, number)]
    if machine == 0:
        # Other calls of x86-64, with numbers of their own (x32).
        program += [step(at_least, 0x40000000, 0, 1), step(answer, _REFUSE)]
    for numbers in _FORBIDDEN.values():
        if (forbidden := numbers[machine]) is not None:
            program += [step(equal, forbidden, 0, 1), step(answer, _REFUSE)]
    # Without clone3, whose flags a filter cannot see, the C library calls clone, which may start threads only.
    program += [step(equal, _CLONE3, 0, 1), step(answer, _MISSING)]
    # Limits of this process only.
    for call, allowed in ((_CLONE[machine], step(any_bit, _NEW_THREAD, 1)), (_LIMITS[machine], step(equal, 0, 1))):
        program += [step(equal, call, 0, 4), step(load, first), allowed, step(answer, _REFUSE), step(answer, _ALLOW)]
    program.append(step(answer, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(program))
    _prctl(_SET_SECCOMP, _FILTER, struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))


def _prctl(option: int, *values: int | bytes) -> None:
    given = [value if isinstance(value, bytes) else ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if ctypes.CDLL(None, use_errno=True).prctl(option, *given) < 0:
        raise _last_error()


def _call(number: int, *values: int | bytes | None) -> int:
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result: int = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise _last_error()
    return result


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
