"""`prota serve`."""

from __future__ import annotations

import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Device, LibraryPlace, ModelName

__all__ = ["serve"]

Allowed = Annotated[
    list[Path] | None,
    typer.Option("--allow", metavar="ROOT", help="folder below which the page may index; may be repeated"),
]
Names = Annotated[
    list[str] | None, typer.Option("--name", help="host name under which it is also asked; may be repeated")
]
Token = Annotated[
    str | None,
    typer.Option(envvar="PROTA_TOKEN", help="what clients must show; made where a host that is not loopback needs one"),
]


def serve(
    library: LibraryPlace = "library",
    host: Annotated[str, typer.Option(help="address to listen at; 127.0.0.1: this machine only")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8000,
    allow: Allowed = None,
    token: Token = None,
    name: Names = None,
    max_upload: Annotated[int, typer.Option(min=1, help="megabytes of an uploaded clip or picture")] = 64,
    model: ModelName = None,
    device: Device = "auto",
) -> None:
    """Search a library in a browser: a page, and an API that is described at /docs."""
    missing = [module for module in ("fastapi", "uvicorn", "python_multipart") if find_spec(module) is None]
    if missing:
        raise RuntimeError(f"serving needs {', '.join(missing)}: pip install 'prota[serve]'")
    from prota.server.options import ServerOptions, is_loopback

    folders = [folder for folder in allow or [] if not folder.is_dir()]
    if folders:
        raise typer.BadParameter(f"--allow {folders[0]}: no such folder")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    try:
        options = ServerOptions(
            host=host, port=port, names=tuple(name or ()), allow=tuple(allow or ()), token=token, model=model,
            device=device, max_upload=max_upload * 2**20,
        )  # fmt: skip
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    from prota.server.running import run

    run(library, options)
