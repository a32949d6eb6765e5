"""Similarity of captions for soft targets, by the text tower before training or another encoder."""

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
    """Sentence vectors of all captions of a split, and their mean for each video; on the CPU."""

    def __init__(self, split: Split, encode: SentenceEncoder) -> None:
        # Sorted by length to reduce padding.
        captions = sorted({text for item in split.items for text in item.captions}, key=lambda text: (len(text), text))
        self._row = {caption: row for row, caption in enumerate(captions)}
        starts = range(0, len(captions), CAPTIONS_AT_ONCE)
        self._texts = torch.cat([encode(captions[start : start + CAPTIONS_AT_ONCE]) for start in starts]).clone()
        self._videos = {item.video_id: self._mean(item.captions) for item in split.items}

    def _mean(self, captions: Sequence[str]) -> Tensor:
        return F.normalize(self._texts[[self._row[caption] for caption in captions]].mean(dim=0), dim=0)

    def similar(self, pairs: Sequence[Pair]) -> Tensor:
        """[A, K, A]: cosine of each caption of a batch with the mean of each video's captions."""
        rows = torch.tensor([[self._row[caption] for caption in pair.captions] for pair in pairs])
        return self._texts[rows] @ torch.stack([self._videos[pair.video_id] for pair in pairs]).T


def sentence_encoder(
    model: ProTA, source: str, autocast: Callable[[], AbstractContextManager[object]]
) -> SentenceEncoder:
    """The encoder ``source``, a hub id or folder, with mean pooling; if empty, the model's text tower.

    Call it before weights are restored. The projection of a CLIP is part of its text tower; that of a pair is new.
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
            if encoder.sentence is not None and not source:
                # Its own vector of a text stands elsewhere.
                tokens = encoder(batch)
                vectors = _pooled(tokens.embeddings, tokens.mask, mean).cpu()
            else:
                vectors = _pooled(projection(in_context(tower, batch)), batch.mask, mean).cpu()
        tower.train(was_training)
        return vectors

    return encode


def _load(source: str) -> tuple[PretrainedTokenizer, Any]:
    from transformers import AutoModel

    try:
        return PretrainedTokenizer.from_pretrained(source), AutoModel.from_pretrained(source, dtype=torch.float32)
    except Exception as error:
        # transformers raises many kinds of errors for missing, foreign or truncated folders.
        raise ConfigError(
            f"train.teacher: cannot load {source}: {one_line(error)} (use a reachable hub id or a local folder)"
        ) from None


def _pooled(hidden: Tensor, mask: Tensor, mean: bool) -> Tensor:
    """Unit vectors [A, C]: the mean of a sentence's tokens, or its last one."""
    if mean:
        pooled = (hidden.float() * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    else:
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(dim=1) - 1].float()
    return F.normalize(pooled, dim=-1)
