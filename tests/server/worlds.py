"""Libraries of generated clips, and clients of servers over them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from prota.library.library import Library
from prota.server.app import create_app
from prota.server.options import ServerOptions
from tests.library.worlds import toy_model, write_clips, write_picture
from tests.processes import python, wait_until
from tests.small_world import write_colour_clip


@dataclass(frozen=True)
class World:
    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "library"

    @property
    def videos(self) -> Path:
        return self.folder / "videos"

    @property
    def model(self) -> Path:
        return self.folder / "model"


def make_world(folder: Path) -> World:
    """Four short clips in two folders, one with a name that is a script, and one of several segments."""
    world = World(folder)
    toy_model().save_pretrained(world.model)
    write_clips(world.videos / "near", "red-left", "blue-top")
    write_clips(world.videos / "far", "green-right")
    write_colour_clip(world.videos / "near" / "<img src=x onerror=alert(1)>.mp4", "pink", "left")
    write_colour_clip(world.videos / "far" / "long.mp4", "white", "bottom", frames=60)
    index(world, world.videos)
    return world


def add_pictures(world: World) -> None:
    """A photograph of each kind in a folder of their own; one has another kind's name."""
    for colour, name in (("red", "red.jpg"), ("blue", "blue.png"), ("green", "green.webp")):
        write_picture(world.videos / "photos" / name, colour)
    write_picture(world.folder / "odd.png", "pink").rename(world.videos / "photos" / "odd.jpg")
    index(world, world.videos)


def index(world: World, path: Path) -> None:
    library = Library(world.library, world.model)
    library.index(path, frames=4)


@contextmanager
def client_of(world: World, **options: object) -> Iterator[TestClient]:
    """A client of a server that is ready."""
    app = create_app(world.library, ServerOptions(device="cpu", refresh=0.05, **options))  # type: ignore[arg-type]
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def metric(client: TestClient, name: str, **labels: str) -> float | None:
    """A value that /metrics reports; None if it has no such sample."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    found = [one for family in families for one in family.samples if (one.name, one.labels) == (name, labels)]
    return found[0].value if found else None


@contextmanager
def serving(world: World, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its address, and the line it printed."""
    with python("-m", "prota", "serve", "-l", world.library, "--port", 0, "--device", "cpu", *options) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"(https?)://([^/]+):(\d+)", said)
        assert found is not None, said
        yield process, f"{found[1]}://127.0.0.1:{found[3]}", said
