"""`prota evaluate`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prota.cli.options import (
    AllowMissing,
    BackendName,
    Data,
    Device,
    Overrides,
    SplitName,
    load_system,
    print_json,
    require_data,
    require_model,
    require_paths,
    show_table,
)
from prota.cli.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

    from prota.evaluation.audit import Check
    from prota.evaluation.passport import Passport
    from prota.evaluation.report import Evaluation, Measured
    from prota.runtime import World

__all__ = ["evaluate"]


Model = Annotated[
    Path | None,
    typer.Argument(metavar="MODEL", help="run folder, model folder, name or hub id", show_default=False),
]
Scores = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="scores of any system instead of a model: .npy, texts x videos"),
]
Targets = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="with --scores: the video of each text, .npy or .json; default: text i, video i"),
]
Normalisation = Annotated[
    Literal["none", "dsl", "qbnorm"], typer.Option(help="post-processing of the scores; recorded in the result")
]
Candidates = Annotated[
    Literal["captions", "videos"],
    typer.Option(help="video to text: rank single captions, or videos by their best caption"),
]
Faithful = Annotated[
    bool, typer.Option("--faithfulness", help="also measure the weights of words and the effect of replacing one")
]
_RESULT = "file for the result, -: print it; default for a run: RUN/results, one name per split, data and settings"


def evaluate(
    checkpoint: Model = None,
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    scores: Scores = None,
    targets: Targets = None,
    normalisation: Normalisation = "none",
    candidates: Candidates = "captions",
    audit: Annotated[bool, typer.Option("--audit", help="also check the model for leaks between queries")] = False,
    faithfulness: Faithful = False,
    device: Device = "auto",
    backend: BackendName = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help=_RESULT)] = None,
    save_scores: Annotated[Path | None, typer.Option(metavar="FILE", help="also write the score matrix, .npy")] = None,
) -> None:
    """Evaluate a model or a score matrix: metrics of both directions with 95 % intervals, written as JSON.

    With several devices, start it with torchrun.
    """
    if (checkpoint is None) == (scores is None):
        raise typer.BadParameter("give either MODEL or --scores FILE")
    require_data(data, overrides)
    asked = (audit, faithfulness, normalisation == "qbnorm", data, save_scores, split != "test")
    _check_options(scores is not None, any(asked), targets is not None)
    require_paths(*filter(None, (scores, targets)))
    if checkpoint is not None:
        require_model(checkpoint)
    with _processes("cpu" if checkpoint is None else device) as world:
        if scores is not None:
            if world.first:
                _evaluate_matrix(
                    scores, targets, dsl=normalisation == "dsl", candidates=candidates, json_file=json_file
                )
            return
        assert checkpoint is not None
        from prota.evaluation.audit import audit as run_audit
        from prota.evaluation.report import Evaluation
        from prota.kernels.dispatch import using

        evaluation = world.together(
            lambda: Evaluation(load_system(checkpoint, data, overrides, world.device), split, allow_missing)
        )
        with using(backend), progress("evaluating") as update:
            measured = evaluation.measure(normalisation, lambda what, done, total: update(done, total, what), world)
        if not world.first:
            return
        if save_scores is not None:
            # First: scoring took longest, and a later error must not lose it.
            _save(save_scores, measured.scored.scores)
        passport = evaluation.result(measured, normalisation, candidates)
        shown = str(json_file) != "-"
        if shown:
            show_table(passport.table())
        if faithfulness:
            passport = replace(passport, faithfulness=_report_faithfulness(evaluation, measured, shown))
        if json_file is None and (checkpoint / "checkpoints.json").exists():
            name = _result_name(
                split,
                normalisation=normalisation,
                candidates=candidates,
                data=data,
                overrides=overrides or [],
                missing=len(passport.missing),
            )
            json_file = checkpoint / "results" / name
        _write(passport, json_file)
        if audit:
            _report_audit(run_audit(evaluation.scorer(), passport.queries, passport.videos), err=not shown)


def _save(path: Path, scores: Tensor) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        # An open file: numpy would add .npy to a name.
        np.save(file, scores.numpy())


def _result_name(
    split: str, *, normalisation: str, candidates: str, data: Path | None, overrides: list[str], missing: int
) -> str:
    """A name for each measurement of a run, so that different settings never replace a result."""
    parts = [split, *(part for part in (normalisation, candidates) if part not in ("none", "captions"))]
    if data is not None:
        # Files in several folders may have the same name.
        place = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]
        parts += [data.stem, place]
    if overrides:
        # A hash of the settings, whatever their order; the result contains them in full.
        from prota.config.base import merge, parse_override

        changes: dict[str, Any] = {}
        for override in overrides:
            merge(changes, parse_override(override))
        canonical = json.dumps(changes, sort_keys=True, default=str)
        parts.append(f"set-{hashlib.sha256(canonical.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}")
    parts += [f"missing-{missing}"] if missing else []
    return f"{'-'.join(parts)}.json"


def _check_options(matrix: bool, for_model: bool, targets: bool) -> None:
    """BadParameter for options that would have no effect."""
    if matrix and for_model:
        raise typer.BadParameter(
            "--audit, --faithfulness, --normalisation qbnorm, --data, --split and --save-scores need MODEL"
        )
    if targets and not matrix:
        raise typer.BadParameter("--targets needs --scores: MODEL has targets of its own")


@contextmanager
def _processes(device: str) -> Iterator[World]:
    """The processes that torchrun started: all end together, and only the first one prints."""
    from prota.runtime import OtherProcessError, start_world

    try:
        world = start_world(device, by_cpu=True)
        with ExitStack() as stack:
            if not world.first:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            yield world
        # After an error the connection stays open until this process has reported it: the others wait for that.
        world.close()
    except OtherProcessError:
        raise typer.Exit(1) from None


def _report_faithfulness(evaluation: Evaluation, measured: Measured, shown: bool) -> dict[str, Any]:
    with progress("words") as update:
        found = evaluation.faithfulness(measured, lambda what, done, total: update(done, total, what))
    if shown:
        show_table(found.table())
    return asdict(found)


def _report_audit(checks: list[Check], err: bool) -> None:
    for check in checks:
        typer.echo(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}", err=err)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _evaluate_matrix(
    path: Path, targets: Path | None, *, dsl: bool, candidates: Literal["captions", "videos"], json_file: Path | None
) -> None:
    from prota.evaluation.report import matrix_result, read_matrix

    matrix, owners = read_matrix(path, targets)
    passport = matrix_result(matrix, owners, source=str(path), candidates=candidates, dsl=dsl)
    if str(json_file) != "-":
        show_table(passport.table())
    _write(passport, json_file)


def _write(passport: Passport, file: Path | None) -> None:
    if str(file) == "-":
        print_json(asdict(passport), indent=2)
    elif file is not None:
        passport.write(file)
        typer.echo(f"result: {file}")
