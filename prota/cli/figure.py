"""`prota figure …`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prota.cli.options import AllowMissing, Data, Device, Overrides, SplitName, load_system
from prota.cli.progress import progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from prota.figures.ranked import RankedSplit

__all__ = ["app"]

app = typer.Typer(help="Figures of runs and models, PNG or SVG; also as numbers.", no_args_is_help=True)


def _picture_file(path: Path) -> Path:
    if path.suffix.lower() not in (".png", ".svg"):
        raise typer.BadParameter(f"{path} is neither a .png nor a .svg file")
    return path


Out = Annotated[Path, typer.Option("--out", "-o", callback=_picture_file, help="where it goes: .png or .svg")]
Json = Annotated[Path | None, typer.Option("--json", help="also write its numbers, to draw it elsewhere")]
Runs = Annotated[list[Path], typer.Argument(help="two or more run folders; those of one kind are averaged over seeds")]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="name of a run, once for each; one name is one curve")
]
Checkpoint = Annotated[Path, typer.Argument(help="run folder or model folder", show_default=False)]
Caption = Annotated[str | None, typer.Option(help="a caption of the split; any words where --video is given")]
Video = Annotated[str | None, typer.Option(help="id of the caption's own video")]
Negative = Annotated[str | None, typer.Option(help="id of the other video; default: the best-scoring wrong one")]


@app.command()
def uncertainty(runs: Runs, out: Out, labels: Labels = None, json_file: Json = None) -> None:
    """Mean log σ² of words and frames over training, with and without the KL term."""
    _require_packages()
    from prota.figures import uncertainty as figure

    numbers = figure.collect(runs, labels or ())
    _write("uncertainty", numbers, lambda: figure.draw(numbers), out=out, json_file=json_file)


@app.command()
def margin(runs: Runs, out: Out, labels: Labels = None, json_file: Json = None) -> None:
    """The adaptive margin and validation R@1 over training, with and without that margin."""
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
    """What each word and frame weighs, a caption's own video beside another; default: the closest right decision."""
    _require_packages()
    from prota.figures import tokens as figure

    ranked = _score(checkpoint, data, overrides, split=split, device=device, allow_missing=allow_missing)
    choice = ranked.choose(caption, video, negative)
    numbers, pictures = figure.collect(ranked, choice), ranked.pictures(choice.positive, choice.negative)
    _write("tokens", numbers, lambda: figure.draw(numbers, pictures), out=out, json_file=json_file)


@app.command()
def distributions(
    without: Annotated[Path, typer.Argument(help="run or model folder without ProTA", show_default=False)],
    with_prota: Annotated[Path, typer.Argument(help="run or model folder with it", show_default=False)],
    out: Out,
    caption: Caption = None,
    video: Video = None,
    negative: Negative = None,
    labels: Annotated[list[str] | None, typer.Option("--label", help="name of a model; twice")] = None,
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Json = None,
) -> None:
    """t-SNE of words and frames with their σ, two models; default: the caption that the second one mends most."""
    names = labels or ["without ProTA", "with ProTA"]
    if len(names) != 2:
        raise typer.BadParameter("two models have two names: give --label twice, or not at all")
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
    count: Annotated[int, typer.Option(min=1, max=20, help="captions to show")] = 5,
    order: Annotated[
        Literal["worst", "nearest"], typer.Option(help="lowest ranks first, or those nearest to the first place")
    ] = "worst",
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    device: Device = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Json = None,
) -> None:
    """Captions whose own video is not found first, with what is found instead."""
    _require_packages()
    from prota.figures import failures as figure

    ranked = _score(checkpoint, data, overrides, split=split, device=device, allow_missing=allow_missing)
    numbers = figure.collect(ranked, count, order)
    pictures = ranked.pictures(*numbers.videos())
    _write("failures", numbers, lambda: figure.draw(numbers, pictures), out=out, json_file=json_file)


@app.command()
def ablation(
    folder: Annotated[Path, typer.Argument(help="what `prota ablate` was given as --out", show_default=False)],
    out: Out,
    table: Annotated[
        Literal["main", "temperature", "kernels"], typer.Option(help="which of the paper's tables")
    ] = "main",
    metric: Annotated[Literal["r1", "r5", "r10", "median_rank", "mean_rank"], typer.Option(help="what to plot")] = "r1",
    json_file: Json = None,
) -> None:
    """A table of `prota ablate` with error bars over seeds, the paper's figures beside it."""
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
    """The split as a checkpoint scores it, with a bar while it does."""
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
