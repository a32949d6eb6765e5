"""The options of a server."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from prota.errors import UsageError

__all__ = ["SHORTEST_TOKEN", "ServerOptions", "is_loopback"]

# Shorter tokens can be guessed.
SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class ServerOptions:
    """Access, limits and devices of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    """Host names that clients may use, besides addresses and the names of this machine."""
    allow: tuple[Path, ...] = ()
    """Folders below which index jobs may read."""
    token: str | None = None
    """Clients must send it; required for any host that is not loopback."""
    model: str | None = None
    """For a library that does not exist yet; default: the model shipped with prota."""
    device: str = "auto"
    max_upload: int = 64 * 2**20
    """Bytes."""
    decode_timeout: float = 20.0
    """Seconds that an uploaded clip may take to decode."""
    decode_memory: int = 4 * 2**30
    """Bytes that decoding it may take."""
    max_pixels: int = 50_000_000
    """Of an uploaded picture."""
    queue_limit: int = 130
    """Requests about the library that may run or wait; more are rejected, to be sent again later."""
    cached: int = 512
    """Answers, and encoded texts, that are cached."""
    refresh: float = 2.0
    """Seconds between checks for a new version of the library."""
    index_timeout: float = 300.0
    """Seconds that a video of an index job may take to decode."""
    ray: bool = False
    """Distribute the library over the Ray cluster that this process is connected to."""
    shards: int = 0
    """Parts of the library; 0: by the size of the cluster and the library."""
    deadline: float = 5.0
    """Seconds that a part may take to answer; the answer leaves out parts that take longer."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(f"others can reach {self.host}: give a token (--token) that clients must send")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise UsageError(
                f"a token of {len(self.token)} characters can be guessed; allowed: {SHORTEST_TOKEN} or more"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UsageError("a token must be of letters, digits and signs of ASCII, without spaces")

    @property
    def roots(self) -> tuple[str, ...]:
        """The real paths of the folders that jobs may read."""
        return tuple(os.path.realpath(folder) for folder in self.allow)
