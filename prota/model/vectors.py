"""Encoded texts and videos as sentence-transformers has several vectors an item: a matrix [tokens, width] each.

A row is all that a score needs of a token: its direction, its spread where tokens are Gaussians, and its weight. So the
similarity of such matrices is the model's score, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prota.config.model import Config, EncoderConfig
from prota.errors import UsageError
from prota.types import PreparedTokens
from prota.video.transforms import to_square

__all__ = ["NoCard", "Rows", "frames_of", "from_rows", "is_single", "to_rows"]

Rows = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray]
"""Matrices [tokens, width], one of them, or all as a tensor padded with zeros."""


class NoCard:
    """Where evaluators of sentence-transformers write their results for a model's card: they return them, too."""

    def set_evaluation_metrics(self, *_: object, **__: object) -> None:
        """Nothing: results of ProTA models are passports."""


def to_rows(items: PreparedTokens) -> list[Tensor]:
    """A matrix for each item."""
    parts = [items.direction, *([] if items.spread is None else [items.spread]), items.weight.unsqueeze(-1)]
    rows = torch.cat(parts, dim=-1)
    return [row[real] for row, real in zip(rows, items.mask, strict=True)]


def from_rows(rows: Rows, config: Config) -> PreparedTokens:
    """The reverse; a row of zeros is padding."""
    if isinstance(rows, Tensor | np.ndarray):
        whole = torch.as_tensor(rows)
        whole = whole.unsqueeze(0) if whole.dim() == 2 else whole
    else:
        whole = pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
    width, spread = config.encoder.width, config.score.probabilistic
    expected = width * (1 + spread) + 1
    if whole.dim() != 3 or whole.shape[-1] != expected:
        raise UsageError(
            f"embeddings must be [tokens, {expected}], as this model encodes them; got {list(whole.shape)}"
        )
    direction = whole[..., :width]
    return PreparedTokens(
        direction, whole[..., width : 2 * width] if spread else None, whole[..., -1], direction.abs().amax(dim=-1) > 0
    )


def is_single(inputs: Any) -> bool:
    """Whether this is one text or video, not several."""
    return (
        isinstance(inputs, str | Path | Mapping) or hasattr(inputs, "convert") or getattr(inputs, "ndim", 1) in (3, 4)
    )


def frames_of(document: Any, config: EncoderConfig) -> str | Path | Tensor:
    """A video that was given by its path, or by its frames or a picture, of which at most ``frames`` are taken."""
    if isinstance(document, Mapping):
        names = [name for name in ("video", "image", "array") if name in document]
        if len(names) != 1:
            raise UsageError(f"a document must be a video or an image; got a mapping of {', '.join(document)}")
        return frames_of(document[names[0]], config)
    if isinstance(document, str | Path):
        return document
    pictures = _pictures(document)
    places = np.linspace(0, len(pictures) - 1, min(len(pictures), config.frames)).round().astype(int)
    squares = [to_square(pictures[place], config.image_size, config.picture) for place in places]
    return torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)


def _pictures(given: Any) -> list[np.ndarray]:
    """uint8 [height, width, 3] each, of a Pillow picture or of frames with channels first or last."""
    if hasattr(given, "convert"):
        return [np.asarray(given.convert("RGB"))]
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [picture for one in given for picture in _pictures(one)]
    array = np.asarray(given.cpu() if isinstance(given, Tensor) else given)
    array = array[None] if array.ndim == 3 else array
    if array.ndim == 4 and array.shape[-1] != 3 and array.shape[1] == 3:
        array = array.transpose(0, 2, 3, 1)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3:
        raise UsageError(f"frames must be uint8 [frames, height, width, 3]; got {array.dtype} {list(array.shape)}")
    return [np.ascontiguousarray(picture) for picture in array]
