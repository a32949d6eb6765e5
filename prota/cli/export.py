"""`prota export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prota.cli.options import Overrides

if TYPE_CHECKING:
    from prota.model.prota import ProTA

__all__ = ["export"]

Source = Annotated[
    str,
    typer.Argument(
        help="run folder, model folder, name or hub id; a TOML file: its model, untrained", show_default=False
    ),
]


def export(
    source: Source,
    out: Annotated[Path, typer.Argument(help="folder to write the model in, outside of runs", show_default=False)],
    weights: Annotated[
        Literal["float32", "float16", "int8"], typer.Option(help="how weights are stored; int8: a quarter of the size")
    ] = "float32",
    mean_with: Annotated[
        list[str] | None,
        typer.Option(
            "--mean-with",
            help="average the weights with those of this run, of the same towers and train.seed; may be repeated",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="of a TOML file: this preset instead of the file's")] = None,
    overrides: Overrides = None,
) -> None:
    """Write a model folder to search with or to share: of a run its best checkpoint.

    A TOML file gives its untrained model, which means something where it is a CLIP with nothing to learn: --preset
    global-pooling, mean-max or lda, with -s encoder.temporal_layers=0.
    """
    untrained = Path(source).is_file()
    if not untrained and (preset or overrides):
        raise typer.BadParameter("--preset and --set change the settings of a TOML file: a saved model keeps its own")
    # A resume goes on with what lies there.
    for folder in (out.resolve(), *out.resolve().parents):
        if (folder / "checkpoints.json").exists():
            raise typer.BadParameter(f"{out} is in the folder of the run {folder}, which needs its files: give another")
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").exists():
        raise typer.BadParameter(f"{out} has other files in it: give a new folder")
    from prota.config.experiment import Experiment
    from prota.model.prota import ProTA
    from prota.runs import find_checkpoint
    from prota.training.averaging import mean_model

    if untrained:
        if mean_with:
            raise typer.BadParameter("--mean-with is for models that are trained, not for a TOML file")
        model = ProTA.from_config(Experiment.load(source, overrides or (), preset).model)
    else:
        folders = [find_checkpoint(Path(given))[0] for given in (source, *(mean_with or ()))]
        if out.resolve() in [folder.resolve() for folder in folders]:
            raise typer.BadParameter(f"{out} is the model itself: give another folder")
        model = mean_model([ProTA.from_pretrained(folder) for folder in folders])
    model.save_pretrained(out, weights)
    if mean_with:
        typer.echo(f"the mean of {1 + len(mean_with)} models: measure it, it may be worse than each")
    _tell_size(out, model, weights)
    typer.echo(
        "calibrated relevance: " + ("none; `prota calibrate` adds it" if model.relevance is None else "taken along")
    )
    for sentence in _lacks(model) if untrained else []:
        typer.echo(f"untrained: {sentence}", err=True)


def _tell_size(out: Path, model: ProTA, weights: Literal["float32", "float16", "int8"]) -> None:
    from prota.model.weights import rounding_error

    size, whole = (out / "model.safetensors").stat().st_size, sum(p.numel() * 4 for p in model.state_dict().values())
    share = "" if weights == "float32" else f", {size / whole:.0%} of float32"
    typer.echo(f"{out}: weights of {size / 1e6:.1f} MB as {weights}{share}")
    name, error = ("", 0.0) if weights == "float32" else rounding_error(model.state_dict(), weights)
    if error:
        typer.echo(f"rounding moves no row by more than {error:.2%} of its length ({name})")


def _lacks(model: ProTA) -> list[str]:
    """Why the scores of an untrained model mean nothing; empty: they are CLIP's."""
    said = []
    encoder = model.config.encoder
    if encoder.kind != "clip":
        said.append("its words and frames have never met; train it first, or start from a CLIP")
    if encoder.temporal_layers:
        said.append("its temporal transformer disturbs the frames; -s encoder.temporal_layers=0 leaves it out")
    if any(True for _ in model.head.parameters()):
        said.append("its head has still to learn; --preset global-pooling, mean-max or lda has nothing to learn")
    return said
