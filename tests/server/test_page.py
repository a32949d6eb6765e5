"""The page in a real Chromium, on a made-up server: what people do, with a mouse, with keys alone, on a phone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.processes import LIMIT
from tests.server.fake_api import CLIPS, PHOTO, STATIC, FakeServer, World
from tests.server.worlds import World as LibraryWorld
from tests.server.worlds import serving

pytestmark = pytest.mark.browser

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--autoplay-policy=no-user-gesture-required"),
]
HARBOUR, CAR, SCRIPT, KITCHEN = CLIPS[:4]
Opener = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # `make test` sees to it that there is one or the other.
        expect.set_options(timeout=1000 * LIMIT)
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def _clips(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("clips")
    for clip in [*CLIPS, PHOTO]:
        clip.write(folder)


@pytest.fixture
def server(_clips: None) -> Iterator[FakeServer]:
    started = FakeServer(World(list(CLIPS))).start()
    yield started
    started.stop()


@pytest.fixture
def opened(browser: Browser, server: FakeServer) -> Iterator[Opener]:
    """Opens pages; none of them may say an error or ask anybody but the server."""
    wrong: list[str] = []
    contexts = []

    def heard(message: Any) -> None:
        # Chromium itself notes answers that are no 200s; the page may not.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    def opener(path: str = "", **options: Any) -> Page:
        options.setdefault("viewport", {"width": 1200, "height": 800})
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(1000 * LIMIT)
        page = contexts[-1].new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a script ran: {dialog.message}"))
        page.on(
            "request",
            lambda request: None if server.url in request.url or "blob:" in request.url else wrong.append(request.url),
        )
        page.goto(server.url + path)
        return page

    yield opener
    for context in contexts:
        context.close()
    assert not wrong


def moment(clip: Any, start: float, end: float) -> str:
    return f"{clip.id}@{start:g}-{end:g}"


def playing(page: Page) -> float:
    return float(page.evaluate("document.getElementById('video').currentTime"))


def plays_from(page: Page, start: float) -> None:
    page.wait_for_function(
        "start => { const v = document.getElementById('video'); return v.readyState > 1 && v.currentTime >= start; }",
        arg=start,
    )
    assert start <= playing(page) < start + 3


def add(page: Page, path: str) -> None:
    """Index a folder from wherever the page is; it then shows the library."""
    page.click("#open-library")
    page.click("#open-add")
    expect(page.locator("#path")).to_have_value("/videos")
    page.fill("#path", path)
    page.keyboard.press("Enter")
    expect(page.locator("#jobs strong")).to_have_text(path)


def scrolls_sideways(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > innerWidth"))


def test_it_is_small_and_needs_nobody_else() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 100_000
    for path in files:
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|innerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path.name
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|<script>", page)


def test_what_was_left_out_is_said(opened: Opener, server: FakeServer) -> None:
    server.world.partial = True
    page = opened("?q=dog")
    expect(page.locator("#status")).to_have_text("4 moments in 7 ms · some shards did not answer")
    server.world.partial, server.world.damaged = False, 2
    page.fill("#q", "cat")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("2 corrupt segments")
    server.world.damaged = 0
    page.fill("#q", "dog " * 100)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("4 moments in 7 ms · query truncated")


def test_a_search_shows_moments(opened: Opener) -> None:
    page = opened()
    expect(page.locator("#summary")).to_contain_text("5 videos")
    page.fill("#q", "a dog on a beach")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text("4 moments in 7 ms")
    first = page.locator("#grid .card").first
    expect(first.locator(".title")).to_have_text("<script>alert(1)</script>.mp4")
    expect(first.locator(".time")).to_have_text("0:00 – 0:08")
    expect(first.locator(".relevance")).to_have_text("91 %")
    assert page.url.endswith("?q=a+dog+on+a+beach")
    page.reload()
    expect(page.locator("#grid .card")).to_have_count(4)
    assert page.title() == "a dog on a beach · ProTA"
    page.click("#brand")
    expect(page.get_by_role("list", name="Past searches").locator("a")).to_have_text(["a dog on a beach"])
    assert page.locator("#past option").get_attribute("value") == "a dog on a beach"
    page.go_back()
    expect(page.locator("#grid .card")).to_have_count(4)


def test_typing_searches_without_enter(opened: Opener) -> None:
    page = opened()
    page.locator("#q").press_sequentially("red car")
    expect(page.locator("#grid .card")).to_have_count(3)


def test_a_moment_plays_from_its_start(opened: Opener) -> None:
    page = opened("?q=vegetables")
    page.locator("#grid .card", has_text="0:16 – 0:24").locator("a").click()
    plays_from(page, 16)
    expect(page.locator("#player-title")).to_have_text("kitchen.mp4")
    expect(page.locator(".mark")).to_have_count(9)
    expect(page.locator(".mark[aria-current]")).to_have_attribute("title", "0:16 – 0:24")
    page.locator(".mark[title='0:28 – 0:36']").click(position={"x": 20, "y": 4})  # the next one overlaps
    plays_from(page, 28)
    assert "@28-36" in page.url.replace("%40", "@")
    page.locator("#track").click(position={"x": 5, "y": 3})
    page.wait_for_function("() => document.getElementById('video').currentTime < 4")
    page.go_back()
    expect(page.locator("#player")).not_to_be_visible()
    assert page.url.endswith("?q=vegetables")
    page.go_forward()
    plays_from(page, 28)


def test_a_link_opens_the_moment_and_why(opened: Opener) -> None:
    page = opened(f"?q=a+red+car&open={moment(CAR, 4, 12)}&why=1")
    plays_from(page, 4)
    expect(page.locator("#player-title")).to_have_text("red car.mp4")
    expect(page.locator(".sentence")).to_have_text("“car” matches 0:04–0:12.")
    strip = page.locator(".strip")
    expect(strip.locator("tbody th")).to_have_text(["red", "car"])
    loaded = "[...document.querySelectorAll('.strip img')].filter(img => img.naturalWidth).length"
    page.wait_for_function(f"() => {loaded} === 8")
    shares = strip.locator(".glow").evaluate_all(
        "all => all.map(node => +getComputedStyle(node).getPropertyValue('--share'))"
    )
    heights = strip.locator(".glow").evaluate_all(
        "all => all.map(node => parseFloat(getComputedStyle(node, '::after').height))"
    )
    assert heights == pytest.approx([26 * share for share in shares], abs=0.1)
    strip.locator("thead button").nth(6).click()
    page.wait_for_function("() => document.getElementById('video').currentTime > 10")
    numbers = page.locator(".numbers")
    expect(numbers).to_have_count(0)
    page.get_by_text("Details").click()
    expect(numbers.locator("tbody th")).to_have_text(["a", "red", "car", "punctuation, ends", "weight", "adds"])
    expect(numbers.locator("tbody tr").first.locator("td")).to_have_count(10)
    expect(numbers.locator(".best")).to_have_count(3)
    page.click("#player-close")
    expect(page.locator("#player")).not_to_be_visible()
    assert page.url.endswith("?q=a+red+car")


def test_a_picture_is_shown_and_not_played(opened: Opener, server: FakeServer) -> None:
    server.world.clips.append(PHOTO)
    page = opened("?q=a+sunset")
    expect(page.locator("#library-facts")).to_contain_text("5 videos · 2 minutes · 1 picture")
    card = page.locator("#grid .card")
    expect(card).to_have_count(1)
    expect(card.locator(".time")).to_have_text("picture")
    expect(card.locator(".where")).to_have_count(0)
    card.hover()
    page.wait_for_timeout(600)
    expect(card.locator("video")).to_have_count(0)
    card.locator("a").focus()
    page.keyboard.press("Enter")
    size = "() => document.getElementById('picture').naturalWidth === 320"
    page.wait_for_function(size)
    for hidden in ("#video", "#timeline", "#mark-next"):
        expect(page.locator(hidden)).not_to_be_visible()
    expect(page.locator("#player-where")).to_have_text("photos · picture")
    expect(page.locator("#about")).to_contain_text("320 × 180 · png")
    page.keyboard.press("w")
    expect(page.locator(".strip img")).to_have_count(1)
    expect(page.locator(".strip thead button")).to_have_count(0)
    page.reload()
    page.wait_for_function(size)
    expect(page.locator(".strip tbody tr")).to_have_count(1)
    page.click("#player-like")
    expect(page.locator("#likeness")).to_contain_text("sunset.png, picture")
    page.locator("#grid .card", has_text="0:00 – 0:08").first.locator("a").click()
    plays_from(page, 0)
    expect(page.locator("#timeline")).to_be_visible()
    expect(page.locator("#picture")).not_to_be_visible()


def test_a_filter_knows_pictures(opened: Opener, server: FakeServer) -> None:
    server.world.clips.append(PHOTO)
    page = opened("?q=a+dog+in+the+sunset")
    expect(page.locator("#grid .card").first).to_be_visible()
    page.click("#filter")
    page.select_option("[name=kind]", "picture")
    expect(page.locator("#grid .card .title")).to_have_text(["sunset.png"])
    assert page.url.endswith("&kind=picture")
    page.select_option("[name=kind]", "video")
    expect(page.locator("#grid .card", has_text="sunset.png")).to_have_count(0)
    expect(page.locator("#filter-label")).to_have_text("Filters (1)")


def test_a_picture_that_cannot_be_shown_is_said(opened: Opener, server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "odd.png").write_bytes(b"not a picture at all")
    server.world.clips.append(replace(PHOTO, path=tmp_path / "odd.png"))
    page = opened("?q=a+sunset")
    expect(page.locator(".card").first).to_be_visible()
    # What is known of the file comes after the picture has failed.
    held: list[Route] = []
    details = re.compile(f"/videos/{PHOTO.id}$")
    page.route(details, lambda route: held.append(route))
    with page.expect_request(details), page.expect_response(lambda response: "range" in response.request.headers):
        page.locator(".card", has_text="sunset.png").click()
    (route,) = held
    route.continue_()
    expect(page.locator("#video-error")).to_contain_text("This browser cannot show the file (png). Save the original")


def test_a_preview_plays_under_the_pointer(opened: Opener) -> None:
    page = opened("?q=vegetables")
    page.locator("#grid .card", has_text="0:16 – 0:24").hover()
    page.wait_for_function("() => document.querySelector('.thumb video.on')?.currentTime >= 16")
    assert page.evaluate("document.querySelector('.thumb video').muted")
    page.mouse.move(0, 0)
    expect(page.locator(".thumb video")).to_have_count(0)


def test_motion_can_be_unwanted(opened: Opener) -> None:
    page = opened("?q=vegetables", reduced_motion="reduce")
    page.locator("#grid .card").first.hover()
    page.wait_for_timeout(500)
    expect(page.locator(".thumb video")).to_have_count(0)


def test_filters(opened: Opener) -> None:
    page = opened("?q=dog")
    expect(page.locator("#grid .card")).to_have_count(4)
    page.click("#filter")
    page.select_option("[name=folder]", "travel")
    expect(page.locator("#grid .card .folder")).to_have_text(["travel", "travel"])
    assert page.url.endswith("?q=dog&folder=travel")
    page.select_option("[name=folder]", "")
    page.select_option("[name=duration]", "-30")
    page.fill("[name=before]", "2024-12-31")
    expect(page.locator("#grid .card .folder")).to_have_text(["home/2024/garden"] * 2)
    page.reload()
    expect(page.locator("#filter")).to_have_text("Filters (2)")
    expect(page.locator("#grid .card")).to_have_count(2)
    page.fill("[name=after]", "2024-12-01")
    expect(page.locator("#notice")).to_contain_text("No moment matches these filters.")
    page.click("#filters [type=reset]")
    expect(page.locator("#grid .card")).to_have_count(4)


def test_a_filter_stays_while_a_job_runs(opened: Opener, server: FakeServer) -> None:
    page = opened("?q=dog")
    page.click("#filter")
    page.select_option("[name=folder]", "travel")
    expect(page.locator("#grid .card")).to_have_count(2)
    add(page, "/videos/new")
    next(iter(server.world.jobs.values())).update(done=6, share=0.5)
    expect(page.locator("#library-label")).to_have_text("Indexing 50 %")
    page.go_back()
    expect(page.locator("#grid .card")).to_have_count(2)
    assert page.input_value("[name=folder]") == "travel"
    page.select_option("[name=duration]", "-30")
    expect(page).to_have_url(re.compile(r"folder=travel"))


def test_keys_alone(opened: Opener) -> None:
    page = opened("?q=boats")
    expect(page.locator("#grid .card")).to_have_count(5)
    press = page.keyboard.press
    press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("kitchen")
    press("Enter")
    expect(page.locator(".title").first).to_have_text("kitchen.mp4")
    expect(page.locator("#status")).to_have_text("9 moments in 7 ms")
    press("ArrowDown")
    press("ArrowRight")
    press("ArrowDown")
    press("ArrowLeft")
    index = "[...document.querySelectorAll('.card')].indexOf(document.activeElement.closest('.card'))"
    assert page.evaluate(index) == 4
    press("ArrowUp")
    assert page.evaluate(index) == 0
    start = float(page.evaluate("document.activeElement.closest('.card').moment.start"))
    press("Enter")
    plays_from(page, start)
    press(" ")
    page.wait_for_function("() => document.getElementById('video').paused")
    press("w")
    expect(page.locator(".strip")).to_be_visible()
    press("n")
    expect(page.locator(".mark[aria-current]")).to_have_count(1)
    plays_from(page, start + 4)
    press("ArrowLeft")
    page.wait_for_function("start => document.getElementById('video').currentTime < start + 3", arg=start)
    press("Escape")
    expect(page.locator("#player")).not_to_be_visible()
    assert page.evaluate("document.activeElement.className") == "play"
    press("w")
    expect(page.locator(".strip")).to_be_visible()
    press("Escape")
    expect(page.locator("#player")).not_to_be_visible()
    press("l")
    expect(page.locator("#likeness")).to_contain_text("kitchen.mp4")


def test_tab_passes_the_grid_in_three_steps(opened: Opener) -> None:
    page = opened("?q=vegetables")
    expect(page.locator("#grid .card")).to_have_count(9)
    assert page.locator("#grid .card [tabindex='0']").count() == 3


def test_no_good_match_is_said(opened: Opener) -> None:
    page = opened("?q=quantum+physics")
    expect(page.locator("#notice h2")).to_have_text("No good match")
    expect(page.locator("#grid .card")).to_have_count(0)
    expect(page.locator("#more h2")).to_be_visible()
    expect(page.locator("#weak .card")).to_have_count(21)
    expect(page.locator("#weak .relevance").first).to_have_text(re.compile(r"^\d+ %$"))


def test_more_like_this_and_a_picture(opened: Opener) -> None:
    page = opened("?q=red+car")
    page.locator("#grid .card").first.hover()
    page.locator("#grid .card").first.get_by_role("button", name="More like this").click()
    expect(page.locator("#likeness")).to_contain_text("red car.mp4")
    expect(page.locator("#grid .title").first).to_have_text("red car.mp4")
    page.set_input_files("#file", STATIC / "icon.svg")
    expect(page.locator("#likeness strong")).to_have_text("icon.svg")
    expect(page.locator(".title").first).to_have_text("harbour at dawn.mp4")
    page.go_back()
    expect(page.locator(".title").first).to_have_text("red car.mp4")
    page.go_forward()
    expect(page.locator("#likeness strong")).to_have_text("icon.svg")
    page.reload()
    expect(page.locator("#notice")).to_contain_text("Choose the picture or clip again")


def test_an_empty_library_and_indexing(opened: Opener, server: FakeServer) -> None:
    server.world.clips.clear()
    page = opened()
    page.get_by_role("button", name="Add a folder").click()
    expect(page.locator("#path")).to_have_value("/videos")
    page.fill("#path", "/etc")
    page.keyboard.press("Enter")
    expect(page.locator("#add-note")).to_have_text("/etc is not under a folder this server may read: /videos")
    page.fill("#path", "/videos/<b>new</b>")
    page.uncheck("#pictures")
    page.locator("#path").press("Enter")
    expect(page.locator("#add")).not_to_be_visible()
    expect(page.locator("#jobs strong")).to_have_text("/videos/<b>new</b>")
    expect(page.locator("#jobs")).to_contain_text("3 of 12 files")
    job = next(iter(server.world.jobs.values()))
    assert job["pictures"] == 0
    job.update(done=6, share=0.5)
    expect(page.locator("#library-label")).to_have_text("Indexing 50 %")
    page.get_by_text("1 file failed").click()
    job.update(done=7, share=0.6)
    expect(page.locator("#library-label")).to_have_text("Indexing 60 %")
    expect(page.locator("#jobs details")).to_contain_text("<b>.mp4: no frames")
    expect(page.locator("#jobs details p")).to_be_visible()
    server.world.clips.extend(CLIPS)
    server.world.version += 1
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#jobs")).to_contain_text("cancelled")
    expect(page.locator("#library-facts")).to_contain_text("5 videos · 2 minutes")
    expect(page.locator(".file")).to_have_count(5)
    page.get_by_role("button", name="Index again").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.click("#brand")
    expect(page.locator(".empty")).to_have_count(0)


def test_progress_takes_no_button_from_under_a_finger(opened: Opener, server: FakeServer) -> None:
    """News of a job comes several times a second, and pressing takes longer."""
    page = opened()
    add(page, "/videos/new")
    stop = page.get_by_role("button", name="Stop")
    stop.hover()
    page.mouse.down()
    next(iter(server.world.jobs.values())).update(done=6, share=0.5)
    expect(page.locator("#library-label")).to_have_text("Indexing 50 %")
    page.mouse.up()
    expect(page.locator("#jobs")).to_contain_text("cancelled")
    expect(stop).to_have_count(0)


def test_a_folder_is_picked_below_those_that_are_allowed(opened: Opener, server: FakeServer) -> None:
    page = opened("?view=library")
    page.click("#open-add")
    folders = page.locator("#folders button")
    expect(folders).to_have_text(["2024", "<b>new</b>"])
    folders.first.click()
    expect(page.locator("#path")).to_have_value("/videos/2024")
    expect(folders).to_have_text(["summer"])
    page.click("#up")
    expect(folders).to_have_text(["2024", "<b>new</b>"])
    folders.last.click()
    expect(folders).to_have_count(0)
    page.get_by_role("button", name="Add this folder").click()
    expect(page.locator("#jobs strong")).to_have_text("/videos/<b>new</b>")


def test_nothing_can_be_changed_without_permission(opened: Opener, server: FakeServer) -> None:
    server.world.allow = ()
    page = opened("?view=library")
    expect(page.locator(".file")).to_have_count(5)
    for hidden in ("#open-add", "#chosen"):
        expect(page.locator(hidden)).not_to_be_visible()
    server.world.clips.clear()
    page.goto(server.url)
    expect(page.locator(".empty")).to_contain_text("prota index FOLDER")
    expect(page.locator(".empty button")).to_have_count(0)


def test_the_library_lists_files_with_state_and_reason(opened: Opener, server: FakeServer) -> None:
    server.world.clips.append(PHOTO)
    server.world.bad["broken<i>.mp4"] = "no video stream <b>"
    page = opened()
    page.click("#open-library")
    files = page.locator(".file")
    expect(files).to_have_count(7)
    expect(page.locator("#states button")).to_have_text(["All7", "Searchable6", "Failed1"])
    page.get_by_role("button", name="Failed").click()
    expect(files).to_have_count(1)
    expect(files).to_contain_text("Failed: no video stream <b>")
    expect(files.locator("a")).to_have_count(0)
    page.go_back()
    expect(files).to_have_count(7)
    page.get_by_label("File name contains", exact=True).press_sequentially("kitch")
    expect(files).to_have_count(1)
    assert page.url.endswith("?view=library&find=kitch")
    page.get_by_label("File name contains", exact=True).fill("")
    expect(files).to_have_count(7)
    page.locator("#list [name=folder]").select_option("travel")
    expect(files).to_have_count(3)
    page.locator("#list [name=order]").select_option("longest")
    expect(files.first).to_contain_text("harbour at dawn.mp4")
    page.reload()
    expect(files).to_have_count(3)
    files.first.locator("a").click()
    expect(page.locator("#player-title")).to_have_text("harbour at dawn.mp4")
    plays_from(page, 0)
    for hidden in ("#why-toggle", "#hops", "#timeline .legend"):
        expect(page.locator(hidden)).not_to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#player")).not_to_be_visible()
    assert page.evaluate("document.activeElement.closest('.file') !== null")


def test_a_large_library_is_listed_in_pages(opened: Opener, server: FakeServer) -> None:
    server.world.bad = {f"file {n:03}.mp4": "no frames" for n in range(120)}
    page = opened("?view=library&state=bad")
    names = page.locator(".file .title")
    expect(names).to_have_count(50)
    expect(page.locator("#page-at")).to_have_text("1–50 of 120")
    expect(page.locator("#page-prev")).to_be_disabled()
    page.evaluate("scrollTo(0, 10000)")
    page.click("#page-next")
    expect(names.first).to_have_text("file 050.mp4")
    assert page.evaluate("scrollY") == 0
    page.click("#page-next")
    expect(names).to_have_count(20)
    expect(page.locator("#page-next")).to_be_disabled()
    page.go_back()
    expect(names.first).to_have_text("file 050.mp4")
    page.click("#page-prev")
    expect(names.first).to_have_text("file 000.mp4")


def test_files_are_removed_and_indexed_again(opened: Opener, server: FakeServer) -> None:
    server.world.bad = {"one.mp4": "no frames", "two.mp4": "no frames", "three.mp4": "no frames"}
    page = opened("?view=library&state=bad")
    page.get_by_label("Select one.mp4").check()
    page.get_by_label("Select two.mp4").check()
    expect(page.locator("#chosen-label")).to_have_text("2 selected")
    page.click("#remove")
    expect(page.locator("#confirm-title")).to_have_text("Remove 2 files from the library?")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".file")).to_have_count(3)
    assert not server.world.removed
    page.click("#remove")
    page.locator("#confirm").get_by_role("button", name="Remove").click()
    expect(page.locator(".file .title")).to_have_text(["three.mp4"])
    assert len(server.world.removed) == 2
    expect(page.locator("#states")).to_contain_text("Failed1")
    page.get_by_label("Select all").check()
    page.click("#index-again")
    expect(page.locator("#jobs strong")).to_have_text("1 files")
    expect(page.locator("#chosen-label")).to_have_text("Select all")


def test_home_has_something_to_browse(opened: Opener, server: FakeServer) -> None:
    page = opened()
    tries = page.get_by_role("list", name="Try")
    expect(tries.locator("a")).to_have_text(["a red car", "a dog runs on a beach"])
    for name in ("Latest", "At random"):
        expect(page.get_by_role("list", name=name).locator(".card")).to_have_count(5)
    expect(page.locator(".relevance, .quick [aria-label^=Why]")).to_have_count(0)
    before = page.get_by_role("list", name="At random").locator("a").evaluate_all("all => all.map(a => a.href)")
    page.get_by_role("button", name="Others").click()
    links = "[...document.querySelectorAll('[data-part=others] .card a')].map(a => a.href).join()"
    page.wait_for_function(f"before => {links} !== before.join()", arg=before)
    page.get_by_role("list", name="Latest").locator("a").first.click()
    expect(page.locator("#player-title")).to_have_text("harbour at dawn.mp4")
    page.keyboard.press("Escape")
    page.locator(".tiles a", has_text="travel").click()
    expect(page.locator(".file")).to_have_count(2)
    assert page.url.endswith("?view=library&folder=travel")
    page.go_back()
    tries.locator("a").first.click()
    expect(page.locator(".card .title").first).to_have_text("red car.mp4")


def test_each_search_is_an_entry_of_the_history(opened: Opener) -> None:
    page = opened()
    for words in ("boats", "red car", "kitchen"):
        page.fill("#q", words)
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(words.replace(" ", r"\+")))
    page.go_back()
    expect(page.locator("#q")).to_have_value("red car")
    page.go_back()
    expect(page.locator("#q")).to_have_value("boats")
    expect(page.locator("#grid .title").first).to_have_text("harbour at dawn.mp4")
    page.go_back()
    expect(page.locator("body")).to_have_attribute("data-view", "home")


def test_typing_replaces_its_own_entry_until_it_was_looked_at(opened: Opener) -> None:
    page = opened("?q=boats")
    draft = "() => history.state?.draft === {}"
    for words in ("red", "red car", "red car on"):
        page.fill("#q", words)
        expect(page).to_have_url(re.compile(words.replace(" ", r"\+") + "$"))
    page.wait_for_function(draft.format("false"))
    page.fill("#q", "kitchen")
    page.wait_for_function(draft.format("true"))
    page.go_back()
    expect(page.locator("#q")).to_have_value("red car on")
    page.go_back()
    expect(page.locator("#q")).to_have_value("boats")


def test_back_returns_to_where_the_results_were(opened: Opener, server: FakeServer) -> None:
    page = opened("?q=a", viewport={"width": 420, "height": 600})
    page.fill("#q", "vegetables")
    page.keyboard.press("Enter")
    card = page.locator("#grid .card").nth(7)
    card.scroll_into_view_if_needed()
    top = page.evaluate("scrollY")
    assert top > 500
    card.locator("a").click()
    expect(page.locator("#player")).to_be_visible()
    page.go_back()
    expect(page.locator("#player")).not_to_be_visible()
    assert abs(page.evaluate("scrollY") - top) < 5
    page.evaluate("document.querySelector('#q').focus({preventScroll: true})")
    page.fill("#q", "red car")
    page.keyboard.press("Enter")
    expect(page.locator("#grid .title").first).to_have_text("red car.mp4")
    assert page.evaluate("scrollY") == 0
    asked = len(server.world.asked)
    page.go_back()
    expect(page.locator("#grid .card")).to_have_count(9)
    page.wait_for_function("top => Math.abs(scrollY - top) < 5", arg=top)
    assert not any("/search" in path for path in server.world.asked[asked:]), "an answer that is known is not asked for"


def test_long_queries_do_not_overflow(opened: Opener) -> None:
    page = opened(viewport={"width": 390, "height": 844})
    page.fill("#q", "word " * 99)
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-view", "results")
    page.click("#brand")
    chip = page.get_by_role("list", name="Past searches").locator("a")
    expect(chip).to_have_count(1)
    box = chip.bounding_box()
    assert box is not None
    assert box["height"] < 50
    assert box["x"] + box["width"] <= 390
    assert not scrolls_sideways(page)
    page.get_by_role("button", name="Clear").click()
    expect(chip).to_have_count(0)


def test_the_theme_button_shows_what_it_switches_to(opened: Opener) -> None:
    page = opened(color_scheme="dark")
    sign = page.locator("#theme use")
    expect(sign).to_have_attribute("href", "#i-sun")
    page.click("#theme")
    expect(sign).to_have_attribute("href", "#i-moon")
    expect(page.locator("#theme")).to_have_attribute("aria-label", re.compile("dark"))
    page.reload()
    expect(sign).to_have_attribute("href", "#i-moon")


def test_a_question_mark_shows_the_shortcuts(opened: Opener) -> None:
    page = opened("?q=boats")
    page.locator("#grid .card a").first.focus()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).not_to_be_visible()
    page.click("#open-keys")
    expect(page.locator("#keys")).to_be_visible()


def test_the_timeline_has_a_scale_a_legend_and_named_buttons(opened: Opener) -> None:
    page = opened(f"?q=vegetables&open={moment(KITCHEN, 16, 24)}")
    ticks = page.locator("#ticks li")
    expect(ticks.first).to_have_text("0:00")
    texts = ticks.all_inner_texts()
    assert 3 <= len(texts) <= 12
    shown = ticks.evaluate_all("all => all.map(node => node.getBoundingClientRect()).map(box => [box.left, box.right])")
    assert all(one[1] <= other[0] for one, other in pairwise(shown)), "labels do not overlap"
    expect(page.locator("#timeline .legend")).to_be_visible()
    expect(page.locator("#hop-at")).to_have_text(re.compile(r"^\d of 9$"))
    box, whole = (page.locator(part).bounding_box() for part in ("#span", "#track"))
    assert box is not None
    assert whole is not None
    assert box["width"] == pytest.approx(whole["width"] * 8 / 40, abs=2)
    for name in ("Previous match", "Next match"):
        expect(page.get_by_role("button", name=name)).to_be_visible()


def test_a_moment_is_saved_as_a_clip(opened: Opener) -> None:
    page = opened(f"?q=vegetables&open={moment(KITCHEN, 4, 12)}")
    expect(page.locator("#player-title")).to_have_text("kitchen.mp4")
    with page.expect_download() as saved:
        page.click("#save")
    assert saved.value.suggested_filename == "kitchen.mp4 0.04–0.12.mp4"
    assert saved.value.path().read_bytes() == b"4-12"
    expect(page.locator("#save-label")).to_have_text("Save clip")
    page.locator(".mark[title='0:28 – 0:36']").press("Enter")
    page.click("#save")
    expect(page.locator("#save-note")).to_contain_text("the file has changed")


def test_many_moments_are_shown_when_they_are_asked_for(opened: Opener, server: FakeServer) -> None:
    server.world.clips = [replace(KITCHEN, title=f"kitchen {n}") for n in range(5)]
    page = opened("?q=vegetables")
    expect(page.locator("#grid .card")).to_have_count(24)
    page.get_by_role("button", name="Show more").click()
    expect(page.locator("#grid .card")).to_have_count(45)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)


def test_messages_with_filters_do_not_speak_of_the_whole_library(opened: Opener) -> None:
    page = opened("?q=vegetables&folder=cars")
    expect(page.locator("#notice h2")).to_have_text("No good match with these filters")
    page.get_by_role("button", name="Search without filters").click()
    expect(page.locator("#grid .card")).to_have_count(9)


def test_a_hint_takes_the_place_of_what_may_be_wrong(opened: Opener, server: FakeServer) -> None:
    server.world.hint = "the model reads English: describe the moment in English"
    page = opened("?q=ein+Hund")
    expect(page.locator("#notice")).to_contain_text("The model reads English")
    expect(page.locator("#notice")).not_to_contain_text("does not seem to contain")
    page.goto(f"{server.url}?q=dog")
    expect(page.locator("#grid .card")).to_have_count(4)
    expect(page.locator("#hint")).to_contain_text("The model reads English")
    server.world.hint = None
    page.reload()
    expect(page.locator("#grid .card")).to_have_count(4)
    expect(page.locator("#hint")).not_to_be_visible()


def test_the_server_restarts_in_mid_session(opened: Opener, server: FakeServer) -> None:
    page = opened("?q=dog")
    expect(page.locator("#grid .card")).to_have_count(4)
    server.stop()
    page.fill("#q", "a red car")
    page.keyboard.press("Enter")
    expect(page.locator("#banner")).to_have_text("The server does not respond. Retrying …")
    server.world.state = "loading"
    server.start()
    expect(page.locator("#banner")).to_contain_text("Loading the model")
    server.world.state = "ready"
    expect(page.locator(".title").first).to_have_text("red car.mp4")
    expect(page.locator("#banner")).not_to_be_visible()


def test_a_changed_library_offers_a_new_search(opened: Opener, server: FakeServer) -> None:
    page = opened("?q=dog")
    expect(page.locator("#grid .card")).to_have_count(4)
    server.world.version = 2
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.click("#fresh")
    expect(page.locator("#fresh")).not_to_be_visible()


def test_a_token_is_asked_for_and_leaves_the_address(opened: Opener, server: FakeServer) -> None:
    server.world.token = "s3cret"
    page = opened()
    page.fill("#token-value", "s3cret")
    page.keyboard.press("Enter")
    expect(page.locator("#summary")).to_contain_text("5 videos")
    assert "s3cret" not in page.url


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            "?view=library",
            "?q=dog&folder=home",
            "?q=physics",
            f"?q=vegetables&open={moment(KITCHEN, 16, 24)}&why=1",
        ),
        f"?q=sunset&open={moment(PHOTO, 0, 0)}&why=1",
    ],
)
def test_a_phone_does_not_scroll_sideways(opened: Opener, server: FakeServer, path: str) -> None:
    server.world.clips.append(PHOTO)
    page = opened(path, viewport={"width": 360, "height": 720}, has_touch=True, is_mobile=True)
    page.wait_for_load_state("networkidle")
    assert not scrolls_sideways(page)
    assert not page.evaluate("document.querySelector('dialog[open]')?.scrollWidth > innerWidth")


def test_dark_by_the_system_and_by_choice(opened: Opener) -> None:
    page = opened(color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(19, 20, 23)"
    page.click("#theme")
    assert page.evaluate(background) == "rgb(250, 250, 248)"
    page.reload()
    assert page.evaluate(background) == "rgb(250, 250, 248)"


def violations(page: Page) -> list[Any]:
    """What axe finds."""
    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("", "#start .tiles"),
        ("?view=library", ".file"),
        ("?q=dog&folder=travel", ".card"),
        ("?q=physics", "#notice h2"),
        (f"?q=a+red+car&open={moment(CAR, 4, 12)}&why=1", ".strip"),
        (f"?q=a+sunset&open={moment(PHOTO, 0, 0)}&why=1", ".strip"),
    ],
)
def test_axe_finds_nothing(opened: Opener, server: FakeServer, path: str, there: str, scheme: Any) -> None:
    server.world.clips.append(PHOTO)
    page = opened(path, color_scheme=scheme, bypass_csp=True)
    page.locator(there).first.wait_for(state="attached")
    if path:
        page.keyboard.press("Tab")
    page.wait_for_timeout(300)
    for summary in page.locator("summary").all():
        summary.click()
    assert not violations(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_dialogs_and_jobs(opened: Opener, server: FakeServer, scheme: Any) -> None:
    server.world.bad["broken.mp4"] = "no frames"
    page = opened("?view=library", color_scheme=scheme, bypass_csp=True)
    add(page, "/videos/new")
    page.get_by_text("1 file failed").click()
    page.get_by_label("Select broken.mp4").check()
    assert not violations(page)
    for button, dialog in (("#remove", "#confirm"), ("#open-add", "#add"), ("#open-keys", "#keys")):
        page.click(button)
        expect(page.locator(dialog)).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert not violations(page), dialog
        page.keyboard.press("Escape")
        expect(page.locator(dialog)).not_to_be_visible()


def test_the_library_with_keys_alone(opened: Opener, server: FakeServer) -> None:
    server.world.bad["broken.mp4"] = "no frames"
    page = opened()
    expect(page.locator(".tiles")).to_be_visible()
    press = page.keyboard.press

    def tab_to(selector: str) -> None:
        for _ in range(60):
            press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("#open-library")
    press("Enter")
    expect(page.locator(".file")).to_have_count(6)
    tab_to("#states button:last-child")
    press("Enter")
    expect(page.locator(".file")).to_have_count(1)
    assert page.evaluate("document.activeElement.textContent") == "Failed1", "focus stays"
    tab_to("#choose-all")
    press(" ")
    tab_to("#remove")
    press("Enter")
    expect(page.locator("#confirm")).to_be_visible()
    tab_to("#confirm .strong")
    press("Enter")
    expect(page.locator(".file")).to_have_count(0)
    assert len(server.world.removed) == 1
    tab_to("#states button:first-child")
    press("Enter")
    expect(page.locator(".file")).to_have_count(5)
    tab_to(".file a")
    press("Enter")
    expect(page.locator("#player")).to_be_visible()
    press("?")
    expect(page.locator("#keys")).to_be_visible()
    press("Escape")
    expect(page.locator("#keys")).not_to_be_visible()
    expect(page.locator("#player")).to_be_visible()
    press("Escape")
    expect(page.locator("#player")).not_to_be_visible()
    assert page.evaluate("document.activeElement.matches('.file a')")


def test_a_file_that_cannot_be_played_is_said(opened: Opener, server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "odd.webm").write_bytes(b"not a video at all")
    server.world.clips[1] = replace(CAR, path=tmp_path / "odd.webm")
    page = opened("?q=red+car")
    page.locator("#grid .card a").first.click()
    expect(page.locator("#video-error")).to_contain_text("This browser cannot play the file (vp8). Save the original")
    page.keyboard.press("Escape")
    expect(page.locator("#player")).not_to_be_visible()


def test_a_file_that_is_gone_is_said_as_the_server_says_it(opened: Opener, server: FakeServer, tmp_path: Path) -> None:
    server.world.clips[1] = replace(CAR, path=tmp_path / "gone.webm")
    page = opened("?q=red+car")
    page.locator("#grid .card a").first.click()
    expect(page.locator("#video-error")).to_have_text("the file of this video is not there any more")


def test_more_like_this_keeps_filters_and_names_its_source(opened: Opener, server: FakeServer) -> None:
    page = opened("?q=a+dog&folder=travel")
    page.locator("#grid .card").first.hover()
    page.locator("#grid .card").first.get_by_role("button", name="More like this").click()
    expect(page.locator("#filter-label")).to_have_text("Filters (1)")
    expect(page.locator("#grid .folder").first).to_have_text("travel")
    assert set(page.locator("#grid .folder").all_inner_texts()) == {"travel"}
    assert any("/search/like?folder=travel&" in path for path in server.world.asked)
    # Also of a moment that is not among the results.
    server.world.alone = True
    page.goto(f"{server.url}?like={moment(CAR, 4, 12)}")
    expect(page.locator("#likeness strong")).to_have_text("red car.mp4, 0:04 – 0:12")


def test_nothing_else_looks_like_it(opened: Opener, server: FakeServer) -> None:
    server.world.alone = True
    page = opened(f"?like={moment(CAR, 4, 12)}")
    expect(page.locator("#notice")).to_contain_text("No similar moments.")


def test_the_real_server(browser: Browser, world: LibraryWorld) -> None:
    """The same page on `prota serve`, with a tiny random model: any moment will do."""
    context = browser.new_context(bypass_csp=True)
    context.set_default_timeout(1000 * LIMIT)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    with serving(world) as (_, address, _):
        page.goto(f"{address}/?q=a+red+thing")
        expect(page.locator("#grid .card").first).to_be_visible()
        page.locator("#grid .card a").first.focus()
        start = float(page.evaluate("document.activeElement.closest('.card').moment.start"))
        page.keyboard.press("w")
        expect(page.locator(".strip tbody tr").first).to_be_visible()
        expect(page.locator(".mark").first).to_be_visible()
        page.wait_for_function(
            "start => { const v = document.getElementById('video'); return v.error || v.currentTime >= start; }",
            arg=start,
        )
        page.goto(f"{address}/docs")
        assert not violations(page)
        context.close()
    assert not wrong
