"""Files of all kinds in the page, served by the real server, in a real Chromium: the right second is shown."""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from prota.library.library import Library
from prota.video.decode import decode_chosen, read_timeline
from prota.video.walk import content_id
from tests.processes import LIMIT, REPOSITORY, wait_until
from tests.server.test_page import FLAGS
from tests.server.worlds import World, make_world, serving
from tests.video.clips import number_of, write_clip

pytestmark = [pytest.mark.browser, pytest.mark.process]

# Of the research material: each container and codec once, with and without sound.
FOUND = [
    *(f"demo_clips/action_sets/{name}.avi" for name in
      ("v_SoccerJuggling_g23_c01", "TrumanShow_wave_f_nm_np1_fr_med_26")),
    "demo_clips/msrvtt/video1523.mp4", "decode_tests/decord/examples/flipping_a_pancake.mkv",
    *(f"decode_tests/opencv_extra/{name}" for name in
      ("big_buck_bunny.wmv", "big_buck_bunny.mpg", "big_buck_bunny_full_color_range.h264", "sample_sorenson.mov")),
    "decode_tests/mmaction2/tests/data/test.avi",
    "decode_tests/torchcodec/av1_video.mkv", "decode_tests/torchcodec/h265_video.mp4",
]  # fmt: skip
SHARED = Path(os.environ.get("PROTA_SHARED", REPOSITORY.parent / "shared"))
MADE = [("a.avi", "mpeg4"), ("a.mkv", "libx264"), ("a.ts", "libx264"), ("a.mp4", "mpeg4")]


@pytest.fixture(scope="module")
def cinema(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = make_world(tmp_path_factory.mktemp("cinema"))
    folder = world.videos / "cinema"
    folder.mkdir()
    for name, codec in MADE:
        # A second and a fifth, or fifteen seconds where the container has times.
        slow = None if name == "a.avi" else [50 * number for number in range(30)]
        write_clip(folder / name, 30, codec, size=(320, 240), stamps=slow, options={"g": "6"})
    for name in FOUND if (SHARED / "data").exists() else ():
        shutil.copy(SHARED / "data" / name, folder)
    return world


@pytest.fixture(scope="module")
def place(cinema: World) -> Iterator[str]:
    Library(cinema.library, cinema.model).index(cinema.videos, frames=4)
    with serving(cinema) as (_, found, _):
        wait_until(lambda: httpx.get(f"{found}/readyz", timeout=LIMIT).status_code == 200)
        yield found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        licensed = page.evaluate("MediaSource.isTypeSupported('video/mp4; codecs=\"avc1.640028\"')")
        page.close()
        if not licensed:
            browser.close()
            pytest.skip("this Chromium plays no H.264")
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(viewport={"width": 1200, "height": 800}, device_scale_factor=2)
    context.set_default_timeout(1000 * LIMIT)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    yield opened
    context.close()
    assert not wrong


def shows(page: Page, seconds: float) -> np.ndarray[Any, Any]:
    """Go to a second; what the page then shows."""
    page.evaluate("t => { const v = document.getElementById('video'); v.pause(); v.currentTime = t; }", seconds)
    return seen(page)


def seen(page: Page) -> np.ndarray[Any, Any]:
    page.wait_for_function(
        "() => { const v = document.getElementById('video'); return v.readyState > 1 && !v.seeking; }"
    )
    data = page.evaluate(
        """async () => {
            const [v, c] = [document.getElementById('video'), document.createElement('canvas')];
            const drawn = new Promise((done) => { v.requestVideoFrameCallback(done); setTimeout(done, 1000); });
            await drawn;
            [c.width, c.height] = [v.videoWidth, v.videoHeight];
            c.getContext('2d').drawImage(v, 0, 0);
            return c.toDataURL().split(',')[1];
        }"""
    )
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def open_at(page: Page, place: str, video: str, start: float, end: float) -> None:
    page.goto(f"{place}/?open={video}@{start:g}-{end:g}")
    page.wait_for_function(
        "s => { const v = document.getElementById('video'); return v.readyState > 1 && v.currentTime >= s - 0.01; }",
        arg=start,
    )


@pytest.mark.parametrize("name", [name for name, _ in MADE])
def test_it_starts_at_the_moment_and_goes_anywhere(page: Page, place: str, cinema: World, name: str) -> None:
    path = cinema.videos / "cinema" / name
    duration = read_timeline(path).duration
    step = duration / 30
    open_at(page, place, content_id(path), 20 * step, 24 * step)
    assert page.evaluate("document.getElementById('video').currentTime") < 20 * step + 5
    assert abs(page.evaluate("document.getElementById('video').duration") - duration) < 0.1
    # Also back to what was not loaded, and to the last frame.
    for number in (21, 2, 29, 13, 0):
        assert number_of(shows(page, (number + 0.5) * step)) == number
    page.evaluate("() => { document.getElementById('video').play(); }")
    page.wait_for_function("() => document.getElementById('video').currentTime > 0.2")


def test_it_plays_to_the_end(page: Page, place: str, cinema: World) -> None:
    open_at(page, place, content_id(cinema.videos / "cinema" / "a.mp4"), 11, 13)
    page.wait_for_function("() => document.getElementById('video').ended")


def test_a_preview_moves_and_the_picture_is_sharp(page: Page, place: str, cinema: World) -> None:
    video = content_id(cinema.videos / "cinema" / "a.ts")
    page.goto(f"{place}/?like={video}@4-6")
    card = page.locator(".card", has=page.locator("[aria-label^='a,']")).first
    card.wait_for()
    # Of 320 × 240, which the stored one is not.
    page.wait_for_function(
        "() => [...document.querySelectorAll('.card .sharp')].some((one) => one.naturalWidth === 320)"
    )
    card.hover()
    page.wait_for_function("() => document.querySelector('.card video.on')?.currentTime > 0.3")
    page.mouse.move(0, 0)
    page.wait_for_function("() => !document.querySelector('.card video')")


def test_a_file_that_has_vanished_is_one_clear_line(page: Page, place: str, cinema: World) -> None:
    for name in ("a.ts", "a.avi"):
        path = cinema.videos / "cinema" / name
        video = content_id(path)
        away = path.rename(path.with_suffix(".away"))
        try:
            page.goto(f"{place}/?open={video}@0-1")
            page.wait_for_function("() => !document.getElementById('video-error').hidden")
            assert "is missing" in page.inner_text("#video-error")
        finally:
            away.rename(path)


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.usefixtures("shared")
def test_files_of_others(page: Page, place: str, cinema: World, name: str) -> None:
    """The frame of the page is that of the decoder, and no less like it than those around it."""
    path = cinema.videos / "cinema" / Path(name).name
    timeline, video = read_timeline(path), content_id(path)
    details = httpx.get(f"{place}/api/v1/videos/{video}", timeout=LIMIT).json()
    offset = details["offset"] if details["plays"] == "original" else 0.0
    open_at(page, place, video, round(0.5 * timeline.duration, 2), timeline.duration)
    for share in (0.5, 0.2, 0.85):
        number = int(share * (len(timeline.times) - 1))
        shown = shows(page, float(timeline.times[number : number + 2].mean()) + offset)
        around = sorted({max(0, number - 10), number, min(len(timeline.times) - 1, number + 10)})
        frames = decode_chosen(path, lambda _, chosen=around: chosen)[2]  # type: ignore[misc]
        differences = [difference(shown, frame) for frame in frames]
        assert differences[around.index(number)] <= min(differences) + 0.5
        assert differences[around.index(number)] < 8


def difference(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> float:
    small = [np.asarray(Image.fromarray(one).resize((80, 60))).astype(int) for one in (first, second)]
    return float(np.abs(small[0] - small[1]).mean())
