"""Names of the models that come with the package; they lie beside this file, a folder each."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DEFAULT", "MODELS", "names"]

MODELS = Path(__file__).parent
DEFAULT = "prota-small"
"""What makes a library where no other model is named."""


def names() -> list[str]:
    """The models that this installation has; each is ``MODELS / name``."""
    return sorted(path.parent.name for path in MODELS.glob("*/config.json"))
