"""`prota export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prota.cli.options import AsJson, Overrides, print_json, require_model

if TYPE_CHECKING:
    from prota.model.prota import ProTA

__all__ = ["export"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="run folder, model folder, name or hub id; or a TOML file: its untrained model",
        show_default=False,
    ),
]


def export(
    source: Source,
    out: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="new folder for the model, outside of runs", show_default=False)
    ],
    weights: Annotated[
        Literal["float32", "float16", "int8"], typer.Option(help="storage format; int8: a quarter of the size")
    ] = "float32",
    mean_with: Annotated[
        list[str] | None,
        typer.Option(
            "--mean-with",
            metavar="RUN",
            help="average the weights with this run's, which has the same towers and train.seed; may be repeated",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help="for a TOML file: replace its preset")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Write a model folder, for searching or sharing. A run gives its best checkpoint.

    A TOML file gives its untrained model. That is useful for an aligned encoder (CLIP, SigLIP, …) with a head that has
    no parameters: --preset global-pooling, mean-max or lda, with -s encoder.temporal_layers=0.
    """
    untrained = Path(source).is_file()
    if untrained and mean_with:
        raise typer.BadParameter("--mean-with needs a trained model, not a TOML file")
    if not untrained and (preset or overrides):
        raise typer.BadParameter("--preset and --set need a TOML file: the settings of a saved model cannot change")
    if not untrained:
        require_model(source, *(mean_with or ()))
    _check_folder(out)
    from prota.config.experiment import Experiment
    from prota.model.prota import ProTA
    from prota.runs import find_checkpoint
    from prota.training.averaging import mean_model

    if untrained:
        model = ProTA.from_config(Experiment.load(source, overrides or (), preset).model)
    else:
        folders = [find_checkpoint(Path(given))[0] for given in (source, *(mean_with or ()))]
        if out.resolve() in [folder.resolve() for folder in folders]:
            raise typer.BadParameter(f"{out} is the model itself; give another folder")
        model = mean_model([ProTA.from_pretrained(folder) for folder in folders])
    model.save_pretrained(out, weights)
    _print_report(out, model, weights, len(mean_with or ()), as_json)
    for sentence in _lacks(model) if untrained else []:
        typer.echo(f"untrained: {sentence}", err=True)


def _check_folder(out: Path) -> None:
    for folder in (out.resolve(), *out.resolve().parents):
        if (folder / "checkpoints.json").exists():
            raise typer.BadParameter(f"{out} is inside the run {folder}; give a folder outside of runs")
    if out.is_dir() and any(out.iterdir()) and not (out / "config.json").exists():
        raise typer.BadParameter(f"{out} contains other files; give a new folder")


def _print_report(
    out: Path, model: ProTA, weights: Literal["float32", "float16", "int8"], more: int, as_json: bool
) -> None:
    """Print what was written; ``more``: how many models were averaged with the first."""
    from prota.model.weights import rounding_error

    size, whole = (out / "model.safetensors").stat().st_size, sum(p.numel() * 4 for p in model.state_dict().values())
    name, error = ("", 0.0) if weights == "float32" else rounding_error(model.state_dict(), weights)
    if as_json:
        print_json({
            "model": str(out), "weights": weights, "bytes": size, "share_of_float32": size / whole,
            "rounding_error": error, "calibrated": model.relevance is not None,
        }, indent=2)  # fmt: skip
    else:
        if more:
            typer.echo(f"mean of {1 + more} models; evaluate it, it may be worse than each of them")
        share = "" if weights == "float32" else f", {size / whole:.0%} of float32"
        typer.echo(f"{out}: {weights} weights, {size / 1e6:.1f} MB{share}")
        if error:
            typer.echo(f"rounding error: at most {error:.2%} of the norm of a row ({name})")
        typer.echo(
            "calibrated relevance: " + ("none; `prota calibrate` adds it" if model.relevance is None else "kept")
        )


def _lacks(model: ProTA) -> list[str]:
    """Why the scores of an untrained model are meaningless; empty: they are those of its aligned encoders."""
    said = []
    encoder = model.config.encoder
    if encoder.kind in ("pair", "toy"):
        said.append("its encoders are not aligned; train it first, or start from CLIP")
    if encoder.temporal_layers:
        said.append("its temporal transformer is random; -s encoder.temporal_layers=0 removes it")
    if any(True for _ in model.head.parameters()):
        said.append("its head is random; --preset global-pooling, mean-max or lda has no parameters")
    return said
