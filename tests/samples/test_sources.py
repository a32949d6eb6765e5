"""The photographs are inside the installed packages, and their licences are written down."""

from __future__ import annotations

import importlib.util
import re
import sys

import numpy as np
import pytest

from prota.samples import sources
from prota.samples.scenes import CLIPS, SCENES
from prota.samples.sources import SOURCES, SamplesError, Source, open_picture, picture_path
from tests.processes import REPOSITORY


@pytest.mark.parametrize("name", SOURCES)
def test_every_photograph_opens(name: str) -> None:
    picture = open_picture(name)
    assert picture.mode == "RGB"
    assert min(picture.size) >= 170
    assert np.asarray(picture).std() > 5


def test_what_is_transparent_is_white() -> None:
    assert open_picture("horse").getpixel((0, 0)) == (255, 255, 255)


def test_nothing_is_imported_or_downloaded() -> None:
    before = set(sys.modules)
    for name in SOURCES:
        picture_path(name)
    packages = {module.split(".")[0] for module in set(sys.modules) - before}
    assert not packages & {"skimage", "sklearn", "matplotlib", "pooch"}


@pytest.mark.parametrize(
    ("name", "package"), [("coffee", "scikit-image"), ("china", "scikit-learn"), ("hopper", "matplotlib")]
)
def test_a_missing_package_is_one_line(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SamplesError, match=rf"in {package}: pip install scikit-image scikit-learn matplotlib$"):
        picture_path(name)


def test_a_missing_photograph_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.SOURCES, "lost", Source("skimage", "data/lost.png", "nobody", "CC0"))
    with pytest.raises(SamplesError, match=r"the installed scikit-image does not carry data/lost\.png"):
        picture_path("lost")


def test_the_page_lists_sources_licences_and_clips() -> None:
    page = (REPOSITORY / "docs" / "samples.md").read_text(encoding="utf-8")
    for source in SOURCES.values():
        licence = source.licence.split(" (")[0]
        assert re.search(rf"\| `{source.file}` \| {source.distribution} \| .*{re.escape(licence)}", page), source
        assert source.author in page
    for clip in CLIPS:
        shown = ", ".join(dict.fromkeys(f"`{SCENES[scene].picture}`" for scene, _ in clip.cuts))
        assert f"| `{clip.name}` | {sum(seconds for _, seconds in clip.cuts)} | {shown} |" in page, clip.name
        for scene, _ in clip.cuts:
            assert SCENES[scene].captions[0] in page
