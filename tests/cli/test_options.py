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
from tests.cli.test_commands import prota
from tests.processes import REPOSITORY, python


def test_lines_come_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "marked.txt").write_bytes("\ufeffa cät\r\na dog\n".encode())
    assert read_lines(tmp_path / "marked.txt") == ["a cät", "a dog"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("eine Kuh, schön\nzwei\n".encode()), "ascii"))
    assert read_lines(Path("-")) == ["eine Kuh, schön", "zwei"]
    (tmp_path / "old.txt").write_bytes(b"a c\xe4t\n")
    with pytest.raises(typer.BadParameter, match=r"old\.txt cannot be read: it is not UTF-8"):
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
