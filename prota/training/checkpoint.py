"""Write and resume training runs, with atomic checkpoints. See `prota.runs`."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.errors import one_line
from prota.files import hold, publish, write_atomically
from prota.model.prota import ProTA
from prota.platform import sync
from prota.runs import REPAIR, STATE_FILE, Run, RunError, TrainingState
from prota.runtime import ALONE, World
from prota.training.averaging import WeightAverage

__all__ = ["RunFolder"]

_OPTIMISER, _TRAINED = "optimiser.pt", "weights.pt"


class RunFolder(Run):
    """The folder of a training run, written by one process at a time."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lock: TextIO | None = None

    def claim(self, experiment: Experiment, world: World | None = None) -> None:
        """Create and lock the folder; an existing run must have the same settings."""
        world = world or ALONE
        world.together(lambda: self._take(experiment) if world.first else None)
        world.together(lambda: self._require(experiment))

    def _take(self, experiment: Experiment) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = hold(self.path / "lock")
        except BlockingIOError:
            raise RunError(f"another process is training in {self.path}: wait for it, or use another --out") from None
        # Without a checkpoint there is nothing to resume; an earlier attempt may have failed because of its settings.
        if not self.is_run or not self.pointers():
            write_atomically(self.experiment_file, experiment.to_toml())

    def _require(self, experiment: Experiment) -> None:
        """Raise an error if the run has other settings."""
        before = Experiment.load_saved(self.experiment_file, resume=True)
        if before != experiment:
            changed = _differences(before.model_dump(), experiment.model_dump())
            raise ConfigError(
                f"cannot resume: {self.path} has other settings ({'; '.join(changed)}); use the same settings or "
                "another --out folder"
            )

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def save(
        self,
        model: ProTA,
        optimiser: torch.optim.Optimizer,
        state: TrainingState,
        *,
        best: bool,
        average: WeightAverage | None = None,
    ) -> Path:
        """Write a checkpoint, update the pointers, and delete checkpoints without a pointer."""
        # A step may be saved again after resuming; existing folders are never overwritten.
        step = f"step-{state.step:08d}"
        names = itertools.chain([step], (f"{step}.{number}" for number in itertools.count(1)))
        name = next(name for name in names if not (self.path / name).exists())
        final, staging = self.path / name, self.path / f".{name}.saving"
        shutil.rmtree(staging, ignore_errors=True)
        pointers = self.pointers() | {"last": name} | ({"best": name} if best else {})
        try:
            _write(staging, model, optimiser, state, average=average)
            publish(staging, final)
            write_atomically(self.pointers_file, json.dumps(pointers))
        except (OSError, RuntimeError, SafetensorError) as error:
            # Free the space of the incomplete checkpoint.
            shutil.rmtree(staging, ignore_errors=True)
            reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
            raise RunError(
                f"{self.path}: cannot write the checkpoint of step {state.step} ({reason}; is the disk full?); "
                "earlier ones are kept: free disk space and repeat the command to resume"
            ) from None
        for path in (*self.path.glob("step-*"), *self.path.glob(".step-*.saving")):
            if path.name not in pointers.values():
                shutil.rmtree(path)
        return final

    def restore(
        self, model: ProTA, optimiser: torch.optim.Optimizer, average: WeightAverage | None = None
    ) -> TrainingState | None:
        """Load the last checkpoint, if there is one."""
        folder = self.checkpoint("last")
        if folder is None:
            return None
        saved = ProTA.from_pretrained(folder)
        if saved.config != model.config:
            raise RunError(
                f"cannot resume: the model in {folder} has other settings; use the same ones or another --out"
            )
        model.load_state_dict(saved.state_dict())
        if average:
            _load(folder / _TRAINED, average.restore)
        _load(folder / _OPTIMISER, optimiser.load_state_dict)
        return self.state("last")

    def cut_log(self, step: int, epoch: int) -> None:
        """Delete log records after ``step`` and of unfinished epochs, which will be repeated."""
        if not self.log.exists():
            return
        kept = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                # The last line may be incomplete after a kill.
                continue
            # Other lines are dropped.
            logged, of = (record.get("step"), record.get("epoch", 0)) if isinstance(record, dict) else (None, 0)
            if isinstance(logged, int) and logged <= step and isinstance(of, int) and of <= epoch:
                kept.append(line + "\n")
        write_atomically(self.log, "".join(kept))


def _write(
    folder: Path,
    model: ProTA,
    optimiser: torch.optim.Optimizer,
    state: TrainingState,
    *,
    average: WeightAverage | None,
) -> None:
    """Write and flush all files of a checkpoint."""
    with average.applied() if average else nullcontext():
        model.save_pretrained(folder)
    if average:
        torch.save(average.trained(), folder / _TRAINED)
    torch.save(optimiser.state_dict(), folder / _OPTIMISER)
    write_atomically(folder / STATE_FILE, json.dumps(asdict(state)))
    for path in folder.iterdir():
        sync(path)


def _load(path: Path, take: Callable[[dict[str, Any]], object]) -> None:
    """Load a file with ``take``."""
    try:
        take(torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        raise RunError(f"{path} is missing: {REPAIR}") from None
    except torch.OutOfMemoryError:
        raise
    except Exception:
        # torch raises many kinds of errors for truncated, corrupt or foreign files.
        raise RunError(f"{path} is corrupt or of another run: {REPAIR}") from None


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{section}.{name}: {before[section].get(name)} → {now[section].get(name)}"
        for section in now
        for name in before[section] | now[section]
        if before[section].get(name) != now[section].get(name)
    ]
