"""Building the C of this folder on the user's machine, once, with whatever C compiler is there."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prota.errors import ProtaError
from prota.files import publish
from prota.platform import sync

__all__ = ["BuildError", "build", "load"]

_FOLDER = Path(__file__).parent
_SOURCES = ("cpu_score.c",)
_HEADERS = ("cpu_products.h",)
# No -ffast-math: rounding to an integer by adding a large number must stay what it is.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_LINK = ("-fopenmp", "-fPIC", "-shared")
_NATIVE = ("-march=native",)
_TIME_LIMIT = 120


class BuildError(ProtaError, RuntimeError):
    """No compiler, or one that cannot build this; says so in one line."""

    code = "build"


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library for this machine, built at the first call and kept in the user's cache; or why there is none."""
    try:
        return ctypes.CDLL(str(build(_cache_folder())))
    except BuildError as error:
        return str(error)
    except OSError:
        # A home that is absent, full, read-only or without executables: build for this process alone.
        try:
            with tempfile.TemporaryDirectory(prefix="prota-") as folder:
                return ctypes.CDLL(str(build(Path(folder))))
        except (BuildError, OSError) as error:
            return f"the CPU kernel could not be built: {error}"


def build(folder: Path, target: Sequence[str] = _NATIVE) -> Path:
    """The shared library in ``folder``, compiled unless this source, CPU and compiler have been there before."""
    command = [*_compiler(), *_FLAGS, *target, *_LINK]
    path = folder / f"score-{_key(command)}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_strangers(folder)
    if path.is_file():
        _refuse_strangers(path)
        return path
    # Two processes may build at once: each writes a file of its own, and the last to finish gives it the name.
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".so", dir=folder)
    os.close(handle)
    temporary = Path(name)
    try:
        _run([*command, *(str(_FOLDER / source) for source in _SOURCES), "-o", name, "-lm"])
        temporary.chmod(0o700)
        sync(temporary)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _refuse_strangers(path: Path) -> None:
    """What is loaded runs as this user: no one else may have written it (a shared cache, another user's home)."""
    state = path.stat()
    # Windows knows neither; there a home is its user's alone.
    if hasattr(os, "geteuid") and (state.st_uid != os.geteuid() or state.st_mode & 0o022):
        raise PermissionError(f"{path} is owned or writable by another user")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "prota" / "kernels"
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _compiler() -> list[str]:
    chosen = shlex.split(os.environ.get("CC", ""))
    for words in [chosen] if chosen else [["cc"], ["gcc"], ["clang"]]:
        program = shutil.which(words[0])
        if program:
            return [program, *words[1:]]
    raise BuildError(f"the CPU kernel needs a C compiler: {chosen[0] if chosen else 'cc, gcc or clang'} not found")


def _key(command: Sequence[str]) -> str:
    """Changes with the source, the command, the compiler's version and the CPU."""
    sources = [(_FOLDER / name).read_text(encoding="utf-8") for name in (*_SOURCES, *_HEADERS)]
    # What a compiler predefines tells its version, and each instruction set of the CPU that it compiles for: a home
    # folder may be shared by machines with different ones.
    predefined = _run([*command, "-dM", "-E", "-x", "c", os.devnull])
    return hashlib.sha256("\0".join((*sources, *command, predefined)).encode()).hexdigest()[:24]


def _run(command: Sequence[str]) -> str:
    try:
        # Errors are looked for by their English name.
        plain = {**os.environ, "LC_ALL": "C"}
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT, check=False, env=plain)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the CPU kernel needs a C compiler: {command[0]} does not run: {error}") from None
    if result.returncode:
        reason = next((line for line in result.stderr.splitlines() if "error" in line), f"status {result.returncode}")
        raise BuildError(f"the CPU kernel could not be compiled: {reason.strip()}")
    return result.stdout
