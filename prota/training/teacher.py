"""What the text tower knew before training: which captions mean much the same, for soft targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import functional as F

from prota.data.batches import Pair
from prota.data.splits import Split
from prota.encoders.text import TextBatch
from prota.model import ProTA

__all__ = ["CaptionTeacher"]

CAPTIONS_AT_ONCE = 1024


class CaptionTeacher:
    """Sentence vectors of all training captions, and for each video the mean of its captions'; on the CPU."""

    def __init__(self, model: ProTA, split: Split, autocast: Callable[[], AbstractContextManager[object]]) -> None:
        """``model`` has the text tower as it was loaded: a resumed run makes its teacher before it restores weights."""
        # By length: a batch of equally long ones has little padding.
        captions = sorted({text for item in split.items for text in item.captions}, key=lambda text: (len(text), text))
        self._row = {caption: row for row, caption in enumerate(captions)}
        was_training = model.training
        model.eval()
        with torch.inference_mode(), autocast():
            parts = [
                _sentences(model, model.text_encoder.tokenize(captions[start : start + CAPTIONS_AT_ONCE])).cpu()
                for start in range(0, len(captions), CAPTIONS_AT_ONCE)
            ]
        model.train(was_training)
        self._texts = torch.cat(parts).clone()
        self._videos = {item.video_id: self._mean(item.captions) for item in split.items}

    def _mean(self, captions: Sequence[str]) -> Tensor:
        return F.normalize(self._texts[[self._row[caption] for caption in captions]].mean(dim=0), dim=0)

    def similar(self, pairs: Sequence[Pair]) -> Tensor:
        """[A, K, A]: cosine of each caption of a batch with each of its videos."""
        rows = torch.tensor([[self._row[caption] for caption in pair.captions] for pair in pairs])
        return self._texts[rows] @ torch.stack([self._videos[pair.video_id] for pair in pairs]).T


def _sentences(model: ProTA, batch: TextBatch) -> Tensor:
    """Unit vectors [A, C]: the mean of a sentence's tokens or its last one, as ``score.text_pooling`` says.

    A CLIP's projection belongs to what it knows; that of a pair of towers is new and knows nothing.
    """
    tower, batch = model.text_encoder.tower, batch.to(model.logit_scale.device)
    hidden = tower(batch) if model.config.encoder.kind != "pair" else tower.hidden(batch)
    mask = batch.mask.unsqueeze(-1)
    if model.config.score.text_pooling == "mean":
        pooled = (hidden.float() * mask).sum(dim=1) / mask.sum(dim=1)
    else:
        pooled = hidden[torch.arange(len(hidden), device=hidden.device), batch.mask.sum(dim=1) - 1].float()
    return F.normalize(pooled, dim=-1)
