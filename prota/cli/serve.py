"""`prota serve`."""

from __future__ import annotations

import secrets
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device, LibraryPlace, ModelName, RayAddress, connected, require_model, warn_unconfined
from prota.errors import MissingPackageError

__all__ = ["serve"]

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
        help="token that clients must send; by default one is generated if --host is not loopback",
    ),
]


def serve(
    library: LibraryPlace = "library",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="address to listen on; 127.0.0.1: this machine only")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="port; 0: any free one")] = 8000,
    allow: Allowed = None,
    token: Token = None,
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
    options = ServerOptions(
        host=host, port=port, names=tuple(name or ()), allow=tuple(allow or ()), token=token, model=model,
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
