"""ProTA: probabilistic token aggregation for text-video retrieval.

Importing this package imports nothing heavy; the names below load their modules when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prota.config.base import ConfigError
    from prota.config.experiment import Experiment
    from prota.config.model import Config
    from prota.errors import ProtaError
    from prota.evaluation.passport import Passport
    from prota.evaluation.report import evaluate
    from prota.library.indexing import IndexReport
    from prota.library.library import Library
    from prota.library.search.hits import Hit, Results
    from prota.model.folder import ModelFolderError
    from prota.model.prota import ProTA
    from prota.runs import load
    from prota.training.api import Trainer
    from prota.training.trainer import TrainingResult
    from prota.types import Explanation, PreparedTokens

__version__ = "0.1.0"
_HOMES = {
    "Config": "prota.config.model",
    "ConfigError": "prota.config.base",
    "Experiment": "prota.config.experiment",
    "Explanation": "prota.types",
    "Hit": "prota.library.search.hits",
    "IndexReport": "prota.library.indexing",
    "Library": "prota.library.library",
    "ModelFolderError": "prota.model.folder",
    "Passport": "prota.evaluation.passport",
    "PreparedTokens": "prota.types",
    "ProTA": "prota.model.prota",
    "ProtaError": "prota.errors",
    "Results": "prota.library.search.hits",
    "Trainer": "prota.training.api",
    "TrainingResult": "prota.training.trainer",
    "evaluate": "prota.evaluation.report",
    "load": "prota.runs",
}
__all__ = [
    "Config",
    "ConfigError",
    "Experiment",
    "Explanation",
    "Hit",
    "IndexReport",
    "Library",
    "ModelFolderError",
    "Passport",
    "PreparedTokens",
    "ProTA",
    "ProtaError",
    "Results",
    "Trainer",
    "TrainingResult",
    "__version__",
    "evaluate",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'prota' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
