"""`prota calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prota.cli.options import (
    AsJson,
    Data,
    Device,
    Overrides,
    load_system,
    print_json,
    require_library,
    require_system,
)
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
    checkpoint: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="run folder, model folder, name or hub id", show_default=False),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option(
            "--library",
            "-l",
            metavar="LIBRARY",
            help="instead of MODEL: a library, without captions, by everyday queries; stored in the library",
            show_default=False,
        ),
    ] = None,
    fit_with: Annotated[
        Path | None,
        typer.Option(
            metavar="OTHER",
            help="fit on this model of the same kind, if MODEL was trained on the validation videos",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    overrides: Overrides = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit the probability that a result is relevant, on the validation videos; it is saved with the model.

    With --library no captions are needed: for a model that has none, such as a bare CLIP or SigLIP.
    """
    if (checkpoint is None) == (library is None):
        raise typer.BadParameter("give either MODEL or --library LIBRARY")
    if library is not None:
        if data or overrides or fit_with:
            raise typer.BadParameter("--data, --set and --fit-with need MODEL")
        _of_library(library, device, as_json)
        return
    assert checkpoint is not None
    require_system(data, overrides, checkpoint, *filter(None, [fit_with]))
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
            f"{checkpoint} comes with prota and is calibrated; calibrate a copy (prota export {checkpoint} FOLDER)"
        )
    system = load_system(fit_with or checkpoint, data, overrides, device)
    evaluation, own = Evaluation(system, "val"), None
    if fit_with is not None:
        # Checked before minutes of scoring.
        own = SystemUnderTest.load(checkpoint, system.experiment, system.model.logit_scale.device)
        ours, theirs = own.model.config, system.model.config
        if (ours.score, ours.distribution) != (theirs.score, theirs.distribution):
            raise UsageError(
                f"{fit_with} and {checkpoint} have different score settings: calibrate with a similar model"
            )
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
    if as_json:
        measured = {
            name: found and asdict(found) for name, found in (("captions", result.captions), ("words", result.words))
        }
        print_json({"model": str(folder), "cutoff": result.fit.cutoff, **measured}, indent=2)
        return
    by = f" of {fit_with}" if fit_with else ""
    for kind, found in (("captions", result.captions), ("single words", result.words)):
        if found is not None:
            typer.echo(
                f"{kind}, {found.trials:,} held-out trials{by}: calibration error {found.error:.3f}, "
                f'{found.refused:.0%} of queries about something absent get "no good match", '
                f"{found.kept:.0%} of the right answers are good matches"
            )
    typer.echo(f"good matches have a probability of {result.fit.cutoff:.0%} or more; saved in {folder}")


def _of_library(library: str, device: str, as_json: bool) -> None:
    require_library(library)
    from prota.library.calibrating import calibrate_library

    result = calibrate_library(library, device)
    if as_json:
        print_json({"library": library, "cutoff": result.fit.cutoff, "queries": result.captions.trials}, indent=2)
        return
    refused = f'{result.captions.refused:.0%} of everyday queries about something absent get "no good match"'
    typer.echo(
        f"{refused}; good matches have a probability of {result.fit.cutoff:.0%} or more. No caption checks this. "
        f"Saved in {library}"
    )


def _passed_on(
    fit: Fit, background: list[int], *, own: SystemUnderTest, evaluation: Evaluation, facts: Tensor
) -> Relevance:
    """The fit of another model, adapted to this one's tokens and its average uncertainty."""
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
    """Single words of the captions as queries; None if the videos have too few captions."""
    from prota.evaluation.calibration import Queries, facts_of, key_words
    from prota.evaluation.scoring import score_texts

    words, shares = key_words([item.captions for item in evaluation.split.items])
    if not words:
        return None
    return Queries(score_texts(model, words, videos, autocast=evaluation.autocast), shares, facts_of(model, words))
