"""What a server may be told."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.errors import UsageError
from prota.server.options import ServerOptions, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert ServerOptions(host=host).token is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "films.example", "localhost.example", ""])
def test_any_other_host_needs_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError):
        ServerOptions(host=host)
    assert ServerOptions(host=host, token="a" * 16).token


@pytest.mark.parametrize(
    "token", ["", "short", "with spaces in the middle", "ümlaut-in-the-token", "line\nbreak-in-the-token"]
)
def test_tokens_that_are_none(token: str) -> None:
    with pytest.raises(UsageError):
        ServerOptions(token=token)


def test_roots_are_real_paths(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert ServerOptions(allow=(tmp_path / "link",)).roots == (str((tmp_path / "real").resolve()),)
