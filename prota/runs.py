"""The folder of a training run, as those read it who evaluate, draw or start from it.

RUN/experiment.toml      what was asked for
RUN/log.jsonl            one line a step, one an epoch
RUN/checkpoints.json     {"last": "step-00000120", "best": …}; replaced atomically, names only finished folders
RUN/step-00000120/       a model folder (`ProTA.from_pretrained` reads it) with optimiser.pt and state.json; with
                         train.ema the model is the average, and weights.pt holds what training continues with
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from prota.config.experiment import Experiment
from prota.config.model import Config
from prota.errors import ProtaError, one_line
from prota.model.folder import model_folder, saved_config
from prota.models import shipped

if TYPE_CHECKING:
    from prota.model.prota import ProTA

__all__ = [
    "REPAIR",
    "STATE_FILE",
    "Run",
    "RunError",
    "TrainingState",
    "best_checkpoint",
    "config_of",
    "find_checkpoint",
    "load",
]

REPAIR = "restore it, or start another run"
STATE_FILE = "state.json"


class RunError(ProtaError, ValueError):
    """A run folder that is corrupt, incomplete, in use, or of other settings."""

    code = "run"


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
        path = folder / STATE_FILE
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes(), strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"])
            said = f"{place}: {problem['msg']}" if place else problem["msg"]
            raise RunError(f"{path} is not the state of a run ({said})", hint=REPAIR) from None
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror})", hint=REPAIR) from None


class Run:
    """A run folder, read only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def is_run(self) -> bool:
        """Whether a run was ever started here."""
        return self.experiment_file.exists()

    @property
    def experiment_file(self) -> Path:
        return self.path / "experiment.toml"

    @property
    def pointers_file(self) -> Path:
        return self.path / "checkpoints.json"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    def experiment(self) -> Experiment:
        """What the run was asked for."""
        return Experiment.load_saved(self.experiment_file)

    def pointers(self) -> dict[str, str]:
        """Names of the last and the best checkpoint, as far as there are any."""
        path = self.pointers_file
        try:
            pointers = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read ({one_line(error)})", hint=REPAIR) from None
        if not isinstance(pointers, dict) or not all(isinstance(name, str) and name for name in pointers.values()):
            raise RunError(f"{path} is not a list of checkpoints", hint=REPAIR)
        return pointers

    def checkpoint(self, which: str) -> Path | None:
        """The folder of the ``last`` or ``best`` checkpoint."""
        name = self.pointers().get(which)
        if name is None:
            return None
        if not (self.path / name).is_dir():
            raise RunError(
                f"{self.pointers_file} names {name} as the {which} checkpoint, which is missing", hint=REPAIR
            )
        return self.path / name

    def state(self, which: str) -> TrainingState:
        """Where the run stood at its ``last`` or ``best`` checkpoint."""
        folder = self.checkpoint(which)
        if folder is None:
            raise RunError(f"{self.path} has no {which} checkpoint")
        state = TrainingState.read(folder)
        if state is None:
            raise RunError(f"{folder} is incomplete: {STATE_FILE} is missing", hint=REPAIR)
        return state


def find_checkpoint(path: Path) -> tuple[Path, str, TrainingState | None]:
    """(model folder, rule, where its training stood): of a run its best on validation, or its last before the first.

    Any other path names a model, see `model_folder`. The folder of one checkpoint still knows its training;
    that of any other model does not.
    """
    run = Run(path)
    if not run.is_run:
        folder = model_folder(path)
        return folder, "as given", TrainingState.read(folder)
    for which in ("best", "last"):
        chosen = run.checkpoint(which)
        if chosen is not None:
            state = run.state(which)
            rule = f"best on validation at step {state.best_step}" if which == "best" else f"last, step {state.step}"
            return chosen, rule, state
    raise RunError(f"{path} has no checkpoint yet: resume training with the same command")


def best_checkpoint(source: str | Path) -> str | Path:
    """Of a run the model folder that `find_checkpoint` chooses; any other source as it is."""
    return find_checkpoint(Path(source))[0] if Run(source).is_run else source


def config_of(source: str) -> Config:
    """The settings of a saved model or run."""
    return saved_config(find_checkpoint(Path(source))[0])


def load(source: str | Path = shipped.DEFAULT, *, device: str = "auto", revision: str | None = None) -> ProTA:
    """Load a model, ready to encode.

    Parameters
    ----------
    source
        The name of a shipped model, a model folder, a training run (its best checkpoint) or a hub id; also of a bare
        CLIP, SigLIP or other aligned model, such as ``google/siglip2-base-patch16-224``.
    device
        ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto``: a GPU if there is one.
    revision
        Branch, tag or commit of a hub id.

    Example
    -------
    >>> import prota
    >>> model = prota.load("prota-small", device="cpu")
    >>> model.similarity(model.encode_text("a cat"), model.encode_video("clips/cat.mp4")).shape
    torch.Size([1, 1])
    """
    from prota.model.prota import ProTA
    from prota.runtime import choose_device

    return ProTA.from_pretrained(best_checkpoint(source), revision=revision).to(choose_device(device))
