"""What a server is told when it starts."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SHORTEST_TOKEN", "ServerOptions", "is_loopback"]

# What is shorter can be guessed by trying.
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
    """Who may ask, what for, and how much at a time."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    """Host names, beside addresses and those of this machine, under which it may be asked."""
    allow: tuple[Path, ...] = ()
    """Folders below which index jobs may read."""
    token: str | None = None
    """What clients have to show; needed for any host that is not loopback."""
    model: str | None = None
    """For a library that is still to be made; default: the one that comes with prota."""
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
    """Seconds between two looks at whether the library has changed."""
    index_timeout: float = 300.0
    """Seconds that a video of an index job may take to decode."""
    ray: bool = False
    """Whether a Ray cluster, to which this process is connected, holds the library in parts."""
    shards: int = 0
    """Parts; 0: as many as the cluster and the library ask for."""
    deadline: float = 5.0
    """Seconds that a part may take to answer; the answer does without one that takes longer."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"others can reach {self.host}: give a token (--token) that they have to show")
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ValueError(
                f"a token of {len(self.token)} characters can be guessed; allowed: {SHORTEST_TOKEN} or more"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise ValueError("a token must be of letters, digits and signs of ASCII, without spaces")

    @property
    def roots(self) -> tuple[str, ...]:
        """The real paths of the folders that jobs may read."""
        return tuple(os.path.realpath(folder) for folder in self.allow)
