"""The model that training starts from, instead of pretrained towers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prota.config.experiment import Experiment, TrainConfig
from prota.model.prota import ProTA
from prota.model.weights import fingerprint
from prota.runs import find_checkpoint

__all__ = ["Start"]


@dataclass(frozen=True)
class Start:
    """A saved model."""

    source: str
    """As it was asked for."""
    folder: Path
    fingerprint: str
    """Of its weights."""
    whole: bool
    """Whether all of it is taken, and not its towers alone."""

    @classmethod
    def find(cls, config: TrainConfig) -> Start | None:
        """The model of ``train.start``, of a run its best; None where training starts from pretrained towers."""
        if not config.start:
            return None
        folder, _, _ = find_checkpoint(Path(config.start))
        return cls(config.start, folder, fingerprint(folder), config.start_with == "model")

    def model(self, experiment: Experiment) -> ProTA:
        """It with the experiment's settings; one of another architecture is refused."""
        return ProTA.from_start(self.folder, experiment.model, towers_only=not self.whole)
