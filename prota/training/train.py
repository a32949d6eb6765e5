"""The training loop: the same curve on one process or many, uninterrupted or resumed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch

from prota.data.batches import (
    ClipReader,
    Clips,
    FrameBatch,
    Pair,
    ReadAhead,
    count_batches,
    epoch_batches,
    open_cache,
)
from prota.data.benchmarks import load_benchmark
from prota.data.doctor import require_complete, require_disjoint
from prota.data.pictures import Augmentation, to_pictures
from prota.data.splits import Split
from prota.encoders.text import TextBatch
from prota.evaluation.evaluate import autocast_for, score_split
from prota.evaluation.metrics import retrieval_metrics
from prota.experiment import Experiment
from prota.model import ProTA
from prota.training.averaging import WeightAverage
from prota.training.checkpoint import RunFolder, TrainingState
from prota.training.distributed import World, average_gradients
from prota.training.features import FeatureClips, feature_key
from prota.training.optim import describe_groups, layers_of, make_optimiser, rate_factor, set_rates
from prota.training.step import StepInput, backward_step, seed_for
from prota.training.teacher import CaptionTeacher

__all__ = ["NonFiniteLossError", "Reporter", "Trainer", "TrainingResult"]


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the message names the batch."""


class Reporter(Protocol):
    """Who is told about a run; every method is called on the first rank only."""

    def computed(self, done: int, total: int) -> None:
        """Of ``total`` videos, ``done`` have the features that a frozen tower makes of them; before `started`."""

    def started(self, groups: list[tuple[str, int, float]], pairs: int, videos: int, steps: int, step: int) -> None: ...

    def stepped(self, record: dict[str, Any]) -> None: ...

    def validated(self, record: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended."""

    finished: bool
    steps: int
    """Of the whole run."""
    state: TrainingState


@dataclass(frozen=True)
class _Batch:
    """This process's share of a batch, as it is read ahead."""

    pairs: list[Pair]
    text: TextBatch
    clips: FrameBatch
    similar: torch.Tensor | None
    """Of the whole batch."""


class Trainer:
    """One run. It never reads the test split: there is nothing here that could choose by it."""

    def __init__(
        self,
        experiment: Experiment,
        run: RunFolder,
        world: World,
        allow_missing: int = 0,
        features: FeatureClips | None = None,
        report: Reporter | None = None,
    ) -> None:
        """``features`` are those of an earlier run with the same data and the same frozen tower.

        ``report`` is told how far they are where they have to be computed; `fit` has a reporter of its own.
        """
        self.experiment, self.run, self.world = experiment, run, world
        self.config = experiment.train
        if self.config.batch_size % world.size:
            raise ValueError(
                f"train.batch_size={self.config.batch_size} cannot be shared by {world.size} processes; "
                f"allowed: multiples of {world.size}"
            )
        benchmark = load_benchmark(experiment.data)
        require_disjoint(benchmark)
        cache = open_cache(experiment)
        self.missing: dict[str, int] = {}
        asked = benchmark.split("train")
        self.train_split, self.missing["train"] = require_complete(asked, cache.ids, allow_missing)
        self.data = {"train": asked.hash, "used": self.train_split.hash}
        self.val_split: Split | None = None
        if benchmark.val is not None:
            self.val_split, self.missing["val"] = require_complete(benchmark.val, cache.ids, allow_missing)
            self.data["val"] = self.val_split.hash
        if benchmark.test is not None:
            # Not to be read, only to be there: who trains for days should know now that testing will not work.
            require_complete(benchmark.test, cache.ids, allow_missing)
        self._set_up_torch()
        self.model = ProTA.from_config(experiment.model).to(world.device)
        self.autocast = autocast_for(world.device, self.config.precision)
        soft = experiment.loss.soft_targets > 0
        self.teacher = CaptionTeacher(self.model, self.train_split, self.autocast) if soft else None
        self.optimiser = make_optimiser(self.model, self.config)
        self.average = WeightAverage(self.model, self.config.ema) if self.config.ema else None
        self.counts = [count_batches(*self._order(epoch)) for epoch in range(self.config.epochs)]
        self.steps = sum(self.counts)
        self.features = features
        clips = self._clips(cache, report)
        self.reader = ClipReader(clips, experiment, self.train_split)
        self.val_reader = ClipReader(clips, experiment, self.val_split) if self.val_split else None

    def _set_up_torch(self) -> None:
        torch.manual_seed(self.config.seed)
        if self.config.deterministic:
            # What cuBLAS needs to be told before its first call.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(self.config.deterministic)
        # cuDNN's attention makes a plan for every new shape, and hardly two batches have as many frames.
        torch.backends.cuda.enable_cudnn_sdp(False)

    def _clips(self, cache: Clips, report: Reporter | None) -> Clips:
        """What is read in training: frames, or the features of a tower that is shown the same ones every time."""
        if self.config.lr_vision or self.config.augments:
            return cache
        if self.features is None or self.features.key != feature_key(self.model, cache):
            splits = [split for split in (self.train_split, self.val_split) if split is not None]
            wanted = [video_id for split in splits for video_id in split.video_ids]
            told = (report.computed,) if report and self.world.first else ()
            self.features = FeatureClips(self.model.eval(), cache, wanted, self.config.precision, *told)
        return self.features

    def _order(self, epoch: int) -> tuple[Split, int, str, int, int]:
        """What the batches of an epoch depend on."""
        return self.train_split, self.config.batch_size, self.config.captions, self.config.seed, epoch

    def batches(self, epoch: int) -> list[list[Pair]]:
        return epoch_batches(*self._order(epoch), self.config.captions_per_video)

    def fit(self, report: Reporter | None = None, should_stop: Callable[[], bool] = lambda: False) -> TrainingResult:
        """Train to the end, or until asked to stop; either way everything is saved."""
        state = self.run.restore(self.model, self.optimiser, self.average) or self._begin()
        if state.missing != self.missing and state.missing.keys() == self.missing.keys():
            raise ValueError(
                f"{self.run.path} began without {_counted(state.missing)}, now {_counted(self.missing)} are missing: "
                "it would not go on as it began; use the frame cache as it was, or another --out folder"
            )
        if state.data not in ({}, self.data):
            raise ValueError(
                f"{self.run.path} began with other captions or videos than there are now: it would not go on as it "
                "began; restore the annotations and the frame cache, or use another --out folder"
            )
        state = replace(state, missing=self.missing, data=self.data)
        if self.world.first:
            self.run.cut_log(state.step, state.epoch)
            if report:
                pairs = sum(len(item.captions) for item in self.train_split.items)
                groups = describe_groups(self.model, self.config)
                report.started(groups, pairs, len(self.train_split), self.steps, state.step)
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

    @torch.no_grad()
    def _begin(self) -> TrainingState:
        """What is measured on the first training batches before a run starts; nothing is left out at random there."""
        self.model.eval()
        if not self.model.video_encoder.tower.standardised and self.experiment.score.bandwidth != "estimated":
            return TrainingState(step=0, epoch=0)
        batches = self.batches(0)[:8]
        clips = [self.reader.read([pair.video_id for pair in batch]) for batch in batches]
        tower = self.model.video_encoder.tower
        if tower.standardised:
            with self.autocast():
                features = [
                    frames if frames.dim() == 2 else tower.features(frames)
                    for frames in (self._pictures(part, None)[part.mask.to(self.world.device)] for part in clips)
                ]
            tower.standardise(torch.cat(features).float())
        if self.experiment.score.bandwidth == "estimated":
            with self.autocast():
                texts = [self.model.text_encoder([pair.captions[0] for pair in batch]) for batch in batches]
                videos = [self.model.video_encoder(self._pictures(part, None), part.mask) for part in clips]
            self.model.head.estimate_bandwidth(zip(texts, videos, strict=True))
        return TrainingState(step=0, epoch=0)

    def _prepare_towers(self) -> None:
        towers = (self.model.text_encoder.tower.model, self.model.video_encoder.tower.model)
        for tower in towers:
            if self.config.gradient_checkpointing:
                tower.gradient_checkpointing_enable()  # type: ignore[operator]
            for layer in layers_of(tower) if self.config.compile else ():
                # Layers are all alike: one is compiled, for any number of frames or words, and serves the others. A
                # whole tower takes minutes.
                layer.compile(dynamic=True)

    def _pictures(self, clips: FrameBatch, augmentation: Augmentation | None) -> torch.Tensor:
        frames = clips.frames.to(self.world.device, non_blocking=True)
        return to_pictures(frames, self.experiment.encoder.image_size, augmentation)

    def _epoch(
        self, state: TrainingState, report: Reporter | None, should_stop: Callable[[], bool]
    ) -> tuple[TrainingState, bool]:
        """The rest of the epoch that ``state`` stands in."""
        batches = self.batches(state.epoch)
        done = state.step - sum(self.counts[: state.epoch])
        share = self.world.share(self.config.batch_size)

        def read(index: int) -> _Batch:
            # This is another thread: of what it uses, saving a checkpoint meanwhile changes nothing.
            pairs = batches[index][share]
            text = self.model.text_encoder.tokenize([caption for pair in pairs for caption in pair.captions])
            clips = self.reader.read([pair.video_id for pair in pairs], state.epoch)
            if self.world.device.type == "cuda":
                clips = FrameBatch(clips.frames.pin_memory(), clips.mask.pin_memory())
            similar = self.teacher.similar(batches[index]) if self.teacher else None
            return _Batch(pairs, text, clips, similar)

        self.model.train()
        ahead = ReadAhead(read, done, len(batches))
        before = time.perf_counter()
        try:
            for batch in ahead:
                waited = time.perf_counter() - before
                record = self._step(state.step, batch)
                state = replace(state, step=state.step + 1)
                seconds = time.perf_counter() - before
                record |= {"epoch": state.epoch, "seconds": seconds, "data_wait": waited / seconds}
                record["items_per_second"] = self.config.batch_size / seconds
                self._log(record)
                if report and self.world.first:
                    report.stepped(record)
                if self.world.any(should_stop()):
                    # At the end of an epoch its validation is still due: the resumed run does it.
                    return state, True
                if self._save_between(state):
                    self._save(state, best=False)
                before = time.perf_counter()
        finally:
            ahead.close()
        return state, False

    def _save_between(self, state: TrainingState) -> bool:
        """Whether a checkpoint is due at this step that does not come with a validation anyway."""
        every, ended = self.config.checkpoint_steps, state.step == sum(self.counts[: state.epoch + 1])
        return bool(every) and state.step % every == 0 and not (ended and self._validates_after(state.epoch + 1))

    def _validates_after(self, epochs: int) -> bool:
        return epochs % self.config.validate_epochs == 0 or epochs == self.config.epochs

    def _step(self, step: int, read: _Batch) -> dict[str, Any]:
        config, world = self.config, self.world
        augmentation = None
        if config.augments:
            whole = Augmentation.draw(config, self.experiment.data.cache_size, config.batch_size, step)
            augmentation = whole.part(world.share(config.batch_size))
        batch = StepInput(
            read.text.to(world.device),
            self._pictures(read.clips, augmentation),
            read.clips.mask.to(world.device, non_blocking=True),
            None if read.similar is None else read.similar.to(world.device, non_blocking=True),
        )
        rates = set_rates(self.optimiser, rate_factor(step, self.steps, config.warmup))
        self.optimiser.zero_grad(set_to_none=True)
        terms = backward_step(self.model, batch, world, config.micro_batch, seed_for(config.seed, step), self.autocast)
        average_gradients(self.model.parameters(), world)
        names = [field.name for field in fields(terms)]
        values = world.mean(torch.stack([getattr(terms, name).detach().float() for name in names])).tolist()
        record = dict(zip(names, values, strict=True))
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_norm or math.inf))
        if not math.isfinite(record["total"]) or not math.isfinite(norm):
            finite = math.isfinite(record["total"])
            what = f"gradient's norm is {norm}" if finite else f"loss is {record['total']}"
            shown = ", ".join(pair.video_id for pair in read.pairs[:8])
            raise NonFiniteLossError(
                f"the {what} at step {step}; nothing of it was learned. Videos of the batch on rank "
                f"{world.rank}: {shown}{' …' if len(read.pairs) > 8 else ''}. Check them with `prota data check`, "
                "or lower the learning rates"
            )
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(self.experiment.loss.max_logit_scale))
        if self.average:
            self.average.update(step + 1)
        rates = {f"lr/{name}": rate for name, rate in rates.items()}
        return {"step": step + 1, **record, "gradient_norm": norm, **rates}

    def _validate(self, state: TrainingState, report: Reporter | None) -> tuple[TrainingState, bool]:
        """Metrics on the validation split at the end of an epoch; whether it is the best so far."""
        if self.val_split is None or self.val_reader is None:
            return state, False
        value = 0.0
        if self.world.first:
            with self.average.applied() if self.average else nullcontext():
                scored = score_split(self.model, self.val_reader, self.val_split, self.autocast)
            metrics = retrieval_metrics(scored.scores, scored.video_of_text)
            both = (metrics.text_to_video, metrics.video_to_text)
            value = sum(side.r1 + side.r5 + side.r10 for side in both) / 6
            record = {"step": state.step, "epoch": state.epoch, "validation": metrics.as_dict(), "value": value}
            self._log(record)
            if report:
                report.validated(record)
        best = state.best_value is None or value > state.best_value
        if best:
            state = replace(state, best_value=value, best_step=state.step)
        return state, best

    def _save(self, state: TrainingState, best: bool) -> None:
        if self.world.first:
            self.run.save(self.model, self.optimiser, state, best, self.average)
        self.world.barrier()

    def _log(self, record: dict[str, Any]) -> None:
        if self.world.first:
            with self.run.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _counted(missing: dict[str, int]) -> str:
    return " and ".join(f"{count} {split} videos" for split, count in missing.items())
