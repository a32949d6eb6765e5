"""Connecting to a Ray cluster."""

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
"""The address of a local cluster that is started for one command."""
# Seconds for a cluster to respond; Ray itself retries for minutes.
PATIENCE = 5.0
_HOST_AND_PORT = re.compile(r"\[?([\w.:-]+?)\]?:(\d{1,5})")


def is_address(text: str) -> bool:
    """Whether this is the address of a cluster."""
    return text in (LOCAL, "auto") or _HOST_AND_PORT.fullmatch(text) is not None


def check(address: str) -> None:
    """Raise if Ray is missing, or if the address is invalid or unreachable, without importing Ray."""
    if find_spec("ray") is None:
        raise MissingPackageError("--ray needs Ray: pip install 'ray[default]'")
    if address in (LOCAL, "auto"):
        return
    if (parts := _HOST_AND_PORT.fullmatch(address)) is None:
        raise UsageError(f"--ray {address}: invalid address", hint="give host:port, auto, or none for a local cluster")
    try:
        socket.create_connection((parts[1], int(parts[2])), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"cannot reach a Ray cluster at {address} ({one_line(error)})",
            hint="start one with `ray start --head`, or give --ray without an address",
        ) from None


@contextmanager
def connect(address: str = LOCAL) -> Iterator[str]:
    """Connect to a cluster: `local`, `auto` (running on this machine) or host:port; yields the URL of its dashboard.

    If the process is connected already, uses that connection and keeps it.
    """
    check(address)
    # Before Ray is loaded: its log messages would break the progress bar. Errors are raised anyway.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Without it, Ray warns of accelerators that workers without a GPU can see.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ""
        return
    try:
        with warnings.catch_warnings():
            # Lance warns of forks; those of Ray call exec at once.
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        # Ray sends its token only to a cluster that it found on this machine, not to a given address.
        found = address in (LOCAL, "auto")
        advice = "start one with `ray start`" if found else (
            "the port is open; for a cluster with a token, as `ray start` creates it, set RAY_AUTH_MODE=token and copy "
            "its ~/.ray/auth_token"
        )  # fmt: skip
        raise ClusterError(f"no Ray cluster at {address} ({one_line(error)})", hint=advice) from None
    try:
        yield f"http://{context.dashboard_url}" if context.dashboard_url else ""
    finally:
        ray.shutdown()
