"""The command line: one file per command. A command imports heavy packages only after it has checked its arguments."""

from __future__ import annotations

import errno
import io
import os
import platform
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import prota
from prota.cli import (
    ablate,
    calibrate,
    cut,
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
from prota.cli.commands import App, RayCommand
from prota.cli.options import INTERRUPTED
from prota.errors import NotFoundError, ProtaError, one_line

__all__ = ["app", "main"]

# Errors of disks, paths and connections, which a user can fix; other errors of the system are bugs.
_SYSTEM = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP, errno.EMFILE, errno.ENFILE),
    *(errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH),
}

# The base of all usage errors; it is typer's own or click's, depending on the version of typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_NEXT = {
    False: """\
  prota samples clips                        copy sample clips to a folder, or use a folder of yours
  prota index clips                          create a library from it
  prota search "a dog jumps into water"      search the library
  prota serve                                search it in a browser
""",
    True: """\
  prota search "a dog jumps into water"      search the library of this folder
  prota serve                                search it in a browser
  prota index FOLDER                         add videos and pictures
""",
}
_MORE = """
All commands: prota --help. Options of one: prota search --help.
Completion in your shell: prota --install-completion.
"""

_EPILOG = """\
Exit status: 0 success; 1 failure, such as a missing file or a corrupt library; 2 wrong usage, such as an unknown \
option or an invalid setting; 130 interrupted with Ctrl-C. Errors are one line on stderr, results are on stdout.

Completion of commands and options: prota --install-completion (bash, zsh, fish, PowerShell), then restart the shell.
"""

app = App(name="prota", help="Search videos with natural language; train and evaluate such models.", epilog=_EPILOG)
_SEARCH, _TRAIN = "Search", "Train and evaluate"
app.command(rich_help_panel=_SEARCH)(samples.samples)
app.command(rich_help_panel=_SEARCH, cls=RayCommand)(index.index)
app.command(rich_help_panel=_SEARCH)(search.search)
app.command(rich_help_panel=_SEARCH, cls=RayCommand)(serve.serve)
app.command(rich_help_panel=_SEARCH)(match.match)
app.command(rich_help_panel=_SEARCH)(cut.cut)
app.add_typer(library.app, name="library", rich_help_panel=_SEARCH)
app.add_typer(data.app, name="data", rich_help_panel=_TRAIN)
app.command(rich_help_panel=_TRAIN)(train.train)
app.command(rich_help_panel=_TRAIN)(evaluate.evaluate)
app.command(rich_help_panel=_TRAIN)(calibrate.calibrate)
app.command(rich_help_panel=_TRAIN)(export.export)
app.command(rich_help_panel=_TRAIN)(ablate.ablate)
app.add_typer(figure.app, name="figure", rich_help_panel=_TRAIN)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"prota {prota.__version__}, Python {platform.python_version()}, torch {version('torch')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _first_steps(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="show the version and exit")
    ] = False,
) -> None:
    """Without a command: show what to do next, and succeed."""
    if context.invoked_subcommand is None:
        here = Path("library", "library.json").is_file()
        typer.echo(f"ProTA {prota.__version__}: search videos with natural language.\n\n{_NEXT[here]}{_MORE}")


def main() -> None:
    """Run a command. Exit status: 2 for wrong usage, 1 for a failure, each with one line; 130 for Ctrl-C.

    An error that the user cannot fix is a bug and shows its traceback.
    """
    # Set before torch is loaded: its threads sleep between operations; spinning threads would take the cores from the
    # decoders.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot encode a character shows a question mark.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        # typer turns Ctrl-C into the status INTERRUPTED.
        code = app(standalone_mode=False)
    except _UsageError as error:
        _refuse(error)
    except ProtaError as error:
        if "PROTA_TRACEBACK" in os.environ:
            raise
        # All processes of torchrun miss the same file.
        (_fail_once if isinstance(error, NotFoundError) else _fail)(one_line(error), error.exit_status)
    except OSError as error:
        if "PROTA_TRACEBACK" in os.environ or error.errno not in _SYSTEM:
            _report_bug()
        _fail(one_line(error), 1)
    except MemoryError:
        _fail("out of memory", 1)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            # torch's; recognised by name, so that torch is not imported.
            _fail(f"out of memory on the GPU: {one_line(error)}", 1)
        _report_bug()
    if code == INTERRUPTED:
        # A command that can be resumed says so and exits by itself.
        _fail_once("interrupted; existing data is unchanged", code)
    sys.exit(code if isinstance(code, int) else 0)


def _report_bug() -> NoReturn:
    """Call it in an exception handler."""
    traceback.print_exc()
    _fail(f"this is a bug in prota {prota.__version__}: please report it with the lines above", 1)


def _refuse(error: Any) -> NoReturn:
    """One line instead of typer's box of five."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(2)
    command = error.ctx.command_path if error.ctx is not None else "prota"
    # A check of ours names what it is about; typer would add "Invalid value" only.
    own = isinstance(error, typer.BadParameter) and error.param is None and error.param_hint is None
    _fail_once(f"{error.message if own else error.format_message()} (see {command} --help)", 2)


def _fail_once(message: str, code: int) -> NoReturn:
    """Print a message that is the same for all processes of torchrun only in the first one."""
    if os.environ.get("RANK", "0") != "0":
        sys.exit(code)
    _fail(message, code)


def _fail(message: str, code: int) -> NoReturn:
    print(f"prota: {message}", file=sys.stderr)
    sys.exit(code)
