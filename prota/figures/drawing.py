"""What all figures share: matplotlib where it is there, marks that need no colour vision, and writing files whole."""

from __future__ import annotations

import importlib.util
import io
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prota.errors import ProtaError
from prota.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "GREY", "MARKS", "FigureError", "Mark", "new_figure", "place_labels", "render"]
__all__ += ["require_packages", "short_name", "show_picture", "wrapped", "write_numbers"]

FORMATS = (".png", ".svg")
# The text width of a page in two columns, in inches; with the resolution, a little over 1,000 pixels.
WIDTH, RESOLUTION = 7.1, 150
# Pictures are made no larger than they are printed: a frame cache holds more than any figure shows.
_PICTURE_SIDE = 110
# What a page or a report carries easily.
_LARGEST_PNG = 200_000
GREY = "#555555"
_STYLE: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "hatch.linewidth": 0.6,
    # A caption with two dollar signs in it is no formula.
    "text.parse_math": False,
    # The same numbers give the same file.
    "svg.hashsalt": "prota",
}


class FigureError(ProtaError, ValueError):
    """A figure that cannot be drawn from what was given; the message says why and what to do."""

    code = "figure"


class Mark:
    """How one of several things is drawn: each of colour, line, marker and hatch alone tells it from the others."""

    def __init__(self, colour: str, line: Any, marker: str, hatch: str) -> None:
        self.colour, self.line, self.marker, self.hatch = colour, line, marker, hatch


# Colours of Okabe and Ito, which differ to every kind of colour vision, in an order in which lightness differs too.
MARKS = (
    Mark("#0072B2", "-", "o", ""),
    Mark("#D55E00", (0, (5, 2)), "s", "////"),
    Mark("#009E73", (0, (1, 1.5)), "^", "...."),
    Mark("#CC79A7", (0, (6, 1.5, 1, 1.5)), "D", "xxxx"),
    Mark("#000000", (0, (3, 1, 1, 1, 1, 1)), "v", "----"),
    Mark("#E69F00", (0, (10, 3)), "P", "\\\\\\\\"),
)


# The extra `figures`, by the names that are imported.
_PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn", "adjustText": "adjusttext"}


def require_packages() -> None:
    """Say how to get what is not installed, before anything is computed."""
    missing = [package for name, package in _PACKAGES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise FigureError(f"figures need {', '.join(missing)}: pip install {' '.join(missing)}")


def new_figure(height: float) -> Figure:
    """An empty page of full text width, ``height`` in inches; belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=RESOLUTION, layout="constrained")
    # The canvas that can measure text, which the placing of labels needs.
    FigureCanvasAgg(figure)
    return figure


def render(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in the house style and write it as the PNG or SVG that its name says, in one stroke."""
    import matplotlib

    if path.suffix.lower() not in FORMATS:
        raise FigureError(f"{path}: a figure is one of {', '.join(FORMATS)}, by the end of its name")
    kind = path.suffix.lower().removeprefix(".")
    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        # A date would make every file another one.
        draw().savefig(file, format=kind, dpi=RESOLUTION, metadata={"Date": None} if kind == "svg" else None)
    content = _fewer_colours(file.getvalue()) if kind == "png" else file.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _fewer_colours(png: bytes) -> bytes:
    """A palette is enough for a page with small photographs, in a third of the bytes; a smaller one for many."""
    from PIL import Image

    content = png
    with Image.open(io.BytesIO(png)) as picture:
        whole = picture.convert("RGB")
    for colours in (256, 128, 64):
        # Moving the colours of the median cut to the middle of what they stand for makes errors and files smaller.
        method, dither = Image.Quantize.MEDIANCUT, Image.Dither.NONE
        file = io.BytesIO()
        whole.quantize(colours, method, kmeans=3, dither=dither).save(
            file, "png", optimize=True, dpi=(RESOLUTION, RESOLUTION)
        )
        content = file.getvalue()
        if len(content) < _LARGEST_PNG:
            break
    return content


def write_numbers(name: str, numbers: Any, path: Path) -> None:
    """The numbers of a figure, a dataclass, as JSON that others can draw from."""
    record = {"format": "prota-figure", "version": 1, "figure": name, **asdict(numbers)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def wrapped(text: str, width: int, lines: int) -> str:
    """A caption in at most so many lines; what does not fit ends in an ellipsis."""
    return textwrap.fill(" ".join(text.split()), width, max_lines=lines, placeholder=" …")


def short_name(video: str, length: int = 24) -> str:
    """A video's id where there is little room: of a long path, its end."""
    return video if len(video) <= length else f"…{video[1 - length :]}"


def show_picture(axes: Axes, picture: np.ndarray[Any, Any], edge: str = GREY, width: float = 0.6) -> None:
    """One frame [S, S, 3] with a border."""
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(picture))
    small.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    axes.imshow(np.asarray(small), interpolation="lanczos")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, edgecolor=edge, linewidth=width)


def place_labels(axes: Axes, labels: Sequence[str], points: Sequence[tuple[float, float]], colour: str) -> None:
    """Write each label near its point, apart from the other labels and points, with a line to it where that is far.

    To be called last, when the limits of the axes are final. Empty labels are skipped.
    """
    from adjustText import adjust_text
    from matplotlib.patheffects import withStroke

    texts = [
        axes.text(*point, label, fontsize=7, color=colour, zorder=6)
        for label, point in zip(labels, points, strict=True)
        if label
    ]
    for text in texts:
        # Lines may run below a word, never through it.
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    x, y = zip(*points, strict=True)
    adjust_text(
        texts,
        x,
        y,
        ax=axes,
        # By steps, not by the clock: the same numbers give the same file.
        iter_lim=1000,
        # Labels that change places, so that no two lines cross, often end on one another.
        prevent_crossings=False,
        force_text=(0.3, 0.5),
        # With room for the points' own marks.
        expand=(1.3, 1.8),
        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5},
    )
