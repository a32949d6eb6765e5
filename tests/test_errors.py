"""One base for what users can mend; anything else is shown as a bug."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil

import pytest

import prota
from prota import cli
from prota.config.base import ConfigError
from prota.errors import ProtaError, one_line
from prota.library.records import LibraryError


def every_error() -> list[type[Exception]]:
    """All classes of errors that prota defines."""
    found = set()
    for module in pkgutil.walk_packages(prota.__path__, "prota."):
        if not module.name.endswith("__main__") and "triton" not in module.name:
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            found |= {
                kind for _, kind in members if issubclass(kind, Exception) and kind.__module__.startswith("prota")
            }
    return sorted(found, key=lambda kind: kind.__qualname__)


def test_all_errors_have_one_base_and_a_code() -> None:
    kinds = every_error()
    assert len(kinds) > 10
    assert [kind for kind in kinds if not issubclass(kind, ProtaError)] == []
    for kind in kinds:
        assert kind is ProtaError or kind.code != ProtaError.code, kind
        assert kind.exit_status in (1, 2)


def test_a_hint_is_part_of_the_line() -> None:
    error = LibraryError("the library is corrupt", hint="index it again")
    assert (error.message, error.hint, error.code) == ("the library is corrupt", "index it again", "library")
    assert str(error) == "the library is corrupt: index it again"


@pytest.mark.parametrize("error", [LibraryError("a", hint="b"), ConfigError("a", "b"), ProtaError("c")])
def test_errors_survive_the_way_from_another_process(error: ProtaError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "ValueError"),
        (FileNotFoundError(2, "No such file or directory", "a/b"), "a/b: no such file or directory"),
        (OSError("as it is"), "as it is"),
    ],
)
def test_any_error_in_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


@pytest.mark.parametrize(
    ("error", "status", "bug"),
    [
        (ConfigError("no such setting"), 2, False),
        (LibraryError("no such library"), 1, False),
        (PermissionError(13, "Permission denied", "x"), 1, False),
        (MemoryError(), 1, False),
        (ValueError("an index is off by one"), 1, True),
        (RuntimeError("nobody expected this"), 1, True),
        (OSError("of no kind"), 1, True),
        (KeyError("x"), 1, True),
    ],
)
def test_the_command_line_tells_mistakes_from_bugs(
    error: Exception, status: int, bug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.delenv("PROTA_TRACEBACK", raising=False)
    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == status
    assert ("Traceback" in said) == bug
    assert said.rstrip().split("\n")[-1].startswith("prota: ")
    assert bug or len(said.strip().split("\n")) == 1
