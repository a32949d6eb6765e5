"""What workers do in the tests. A module of its own, because a worker imports it, and tests import torch."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import av
import numpy as np

from prota.video.decode import decode_chosen
from prota.video.opening import opened
from prota.video.sampling import uniform_indices
from prota.video.timeline import Picture, Timeline


def double(number: int) -> int:
    return 2 * number


def misbehave(kind: str) -> str:
    """What a job may do."""
    if kind == "hang":
        threading.Event().wait()
    elif kind == "exit":
        os._exit(3)
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "quit":
        sys.exit(4)
    elif kind == "raise":
        raise ValueError("not a video:\n  it is a cake")
    elif kind == "lambda":
        return lambda: None  # type: ignore[return-value]
    return f"{kind} by {os.getpid()}"


def begin_a_result(_: object) -> None:
    """Send the length of a result and none of it, as a decoder that was taken over may do."""
    os.write(int(sys.argv[1]), struct.pack("!i", 1000))
    threading.Event().wait()


def hang(_: object) -> None:
    threading.Event().wait()


def large(megabytes: int) -> np.ndarray[Any, Any]:
    return np.full((megabytes, 2**20), megabytes, dtype=np.uint8)


def note_and_hang(_: object) -> None:
    """Tell our process number, so that a test can see when we are gone."""
    os.write(2, f"{os.getpid()}\n".encode())
    threading.Event().wait()


def decode_all(path: Path) -> tuple[Timeline, list[Picture]]:
    """The timeline and all frames."""
    timeline, _, frames = decode_chosen(path, lambda timeline: range(len(timeline.times)))
    return timeline, frames


def decode_uniform(path: Path) -> tuple[int, int, list[tuple[int, ...]], tuple[int, int]]:
    """A job: frames in the timeline, frames chosen, their shapes, the size that the timeline names."""
    timeline, chosen, frames = decode_chosen(
        path, lambda timeline: uniform_indices(timeline.times, timeline.duration, 12).tolist()
    )
    shapes = sorted({frame.shape for frame in frames})
    return len(timeline.times), len(chosen), shapes, (timeline.height, timeline.width)


def attempts(path: Path) -> dict[str, str]:
    """What a decoder that was taken over may try, given a file: the outcome of each, by name."""
    libc = ctypes.CDLL(None, use_errno=True)
    beside, folder = path.parent / "planted.mp4", path.parent
    tries: dict[str, Callable[[], Any]] = {
        "read the given file": lambda: opened_bytes(path),
        "import": lambda: importlib.import_module("wave").__name__,
        "open by path": lambda: path.read_bytes(),
        "open another": lambda: beside.read_bytes(),
        "open another in C": lambda: _checked(libc.open(bytes(beside), os.O_RDONLY)),
        "open through proc": lambda: Path("/proc/self/root" + str(beside)).read_bytes(),
        "open for writing": lambda: os.open(beside, os.O_RDWR),
        "create": lambda: (folder / "new").touch(),
        "create among the code": lambda: Path(os.__file__).with_name("new").touch(),
        "remove": lambda: beside.unlink(),
        "rename": lambda: beside.rename(folder / "renamed"),
        "truncate": lambda: os.truncate(beside, 0),
        "permit": lambda: os.chmod(beside, 0),
        "date": lambda: os.utime(beside, (0, 0)),
        "list": lambda: os.listdir(folder),
        "memory of the parent": lambda: os.open(f"/proc/{os.getppid()}/mem", os.O_RDONLY),
        "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
        "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "local socket": lambda: socket.socket(socket.AF_UNIX),
        "process": os.fork,
        "program": lambda: os.execv(sys.executable, [sys.executable, "-V"]),
        "signal": lambda: os.kill(os.getppid(), 0),
        "trace": lambda: _checked(libc.ptrace(16, os.getppid(), None, None)),
        "limits of the parent": lambda: resource_limit(os.getppid()),
        "from a thread": _in_thread(lambda: beside.read_bytes()),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            found[name] = f"done: {attempt()!r}"
        except OSError as error:
            found[name] = errno.errorcode[error.errno or 0]
    return found


def readable_frames(path: Path) -> int:
    """How many frames FFmpeg shows of a file, or of what is left of it."""
    count = 0
    with opened(path) as file, av.open(file, metadata_errors="replace") as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"err_detect": "explode"}
        for packet in container.demux(stream):
            with suppress(av.FFmpegError):
                count += len(packet.decode())
    return count


def opened_bytes(path: Path) -> bytes:
    with opened(path) as file:
        return file.read()


def resource_limit(process: int) -> object:
    import resource

    return resource.prlimit(process, resource.RLIMIT_CORE)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "failed")
    return result


def _in_thread(attempt: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(attempt).result()

    return run


def environment(_: object) -> list[str]:
    return sorted(os.environ)


class Forged:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def forge(folder: str) -> Forged:
    return Forged(folder)
