"""Record README's commands and the page: docs/figures/search.gif, serve-search.png and serve-why.png."""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
QUERY = "a person with a scarf in a snow storm"
SIZE = {"width": 1100, "height": 640}
TERMINAL = (
    "<body style='margin:0;padding:1.5rem;background:#16181d;color:#e6e6e6'>"
    "<pre style='font:20px/1.3 DejaVu Sans Mono,monospace'>{}</pre>"
)
PROTA = (sys.executable, "-m", "prota")
# Milliseconds that anything may take.
_LIMIT = 120_000


def commands(folder: Path) -> Iterator[str]:
    """What a terminal shows after each of README's commands, which are run."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (session,) = re.findall(r"```console\n(.*?)```", readme, flags=re.DOTALL)
    shown = ""
    for command in re.findall(r"^\$ prota (.*)$", session, flags=re.MULTILINE):
        shown += f"$ prota {command}\n"
        shown += subprocess.run(
            [*PROTA, *shlex.split(command)],
            cwd=folder,
            env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            encoding="utf-8",
            check=True,
        ).stdout
        yield shown


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of a server that has loaded its model."""
    command = [*PROTA, "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(found[0] for line in process.stdout if (found := re.search(r"http://[\w.:]+", line)))
            while not ready(address):
                sleep(0.5)
            yield address
        finally:
            process.terminate()


def ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz"):
            return True
    except urllib.error.HTTPError:
        return False


def show_second(page: Page, second: float) -> None:
    """Pause the video there. The page forbids eval, which waiting for a condition in the page would need."""
    video = page.locator("video")
    shown = "video => !video.seeking && video.readyState >= 2"
    for action in ("video => video.pause()", f"video => {{ video.currentTime = {second} }}"):
        while not video.evaluate(shown):
            sleep(0.1)
        video.evaluate(action)
    while not video.evaluate(shown):
        sleep(0.1)


def picture(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def small(image: Image.Image, colours: int = 128) -> Image.Image:
    return image.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


def main() -> None:
    """Run the commands, then search in the page, open the best moment and ask why it was found."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(_LIMIT)
        expect.set_options(timeout=_LIMIT)
        frames = []
        for shown in commands(folder):
            page.set_content(TERMINAL.format(html.escape(shown)))
            frames.append((picture(page), 1500))
        with server(folder) as address:
            page.goto(address)
            page.locator("#q").fill(QUERY)
            expect(page.locator(".card").first).to_be_visible()
            page.wait_for_load_state("networkidle")
            frames.append((picture(page), 2500))
            small(frames[-1][0]).save(FIGURES / "serve-search.png", optimize=True)
            page.locator(".card").first.locator("a").click()
            show_second(page, 3)
            frames.append((picture(page), 2500))
            page.set_viewport_size({"width": 1100, "height": 1200})
            page.locator("#why-toggle").click()
            expect(page.locator(".strip img")).to_have_count(12)
            while not page.locator(".strip img").evaluate_all("all => all.every(image => image.naturalWidth)"):
                sleep(0.1)
            why = picture(page)
            small(why).save(FIGURES / "serve-why.png", optimize=True)
            frames.append((why.crop((0, 1200 - SIZE["height"], 1100, 1200)), 4000))
        browser.close()
    first, *others = [small(image) for image, _ in frames]
    times = [duration for _, duration in frames]
    first.save(FIGURES / "search.gif", save_all=True, append_images=others, duration=times, loop=0, optimize=True)


if __name__ == "__main__":
    main()
