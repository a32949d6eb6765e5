"""Which captions mean much the same, for soft targets: as the text tower knew before training, or as another does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.config.base import ConfigError
from prota.data.batches import Pair
from prota.data.splits import Split
from prota.encoders.text import PretrainedTokenizer, in_context
from prota.errors import one_line
from prota.model.prota import ProTA

__all__ = ["CaptionTeacher", "SentenceEncoder", "sentence_encoder"]

SentenceEncoder = Callable[[Sequence[str]], Tensor]
"""Sentences → unit vectors [A, C], on the CPU."""

CAPTIONS_AT_ONCE = 1024


class CaptionTeacher:
    """Sentence vectors of all captions of a split, and for each video the mean of its captions'; on the CPU."""

    def __init__(self, split: Split, encode: SentenceEncoder) -> None:
        # By length: a batch of equally long ones has little padding.
        captions = sorted({text for item in split.items for text in item.captions}, key=lambda text: (len(text), text))
        self._row = {caption: row for row, caption in enumerate(captions)}
        starts = range(0, len(captions), CAPTIONS_AT_ONCE)
        self._texts = torch.cat([encode(captions[start : start + CAPTIONS_AT_ONCE]) for start in starts]).clone()
        self._videos = {item.video_id: self._mean(item.captions) for item in split.items}

    def _mean(self, captions: Sequence[str]) -> Tensor:
        return F.normalize(self._texts[[self._row[caption] for caption in captions]].mean(dim=0), dim=0)

    def similar(self, pairs: Sequence[Pair]) -> Tensor:
        """[A, K, A]: cosine of each caption of a batch with each of its videos."""
        rows = torch.tensor([[self._row[caption] for caption in pair.captions] for pair in pairs])
        return self._texts[rows] @ torch.stack([self._videos[pair.video_id] for pair in pairs]).T


def sentence_encoder(
    model: ProTA, source: str, autocast: Callable[[], AbstractContextManager[object]]
) -> SentenceEncoder:
    """That of ``source``, a hub id or folder, by the mean of its tokens; where that is empty, the model's text tower.

    ``model`` has the text tower as it was loaded: a resumed run makes its teachers before it restores weights. A CLIP's
    projection belongs to what it knows; that of a pair of towers is new and knows nothing.
    """
    device, encoder = model.logit_scale.device, model.text_encoder
    tower: Any = encoder.tower.model
    tokenize, mean = encoder.tokenize, model.config.score.text_pooling == "mean"
    projection = encoder.tower.projection if model.config.encoder.kind != "pair" else torch.nn.Identity()
    if source:
        tokenizer, tower = _load(source)
        tower.to(device)
        tokenize, mean, projection = partial(tokenizer, length=encoder.length), True, torch.nn.Identity()

    def encode(captions: Sequence[str]) -> Tensor:
        batch = tokenize(captions).to(device)
        was_training = tower.training
        tower.eval()
        with torch.inference_mode(), autocast():
            vectors = _pooled(projection(in_context(tower, batch)), batch.mask, mean).cpu()
        tower.train(was_training)
        return vectors

    return encode


def _load(source: str) -> tuple[PretrainedTokenizer, Any]:
    from transformers import AutoModel

    try:
        return PretrainedTokenizer.from_pretrained(source), AutoModel.from_pretrained(source, dtype=torch.float32)
    except Exception as error:
        # Whatever transformers says about a folder that is missing, foreign or cut short.
        raise ConfigError(
            f"train.teacher: cannot load {source}: {one_line(error)} "
            "(give a hub id that this machine can reach, or a local folder)"
        ) from None


def _pooled(hidden: Tensor, mask: Tensor, mean: bool) -> Tensor:
    """Unit vectors [A, C]: the mean of a sentence's tokens, or its last one."""
    if mean:
        pooled = (hidden.float() * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    else:
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1].float()
    return F.normalize(pooled, dim=-1)
