"""One training step: the loss and its gradients.

With micro-batches the step has two passes (gradient caching): encode the whole batch without gradients, compute the
loss and its gradient for every token, then encode each micro-batch again and propagate these. The gradients equal those
of the whole batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prota.encoders.text import TextBatch
from prota.losses import LossTerms, share_of_loss
from prota.model.prota import ProTA
from prota.runtime import World
from prota.training.distributed import gather_prepared
from prota.training.locality import Replaced, locality_loss
from prota.types import Tokens

__all__ = ["StepInput", "backward_step", "seed_for"]


@dataclass(frozen=True)
class StepInput:
    """This process's pairs, on its device."""

    text: TextBatch
    """[a·K, N]: the K captions of the first video, then those of the second, …"""
    frames: Tensor
    """Input of the video encoder: pictures [a, M, 3, H, W], or features [a, M, C] of a frozen tower."""
    mask: Tensor
    similar: Tensor | None = None
    """[A, K, A], similarity of each caption of the whole batch to each video's captions, for ``loss.soft_targets``."""
    replaced: Replaced | None = None
    """The texts with one word replaced, for ``loss.locality``."""

    def __len__(self) -> int:
        return len(self.mask)

    def texts_of(self, items: slice) -> slice:
        """Indices of the captions of some videos."""
        captions = len(self.text.ids) // len(self)
        return slice(items.start * captions, items.stop * captions)

    def part(self, items: slice) -> StepInput:
        """Some of the pairs; ``similar`` stays that of the whole batch."""
        texts = self.texts_of(items)
        text = self.text.map(lambda tensor: tensor[texts])
        replaced = None if self.replaced is None else self.replaced.map(lambda tensor: tensor[texts])
        return StepInput(text, self.frames[items], self.mask[items], self.similar, replaced)


def seed_for(*numbers: int) -> int:
    """A seed from several numbers, the same on every machine."""
    return zlib.crc32(",".join(map(str, numbers)).encode())


def backward_step(
    model: ProTA,
    batch: StepInput,
    world: World,
    *,
    micro_batch: int = 0,
    seed: int = 0,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    weight: float = 1.0,
) -> LossTerms:
    """Add the gradients of this process's share of the loss, times ``weight``; returns the terms of the loss."""

    def encode(part: int, items: slice) -> tuple[Tokens, ...]:
        # Dropout is the same in both passes and after resuming.
        torch.manual_seed(seed_for(seed, world.rank, part))
        chosen = batch.part(items)
        with autocast():
            encoded = model.text_encoder(chosen.text), model.video_encoder(chosen.frames, chosen.mask)
            return encoded if chosen.replaced is None else (*encoded, model.text_encoder(chosen.replaced.text))

    size = micro_batch or len(batch)
    parts = [slice(start, min(start + size, len(batch))) for start in range(0, len(batch), size)]
    if len(parts) == 1:
        terms = _loss(model, encode(0, parts[0]), world, batch)
        (weight * terms.total).backward()  # type: ignore[no-untyped-call]
        return terms
    with torch.no_grad():
        encoded = [encode(number, part) for number, part in enumerate(parts)]
    joined = tuple(_join(list(side)) for side in zip(*encoded, strict=True))
    terms = _loss(model, joined, world, batch)
    (weight * terms.total).backward()  # type: ignore[no-untyped-call]
    for number, part in enumerate(parts):
        rows = (batch.texts_of(part), part, batch.texts_of(part))
        for tokens, whole, items in zip(encode(number, part), joined, rows, strict=False):
            if tokens.embeddings.requires_grad and whole.embeddings.grad is not None:
                gradient = whole.embeddings.grad[items].to(tokens.embeddings.dtype)
                tokens.embeddings.backward(gradient)  # type: ignore[no-untyped-call]
    return terms


def _join(parts: list[Tokens]) -> Tokens:
    embeddings = torch.cat([part.embeddings for part in parts])
    if embeddings.dtype == torch.bfloat16:
        embeddings = embeddings.float()
    return Tokens(embeddings.requires_grad_(), torch.cat([part.mask for part in parts]))


def _loss(model: ProTA, encoded: tuple[Tokens, ...], world: World, batch: StepInput) -> LossTerms:
    """Loss of this process's pairs; with several captions per video, the mean of the losses with one each."""
    texts, videos, *replaced = encoded
    own_texts, own_videos = model.head.prepare_texts(texts), model.head.prepare_videos(videos)
    config, similar = model.config, batch.similar
    count, captions = len(own_videos), len(own_texts) // len(own_videos)
    targets = torch.arange(count, device=own_texts.mask.device) + world.rank * count
    if world.size == 1:
        text_scores = model.score(own_texts, own_videos)
        video_scores = text_scores.T
    else:
        all_texts = gather_prepared(own_texts, world, model.text_encoder.most_tokens)
        all_videos = gather_prepared(own_videos, world, config.encoder.tokens)
        text_scores = model.score(own_texts, all_videos)
        video_scores = model.score(all_texts, own_videos).T
    terms = []
    for nth in range(captions):
        alike = None if similar is None else (similar[targets, nth], similar[:, nth, targets].T)
        share = share_of_loss(
            text_scores[nth::captions],
            video_scores[:, nth::captions],
            targets,
            texts=own_texts[nth::captions],
            videos=own_videos,
            logit_scale=model.logit_scale,
            logit_bias=model.logit_bias,
            config=config.loss,
            similar=alike,
        )
        terms.append(share)
    loss = LossTerms.mean(terms)
    if batch.replaced is None:
        return loss
    locality = locality_loss(own_texts, model.head.prepare_texts(replaced[0]), batch.replaced.place)
    return replace(loss, total=loss.total + config.loss.locality * locality, locality=locality)
