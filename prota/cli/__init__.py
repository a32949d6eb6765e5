"""The command line: one thin file per command; each imports what it needs when it runs."""

from __future__ import annotations

import errno
import io
import os
import platform
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer

import prota
from prota.cli import (
    ablate,
    calibrate,
    data,
    evaluate,
    export,
    figure,
    index,
    library,
    match,
    samples,
    search,
    serve,
    train,
)
from prota.cli.options import INTERRUPTED, RayCommand
from prota.errors import ProtaError, one_line

__all__ = ["app", "main"]

# What a disk, a path or a connection can answer; other errors of the system are not a user's to mend.
_SYSTEM = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE),
    *(errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH),
}

# Wherever typer keeps it, of its own or of click's: what all mistakes in a command line are.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="prota",
    help="ProTA: probabilistic token aggregation for text-video retrieval.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(ablate.ablate)
app.command()(calibrate.calibrate)
app.command()(export.export)
app.add_typer(figure.app, name="figure")
app.command(cls=RayCommand)(index.index)
app.command()(search.search)
app.command()(match.match)
app.command(cls=RayCommand)(serve.serve)
app.add_typer(library.app, name="library")
app.command()(samples.samples)


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"prota {prota.__version__}, Python {platform.python_version()}, torch {version('torch')}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="show the version and exit")
    ] = False,
) -> None: ...


def main() -> None:
    """Run a command. Exit status: 2 for wrong usage, 1 for a failure, each with one line; 130 for Ctrl-C.

    What no user can mend is a bug, and gets a traceback.
    """
    # Before torch is loaded: its threads sleep between operations instead of spinning, which would take the cores from
    # the decoders that work beside them.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no quotation marks or bars shows others instead.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        # Of Ctrl-C typer makes this code.
        code = app(standalone_mode=False)
    except _UsageError as error:
        _refuse(error)
    except ProtaError as error:
        if "PROTA_TRACEBACK" in os.environ:
            raise
        _fail(one_line(error), error.exit_status)
    except OSError as error:
        if "PROTA_TRACEBACK" in os.environ or error.errno not in _SYSTEM:
            _report_bug()
        _fail(one_line(error), 1)
    except MemoryError:
        _fail("out of memory", 1)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            # torch's, which is not imported for this.
            _fail(f"out of memory on the GPU: {one_line(error)}", 1)
        _report_bug()
    if code == INTERRUPTED:
        # A command that goes on later says so, and exits by itself.
        _fail_once("interrupted; nothing that was there before is lost", code)
    sys.exit(code if isinstance(code, int) else 0)


def _report_bug() -> NoReturn:
    """Called where an exception is being handled."""
    traceback.print_exc()
    _fail(f"this is a bug in prota {prota.__version__}: please report it with the lines above", 1)


def _refuse(error: Any) -> NoReturn:
    """What typer would put into a box of five lines."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(2)
    command = error.ctx.command_path if error.ctx is not None else "prota"
    _fail_once(f"{error.format_message()} ({command} --help tells more)", 2)


def _fail_once(message: str, code: int) -> NoReturn:
    """What all processes of torchrun say alike, by the first of them."""
    if os.environ.get("RANK", "0") != "0":
        sys.exit(code)
    _fail(message, code)


def _fail(message: str, code: int) -> NoReturn:
    print(f"prota: {message}", file=sys.stderr)
    sys.exit(code)
