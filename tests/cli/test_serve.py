"""`prota serve`: what is wrong is said in one line, before anything is loaded."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_commands import prota
from tests.processes import REPOSITORY


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--allow", "nowhere"], 2, "--allow nowhere: no such folder"),
        (["--token", "short"], 2, "the token has 5 characters"),
        (["--port", "70000"], 2, "--port"),
        (["--host", "203.0.113.1"], 1, "cannot listen on 203.0.113.1:8000"),
        (["--ray", "127.0.0.1:1"], 1, "cannot reach a Ray cluster at 127.0.0.1:1"),
        (["--ray", "auto", "--deadline", "0"], 2, "--deadline"),
        (["--shards", "2"], 2, "need --ray"),
        (["--deadline", "2"], 2, "need --ray"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    result = prota("serve", *arguments, cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_library_that_is_not_there_yet_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served from when it is made; but a mistyped folder never will be."""
    started: list[object] = []
    monkeypatch.setattr("prota.server.app.run", lambda library, options: started.append(library))
    monkeypatch.setattr("prota.cli.options.unconfined", lambda: "")
    for arguments, said in (
        ((), "no library at nowhere yet: create one with `prota index FOLDER --library nowhere`\n"),
        (("--allow", tmp_path), ""),
    ):
        result = prota("serve", "-l", "nowhere", *arguments, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, said)
    assert started == ["nowhere", "nowhere"]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = prota("serve", "--port", taken.getsockname()[1], cwd=tmp_path)
    assert result.returncode == 1
    assert "choose another --port" in result.stderr


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("fastapi", "serving needs fastapi: pip install fastapi"),
        ("ray", "--ray needs Ray: pip install 'ray[default]'"),
    ],
)
def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, module: str, words: str) -> None:
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec; "
        f"importlib.util.find_spec = lambda name, *rest: None if name == '{module}' else find(name, *rest); "
        "sys.argv = ['prota', 'serve', '--ray']; from prota.cli import main; main()"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert result.returncode == 1
    assert result.stderr == f"prota: {words}\n"
