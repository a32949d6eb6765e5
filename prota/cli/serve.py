"""`prota serve`."""

from __future__ import annotations

import secrets
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device, LibraryPlace, ModelName, RayAddress, connected, require_model, warn_unconfined
from prota.errors import MissingPackageError, one_line

__all__ = ["serve"]

# A page shows 24 thumbnails at a time, and four times the rate may come at once.
_RATE = 50.0

Allowed = Annotated[
    list[Path] | None,
    typer.Option("--allow", metavar="FOLDER", help="folder that the page may index; may be repeated"),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--name", metavar="HOST", help="host name of this server, such as that of a TLS proxy; may be repeated"
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="PROTA_TOKEN",
        metavar="TOKEN",
        help="token that clients must send, or @FILE; by default one is generated if --host is not loopback",
        show_envvar=True,
    ),
]
SearchToken = Annotated[
    str | None,
    typer.Option(
        envvar="PROTA_SEARCH_TOKEN", metavar="TOKEN", help="token of clients that may search only, or @FILE",
        show_envvar=True,
    ),
]  # fmt: skip
Rate = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="N",
        help=f"requests per second of one client address; 0: no limit; default: {_RATE:g} if --host is not loopback",
        show_default=False,
    ),
]  # fmt: skip
AccessLog = Annotated[
    str,
    typer.Option(metavar="FILE", help="log of requests, without queries and tokens; -: standard error; default: none"),
]
Certificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate and its chain, to speak HTTPS")
]
Key = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM file with the private key; default: in the certificate's file")
]


def serve(
    library: LibraryPlace = "library",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="address to listen on; 127.0.0.1: this machine only")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="port; 0: any free one")] = 8000,
    allow: Allowed = None,
    token: Token = None,
    search_token: SearchToken = None,
    rate: Rate = None,
    access_log: AccessLog = "",
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    name: Names = None,
    max_upload: Annotated[int, typer.Option(min=1, metavar="MB", help="maximum size of an uploaded file")] = 64,
    model: ModelName = None,
    device: Device = "auto",
    ray: RayAddress = None,
    shards: Annotated[
        int, typer.Option(min=0, metavar="N", help="with --ray: number of shards; 0: by the size of the library")
    ] = 0,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="SECONDS", help="with --ray: time limit for a shard to answer; default: 5"),
    ] = None,
) -> None:
    """Search a library in a browser. The HTTP API is described at /docs."""
    needed = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")
    missing = [package for package in needed if find_spec(package.replace("-", "_")) is None]
    if missing:
        raise MissingPackageError(f"serving needs {', '.join(missing)}: pip install {' '.join(missing)}")
    if model is not None:
        require_model(model)
    if ray is not None:
        from prota.cluster.connect import check

        check(ray)
    elif shards or deadline is not None:
        raise typer.BadParameter("--shards and --deadline need --ray")
    from prota.server.options import ServerOptions, is_loopback

    folders = [folder for folder in allow or [] if not folder.is_dir()]
    if folders:
        raise typer.BadParameter(f"--allow {folders[0]}: no such folder")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    if rate is None:
        rate = 0.0 if is_loopback(host) else _RATE
    options = ServerOptions(
        host=host, port=port, names=tuple(name or ()), allow=tuple(allow or ()), token=_secret(token),
        search_token=_secret(search_token), rate=rate, access_log=access_log, tls_certificate=tls_certificate,
        tls_key=tls_key, model=model,
        device=device, max_upload=max_upload * 2**20, ray=ray is not None, shards=shards,
        deadline=ServerOptions.deadline if deadline is None else deadline,
    )  # fmt: skip
    from prota.library.storage.location import Location
    from prota.server.app import run

    warn_unconfined()
    # Storage that does not respond now may do so later.
    with suppress(OSError, ValueError):
        if not allow and not Location.of(library).exists("library.json"):
            typer.echo(
                f"no library at {library} yet: create one with `prota index FOLDER --library {library}`", err=True
            )
    with connected(ray) if ray is not None else nullcontext():
        run(library, options)


def _secret(given: str | None) -> str | None:
    """A token, or the content of the file that is named after an @."""
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read the token in {given[1:]}: {one_line(error)}") from None
