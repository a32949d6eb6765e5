"""Shared by all figures: style, marks that do not depend on colours, and writing files."""

from __future__ import annotations

import importlib.util
import io
import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prota.errors import ProtaError
from prota.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "GREY", "MARKS", "FigureError", "Mark", "new_figure", "place_labels", "render"]
__all__ += ["require_packages", "short_name", "show_picture", "wrapped", "write_numbers"]

FORMATS = (".png", ".svg")
# Text width of a two-column page in inches, and dots per inch.
WIDTH, RESOLUTION = 7.1, 150
# Largest side of frames in a figure, in pixels.
_PICTURE_SIDE = 110
# In bytes.
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
    # Captions may contain dollar signs.
    "text.parse_math": False,
    # For reproducible files.
    "svg.hashsalt": "prota",
}


class FigureError(ProtaError, ValueError):
    """A figure that cannot be drawn."""

    code = "figure"


class Mark(NamedTuple):
    """The style of one of several things; colour, line, marker and hatch are each unique."""

    colour: str
    line: Any
    marker: str
    hatch: str


# The colour-blind safe colours of Okabe and Ito, ordered for contrast in lightness.
MARKS = (
    Mark("#0072B2", "-", "o", ""),
    Mark("#D55E00", (0, (5, 2)), "s", "////"),
    Mark("#009E73", (0, (1, 1.5)), "^", "...."),
    Mark("#CC79A7", (0, (6, 1.5, 1, 1.5)), "D", "xxxx"),
    Mark("#000000", (0, (3, 1, 1, 1, 1, 1)), "v", "----"),
    Mark("#E69F00", (0, (10, 3)), "P", "\\\\\\\\"),
)


# Packages of the extra `figures`, by module.
_PACKAGES = {"matplotlib": "matplotlib", "sklearn": "scikit-learn", "adjustText": "adjusttext"}


def require_packages() -> None:
    """Raise an error if a package is missing."""
    missing = [package for name, package in _PACKAGES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise FigureError(f"figures need {', '.join(missing)}: pip install {' '.join(missing)}")


def new_figure(height: float) -> Figure:
    """An empty figure of full text width, ``height`` in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=RESOLUTION, layout="constrained")
    # `place_labels` needs a canvas that can measure text.
    FigureCanvasAgg(figure)
    return figure


def render(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure and write it as PNG or SVG, by its extension, atomically."""
    import matplotlib

    if path.suffix.lower() not in FORMATS:
        raise FigureError(f"{path} must end in {' or '.join(FORMATS)}")
    kind = path.suffix.lower().removeprefix(".")
    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        # Without a date, for reproducible files.
        draw().savefig(file, format=kind, dpi=RESOLUTION, metadata={"Date": None} if kind == "svg" else None)
    content = _fewer_colours(file.getvalue()) if kind == "png" else file.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _fewer_colours(png: bytes) -> bytes:
    """Reduce a PNG to a palette, a smaller one for large files."""
    from PIL import Image

    content = png
    with Image.open(io.BytesIO(png)) as picture:
        whole = picture.convert("RGB")
    for colours in (256, 128, 64):
        # k-means after the median cut reduces both errors and size.
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
    """Write the numbers of a figure, a dataclass, as JSON."""
    record = {"format": "prota-figure", "version": 1, "figure": name, **asdict(numbers)}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def wrapped(text: str, width: int, lines: int) -> str:
    """Wrap a caption; more than ``lines`` lines end in an ellipsis."""
    return textwrap.fill(" ".join(text.split()), width, max_lines=lines, placeholder=" …")


def short_name(video: str, length: int = 24) -> str:
    """A video's id, shortened at its start."""
    return video if len(video) <= length else f"…{video[1 - length :]}"


def show_picture(axes: Axes, picture: np.ndarray[Any, Any], edge: str = GREY, width: float = 0.6) -> None:
    """Draw a frame [S, S, 3] with a border."""
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(picture))
    small.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    axes.imshow(np.asarray(small), interpolation="lanczos")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, edgecolor=edge, linewidth=width)


def place_labels(axes: Axes, labels: Sequence[str], points: Sequence[tuple[float, float]], colour: str) -> None:
    """Write each label near its point, without overlaps, and connect distant ones by a line; empty labels are skipped.

    Call it last, when the limits of the axes are final.
    """
    from adjustText import adjust_text
    from matplotlib.patheffects import withStroke

    texts = [
        axes.text(*point, label, fontsize=7, color=colour, zorder=6)
        for label, point in zip(labels, points, strict=True)
        if label
    ]
    for text in texts:
        # Lines pass below words.
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    x, y = zip(*points, strict=True)
    adjust_text(
        texts,
        x,
        y,
        ax=axes,
        # A limit in steps, not in time, for reproducible files.
        iter_lim=1000,
        # Swapping labels so that lines do not cross often makes them overlap.
        prevent_crossings=False,
        force_text=(0.3, 0.5),
        # Room for the markers.
        expand=(1.3, 1.8),
        arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.5},
    )
