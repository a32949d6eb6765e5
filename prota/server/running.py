"""The application on a port."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from prota.errors import ProtaError
from prota.library.place import Where
from prota.server.app import create_app
from prota.server.options import ServerOptions

__all__ = ["run"]

# Seconds for what is being answered when the server is to end; followers of a job would stay for ever.
_GRACE = 3
# Seconds for the head of a request, from the first byte or from the connection on.
_HEAD = 10.0


class _Impatient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Who does not say what is wanted is not waited for: a thousand of them would leave no room for others."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._rest()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEAD, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def run(library: Where, options: ServerOptions) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    listening = _listen(options.host, options.port)
    host, port = options.host, listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
        host, f"[{host}]" if ":" in host else host
    )
    config = uvicorn.Config(
        create_app(library, options),
        http=_Impatient,
        log_level="warning",
        # Addresses hold what people look for, and once the token.
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE,
    )
    entrance = f"/?token={options.token}" if options.token else "/"
    print(f"serving {library} at http://{shown}:{port}{entrance} (Ctrl-C ends it)", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket of our own, so that the port is known, or refused with a sentence, before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise ProtaError(
            f"cannot listen at {host}:{port} ({error.strerror}): choose another --port or --host"
        ) from None
    listening.listen(512)
    return listening
