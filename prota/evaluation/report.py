"""Evaluate a checkpoint on a split, or a score matrix; the result is a passport."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from prota.config.experiment import Experiment
from prota.data.batches import ClipReader, open_cache
from prota.data.benchmarks import load_benchmark
from prota.data.doctor import require_complete
from prota.data.splits import Benchmark, examples
from prota.errors import EvaluationError
from prota.evaluation.faithfulness import Faithfulness, measure_faithfulness
from prota.evaluation.intervals import bootstrap
from prota.evaluation.metrics import RetrievalMetrics, direction_metrics, text_ranks, video_ranks
from prota.evaluation.normalisation import dual_softmax, query_bank
from prota.evaluation.passport import CheckpointRecord, Passport, collect_environment
from prota.evaluation.scoring import Progress, ScoredSplit, encode_videos, score_split, score_texts
from prota.kernels.dispatch import recorded
from prota.model.prota import ProTA
from prota.model.weights import fingerprint
from prota.runs import Run, RunError, TrainingState, config_of, find_checkpoint
from prota.runtime import ALONE, World, autocast_for, choose_device

__all__ = ["Evaluation", "Measured", "SystemUnderTest", "evaluate", "matrix_result", "read_matrix", "summarise"]

Candidates = Literal["captions", "videos"]
Normalisation = Literal["none", "dsl", "qbnorm"]
_DSL = "dual softmax over the test set (DSL)"


def summarise(
    to_video: Tensor, to_text: Tensor, video_of_text: Tensor, candidates: Candidates
) -> tuple[RetrievalMetrics, dict[str, dict[str, tuple[float, float]]]]:
    """Metrics and intervals of both directions; both matrices are [texts, videos]."""
    forth = text_ranks(to_video, video_of_text)
    back, described = video_ranks(to_text, video_of_text, candidates)
    metrics = RetrievalMetrics(direction_metrics(forth), direction_metrics(back))
    intervals = {
        "text_to_video": bootstrap(forth, video_of_text),
        "video_to_text": bootstrap(back, described),
    }
    return metrics, intervals


@dataclass(frozen=True)
class SystemUnderTest:
    """A saved model with the data for its evaluation."""

    model: ProTA
    experiment: Experiment
    benchmark: Benchmark
    record: CheckpointRecord
    trained_on: frozenset[str]
    """Training videos, if the model is a run."""

    @classmethod
    def load(cls, checkpoint: Path, data: Experiment | None, device: torch.device) -> SystemUnderTest:
        """Load a checkpoint with its own data or those of another experiment."""
        folder, rule, state = find_checkpoint(checkpoint)
        model = ProTA.from_pretrained(folder).to(device)
        run, own = Run(checkpoint), None
        if run.is_run:
            own = run.experiment()
        if data is None and own is None:
            raise RunError(f"{checkpoint} is not a training run; pass --data CONFIG")
        source = data or own
        assert source is not None
        sections = source.model_dump() | model.config.model_dump()
        if own is not None:
            sections["train"] = own.train.model_dump()
        experiment = Experiment(**sections)
        benchmark, trained_on = load_benchmark(experiment.data), frozenset[str]()
        if own is not None:
            trained = benchmark if own.data == experiment.data else load_benchmark(own.data)
            learned = trained.split("train")
            if state and state.data and state.data["train"] != learned.hash:
                raise RunError(
                    f"cannot check train/test overlap: the training captions or videos of {checkpoint} have changed; "
                    "restore its annotations, or evaluate a copy made by `prota export`"
                )
            trained_on = frozenset(learned.video_ids)
        step, missing, began = (state.step, state.missing, _beginning(state)) if state else (None, {}, {})
        record = CheckpointRecord(str(folder), rule, step, fingerprint(folder), missing, began)
        return cls(model, experiment, benchmark, record, trained_on)


def _beginning(state: TrainingState) -> dict[str, str]:
    """The model that a run started from, for the passport."""
    return {"model": state.started_from, "fingerprint": state.data["start"]} if state.started_from else {}


@dataclass(frozen=True)
class Measured:
    """The scores for a result; with several processes, complete in the first."""

    scored: ScoredSplit
    bank: Tensor | None
    """[texts of the query bank, videos]."""
    backends: list[str]
    """Backends that computed scores, in all processes."""
    processes: int


class Evaluation:
    """One split of one system."""

    def __init__(self, system: SystemUnderTest, split: str, allow_missing: int = 0) -> None:
        self.system = system
        wanted = system.benchmark.split(split)
        seen = system.trained_on & set(wanted.video_ids)
        if split != "train" and seen:
            raise EvaluationError(
                f"{len(seen)} of the {len(wanted)} {split} videos were trained on ({examples(sorted(seen))}); evaluate "
                "on another split"
            )
        cache = open_cache(system.experiment)
        self.split, _ = require_complete(wanted, cache.ids, allow_missing)
        self.wanted = wanted
        self.missing = tuple(sorted(set(wanted.video_ids) - set(self.split.video_ids)))
        self.reader = ClipReader(cache, system.experiment, self.split)
        self.autocast = autocast_for(system.model.logit_scale.device)

    def measure(
        self, normalisation: Normalisation = "none", progress: Progress | None = None, world: World = ALONE
    ) -> Measured:
        """Compute all scores; with several processes, all of them must call this."""
        model, bank = self.system.model, None
        # Checked before scoring: there may be no training captions.
        texts = _bank(self.system.benchmark) if normalisation == "qbnorm" else []
        with recorded() as ran:
            scored = score_split(model, self.reader, self.split, autocast=self.autocast, progress=progress, world=world)
            if texts:
                bank = score_texts(model, texts, scored.videos, autocast=self.autocast, progress=progress, world=world)
        backends = sorted(set().union(*world.exchange(set(ran))))
        return Measured(scored, bank, backends, world.size)

    def result(
        self, measured: Measured, normalisation: Normalisation = "none", candidates: Candidates = "captions"
    ) -> Passport:
        """Metrics and intervals with their passport."""
        scored = measured.scored
        to_video = to_text = scored.scores
        name: str | None = None
        if normalisation == "dsl":
            to_video, to_text = dual_softmax(scored.scores)
            name = _DSL
        elif measured.bank is not None:
            to_video = query_bank(scored.scores, measured.bank)
            name = f"query bank of {len(measured.bank)} training captions, text to video (QB-Norm)"
        metrics, intervals = summarise(to_video, to_text, scored.video_of_text, candidates)
        experiment, device = self.system.experiment, self.system.model.logit_scale.device
        return Passport(
            metrics=asdict(metrics),
            intervals=intervals,
            split=f"{self.system.benchmark.name} {self.split.name}",
            split_hash=self.wanted.hash,
            queries=len(scored.video_of_text),
            videos=len(self.split),
            missing=self.missing,
            normalisation=name,
            candidates=candidates,
            checkpoint=self.system.record,
            config=experiment.model_dump(mode="json"),
            seed=experiment.train.seed,
            environment=collect_environment(device) | {"scored_by": measured.backends, "processes": measured.processes},
        )

    def faithfulness(self, measured: Measured, progress: Progress | None = None) -> Faithfulness:
        """`measure_faithfulness` of the first caption of each video."""
        captions = [item.captions[0] for item in self.split.items]
        return measure_faithfulness(self.system.model, captions, measured.scored.videos, progress)

    def scorer(self) -> Callable[[Sequence[int], Sequence[int]], Tensor]:
        """The system for `audit`, which encodes the given texts and videos on each call.

        In float32: the rounding of bf16 depends on the lengths in a batch, which is not a leak.
        """
        texts = [caption for _, caption in self.split.pairs]
        ids = self.split.video_ids
        self.system.model.eval()

        def score(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            chosen = [ids[column] for column in columns]
            videos = encode_videos(self.system.model, self.reader, chosen)
            return score_texts(self.system.model, [texts[row] for row in rows], videos)

        return score


def evaluate(
    model: str | Path,
    *,
    data: str | Path | Experiment | None = None,
    split: str = "test",
    normalisation: Normalisation = "none",
    candidates: Candidates = "captions",
    device: str = "auto",
    allow_missing: int = 0,
    progress: Progress | None = None,
) -> Passport:
    """Evaluate a training run or a model: metrics of both directions with 95 % intervals.

    Parameters
    ----------
    model
        A training run (its best checkpoint), a model folder, the name of a shipped model or a hub id.
    data
        An experiment's TOML file, or an `Experiment`, whose data to use; by default the run's own.
    split
        ``test``, ``val`` or ``train``.
    normalisation
        Post-processing of the scores: ``none``, ``dsl`` or ``qbnorm``.
    candidates
        Video to text: rank among ``captions``, or ``videos`` by their best caption.
    device
        ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto``: a GPU if there is one.
    allow_missing
        Continue without up to this many videos of the split; they are recorded.
    progress
        Called with the name of the stage, the number done and the total.

    Example
    -------
    >>> import prota
    >>> result = prota.evaluate("prota-small", data="samples.toml")
    >>> result
    Passport(folder test: text → video R@1 7..., R@10 100.0)
    >>> result.text_to_video["r10"] > 90
    True
    """
    experiment = data if isinstance(data, Experiment) or data is None else Experiment.load(data, base=config_of)
    system = SystemUnderTest.load(Path(model), experiment, choose_device(device))
    evaluation = Evaluation(system, split, allow_missing)
    return evaluation.result(evaluation.measure(normalisation, progress), normalisation, candidates)


def _bank(benchmark: Benchmark) -> list[str]:
    """One caption of each training video, at most 10,000."""
    bank = [item.captions[0] for item in benchmark.split("train").items if item.captions][:10_000]
    if not bank:
        raise EvaluationError("qbnorm needs training captions, and there are none: evaluate without it")
    return bank


def read_matrix(path: Path, targets: Path | None) -> tuple[Tensor, Tensor]:
    """Scores [texts, videos] of any system from a .npy file, and each text's video from .npy or JSON.

    Without targets, the matrix must be square, and text i belongs to video i.
    """
    values = _load_array(path)
    if not isinstance(values, np.ndarray) or not (
        np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer)
    ):
        raise EvaluationError(f"{path} is not a .npy file of numbers")
    # In float64, as rounding could cause ties.
    scores = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    if scores.dim() != 2:
        raise EvaluationError(f"{path} has shape {list(scores.shape)}; must be a matrix [texts, videos]")
    if targets is None:
        if scores.shape[0] != scores.shape[1]:
            raise EvaluationError(f"{path} is {scores.shape[0]} x {scores.shape[1]}, not square: pass --targets FILE")
        return scores, torch.arange(len(scores))
    owners: Any
    if targets.suffix == ".json":
        try:
            listed = json.loads(targets.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise EvaluationError(f"{targets} is not valid JSON: {error}") from None
        plain = isinstance(listed, list) and all(type(number) is int for number in listed)
        owners = np.asarray(listed) if plain else None
    else:
        owners = _load_array(targets)
    if not isinstance(owners, np.ndarray) or owners.ndim != 1 or not np.issubdtype(owners.dtype, np.integer):
        raise EvaluationError(f"{targets} must be a list of integers, the index of each text's video from 0")
    return scores, torch.from_numpy(owners.astype(np.int64))


def _load_array(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise EvaluationError(f"{path} is not a .npy file of numbers: write it with numpy.save") from None


def matrix_result(scores: Tensor, targets: Tensor, *, source: str, candidates: Candidates, dsl: bool) -> Passport:
    """The result of a score matrix of another system."""
    to_video, to_text = dual_softmax(scores) if dsl else (scores, scores)
    metrics, intervals = summarise(to_video, to_text, targets, candidates)
    return Passport(
        metrics=asdict(metrics),
        intervals=intervals,
        split=f"score matrix {source}",
        split_hash="",
        queries=scores.shape[0],
        videos=scores.shape[1],
        missing=(),
        normalisation=_DSL if dsl else None,
        candidates=candidates,
        checkpoint=None,
        config={},
        seed=None,
    )
