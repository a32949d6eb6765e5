"""A library of generated clips behind a server, made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.server.worlds import World, add_pictures, client_of, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[TestClient]:
    """Of a server that is ready, which no test changes."""
    with client_of(world) as client:
        yield client


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same with pictures."""
    world = make_world(tmp_path_factory.mktemp("gallery"))
    add_pictures(world)
    return world


@pytest.fixture(scope="module")
def visitor(gallery: World) -> Iterator[TestClient]:
    """Of the server of the gallery."""
    with client_of(gallery) as client:
        yield client
