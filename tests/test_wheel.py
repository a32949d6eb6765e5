"""The wheel, in an empty environment and without the clone, does what README shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.process


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Standard output of a command that must succeed, without this clone on its path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept | {"COLUMNS": "80", "OMP_NUM_THREADS": "2", "PYTHONUTF8": "1"} | variables,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it requires."""
    pytest.importorskip("uv")
    folder, uv = tmp_path_factory.mktemp("wheel"), (sys.executable, "-m", "uv")
    # pip's folder of local wheels, as the Makefile gives it to uv.
    links = ",".join(os.environ.get("PIP_FIND_LINKS", "").split())
    variables = {"UV_FIND_LINKS": links} if links else {}
    run(*uv, "build", "--wheel", "--out-dir", folder, REPOSITORY, cwd=folder, **variables)
    (wheel,) = folder.glob("*.whl")
    environment, constraints = folder / "env", REPOSITORY / "constraints.txt"
    run(*uv, "venv", "--python", sys.executable, environment, cwd=folder)
    run(*uv, "pip", "install", "--python", environment, wheel, "-c", constraints, cwd=folder, **variables)
    return environment / ("Scripts" if os.name == "nt" else "bin")


@pytest.fixture(scope="module")
def place(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which README's commands were run, each with README's output."""
    folder = tmp_path_factory.mktemp("place")
    (session,) = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    for step in re.findall(r"^\$ (.*\n(?:[^$].*\n)*)", session, flags=re.MULTILINE):
        command, _, printed = step.partition("\n")
        name, *arguments = shlex.split(command)
        assert run(binaries / name, *arguments, cwd=folder) == printed
    return folder


def test_the_commands_of_readme(place: Path) -> None:
    assert (place / "library" / "library.json").is_file()


def test_the_session_of_readme(binaries: Path, place: Path) -> None:
    (session,) = re.findall(r"```pycon\n(.*?)```", README, flags=re.DOTALL)
    (place / "session.txt").write_text(session, encoding="utf-8")
    run(binaries / "python", "-m", "doctest", "session.txt", cwd=place)
