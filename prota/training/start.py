"""The model that training starts from, instead of pretrained towers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prota.config.experiment import Experiment, TrainConfig
from prota.config.model import Config
from prota.model.folder import saved_config
from prota.model.prota import ProTA
from prota.model.weights import fingerprint
from prota.runs import find_checkpoint

__all__ = ["Start", "config_of"]


@dataclass(frozen=True)
class Start:
    """A saved model."""

    source: str
    """As given."""
    folder: Path
    fingerprint: str
    """SHA-256 of its weights."""
    whole: bool
    """Whether the whole model is loaded, not only its towers."""

    @classmethod
    def find(cls, config: TrainConfig) -> Start | None:
        """The model of ``train.start`` (of a run the best checkpoint); None for pretrained towers."""
        if not config.start:
            return None
        folder, _, _ = find_checkpoint(Path(config.start))
        return cls(config.start, folder, fingerprint(folder), config.start_with == "model")

    def model(self, experiment: Experiment) -> ProTA:
        """Load it with the experiment's settings; another architecture is an error."""
        return ProTA.from_start(self.folder, experiment.model, towers_only=not self.whole)


def config_of(source: str) -> Config:
    """The settings of the model that ``train.start`` names."""
    return saved_config(find_checkpoint(Path(source))[0])
