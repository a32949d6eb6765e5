"""Frames and parts over HTTP: of files that browsers play and others, for many clients, and after they have left."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import av
import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from starlette.requests import Request

from prota.library.records import VideoRecord
from prota.server import screening
from prota.server.media import Originals
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError
from prota.server.queueing import LruCache
from prota.server.screening import Screening
from prota.video.showing import PART, SHIFT
from prota.video.walk import content_id
from tests.leftovers import NAME, marked
from tests.processes import LIMIT, gone, posix, wait_until
from tests.server.worlds import World, client_of, index, make_world, serving
from tests.video.clips import number_of, write_clip
from tests.workers.jobs import misbehave

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cinema(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Clips of 30 frames at 3 a second: one that browsers play, one to remux, one to transcode."""
    world = make_world(tmp_path_factory.mktemp("cinema"))
    folder = world.videos / "cinema"
    folder.mkdir()
    stamps = [100 * number // 3 for number in range(30)]
    for name, codec in (("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.avi", "mpeg4"), ("b.mkv", "mpeg4")):
        rate = None if name == "a.avi" else stamps
        write_clip(folder / name, 30, codec, size=(640, 360), stamps=rate, options={"g": "6"})
    index(world, folder)
    return world


@pytest.fixture(scope="module")
def seats(cinema: World) -> Iterator[TestClient]:
    with client_of(cinema) as client:
        yield client


def address(world: World, name: str) -> str:
    return f"/api/v1/videos/{content_id(world.videos / 'cinema' / name)}"


@pytest.mark.parametrize(
    ("name", "plays"),
    [("a.mp4", "original"), ("a.mkv", "remuxed"), ("a.avi", "transcoded"), ("b.mkv", "transcoded")],
)
def test_details_say_how_a_video_plays(seats: TestClient, cinema: World, name: str, plays: str) -> None:
    details = seats.get(address(cinema, name)).json()
    assert (details["plays"], details["part"], details["shift"]) == (plays, PART, SHIFT)
    frames = dict[float, int]()
    start = 0.0
    while start < details["duration"]:
        answer = seats.get(details["play"], params={"start": start})
        assert answer.headers["cache-control"] == "private, max-age=86400, immutable"
        if answer.status_code != 204:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith('video/mp4; codecs="avc1.')
            with av.open(io.BytesIO(answer.content)) as file:
                for frame in file.decode(video=0):
                    assert frame.time is not None
                    frames[round(frame.time - SHIFT, 2)] = number_of(frame.to_ndarray(format="rgb24"))
        start += details["part"]
    wanted = {round(number / 25 if name == "a.avi" else (100 * number // 3) / 100, 2): number for number in range(30)}
    assert {time: number for time, number in frames.items() if time in wanted} == wanted


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "b.mkv"])
def test_a_frame_is_that_of_its_time(seats: TestClient, cinema: World, name: str) -> None:
    for number in (0, 7, 29):
        answer = seats.get(f"{address(cinema, name)}/frame", params={"t": number / 3 + 0.01, "width": 200})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
        picture = Image.open(io.BytesIO(answer.content))
        assert picture.size == (320, 180)
        assert number_of(np.asarray(picture)) == number


def test_a_picture_has_a_frame_and_does_not_play(visitor: TestClient, gallery: World) -> None:
    start = f"/api/v1/videos/{content_id(gallery.videos / 'photos' / 'red.jpg')}"
    answer = visitor.get(f"{start}/frame")
    assert Image.open(io.BytesIO(answer.content)).size == (60, 40)
    details = visitor.get(start).json()
    assert details["plays"] is None
    assert visitor.get(f"{start}/play").status_code == 422
    assert visitor.get(f"{start}/frame?t=1").status_code == 422


@pytest.mark.parametrize("what", ["frame?t=10.5", "play?start=10.5", "frame?t=-1", "frame?t=nan", "play?start=inf",
                                  "frame?width=0", "frame?width=100000", "play?start=x"])  # fmt: skip
def test_a_moment_beyond_the_end_is_one_clear_line(seats: TestClient, cinema: World, what: str) -> None:
    answer = seats.get(f"{address(cinema, 'b.mkv')}/{what}")
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert "\n" not in answer.json()["detail"]


def test_the_last_moment_is_there(seats: TestClient, cinema: World) -> None:
    details = seats.get(address(cinema, "b.mkv")).json()
    for what in (f"frame?t={details['duration']}", f"play?start={details['duration']}"):
        assert seats.get(f"{address(cinema, 'b.mkv')}/{what}").status_code == 200


@posix
def test_a_file_that_went_or_is_another_is_not_decoded(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    path = world.videos / "near" / "red-left.mp4"
    start = f"/api/v1/videos/{content_id(path)}"
    with client_of(world) as client:
        path.rename(path.with_suffix(".away"))
        assert client.get(f"{start}/frame").status_code == 404
        assert client.get(f"{start}/play").status_code == 404
        # Its record is still there.
        assert client.get(start).json()["plays"] is None
        other = world.videos / "near" / "blue-top.mp4"
        other.write_bytes(other.read_bytes().ljust(path.with_suffix(".away").stat().st_size, b"\0"))
        os.utime(other, ns=(path.with_suffix(".away").stat().st_mtime_ns,) * 2)
        path.symlink_to(other)
        assert client.get(f"{start}/frame").status_code == 409
        assert client.get(f"{start}/play").status_code == 409


def test_ten_viewers_at_once(cinema: World) -> None:
    names = ["a.mp4", "a.mkv", "a.avi", "b.mkv"]
    with client_of(cinema) as client, ThreadPoolExecutor(10) as viewers:

        def watch(number: int) -> list[int]:
            start = address(cinema, names[number % len(names)])
            return [client.get(f"{start}/{what}").status_code
                    for what in ("frame?t=1&width=320", "play", "frame?t=0.5&width=640")]  # fmt: skip

        assert {status for statuses in viewers.map(watch, range(10)) for status in statuses} <= {200, 204}


def workers() -> set[int]:
    """Processes that threads of this one have started."""
    found = set[int]()
    for listing in Path("/proc/self/task").glob("*/children"):
        found.update(int(number) for number in listing.read_text().split())
    return {number for number in found if not gone(number)}


class Visitor:
    """A client that leaves when told."""

    def __init__(self) -> None:
        self.left = False

    async def is_disconnected(self) -> bool:
        return self.left


Asker = Callable[..., Any]


@contextmanager
def patient(**options: Any) -> Iterator[Asker]:
    """Runs jobs of the tests as those of the server are run."""
    originals = Originals()
    shown = Screening(originals, ServerOptions(**options))
    decoding = screening._Decoding(misbehave, shown._making, LruCache[str](10))

    async def ask(visitor: Visitor, record: VideoRecord, kind: str) -> str:
        return await decoding.get(cast(Request, visitor), originals, record, kind)

    try:
        yield ask
    finally:
        shown.close()
        originals.close()


def play(scene: Coroutine[Any, Any, None]) -> None:
    # Not in this thread, in which the browser of other tests may have its loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, asyncio.wait_for(scene, LIMIT)).result()


@pytest.fixture
def record(tmp_path: Path) -> VideoRecord:
    path = write_clip(tmp_path / "a.mp4", 3)
    status = path.stat()
    return VideoRecord(content_id(path), str(path), status.st_size, status.st_mtime_ns, "indexed")


@posix
def test_a_job_ends_when_its_last_client_leaves(record: VideoRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "_GRACE", 0.0)
    before = workers()

    async def scene(ask: Asker) -> None:
        first, second = Visitor(), Visitor()
        asked = [asyncio.create_task(ask(visitor, record, "hang")) for visitor in (first, second)]
        while not workers() - before:
            await asyncio.sleep(0.01)
        (worker,) = workers() - before
        first.left = True
        with pytest.raises(ProblemError):
            await asked[0]
        assert not asked[1].done()
        assert not gone(worker)
        second.left = True
        with pytest.raises(ProblemError):
            await asked[1]
        while not gone(worker):
            await asyncio.sleep(0.01)
        # The next one gets a new worker.
        assert (await ask(Visitor(), record, "fine")).startswith("fine")

    with patient() as ask:
        play(scene(ask))
    wait_until(lambda: workers() <= before)


@posix
def test_what_hangs_or_crashes_is_an_answer(record: VideoRecord) -> None:
    before = workers()

    async def scene(ask: Asker) -> None:
        for kind in ("hang", "segfault", "exit"):
            with pytest.raises(ProblemError) as told:
                await ask(Visitor(), record, kind)
            assert told.value.status == 422
        assert (await ask(Visitor(), record, "fine")).startswith("fine")

    with patient(play_timeout=2.0) as ask:
        play(scene(ask))
    wait_until(lambda: workers() <= before)


@posix
def test_workers_end_after_a_while(record: VideoRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "_IDLE", 0.1)
    before = workers()

    async def scene(ask: Asker) -> None:
        assert (await ask(Visitor(), record, "fine")).startswith("fine")
        while workers() - before:
            await asyncio.sleep(0.01)

    with patient() as ask:
        play(scene(ask))


@posix
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_a_server_that_dies(cinema: World, tmp_path: Path, how: str) -> None:
    mark = f"{NAME}={os.environ[NAME]}" if NAME in os.environ else ""
    folder = tmp_path / "temporary"
    folder.mkdir()
    before = set(marked(mark)) if mark else set()
    os.environ["TMPDIR"], known = str(folder), os.environ.get("TMPDIR")
    try:
        with serving(cinema) as (process, place, _):
            wait_until(lambda: httpx.get(f"{place}/readyz", timeout=LIMIT).status_code == 200)
            assert httpx.get(f"{place}{address(cinema, 'a.avi')}/play", timeout=LIMIT).status_code == 200
            # One that is asked for as the server dies.
            with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as raw:
                request = f"GET {address(cinema, 'b.mkv')}/play HTTP/1.1\r\nHost: localhost\r\n\r\n"
                raw.sendall(request.encode())
                process.send_signal(getattr(signal, how))
                process.wait()
            wait_until(lambda: not mark or set(marked(mark)) <= before)
    finally:
        del os.environ["TMPDIR"]
        os.environ |= {"TMPDIR": known} if known else {}
    assert list(folder.iterdir()) == []


def test_frames_are_made_once(cinema: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    decode, lock = screening._Workers.decode, threading.Lock()

    def counting(self: Any, job: Any, argument: Any, *rest: Any) -> Any:
        with lock:
            asked.append(argument)
        return decode(self, job, argument, *rest)

    monkeypatch.setattr(screening._Workers, "decode", counting)
    with client_of(cinema) as client, ThreadPoolExecutor(8) as viewers:
        picture = f"{address(cinema, 'a.avi')}/frame?t=0.5"
        assert {answer.status_code for answer in viewers.map(client.get, [picture] * 8)} == {200}
        assert client.get(picture).status_code == 200
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "b.mkv"])
def test_a_moment_is_downloaded(seats: TestClient, cinema: World, name: str, tmp_path: Path) -> None:
    place = f"{address(cinema, name)}/clip"
    answer = seats.get(place, params={"start": 0.5, "end": 0.9})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "video/mp4"
    saved = f"{name[0]}%200.5-0.9.mp4"
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{saved}"
    (tmp_path / "clip.mp4").write_bytes(answer.content)
    with av.open(str(tmp_path / "clip.mp4")) as file:
        shown = [number_of(frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
    rate = 25 if name == "a.avi" else 3
    assert shown[0] == int(0.5 * rate)
    assert shown == list(range(shown[0], shown[0] + len(shown)))
    for wrong in ({"start": 999, "end": 1000}, {"start": 1, "end": 1}, {"start": 0, "end": 700}, {"start": 0}):
        assert seats.get(place, params=wrong).status_code == 422, wrong
