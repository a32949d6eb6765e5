"""`prota calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import Data, Device, Overrides, load_system, require_data
from prota.cli.progress import progress
from prota.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from prota.evaluation.calibration import Queries
    from prota.evaluation.report import Evaluation, SystemUnderTest
    from prota.model.prota import ProTA
    from prota.model.relevance import Fit, Relevance
    from prota.types import PreparedTokens

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
    require_data(data, overrides)
    import torch

    from prota.evaluation.calibration import Queries, facts_of
    from prota.evaluation.calibration import calibrate as learn
    from prota.evaluation.report import Evaluation, SystemUnderTest
    from prota.evaluation.scoring import score_split
    from prota.model.relevance import Relevance
    from prota.models.shipped import MODELS
    from prota.runs import find_checkpoint

    folder = find_checkpoint(checkpoint)[0]
    if folder.parent.resolve() == MODELS.resolve():
        raise typer.BadParameter(
            f"{checkpoint} comes with prota and is calibrated: calibrate a copy (prota export {checkpoint} FOLDER)"
        )
    system = load_system(fit_with or checkpoint, data, overrides, device)
    evaluation, own = Evaluation(system, "val"), None
    if fit_with is not None:
        # Before minutes of scoring, not after them.
        own = SystemUnderTest.load(checkpoint, system.experiment, system.model.logit_scale.device)
        ours, theirs = own.model.config, system.model.config
        if (ours.score, ours.distribution) != (theirs.score, theirs.distribution):
            raise UsageError(f"{fit_with} scores in another way than {checkpoint}: what it learns says nothing of that")
    with progress("scoring validation") as update, torch.inference_mode():
        scored = score_split(
            system.model, evaluation.reader, evaluation.split, autocast=evaluation.autocast,
            progress=lambda what, done, total: update(done, total, what),
        )  # fmt: skip
        facts = facts_of(system.model, _captions(evaluation))
        words = _words(system.model, evaluation, scored.videos)
    result = learn(Queries.captions(scored.scores, scored.video_of_text, facts), words)
    relevance = Relevance(result.fit, scored.videos[result.background])
    if own is not None:
        relevance = _passed_on(result.fit, result.background, own=own, evaluation=evaluation, facts=facts)
    relevance.save(folder)
    by = f" (of {fit_with})" if fit_with else ""
    for kind, found in (("captions", result.captions), ("single words", result.words)):
        if found is not None:
            typer.echo(
                f"{kind}, on {found.trials:,} trials{by} that it was not fitted on: calibration error "
                f'{found.error:.3f}, {found.refused:.0%} of queries about something absent get "no good match", '
                f"{found.kept:.0%} of right answers are shown"
            )
    typer.echo(f"shown from {result.fit.cutoff:.0%} on; stored in {folder}")


def _passed_on(
    fit: Fit, background: list[int], *, own: SystemUnderTest, evaluation: Evaluation, facts: Tensor
) -> Relevance:
    """What was learned with another model, for this one: with its own tokens, and as sure of words as it is."""
    import torch

    from prota.data.batches import ClipReader, open_cache
    from prota.evaluation.calibration import facts_of
    from prota.evaluation.scoring import encode_videos
    from prota.model.relevance import Relevance

    reader = ClipReader(open_cache(own.experiment), own.experiment, evaluation.split)
    chosen = [evaluation.split.video_ids[place] for place in background]
    with torch.inference_mode():
        more = float((facts_of(own.model, _captions(evaluation)) - facts)[:, 0].mean())
        return Relevance(fit.moved(more), encode_videos(own.model.eval(), reader, chosen, autocast=evaluation.autocast))


def _captions(evaluation: Evaluation) -> list[str]:
    return [caption for _, caption in evaluation.split.pairs]


def _words(model: ProTA, evaluation: Evaluation, videos: PreparedTokens) -> Queries | None:
    """Single words of the captions as queries; None where videos have too few captions to tell."""
    from prota.evaluation.calibration import Queries, facts_of, key_words
    from prota.evaluation.scoring import score_texts

    words, shares = key_words([item.captions for item in evaluation.split.items])
    if not words:
        return None
    return Queries(score_texts(model, words, videos, autocast=evaluation.autocast), shares, facts_of(model, words))
