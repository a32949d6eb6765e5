"""The application on a port."""

from __future__ import annotations

import socket

import uvicorn

from prota.library.place import Where
from prota.server.app import create_app
from prota.server.options import ServerOptions

__all__ = ["run"]

# Seconds for what is being answered when the server is to end; followers of a job would stay for ever.
_GRACE = 3


def run(library: Where, options: ServerOptions) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    listening = _listen(options.host, options.port)
    host, port = options.host, listening.getsockname()[1]
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(
        host, f"[{host}]" if ":" in host else host
    )
    config = uvicorn.Config(
        create_app(library, options),
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
        raise OSError(f"cannot listen at {host}:{port} ({error.strerror}): choose another --port or --host") from None
    listening.listen(512)
    return listening
