"""Between a model and what a library stores of it: its stamp, pooled vectors, and stored tokens ready to be scored."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from prota.library.records import ModelStamp
from prota.library.storage.reader import SegmentTokens
from prota.model.prota import ProTA
from prota.scoring.score import pooled
from prota.types import PreparedTokens

__all__ = ["pooled_vectors", "stamp_of", "stored_tokens"]


def stamp_of(model: ProTA, name: str, expected: ModelStamp | None = None) -> ModelStamp:
    """What a library remembers of its model; the weights are hashed again where another is ``expected``."""
    identity = model.identity()
    if expected is not None and identity != expected.fingerprint:
        identity = model.identity(saved=False)
    encoder = model.config.encoder
    spread = model.config.score.probabilistic
    return ModelStamp(name, identity, encoder.width, encoder.frames, spread)


def pooled_vectors(items: PreparedTokens) -> Tensor:
    """[S, D] unit vectors: tokens by their own weights. The candidate stage of a search compares these."""
    return torch.nn.functional.normalize(pooled(items), dim=-1)


def stored_tokens(tokens: SegmentTokens, device: torch.device, as_stored: bool = False) -> PreparedTokens:
    """Stored segments, ready to be scored, in single precision; ``as_stored``: in half of it, as they are."""

    def tensor(values: np.ndarray) -> Tensor:
        # What comes from a file cannot be written to, which torch insists on.
        return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(device)

    direction, spread = tensor(tokens.direction), None if tokens.spread is None else tensor(tokens.spread)
    if not as_stored:
        direction, spread = direction.float(), None if spread is None else spread.float()
    return PreparedTokens(direction, spread, tensor(tokens.weight).float(), tensor(tokens.mask).bool())
