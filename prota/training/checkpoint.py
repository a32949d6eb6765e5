"""Checkpoints that are whole or not there at all, and a run folder that knows its last and its best.

RUN/experiment.toml      what was asked for
RUN/log.jsonl            one line a step, one an epoch
RUN/checkpoints.json     {"last": "step-00000120", "best": …}; replaced atomically, names only finished folders
RUN/step-00000120/       a model folder (`ProTA.from_pretrained` reads it) with optimiser.pt and state.json; with
                         train.ema the model is the average, and weights.pt holds what training goes on with
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TextIO

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError

from prota.experiment import Experiment
from prota.files import hold, publish, write_atomically
from prota.model import ProTA
from prota.settings import ConfigError, first_line
from prota.training.averaging import WeightAverage
from prota.training.distributed import ALONE, World

__all__ = ["RunFolder", "TrainingState"]

_POINTERS, _EXPERIMENT = "checkpoints.json", "experiment.toml"
_REPAIR = "restore it, or start another run"
_STATE, _OPTIMISER, _TRAINED = "state.json", "optimiser.pt", "weights.pt"


@dataclass(frozen=True)
class TrainingState:
    """Where a run stands; with the weights and the optimiser, all that a continuation needs."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    step: int
    epoch: int
    best_value: float | None = None
    """Mean of R@1, R@5 and R@10 of both directions on validation, the highest so far."""
    best_step: int | None = None
    """After which step that was."""
    missing: dict[str, int] = field(default_factory=dict)
    """Split → items that were left out by permission; empty: not known, as in runs of before this was recorded."""
    data: dict[str, str] = field(default_factory=dict)
    """Hashes of the training data as asked for (``train``), of what of both splits is there (``used``, ``val``), the
    same of further sources (``train:NAME`` …), and of the weights that training started from (``start``)."""
    started_from: str = ""
    """The model that training started from, as it was asked for; empty: pretrained towers."""

    @classmethod
    def read(cls, folder: Path) -> TrainingState | None:
        """The state that was saved with a checkpoint; None for a folder without one."""
        path = folder / _STATE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes(), strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            said = f"{place}: {problem['msg']}" if place else problem["msg"]
            raise ValueError(f"{path} is not the state of a run ({said}): {_REPAIR}") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}): {_REPAIR}") from None


class RunFolder:
    """The folder of one training run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: TextIO | None = None

    def claim(self, experiment: Experiment, world: World | None = None) -> None:
        """Make the folder, or continue the run that is in it if it has the same settings; one process at a time."""
        world = world or ALONE
        world.together(lambda: self._take(experiment) if world.first else None)
        world.together(lambda: self._require(experiment))

    def _take(self, experiment: Experiment) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = hold(self.path / "lock")
        except BlockingIOError:
            raise ValueError(
                f"another process is training in {self.path}: wait for it, or give another --out"
            ) from None
        # Where nothing was saved yet there is nothing to continue: an attempt may have failed for its settings.
        if not self.is_run or not self.pointers():
            write_atomically(self.path / _EXPERIMENT, experiment.to_toml())

    def _require(self, experiment: Experiment) -> None:
        """The settings that the run began with."""
        before = self.experiment()
        if before != experiment:
            changed = _differences(before.model_dump(), experiment.model_dump())
            raise ConfigError(
                f"{self.path} is a run with other settings ({'; '.join(changed)}); allowed: the same settings to "
                "continue it, or another --out folder"
            )

    def release(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def is_run(self) -> bool:
        """Whether a run was ever started here."""
        return (self.path / _EXPERIMENT).exists()

    def experiment(self) -> Experiment:
        """What the run was asked for."""
        return Experiment.load(self.path / _EXPERIMENT)

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    def pointers(self) -> dict[str, str]:
        """Names of the last and the best checkpoint, as far as there are any."""
        path = self.path / _POINTERS
        try:
            pointers = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} cannot be read ({first_line(error)}): {_REPAIR}") from None
        if not isinstance(pointers, dict) or not all(isinstance(name, str) and name for name in pointers.values()):
            raise ValueError(f"{path} is not a list of checkpoints: {_REPAIR}")
        return pointers

    def checkpoint(self, which: str) -> Path | None:
        """The folder of the ``last`` or ``best`` checkpoint."""
        name = self.pointers().get(which)
        if name is None:
            return None
        if not (self.path / name).is_dir():
            raise ValueError(f"{self.path / _POINTERS} names {name} as {which}, which is not there: {_REPAIR}")
        return self.path / name

    def save(
        self,
        model: ProTA,
        optimiser: torch.optim.Optimizer,
        state: TrainingState,
        best: bool,
        average: WeightAverage | None = None,
    ) -> Path:
        """Write a checkpoint, then point to it, then remove those that nothing points to."""
        # A step may be saved twice, after a resume; what the pointers name is never touched.
        step = f"step-{state.step:08d}"
        names = itertools.chain([step], (f"{step}.{number}" for number in itertools.count(1)))
        name = next(name for name in names if not (self.path / name).exists())
        final, staging = self.path / name, self.path / f".{name}.saving"
        shutil.rmtree(staging, ignore_errors=True)
        pointers = self.pointers() | {"last": name} | ({"best": name} if best else {})
        try:
            _write(staging, model, optimiser, state, average)
            publish(staging, final)
            write_atomically(self.path / _POINTERS, json.dumps(pointers))
        except (OSError, RuntimeError, SafetensorError) as error:
            # What was written of it would fill a full disk further.
            shutil.rmtree(staging, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
            raise ValueError(
                f"{self.path}: the checkpoint of step {state.step} cannot be written ({reason}; is the disk full?); "
                "earlier ones are kept: make room, and the same command goes on from there"
            ) from None
        for path in (*self.path.glob("step-*"), *self.path.glob(".step-*.saving")):
            if path.name not in pointers.values():
                shutil.rmtree(path)
        return final

    def state(self, which: str) -> TrainingState:
        """Where the run stood at its ``last`` or ``best`` checkpoint."""
        folder = self.checkpoint(which)
        if folder is None:
            raise ValueError(f"{self.path} has no {which} checkpoint")
        state = TrainingState.read(folder)
        if state is None:
            raise ValueError(f"{folder} has no {_STATE}, so it is not whole: {_REPAIR}")
        return state

    def restore(
        self, model: ProTA, optimiser: torch.optim.Optimizer, average: WeightAverage | None = None
    ) -> TrainingState | None:
        """Continue from the last checkpoint, if there is one."""
        folder = self.checkpoint("last")
        if folder is None:
            return None
        saved = ProTA.from_pretrained(folder)
        if saved.config != model.config:
            raise ValueError(f"{folder} holds a model of other settings: give another run folder, or the same settings")
        model.load_state_dict(saved.state_dict())
        if average:
            _load(folder / _TRAINED, average.restore)
        _load(folder / _OPTIMISER, optimiser.load_state_dict)
        return self.state("last")

    def cut_log(self, step: int, epoch: int) -> None:
        """Forget what was logged after a step that is about to be repeated, or of an epoch that has not ended yet."""
        if not self.log.exists():
            return
        kept = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                # The last line of a killed process may be half a line.
                continue
            # What is no record of a step says nothing about the run.
            logged, of = (record.get("step"), record.get("epoch", 0)) if isinstance(record, dict) else (None, 0)
            if isinstance(logged, int) and logged <= step and isinstance(of, int) and of <= epoch:
                kept.append(line + "\n")
        write_atomically(self.log, "".join(kept))


def _write(
    folder: Path,
    model: ProTA,
    optimiser: torch.optim.Optimizer,
    state: TrainingState,
    average: WeightAverage | None,
) -> None:
    """All files of a checkpoint, safe on disk."""
    with average.applied() if average else nullcontext():
        model.save_pretrained(folder)
    if average:
        torch.save(average.trained(), folder / _TRAINED)
    torch.save(optimiser.state_dict(), folder / _OPTIMISER)
    write_atomically(folder / _STATE, json.dumps(asdict(state)))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _load(path: Path, take: Callable[[dict[str, Any]], object]) -> None:
    """Hand what a file holds to who goes on with it."""
    try:
        take(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: {_REPAIR}") from None
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # Torch has many kinds of errors, and long texts, for files that are cut short, changed or of something else.
        raise ValueError(f"{path} is damaged, or of another run: {_REPAIR}") from None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{section}.{name}: {before[section].get(name)} → {now[section].get(name)}"
        for section in now
        for name in before[section] | now[section]
        if before[section].get(name) != now[section].get(name)
    ]
