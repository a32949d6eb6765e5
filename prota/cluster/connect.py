"""Finding Ray, and connecting to a cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from prota.errors import ClusterError, MissingPackageError, UsageError, one_line

__all__ = ["LOCAL", "check", "connect", "is_address"]

LOCAL = "local"
"""The address that stands for a cluster of this machine alone, started for one command."""
# Seconds for a cluster to answer; Ray itself would try for minutes.
PATIENCE = 5.0
_HOST_AND_PORT = re.compile(r"\[?([\w.:-]+?)\]?:(\d{1,5})")


def is_address(text: str) -> bool:
    """Whether this can be where a cluster is."""
    return text in (LOCAL, "auto") or _HOST_AND_PORT.fullmatch(text) is not None


def check(address: str) -> None:
    """RuntimeError or ValueError where there cannot be a cluster; costs nothing, unlike finding out by connecting."""
    if find_spec("ray") is None:
        raise MissingPackageError("--ray needs Ray: pip install 'ray[default]'")
    if address in (LOCAL, "auto"):
        return
    if (parts := _HOST_AND_PORT.fullmatch(address)) is None:
        raise UsageError(f"--ray {address} is no address of a cluster: give host:port, auto, or nothing to start one")
    try:
        socket.create_connection((parts[1], int(parts[2])), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address} ({one_line(error)}): start one with `ray start --head`, "
            "or leave the address out"
        ) from None


@contextmanager
def connect(address: str = LOCAL) -> Iterator[str]:
    """Be connected to a cluster: `local`, `auto` (one that runs on this machine) or host:port; gives its dashboard.

    Where the process is connected already, that cluster is used and left as it is.
    """
    check(address)
    # Before Ray is loaded: its own words about every task would break the progress bar. What goes wrong is raised.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # It warns of accelerators that a worker may see although it asked for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ""
        return
    try:
        with warnings.catch_warnings():
            # Lance warns of forks; those that start Ray's processes become other programs at once.
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        # Ray shows its token by itself to a cluster that it found on this machine, never to an address that was given.
        found = address in (LOCAL, "auto")
        advice = "start one with `ray start`" if found else (
            "somebody answers there; where that is a cluster with a token, as `ray start` makes it, set "
            "RAY_AUTH_MODE=token and have its ~/.ray/auth_token"
        )  # fmt: skip
        raise ClusterError(f"no Ray cluster at {address} ({one_line(error)}): {advice}") from None
    try:
        yield f"http://{context.dashboard_url}" if context.dashboard_url else ""
    finally:
        ray.shutdown()
