"""Processes that tests start, and how tests wait: for an event, never for a time of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import pytest
from torch import multiprocessing

REPOSITORY = Path(__file__).resolve().parent.parent
LIMIT = float(os.environ.get("PROTA_TEST_LIMIT", "300"))
"""Seconds that anything may take that a test waits for: far more than it takes beside other work. A machine for which
it is too little sets PROTA_TEST_LIMIT."""
# What waits without a limit of its own, for a line or for the end of a process, is ended by pytest-timeout.
os.environ.setdefault("PYTEST_TIMEOUT", str(2 * LIMIT))


posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="not on Windows")
not_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything is readable for root")


def wait_until(true: Callable[[], object], pause: float = 0.01) -> None:
    until = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < until, f"it did not happen in {LIMIT:g} s"
        time.sleep(pause)


def gone(number: int) -> bool:
    """Not running any more; a process that only waits to be reaped by another counts as gone."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def in_processes(work: Callable[..., None], count: int, *arguments: object) -> None:
    """Run it with each number below `count`, in so many processes: copies of one that has loaded what takes seconds."""
    set_forkserver_preload(["prota.evaluation.report", "transformers.models.clip.modeling_clip"])
    multiprocessing.start_processes(work, args=arguments, nprocs=count, start_method="forkserver")


@contextmanager
def python(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A fresh Python that has this repository's modules; it ends with the block at the latest."""
    options = {"cwd": REPOSITORY, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    process = subprocess.Popen([sys.executable, *map(str, arguments)], **options)
    with process:
        try:
            yield process
        finally:
            process.kill()
