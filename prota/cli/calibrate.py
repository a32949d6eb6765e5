"""`prota calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prota.cli.options import Data, Device, Overrides, load_system, progress

__all__ = ["calibrate"]


def calibrate(
    checkpoint: Annotated[Path, typer.Argument(help="run folder or model folder", show_default=False)],
    data: Data = None,
    overrides: Overrides = None,
    device: Device = "auto",
) -> None:
    """Learn on validation videos when the best match of a query is a good one; stored with the model."""
    import torch

    from prota.evaluation.evaluate import score_split
    from prota.evaluation.report import Evaluation, find_checkpoint
    from prota.library.relevance import Relevance, query_uncertainty
    from prota.library.relevance import calibrate as fit
    from prota.models.shipped import MODELS

    system = load_system(checkpoint, data, overrides, device)
    folder = find_checkpoint(checkpoint)[0]
    if folder.parent.resolve() == MODELS.resolve():
        raise typer.BadParameter(
            f"{checkpoint} comes with prota and is calibrated: calibrate a copy (prota export {checkpoint} FOLDER)"
        )
    evaluation = Evaluation(system, "val")
    with progress("scoring validation") as update, torch.inference_mode():
        scored = score_split(
            system.model, evaluation.reader, evaluation.split, evaluation.autocast,
            lambda what, done, total: update(done, total, what),
        )  # fmt: skip
        captions = [caption for _, caption in evaluation.split.pairs]
        uncertainty = [
            query_uncertainty(system.model.encode_text(captions[start : start + 256])).float().cpu()
            for start in range(0, len(captions), 256)
        ]
    result = fit(scored.scores, scored.video_of_text, torch.cat(uncertainty))
    Relevance(result.fit, scored.videos[result.background]).save(folder)
    typer.echo(
        f"on {result.trials:,} trials that it was not fitted on: calibration error {result.error:.3f}, "
        f'{result.refused:.0%} of queries about something absent get "no good match", '
        f"{result.kept:.0%} of right answers are shown (from {result.fit.cutoff:.0%} on); stored in {folder}"
    )
