"""`prota calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import Data, Device, Overrides, load_system, progress

if TYPE_CHECKING:
    from torch import Tensor

    from prota.model import ProTA

__all__ = ["calibrate"]


def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="run folder or model folder", show_default=False)],
    fit_with: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="another of its kind to learn with, where the model itself was trained on the validation videos",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Learn on validation videos when the best match of a query is a good one; stored with the model."""
    import torch

    from prota.data.batches import ClipReader, open_cache
    from prota.evaluation.evaluate import encode_videos, score_split
    from prota.evaluation.report import Evaluation, SystemUnderTest, find_checkpoint
    from prota.library.relevance import Relevance
    from prota.library.relevance import calibrate as learn
    from prota.models.shipped import MODELS

    folder = find_checkpoint(checkpoint)[0]
    if folder.parent.resolve() == MODELS.resolve():
        raise typer.BadParameter(
            f"{checkpoint} comes with prota and is calibrated: calibrate a copy (prota export {checkpoint} FOLDER)"
        )
    system = load_system(fit_with or checkpoint, data, overrides, device)
    evaluation = Evaluation(system, "val")
    captions = [caption for _, caption in evaluation.split.pairs]
    with progress("scoring validation") as update, torch.inference_mode():
        scored = score_split(
            system.model, evaluation.reader, evaluation.split, evaluation.autocast,
            lambda what, done, total: update(done, total, what),
        )  # fmt: skip
        uncertainty = _uncertainty(system.model, captions)
    result = learn(scored.scores, scored.video_of_text, uncertainty)
    relevance = Relevance(result.fit, scored.videos[result.background])
    if fit_with is not None:
        own = SystemUnderTest.load(checkpoint, system.experiment, system.model.logit_scale.device)
        reader = ClipReader(open_cache(own.experiment), own.experiment, evaluation.split)
        chosen = [evaluation.split.video_ids[place] for place in result.background]
        with torch.inference_mode():
            more = float((_uncertainty(own.model, captions) - uncertainty).mean())
            background = encode_videos(own.model.eval(), reader, chosen, evaluation.autocast)
        relevance = Relevance(result.fit.moved(more), background)
    relevance.save(folder)
    by = f" (of {fit_with})" if fit_with else ""
    typer.echo(
        f"on {result.trials:,} trials{by} that it was not fitted on: calibration error {result.error:.3f}, "
        f'{result.refused:.0%} of queries about something absent get "no good match", '
        f"{result.kept:.0%} of right answers are shown (from {result.fit.cutoff:.0%} on); stored in {folder}"
    )


def _uncertainty(model: ProTA, captions: Sequence[str]) -> Tensor:
    import torch

    from prota.library.relevance import query_uncertainty

    parts = [captions[start : start + 256] for start in range(0, len(captions), 256)]
    return torch.cat([query_uncertainty(model.encode_text(part)).float().cpu() for part in parts])
