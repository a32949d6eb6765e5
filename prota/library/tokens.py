"""Between a model and what a library stores of it: its stamp, pooled vectors, and stored tokens ready to be scored."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch
from torch import Tensor

from prota.library.records import ModelStamp
from prota.library.storage.reader import SegmentTokens
from prota.model.prota import ProTA
from prota.scoring.score import pooled
from prota.types import PreparedTokens

__all__ = ["pooled_vectors", "stamp_of", "stored_tokens"]


def stamp_of(model: ProTA, name: str) -> ModelStamp:
    """What tells this model from others: a hash of its settings and of every weight.

    Settings at their defaults do not count, so that a library stays that of its model where a new version of prota
    has more of them.
    """
    settings = model.config.model_dump(exclude_defaults=True)
    if model.config.encoder.kind == "pair":
        # A setting of earlier versions, which follows from the kind: fingerprints stay the same.
        settings["encoder"]["temporal_init"] = "random"
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    encoder = model.config.encoder
    spread = model.config.score.probabilistic
    return ModelStamp(name, digest.hexdigest(), encoder.width, encoder.frames, spread)


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
