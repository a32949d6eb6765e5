"""The training loop: the same curve on one process or many, uninterrupted or resumed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.data.batches import ClipReader, FrameBatch, Pair, open_cache, read_ahead
from prota.data.benchmarks import load_benchmark
from prota.data.doctor import require_complete, require_disjoint
from prota.data.pictures import Augmentation, to_pictures
from prota.data.splits import Split
from prota.encoders.text import TextBatch
from prota.encoders.video import FrameTower
from prota.errors import ProtaError
from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.scoring import score_split
from prota.losses import MAX_LOGIT_SCALE
from prota.model.prota import ProTA
from prota.model.weights import fingerprint
from prota.runs import RunError, TrainingState, find_checkpoint
from prota.runtime import World, autocast_for
from prota.training.averaging import WeightAverage
from prota.training.checkpoint import RunFolder
from prota.training.distributed import average_gradients
from prota.training.features import FeatureClips, feature_key
from prota.training.locality import Replaced, replace_words
from prota.training.optimiser import describe_groups, make_optimiser, rate_factor, set_rates
from prota.training.sources import Schedule, Source, open_sources
from prota.training.step import StepInput, backward_step, seed_for
from prota.training.teacher import CaptionTeacher, sentence_encoder

__all__ = ["NonFiniteLossError", "Reporter", "TrainingLoop", "TrainingResult", "layers_of"]


# Distinguishes these random draws from others of the same step.
_REPLACING = 1
# The largest norm of gradients.
_CLIP_NORM = 1.0
# Between the checkpoints of validations.
CHECKPOINT_STEPS = 1000


class NonFiniteLossError(ProtaError, RuntimeError):
    """The loss became NaN or infinite; the message names the batch."""

    code = "non-finite-loss"


class Reporter(Protocol):
    """Receives the progress of a run, on the first rank only."""

    def computed(self, done: int, total: int) -> None:
        """Features of a frozen tower have been computed for ``done`` of ``total`` videos; before `started`."""

    def started(
        self, groups: list[tuple[str, int, float]], sources: list[tuple[str, int, int, int]], steps: int, step: int
    ) -> None:
        """``groups``: name, parameters, learning rate; ``sources``: name, captions, videos, steps."""

    def stepped(self, record: dict[str, Any]) -> None: ...

    def validated(self, record: dict[str, Any]) -> None: ...


@dataclass(frozen=True, repr=False)
class TrainingResult:
    """The outcome of training: whether it finished, and its state.

    Example
    -------
    >>> import prota
    >>> trainer = prota.Trainer(
    ...     "prota-small", train="clips/samples.csv", videos="clips", out="runs/mine", epochs=1, batch_size=12
    ... )
    >>> trainer.train()
    TrainingResult(finished at step 1 of 1)
    """

    finished: bool
    steps: int
    """Of the whole run."""
    state: TrainingState

    def __repr__(self) -> str:
        state, best = self.state, ""
        if state.best_value is not None:
            best = f", best validation {state.best_value:.1f} at step {state.best_step}"
        return (
            f"TrainingResult({'finished' if self.finished else 'stopped'} at step {state.step} of {self.steps}{best})"
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON or a table."""
        return asdict(self)


@dataclass(frozen=True)
class _Batch:
    """This process's share of a batch, read ahead."""

    source: Source
    pairs: list[Pair]
    text: TextBatch
    clips: FrameBatch
    similar: torch.Tensor | None
    """Of the whole batch."""
    replaced: Replaced | None


class TrainingLoop:
    """One run; never reads the test split."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunFolder,
        world: World,
        *,
        allow_missing: int = 0,
        features: FeatureClips | None = None,
        report: Reporter | None = None,
    ) -> None:
        """``features``: those of an earlier run with the same data and frozen tower.

        ``report`` receives the progress if they have to be computed; `fit` has its own parameter.
        """
        self.experiment, self.run, self.world = experiment, run, world
        self.config = experiment.train
        sizes = {"train": self.config.batch_size}
        sizes |= {f"sources.{name}": experiment.of_source(name).train.batch_size for name in experiment.sources}
        for section, size in sizes.items():
            if size % world.size:
                raise ConfigError(f"{section}.batch_size={size} must be a multiple of the {world.size} processes")
        benchmark = load_benchmark(experiment.data)
        require_disjoint(benchmark)
        cache = open_cache(experiment)
        self.sources = open_sources(experiment, benchmark, cache, allow_missing)
        self.main = self.sources[0]
        self.missing: dict[str, int] = {}
        self.data: dict[str, str] = {}
        for source in self.sources:
            name = "train" if source is self.main else f"train:{source.name}"
            self.missing[name] = source.missing
            self.data |= {name: source.asked, name.replace("train", "used"): source.split.hash}
        self.val_split: Split | None = None
        if benchmark.val is not None:
            self.val_split, self.missing["val"] = require_complete(benchmark.val, cache.ids, allow_missing)
            self.data["val"] = self.val_split.hash
        if benchmark.test is not None:
            # Only checked for missing videos, so that this is reported before training.
            require_complete(benchmark.test, cache.ids, allow_missing)
        self._set_up_torch()
        self.model = self._initial_model().to(world.device)
        self.autocast = autocast_for(world.device)
        if experiment.loss.soft_targets:
            encode = sentence_encoder(self.model, self.config.teacher, self.autocast)
            for source in self.sources:
                source.teacher = CaptionTeacher(source.split, encode)
        self.optimiser = make_optimiser(self.model, self.config)
        self.average = WeightAverage(self.model, self.config.ema) if self.config.ema else None
        self.schedule = Schedule(self.sources, self.config.epochs)
        self.features = features
        self._read_features(report)
        clips = self.main.reader.cache
        self.val_reader = ClipReader(clips, experiment, self.val_split) if self.val_split else None

    def _initial_model(self) -> ProTA:
        """Pretrained towers with a new head, or the model of ``train.start``, of a run its best checkpoint."""
        if not self.config.start:
            return ProTA.from_config(self.experiment.model)
        folder, _, _ = find_checkpoint(Path(self.config.start))
        self.data["start"] = fingerprint(folder)
        return ProTA.from_start(folder, self.experiment.model, towers_only=self.config.start_with == "towers")

    def _set_up_torch(self) -> None:
        torch.manual_seed(self.config.seed)
        # cuDNN's attention compiles a plan for every shape, and the number of frames changes with nearly every batch.
        torch.backends.cuda.enable_cudnn_sdp(False)

    def _read_features(self, report: Reporter | None) -> None:
        """Replace frames by features in sources without augmentation, if the tower is frozen."""
        for source in self.sources:
            train = source.experiment.train
            if train.lr_vision or train.augments or self.experiment.encoder.kind == "video":
                continue
            splits = [source.split, *([self.val_split] if source is self.main and self.val_split else [])]
            wanted = [video_id for split in splits for video_id in split.video_ids]
            kept = self.features if source is self.main else None
            if kept is None or kept.key != feature_key(self.model, source.cache):
                told = {"progress": report.computed} if report and self.world.first else {}
                kept = FeatureClips(self.model.eval(), source.cache, wanted, **told)
            if source is self.main:
                self.features = kept
            source.read_from(kept)

    def fit(self, report: Reporter | None = None, should_stop: Callable[[], bool] = lambda: False) -> TrainingResult:
        """Train to the end or until ``should_stop``; saves a checkpoint in both cases."""
        state = self.run.restore(self.model, self.optimiser, self.average) or self._begin()
        if state.missing != self.missing and state.missing.keys() == self.missing.keys():
            raise RunError(
                f"cannot resume {self.run.path}: the set of missing videos changed (from "
                f"{_counted(state.missing)} to {_counted(self.missing)}); restore the frame cache or use another --out"
            )
        if state.data not in ({}, self.data):
            raise RunError(
                f"cannot resume {self.run.path}: captions or videos have changed; restore the annotations and the "
                "frame cache, or use another --out folder"
            )
        state = replace(state, missing=self.missing, data=self.data, started_from=self.config.start)
        if self.world.first:
            self.run.cut_log(state.step, state.epoch)
            if report:
                report.started(describe_groups(self.model, self.config), self._learned_from(), self.steps, state.step)
        self._prepare_towers()
        while state.epoch < self.config.epochs:
            state, stopped = self._epoch(state, report, should_stop)
            if stopped:
                self._save(state, best=False)
                return TrainingResult(False, self.steps, state)
            state = replace(state, epoch=state.epoch + 1)
            if self._validates_after(state.epoch):
                state, best = self._validate(state, report)
                self._save(state, best)
        return TrainingResult(True, self.steps, state)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.schedule.steps

    def _learned_from(self) -> list[tuple[str, int, int, int]]:
        """Name, captions, videos and steps of each source."""
        steps = self.schedule.per_source()
        return [
            (source.name, sum(len(item.captions) for item in source.split.items), len(source.split), count)
            for source, count in zip(self.sources, steps, strict=True)
            if count
        ]

    @torch.no_grad()
    def _begin(self) -> TrainingState:
        """Standardise features by the first training batches, without dropout."""
        self.model.eval()
        tower = self.model.video_encoder.tower
        # A model that training starts from is already standardised.
        if isinstance(tower, FrameTower) and tower.standardised and not self.config.start:
            batches = self.main.batches(0)[:8]
            clips = [self.main.reader.read([pair.video_id for pair in batch]) for batch in batches]
            with self.autocast():
                features = [
                    frames if frames.dim() == 2 else tower.features(frames)
                    for frames in (self._pictures(part, None)[part.mask.to(self.world.device)] for part in clips)
                ]
            tower.standardise(torch.cat(features).float())
        return TrainingState(step=0, epoch=0)

    def _prepare_towers(self) -> None:
        towers = (self.model.text_encoder.tower.model, self.model.video_encoder.tower.model)
        for tower in towers:
            for layer in layers_of(tower) if self.config.compile else ():
                # The layers share one compilation, for any number of frames or words; a whole tower takes minutes.
                layer.compile(dynamic=True)

    def _pictures(self, clips: FrameBatch, augmentation: Augmentation | None) -> torch.Tensor:
        frames = clips.frames.to(self.world.device, non_blocking=True)
        return to_pictures(frames, self.experiment.encoder.image_size, augmentation)

    def _epoch(
        self, state: TrainingState, report: Reporter | None, should_stop: Callable[[], bool]
    ) -> tuple[TrainingState, bool]:
        """The rest of the current epoch; whether it was stopped."""

        def read(step: int) -> _Batch:
            # Runs in another thread; saving a checkpoint changes nothing that it uses.
            place = self.schedule.place(step)
            source = self.sources[place.source]
            batch = source.batches(place.epoch)[place.batch]
            pairs = batch[self.world.share(len(batch))]
            text = self.model.text_encoder.tokenize([caption for pair in pairs for caption in pair.captions])
            pin = self.world.device.type == "cuda"
            clips = source.reader.read([pair.video_id for pair in pairs], place.epoch, pin)
            similar = source.teacher.similar(batch) if source.teacher else None
            return _Batch(source, pairs, text, clips, similar, self._replaced(step, batch, text))

        self.model.train()
        ahead = read_ahead(read, state.step, self.schedule.ends[state.epoch])
        before = time.perf_counter()
        try:
            for batch in ahead:
                waited = time.perf_counter() - before
                record = self._step(state.step, batch)
                state = replace(state, step=state.step + 1)
                seconds = time.perf_counter() - before
                record |= {"epoch": state.epoch, "seconds": seconds, "data_wait": waited / seconds}
                record["items_per_second"] = batch.source.experiment.train.batch_size / seconds
                self._log(record)
                if report and self.world.first:
                    report.stepped(record)
                if self.world.any(should_stop()):
                    # If this is the end of an epoch, the resumed run validates.
                    return state, True
                if self._save_between(state):
                    self._save(state, best=False)
                before = time.perf_counter()
        finally:
            ahead.close()
        return state, False

    def _replaced(self, step: int, batch: list[Pair], text: TextBatch) -> Replaced | None:
        """This process's texts, each with a word replaced by one of another text of the batch."""
        if not self.experiment.loss.locality:
            return None
        captions = [caption for pair in batch for caption in pair.captions]
        own = self.world.share(len(captions))
        draws = np.random.default_rng([self.config.seed, step, _REPLACING]).random((len(captions), 3))[own]
        donors = [captions[int(draw * len(captions))] for draw in draws[:, 0]]
        return replace_words(text, self.model.text_encoder.tokenize(donors), torch.from_numpy(draws[:, 1:]))

    def _save_between(self, state: TrainingState) -> bool:
        """Whether a checkpoint is due at this step, without a validation."""
        ended = state.step == self.schedule.ends[state.epoch]
        return state.step % CHECKPOINT_STEPS == 0 and not (ended and self._validates_after(state.epoch + 1))

    def _validates_after(self, epochs: int) -> bool:
        return epochs % self.config.validate_epochs == 0 or epochs == self.config.epochs

    def _step(self, step: int, read: _Batch) -> dict[str, Any]:
        config, world, source = self.config, self.world, read.source
        augmentation, train = None, source.experiment.train
        if train.augments:
            whole = Augmentation.draw(train, source.experiment.data.cache_size, train.batch_size, step)
            augmentation = whole.part(world.share(train.batch_size))
        batch = StepInput(
            read.text.to(world.device),
            self._pictures(read.clips, augmentation),
            read.clips.mask.to(world.device, non_blocking=True),
            None if read.similar is None else read.similar.to(world.device, non_blocking=True),
            None if read.replaced is None else read.replaced.map(lambda tensor: tensor.to(world.device)),
        )
        rates = set_rates(self.optimiser, rate_factor(step, self.steps))
        self.optimiser.zero_grad(set_to_none=True)
        seed = seed_for(config.seed, step)
        terms = backward_step(
            self.model,
            batch,
            world,
            micro_batch=config.micro_batch,
            seed=seed,
            autocast=self.autocast,
            weight=source.weight,
        )
        average_gradients(self.model.parameters(), world)
        names = [field.name for field in fields(terms)]
        values = world.mean(torch.stack([getattr(terms, name).detach().float() for name in names])).tolist()
        record = dict(zip(names, values, strict=True))
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), _CLIP_NORM))
        if not math.isfinite(record["total"]) or not math.isfinite(norm):
            finite = math.isfinite(record["total"])
            what = f"gradient's norm is {norm}" if finite else f"loss is {record['total']}"
            shown = ", ".join(pair.video_id for pair in read.pairs[:8])
            raise NonFiniteLossError(
                f"the {what} at step {step}; the step was not applied. Videos of the batch on rank "
                f"{world.rank}: {shown}{' …' if len(read.pairs) > 8 else ''}. Check them with `prota data check`, "
                "or lower the learning rates"
            )
        self.optimiser.step()
        if self.model.logit_bias is None:
            with torch.no_grad():
                self.model.logit_scale.clamp_(max=math.log(MAX_LOGIT_SCALE))
        if self.average:
            self.average.update(step + 1)
        rates = {f"lr/{name}": rate for name, rate in rates.items()}
        named = {"source": source.name} if len(self.sources) > 1 else {}
        return {"step": step + 1, **named, **record, "gradient_norm": norm, **rates}

    def _validate(self, state: TrainingState, report: Reporter | None) -> tuple[TrainingState, bool]:
        """Validate at the end of an epoch; whether the result is the best so far."""
        if self.val_split is None or self.val_reader is None:
            return state, False
        value = 0.0
        if self.world.first:
            with self.average.applied() if self.average else nullcontext():
                scored = score_split(self.model, self.val_reader, self.val_split, autocast=self.autocast)
            metrics = retrieval_metrics(scored.scores, scored.video_of_text)
            both = (metrics.text_to_video, metrics.video_to_text)
            value = sum(side.r1 + side.r5 + side.r10 for side in both) / 6
            record = {"step": state.step, "epoch": state.epoch, "validation": asdict(metrics), "value": value}
            self._log(record)
            if report:
                report.validated(record)
        best = state.best_value is None or value > state.best_value
        if best:
            state = replace(state, best_value=value, best_step=state.step)
        return state, best

    def _save(self, state: TrainingState, best: bool) -> None:
        if self.world.first:
            self.run.save(self.model, self.optimiser, state, best=best, average=self.average)
        self.world.barrier()

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.first:
            with self.run.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def layers_of(tower: nn.Module) -> list[nn.Module]:
    """The layers of a transformer: its largest list of modules."""
    lists = [part for part in tower.modules() if isinstance(part, nn.ModuleList)]
    return list(max(lists, key=lambda part: sum(value.numel() for value in part.parameters()), default=()))


def _counted(missing: dict[str, int]) -> str:
    return " and ".join(f"{count} {split} videos" for split, count in missing.items())
