"""Train a model: on captions and a folder of videos, or as an experiment's file describes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from prota.config.experiment import DataConfig, Experiment, TrainConfig
from prota.data.benchmarks import load_benchmark, load_source
from prota.data.prepare import prepare
from prota.files import write_atomically
from prota.model.prota import ProTA
from prota.models import shipped
from prota.runs import config_of
from prota.runtime import start_world
from prota.training.checkpoint import RunFolder
from prota.training.trainer import Reporter, TrainingLoop, TrainingResult

__all__ = ["FINE_TUNING", "Trainer"]

FINE_TUNING: dict[str, Any] = {
    "epochs": 10,
    "batch_size": 64,
    "captions_per_video": 2,
    "lr_vision": 0.0,
    "lr_text": 3e-5,
    "lr_temporal": 1e-4,
    "lr_new": 1e-4,
}
"""Settings of [train] with which a model learns from some hundred captioned clips on a CPU; see docs/tuning.md."""


class Trainer:
    """Fine-tune a model on captioned videos; `from_experiment` trains any experiment.

    The run is a folder of checkpoints, which `prota.load` and `prota.evaluate` read. Training again with the same
    arguments resumes an interrupted run.

    Parameters
    ----------
    model
        What to start from: a `ProTA`, the name of a shipped model, a model folder, a training run or a hub id.
    train
        CSV, TSV or JSONL file with the columns ``video`` and ``caption`` and, optionally, ``split`` (train, val, test)
        and ``tag``; without splits all rows are for training.
    videos
        Folder of the videos and pictures.
    out
        Folder of the run: log, checkpoints and the cache of decoded frames.
    device
        ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto``: a GPU if there is one.
    settings
        Settings of [train], such as ``epochs=20``; others are those of `FINE_TUNING`.

    Example
    -------
    >>> import prota
    >>> trainer = prota.Trainer(
    ...     "prota-small", train="clips/samples.csv", videos="clips", out="runs/mine", epochs=1, batch_size=12
    ... )
    >>> trainer.train().finished
    True
    >>> prota.load("runs/mine")
    ProTA(pair, width 384, 12 frames, 50.1 M parameters)
    """

    def __init__(
        self,
        model: str | Path | ProTA = shipped.DEFAULT,
        *,
        train: str | Path,
        videos: str | Path,
        out: str | Path,
        device: str = "auto",
        **settings: Any,
    ) -> None:
        self._open(out, device)
        if isinstance(model, ProTA):
            model.save_pretrained(self.run.path / "start")
            model = self.run.path / "start"
        source = str(model)
        config = config_of(source)
        data = DataConfig(
            benchmark="folder",
            captions=str(train),
            videos=str(videos),
            cache=str(self.run.path / "frames"),
            cache_size=config.encoder.image_size,
        )
        if load_benchmark(data).train is None:
            data = data.replace(captions=str(_as_training(data, self.run.path / "captions.jsonl")))
        self.experiment = Experiment(
            **config.model_dump(), data=data, train=TrainConfig(**FINE_TUNING | {"start": source} | settings)
        )
        self._prepares = True

    @classmethod
    def from_experiment(cls, experiment: str | Path | Experiment, out: str | Path, *, device: str = "auto") -> Self:
        """A trainer for a TOML file or an `Experiment`, with the frame caches of `prota data prepare`."""
        trainer = cls.__new__(cls)
        trainer._open(out, device)
        if not isinstance(experiment, Experiment):
            experiment = Experiment.load(experiment, base=config_of)
        trainer.experiment, trainer._prepares = experiment, False
        return trainer

    def _open(self, out: str | Path, device: str) -> None:
        self.run, self.world = RunFolder(Path(out).expanduser()), start_world(device)

    def __repr__(self) -> str:
        return f"Trainer({str(self.run.path)!r}, {self.experiment.train.epochs} epochs)"

    def train(
        self,
        *,
        report: Reporter | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        allow_missing: int = 0,
    ) -> TrainingResult:
        """Train to the end, or until asked to stop; either way everything is saved.

        Parameters
        ----------
        report
            Called with the progress; see `prota.training.trainer.Reporter`.
        should_stop
            Asked after each step.
        allow_missing
            Continue without up to this many videos of a split; their number is recorded.
        """
        world = self.world
        self.run.claim(self.experiment, world)
        if self._prepares:
            world.together(lambda: list(prepare(self.experiment)) if world.first else None)
        try:
            loop = world.together(
                lambda: TrainingLoop(self.experiment, self.run, world, allow_missing=allow_missing, report=report)
            )
            return loop.fit(report, should_stop)
        finally:
            self.run.release()


def _as_training(data: DataConfig, path: Path) -> Path:
    """The captions of a file without splits, as rows of the split train."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"video": item.video_id, "captions": list(item.captions), "split": "train"} for item in load_source(data).items
    ]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
    return path
