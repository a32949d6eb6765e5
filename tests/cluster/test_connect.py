"""Addresses of clusters, and what is said where there is none."""

from __future__ import annotations

import socket

import pytest

from prota.cluster import connect as finding
from prota.cluster.connect import check, connect, is_address


@pytest.mark.parametrize("text", ["local", "auto", "head:6379", "10.0.0.1:6379", "[::1]:6379", "my-host.example:1"])
def test_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize("text", ["", "videos", "/mnt/films", "ray://head:10001", "host:", ":6379", "a b:1"])
def test_no_addresses(text: str) -> None:
    assert not is_address(text)
    with pytest.raises(ValueError, match="invalid address: give host:port"):
        check(text)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install 'ray\[default\]'"), connect():
        pass


def test_where_nobody_answers_it_says_so_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RuntimeError, match=f"cannot reach a Ray cluster at 127.0.0.1:{port}"):
        check(f"127.0.0.1:{port}")
    with pytest.raises(RuntimeError, match="cannot reach a Ray cluster"):
        check("127.0.0.1:99999")


def test_a_cluster_that_wants_a_token_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray says of a cluster of `ray start` at an address only that it could not connect."""

    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setattr("ray.init", refuse)
    # This process may belong to the cluster of other tests.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=r"Failed to connect.*RAY_AUTH_MODE=token"), connect(address):
            pass
    with pytest.raises(RuntimeError, match=r"no Ray cluster at auto .* start one with `ray start`"), connect("auto"):
        pass
