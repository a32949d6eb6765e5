"""The options of a server."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from prota.errors import UsageError

__all__ = ["ServerOptions", "is_loopback"]

# Characters; shorter tokens can be guessed.
_SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class ServerOptions:
    """Access, limits and device of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ()
    """Host names that clients may use, besides addresses and the names of this machine."""
    allow: tuple[Path, ...] = ()
    """Folders below which index jobs may read."""
    token: str | None = None
    """Token of clients that may do everything; required unless the host is loopback."""
    search_token: str | None = None
    """Token of clients that may search and watch only."""
    rate: float = 0.0
    """Requests per second of one client address on average, and four times as many at once; 0: no limit."""
    access_log: str = ""
    """File that gets a line for each request, without queries and tokens; ``-``: standard error; empty: none."""
    tls_certificate: Path | None = None
    """PEM file with the certificate and its chain, to speak HTTPS."""
    tls_key: Path | None = None
    """PEM file with its private key; default: in the file of the certificate."""
    model: str | None = None
    """Model for a new library; default: the shipped model."""
    device: str = "auto"
    max_upload: int = 64 * 2**20
    """Maximum size of an upload in bytes."""
    decode_timeout: float = 20.0
    """Time limit in seconds for decoding an upload or a frame."""
    decode_memory: int = 4 * 2**30
    """Memory limit in bytes for decoding an upload or a video to play."""
    play_timeout: float = 60.0
    """Time limit in seconds for decoding and encoding a few seconds of a video to play."""
    max_pixels: int = 50_000_000
    """Maximum size of the frames of an upload."""
    body_timeout: float = 120.0
    """Time limit in seconds for receiving the body of a request."""
    body_silence: float = 20.0
    """Maximum time in seconds between two pieces of a body."""
    queue_limit: int = 130
    """Maximum number of running and waiting requests; more are rejected with 503."""
    cached: int = 512
    """Size of the cache of answers, and of that of encoded texts."""
    refresh: float = 2.0
    """Seconds between checks for a new version of the library."""
    index_timeout: float = 300.0
    """Time limit in seconds for decoding a video in an index job."""
    ray: bool = False
    """Distribute the library over the connected Ray cluster."""
    shards: int = 0
    """Number of shards; 0: by the size of the cluster and the library."""
    deadline: float = 5.0
    """Time limit in seconds for a shard; answers omit shards that take longer."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise UsageError(f"{self.host} is reachable from other machines: give a token (--token)")
        for token in (self.token, self.search_token):
            if token is not None and len(token) < _SHORTEST_TOKEN:
                raise UsageError(f"the token has {len(token)} characters; give at least {_SHORTEST_TOKEN}")
            if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
                raise UsageError("the token must consist of printable ASCII characters without spaces")
        if self.search_token is not None and self.search_token == self.token:
            raise UsageError("the token and the token for searching must differ")
        if self.search_token is not None and self.token is None:
            raise UsageError("a token for searching needs another one for everything else (--token)")
        if self.tls_key is not None and self.tls_certificate is None:
            raise UsageError("a TLS key needs its certificate (--tls-certificate)")

    @property
    def roots(self) -> tuple[str, ...]:
        """The real paths of the folders that jobs may read."""
        return tuple(os.path.realpath(folder) for folder in self.allow)
