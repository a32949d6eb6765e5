"""What several commands read and print."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import typer

from prota.cli.options import print_json, read_lines
from prota.errors import NotFoundError
from tests.cli.test_commands import prota
from tests.processes import REPOSITORY, python


def test_lines_come_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "marked.txt").write_bytes("\ufeffa cät\r\na dog\n".encode())
    assert read_lines(tmp_path / "marked.txt") == ["a cät", "a dog"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("eine Kuh, schön\nzwei\n".encode()), "ascii"))
    assert read_lines(Path("-")) == ["eine Kuh, schön", "zwei"]
    (tmp_path / "old.txt").write_bytes(b"a c\xe4t\n")
    with pytest.raises(typer.BadParameter, match=r"old\.txt: not UTF-8"):
        read_lines(tmp_path / "old.txt")


@pytest.mark.parametrize(("encoding", "kept"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_json_keeps_every_letter(encoding: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    stream = io.TextIOWrapper(held, encoding, errors="replace")
    monkeypatch.setattr(sys, "stdout", stream)
    value = {"path": "/videos/Äpfel “1” 🍎.mp4"}
    print_json(value)
    stream.flush()
    said = held.getvalue().decode(encoding)
    assert json.loads(said) == value
    assert ("Äpfel" in said) == kept


@pytest.mark.parametrize("command", ["index", "serve"])
def test_decoding_without_a_sandbox_is_said_once(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **options: object) -> None:
        raise NotFoundError("stopped here")

    monkeypatch.setattr("prota.server.app.run", stopped)
    monkeypatch.setattr("prota.library.library.Library", stopped)
    monkeypatch.setattr("prota.cli.options.unconfined", lambda: "no Landlock")
    result = prota(command, *([tmp_path] if command == "index" else []), cwd=tmp_path)
    assert result.returncode == 1
    warnings = [line for line in result.stderr.splitlines() if "no Landlock" in line]
    assert len(warnings) == 1
    assert result.stderr.splitlines()[-1].endswith("stopped here")
    assert result.stdout == ""


@pytest.mark.process
def test_an_output_without_those_letters_gets_others() -> None:
    said = prota("figure", "--help", PYTHONIOENCODING="ascii")
    assert said.returncode == 0, said.stderr
    assert "?" in said.stdout
    assert said.stdout.isascii()


@pytest.mark.process
def test_ctrl_c_while_the_command_line_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    """Typer, of which the command line is made, is replaced by a module that takes long to load."""
    (tmp_path / "typer.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(1e6)\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    with python("-m", "prota", "--version", env=environment) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "loading\n"
        started.send_signal(signal.SIGINT)
        _, complaint = started.communicate()
    assert (started.returncode, complaint) == (130, "")


@pytest.mark.parametrize("known", [False, True])
def test_without_a_command_the_next_ones_are_shown(known: bool, tmp_path: Path) -> None:
    if known:
        (tmp_path / "library").mkdir()
        (tmp_path / "library" / "library.json").touch()
    said = prota(cwd=tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    assert ("prota samples" in said.stdout) != known
    assert "prota search" in said.stdout


def test_help_shows_no_types_of_python() -> None:
    for command in ((), ("index",), ("evaluate",), ("library", "verify"), ("library", "merge"), ("data", "prepare")):
        said = prota(*command, "--help").stdout
        assert "bool" not in said
        assert "list[" not in said


WRONG_PATHS = (
    "search red -l nowhere",
    "search --like gone.mp4 -l lib",
    "match gone.mp4 gone.txt",
    "index gone",
    "index . --model gone",
    "train gone.toml -o run",
    "ablate gone.toml -o run",
    "evaluate gone",
    "evaluate --scores gone.npy",
    "calibrate gone",
    "export gone out",
    "data check gone.toml",
    "data prepare gone.toml",
    "figure margin gone -o a.png",
    "figure tokens gone -o a.png",
    "figure ablation gone -o a.png",
    "library info -l nowhere",
    "library merge gone -l lib",
    "serve --allow gone",
)


@pytest.mark.process
def test_paths_are_checked_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "library.json").touch()
    code = (
        "import sys; from prota.cli import main\n"
        f"for command in {WRONG_PATHS!r}:\n"
        "    sys.argv = ['prota', *command.split()]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n"
        "        heavy = [name for name in ('torch', 'numpy', 'lance', 'transformers') if name in sys.modules]\n"
        "        print(end.code, command, *heavy, sep='|')\n"
    )
    with python("-c", code, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}) as process:
        said, complained = process.communicate()
    assert process.returncode == 0, complained
    found = [line.split("|") for line in said.splitlines()]
    assert [(code in ("1", "2"), command, *heavy) for code, command, *heavy in found] == [
        (True, command) for command in WRONG_PATHS
    ], complained
    assert len(complained.splitlines()) == len(WRONG_PATHS)


@pytest.mark.process
def test_shells_complete_commands(tmp_path: Path) -> None:
    variables = {"_PROTA_COMPLETE": "complete_bash", "COMP_WORDS": "prota se", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['prota']; from prota.__main__ import start; start()"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    with python("-c", code, env=environment) as process:
        said, _ = process.communicate()
    assert said.split() == ["search", "serve"]
