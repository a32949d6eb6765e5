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
    require_data,
    show_table,
)
from prota.cli.progress import progress
from prota.config.base import merge, parse_override

if TYPE_CHECKING:
    from torch import Tensor

    from prota.evaluation.audit import Check
    from prota.evaluation.report import Evaluation, Measured
    from prota.runtime import World

__all__ = ["evaluate"]


Checkpoint = Annotated[Path | None, typer.Argument(help="run folder or model folder", show_default=False)]
Scores = Annotated[Path | None, typer.Option(help="instead of a model: any system's scores, .npy [texts, videos]")]
Targets = Annotated[
    Path | None, typer.Option(help="with --scores: each text's video, .npy or .json; default: text i, video i")
]
Normalisation = Annotated[
    Literal["none", "dsl", "qbnorm"], typer.Option(help="post-processing of scores; named in the result")
]
Candidates = Annotated[
    Literal["captions", "videos"], typer.Option(help="video to text: rank among captions, or videos by their best")
]
Faithful = Annotated[
    bool, typer.Option("--faithfulness", help="also measure what words weigh and what a replaced word changes")
]
_RESULT = "where the result goes; default for a run: RUN/results, a name for each split, data, -s and rule"


def evaluate(
    checkpoint: Checkpoint = None,
    data: Data = None,
    overrides: Overrides = None,
    split: SplitName = "test",
    scores: Scores = None,
    targets: Targets = None,
    normalisation: Normalisation = "none",
    candidates: Candidates = "captions",
    audit: Annotated[bool, typer.Option("--audit", help="also run leak checks on the model")] = False,
    faithfulness: Faithful = False,
    device: Device = "auto",
    backend: BackendName = "auto",
    allow_missing: AllowMissing = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help=_RESULT)] = None,
    save_scores: Annotated[Path | None, typer.Option(help="also write the score matrix, .npy")] = None,
) -> None:
    """Metrics of both directions with 95 % intervals, and a result passport; for a model or for any score matrix.

    Under torchrun, many devices share the score matrix.
    """
    if (checkpoint is None) == (scores is None):
        raise typer.BadParameter("give either a CHECKPOINT or --scores matrix.npy")
    require_data(data, overrides)
    asked = (audit, faithfulness, normalisation == "qbnorm", data, save_scores, split != "test")
    _refuse_strangers(scores is not None, any(asked), targets is not None)
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
            # At once: it took longest, and nothing that comes later should cost it.
            _save(save_scores, measured.scored.scores)
        passport = evaluation.result(measured, normalisation, candidates)
        show_table(passport.table())
        if faithfulness:
            passport = replace(passport, faithfulness=_report_faithfulness(evaluation, measured))
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
        if json_file is not None:
            passport.write(json_file)
            typer.echo(f"result: {json_file}")
        if audit:
            _report_audit(run_audit(evaluation.scorer(), passport.queries, passport.videos))


def _save(path: Path, scores: Tensor) -> None:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        # By its name alone, numpy would give it another.
        np.save(file, scores.numpy())


def _result_name(
    split: str, *, normalisation: str, candidates: str, data: Path | None, overrides: list[str], missing: int
) -> str:
    """A name for each measurement of a run: what was measured otherwise must not replace a result."""
    parts = [split, *(part for part in (normalisation, candidates) if part not in ("none", "captions"))]
    if data is not None:
        # Files of one name may lie in several folders.
        place = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]
        parts += [data.stem, place]
    if overrides:
        # The settings that they amount to, whatever their order; the result itself has them in full.
        changes: dict[str, Any] = {}
        for override in overrides:
            merge(changes, parse_override(override))
        canonical = json.dumps(changes, sort_keys=True, default=str)
        parts.append(f"set-{hashlib.sha256(canonical.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}")
    parts += [f"missing-{missing}"] if missing else []
    return f"{'-'.join(parts)}.json"


def _refuse_strangers(matrix: bool, asks_a_model: bool, targets: bool) -> None:
    """What belongs to the other way of calling it would be passed over in silence."""
    if matrix and asks_a_model:
        raise typer.BadParameter(
            "--audit, --faithfulness, --normalisation qbnorm, --data, --split and --save-scores ask a model: they need "
            "a CHECKPOINT"
        )
    if targets and not matrix:
        raise typer.BadParameter("--targets says whose the rows of --scores are: a CHECKPOINT knows")


@contextmanager
def _processes(device: str) -> Iterator[World]:
    """This process among those that torchrun started: all end together, and the first one talks."""
    from prota.runtime import OtherProcessError, start_world

    try:
        world = start_world(device, by_cpu=True)
        with ExitStack() as stack:
            if not world.first:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            yield world
        # Where something went wrong the connection stays until this process has said so: the others wait for that.
        world.close()
    except OtherProcessError:
        raise typer.Exit(1) from None


def _report_faithfulness(evaluation: Evaluation, measured: Measured) -> dict[str, Any]:
    with progress("words") as update:
        found = evaluation.faithfulness(measured, lambda what, done, total: update(done, total, what))
    show_table(found.table())
    return asdict(found)


def _report_audit(checks: list[Check]) -> None:
    for check in checks:
        typer.echo(f"{'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}")
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _evaluate_matrix(
    path: Path, targets: Path | None, *, dsl: bool, candidates: Literal["captions", "videos"], json_file: Path | None
) -> None:
    from prota.evaluation.report import matrix_result, read_matrix

    matrix, owners = read_matrix(path, targets)
    passport = matrix_result(matrix, owners, source=str(path), candidates=candidates, dsl=dsl)
    show_table(passport.table())
    if json_file is not None:
        passport.write(json_file)
        typer.echo(f"result: {json_file}")
