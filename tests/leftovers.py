"""What a test run started and has not ended, and a watcher that ends it when the run is killed.

Every process that descends from a run has the run's mark in its environment, whoever started it: a test, Ray, a
browser. Environments are read from /proc: on systems without it nothing is found, and only the fixtures clean up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NAME = "PROTA_TEST_RUN"


def marked(mark: str) -> dict[int, str]:
    """Commands of the living processes with this mark, NAME=value, but for this one."""
    found, wanted = {}, mark.encode()
    for process in Path("/proc").glob("[0-9]*"):
        number = int(process.name)
        try:
            # A process that has ended, and waits for its parent to notice, has no environment any more.
            if number != os.getpid() and wanted in (process / "environ").read_bytes().split(b"\0"):
                found[number] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def end(mark: str) -> None:
    """Kill all processes with this mark, and those that they start meanwhile."""
    quiet = 0
    # One that is just becoming another program has no environment at that moment.
    while quiet < 3:
        found = marked(mark)
        quiet = 0 if found else quiet + 1
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)


def watch() -> tuple[str, subprocess.Popen[bytes]]:
    """Mark all that this process starts from now on; what remains of it ends with this process, however that dies.

    Gives the mark and the watcher, which ends when its input does.
    """
    value = f"{os.getpid()}-{time.monotonic_ns()}"
    mark = f"{NAME}={value}"
    watcher = subprocess.Popen([sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True)
    os.environ[NAME] = value
    return mark, watcher


if __name__ == "__main__":
    # It ends when nobody is left who could write to the other side of this pipe.
    sys.stdin.read()
    end(sys.argv[1])
