"""ProTA: probabilistic token aggregation for text-video retrieval.

Importing this package imports nothing heavy; the names below load their modules when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prota.config.model import Config, ConfigError
    from prota.model.folder import ModelFolderError
    from prota.model.prota import ProTA

__version__ = "0.1.0"
__all__ = ["Config", "ConfigError", "ModelFolderError", "ProTA", "__version__"]

_HOMES = {
    "Config": "prota.config.model",
    "ConfigError": "prota.config.base",
    "ModelFolderError": "prota.model.folder",
    "ProTA": "prota.model.prota",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'prota' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
