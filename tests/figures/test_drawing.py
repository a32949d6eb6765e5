"""Files that are whole, small and of the kind their name says; marks and labels that can be told apart."""

from __future__ import annotations

import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from prota.figures.drawing import (
    MARKS,
    FigureError,
    new_figure,
    place_labels,
    render,
    require_packages,
    short_name,
    show_picture,
    wrapped,
    write_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def example() -> Figure:
    figure = new_figure(2.0)
    axes = figure.subplots()
    axes.plot([0, 1], [1, 0])
    # Not a formula, and not to be taken for a broken one.
    axes.set_title("it costs $5 and {$x_")
    return figure


def test_png_and_svg_are_what_they_say(tmp_path: Path) -> None:
    render(example, tmp_path / "new" / "a.png")
    render(example, tmp_path / "a.SVG")
    with Image.open(tmp_path / "new" / "a.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.size == (1065, 300)
        # White paper, dark ink.
        values = np.asarray(picture.convert("L"))
        assert values.max() == 255
        assert values.min() < 80
    assert (tmp_path / "new" / "a.png").stat().st_size < 50_000
    root = ElementTree.parse(tmp_path / "a.SVG").getroot()
    assert root.tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.SVG", "new"]


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_the_same_figure_is_the_same_file(tmp_path: Path, name: str) -> None:
    files = [tmp_path / folder / name for folder in ("first", "second")]
    for file in files:
        render(example, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prota.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        render(example, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"must end in \.png or \.svg"):
        render(example, tmp_path / "a.jpeg")


def test_what_is_not_installed_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FigureError, match="figures need matplotlib: pip install matplotlib"):
        require_packages()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(FigureError, match="need matplotlib, scikit-learn: pip install matplotlib scikit-learn"):
        require_packages()


@pytest.mark.process
def test_importing_figures_imports_no_matplotlib() -> None:
    import subprocess

    modules = "ablation, distributions, drawing, failures, margin, tokens, uncertainty"
    code = f"import sys; from prota.figures import {modules}; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_numbers_are_plain_json(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Numbers:
        values: tuple[float, ...]
        none: None = None

    write_numbers("example", Numbers((1.0, 2.5)), tmp_path / "new" / "numbers.json")
    record = json.loads((tmp_path / "new" / "numbers.json").read_text(encoding="utf-8"))
    expected = {"format": "prota-figure", "version": 1, "figure": "example", "values": [1.0, 2.5], "none": None}
    assert record == expected
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_numbers("example", Numbers((float("nan"),)), tmp_path / "nan.json")


def test_every_mark_differs_in_more_than_colour() -> None:
    for attribute in ("colour", "line", "marker", "hatch"):
        values = [str(getattr(mark, attribute)) for mark in MARKS]
        assert len(set(values)) == len(values), attribute


def test_long_captions_end_in_an_ellipsis() -> None:
    assert wrapped("a  man\nplays", 20, 2) == "a man plays"
    assert wrapped("a man plays a guitar on a roof", 12, 2) == "a man plays\na guitar …"


def test_long_paths_keep_their_end() -> None:
    assert short_name("video7020") == "video7020"
    assert short_name("a/long/path/to/a/video7020", 12) == "…a/video7020"


def test_large_frames_become_small_pictures() -> None:
    figure = new_figure(1.0)
    axes = figure.subplots()
    show_picture(axes, np.zeros((400, 400, 3), dtype=np.uint8), "black", 2.0)
    assert axes.images[0].get_size() == (110, 110)
    assert axes.spines["top"].get_linewidth() == 2.0
    assert axes.spines["top"].get_visible()


def test_labels_of_points_that_are_close_do_not_overlap_and_cover_no_point() -> None:
    places = []
    for _ in range(2):
        figure = new_figure(4.0)
        axes = figure.subplots()
        points = [(float(x), float(y)) for x, y in np.random.default_rng(0).normal(0, 0.05, (14, 2))]
        axes.set(xlim=(-1, 1), ylim=(-1, 1))
        # A point without a label is not covered either.
        place_labels(axes, ["", *(f"word{number}" for number in range(12)), ""], points, "black")
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 12
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert not any(box.count_contains(axes.transData.transform(points)) for box in boxes)
        places.append([box.bounds for box in boxes])
    assert places[0] == places[1]
