"""`prota figure`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prota.cli.commands import App
from prota.cli.options import (
    AllowMissing,
    Checkpoint,
    Data,
    Device,
    Overrides,
    SplitName,
    load_system,
    require_paths,
    require_system,
)
from prota.cli.progress import progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prota.figures.ranked import RankedSplit

__all__ = ["app"]

app = App(help="Draw figures of runs and models as PNG or SVG; export their numbers.", no_args_is_help=True)


def _picture_file(path: Path) -> Path:
    if path.suffix.lower() not in (".png", ".svg"):
        raise typer.BadParameter(f"{path}: the file must end in .png or .svg")
    return path


Out = Annotated[
    Path, typer.Option("--out", "-o", callback=_picture_file, metavar="FILE", help="file to write: .png or .svg")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="also write the numbers of the figure as JSON")
]
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN", help="two or more run folders; equal settings are averaged over seeds", show_default=False
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME", help="label of a run, once per run; runs with one label share a curve"),
]
Caption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="caption of the split, or any text if --video is given")
]
Video = Annotated[str | None, typer.Option(metavar="ID", help="video of the caption")]
Negative = Annotated[
    str | None, typer.Option(metavar="ID", help="video to compare with; default: the wrong one with the best score")
]


@app.command()
def uncertainty(runs: Runs, out: Out, labels: Labels = None, json_file: Json = None) -> None:
    """Plot the mean log σ² of words and frames over training, with and without the KL term."""
    require_paths(*runs)
    _require_packages()
    from prota.figures import uncertainty as figure

    numbers = figure.collect(runs, labels or ())
    _write("uncertainty", numbers, lambda: figure.draw(numbers), out=out, json_file=json_file)


@app.command()
def margin(runs: Runs, out: Out, labels: Labels = None, json_file: Json = None) -> None:
    """Plot the adaptive margin and validation R@1 over training, with and without the margin."""
    require_paths(*runs)
    _require_packages()
    from prota.figures import margin as figure

    numbers = figure.collect(runs, labels or ())
    _write("margin", numbers, lambda: figure.draw(numbers), out=out, json_file=json_file)


@app.command()
def tokens(
    checkpoint: Checkpoint,
    out: Out,
    caption: Caption = None,
    video: Video = None,
    negative: Negative = None,
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Json = None,
) -> None:
    """Draw the weights of words and frames for a caption and two videos; default: the closest correct decision."""
    require_system(data, overrides, checkpoint)
    _require_packages()
    from prota.figures import tokens as figure

    ranked = _score(checkpoint, data, overrides, split=split, device=device, allow_missing=allow_missing)
    choice = ranked.choose(caption, video, negative)
    numbers, pictures = figure.collect(ranked, choice), ranked.pictures(choice.positive, choice.negative)
    _write("tokens", numbers, lambda: figure.draw(numbers, pictures), out=out, json_file=json_file)


@app.command()
def distributions(
    without: Annotated[Path, typer.Argument(metavar="BASELINE", help="run or model without ProTA", show_default=False)],
    with_prota: Annotated[Path, typer.Argument(metavar="MODEL", help="run or model with ProTA", show_default=False)],
    out: Out,
    caption: Caption = None,
    video: Video = None,
    negative: Negative = None,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME", help="label of a model; give it twice")
    ] = None,
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Json = None,
) -> None:
    """Plot words and frames of two models with their σ by t-SNE; default: the caption whose rank improves most."""
    names = labels or ["without ProTA", "with ProTA"]
    if len(names) != 2:
        raise typer.BadParameter("give --label twice or not at all")
    require_system(data, overrides, without, with_prota)
    _require_packages()
    from prota.figures import distributions as figure

    first, second = (
        _score(folder, data, overrides, split=split, device=device, allow_missing=allow_missing)
        for folder in (without, with_prota)
    )
    if (caption, video, negative) == (None, None, None):
        choice = figure.choose_pair(first, second)
    else:
        choice = first.choose(caption, video, negative)
    numbers = figure.collect([(names[0], first), (names[1], second)], choice)
    _write("distributions", numbers, lambda: figure.draw(numbers), out=out, json_file=json_file)


@app.command()
def failures(
    checkpoint: Checkpoint,
    out: Out,
    count: Annotated[int, typer.Option(min=1, max=20, metavar="N", help="number of captions")] = 5,
    order: Annotated[
        Literal["worst", "nearest"], typer.Option(help="worst ranks first, or the ranks nearest to 1 first")
    ] = "worst",
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Json = None,
) -> None:
    """Draw captions whose video is not ranked first, with the videos that are."""
    require_system(data, overrides, checkpoint)
    _require_packages()
    from prota.figures import failures as figure

    ranked = _score(checkpoint, data, overrides, split=split, device=device, allow_missing=allow_missing)
    numbers = figure.collect(ranked, count, order)
    pictures = ranked.pictures(*numbers.videos())
    _write("failures", numbers, lambda: figure.draw(numbers, pictures), out=out, json_file=json_file)


@app.command()
def ablation(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="the --out folder of `prota ablate`", show_default=False)
    ],
    out: Out,
    table: Annotated[Literal["main", "temperature", "kernels"], typer.Option(help="table of the paper")] = "main",
    metric: Annotated[
        Literal["r1", "r5", "r10", "median_rank", "mean_rank"], typer.Option(help="metric to plot")
    ] = "r1",
    json_file: Json = None,
) -> None:
    """Plot a table of `prota ablate` with error bars over seeds, beside the results of the paper."""
    require_paths(folder)
    _require_packages()
    from prota.figures import ablation as figure

    numbers = figure.collect(folder, table, metric)
    _write("ablation", numbers, lambda: figure.draw(numbers), out=out, json_file=json_file)


def _require_packages() -> None:
    from prota.figures.drawing import require_packages

    require_packages()


def _score(
    checkpoint: Path, data: Path | None, overrides: list[str] | None, *, split: str, device: str, allow_missing: int
) -> RankedSplit:
    """Score a split with a checkpoint; shows a progress bar."""
    system = load_system(checkpoint, data, overrides, device)
    from prota.evaluation.report import Evaluation
    from prota.figures.ranked import RankedSplit

    evaluation = Evaluation(system, split, allow_missing)
    with progress(f"scoring {split}") as update:
        return RankedSplit(evaluation, lambda what, done, total: update(done, total, what))


def _write(name: str, numbers: Any, draw: Callable[[], Figure], *, out: Path, json_file: Path | None) -> None:
    from prota.figures.drawing import render, write_numbers

    render(draw, out)
    typer.echo(f"figure: {out}")
    if json_file is not None:
        write_numbers(name, numbers, json_file)
        typer.echo(f"numbers: {json_file}")
