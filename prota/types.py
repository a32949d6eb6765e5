"""The objects that travel between the parts. Letters are fixed here and used everywhere:

A texts, B videos, N text tokens, M video tokens (frames), D joint width. Where one function serves both sides,
``A`` and ``N`` stand for either. Masks are bool, True = a real token. Text is axis 0 of every pair tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["REST", "ExplainedWord", "Explanation", "PreparedTokens", "TokenGaussians", "Tokens", "Word", "pad_tokens"]

REST = "rest of the sentence"
"""Name of the tokens that belong to no word, such as the marks that a tokenizer adds to a text."""


def _check(name: str, values: Tensor, mask: Tensor) -> None:
    if values.dim() != 3 or mask.shape != values.shape[:2]:
        raise ValueError(
            f"{name} must be [items, tokens, D] with a mask [items, tokens]; got {list(values.shape)} "
            f"with a mask {list(mask.shape)}"
        )
    if mask.dtype != torch.bool:
        raise ValueError(f"the mask of {name} must be bool (True = a real token); got {mask.dtype}")
    if not bool(mask.any(dim=1).all()):
        empty = (~mask.any(dim=1)).nonzero().flatten().tolist()
        raise ValueError(f"{name} {empty} have no real token: an item of padding alone cannot be scored")


class _Batch:
    """What the batches of items below have in common: one item per entry of axis 0 in every tensor."""

    mask: Tensor

    def __repr__(self) -> str:
        items, tokens = self.mask.shape[0], int(self.mask.sum(1).max()) if self.mask.numel() else 0
        return f"{type(self).__name__}({items} item{'' if items == 1 else 's'}, at most {tokens} tokens)"

    def map(self, change: Any) -> Self:
        """The same batch with ``change`` applied to every tensor."""
        result = copy.copy(self)
        # Past the constructor: what was checked once is not checked again, which on a GPU would wait for it.
        for field in fields(self):  # type: ignore[arg-type]
            object.__setattr__(result, field.name, _apply(getattr(self, field.name), change))
        return result

    def to(self, target: torch.device | str | torch.dtype) -> Self:
        """Moved to a device, or with its floating-point tensors cast to a dtype (masks stay bool)."""
        if isinstance(target, torch.dtype):
            return self.map(lambda tensor: tensor.to(target) if tensor.is_floating_point() else tensor)
        return self.map(lambda tensor: tensor.to(target))

    def detach(self) -> Self:
        return self.map(lambda tensor: tensor.detach())

    def __getitem__(self, items: slice | Sequence[int] | Tensor) -> Self:
        """A batch of some of the items."""
        return self.map(lambda tensor: tensor[items])


def _apply(value: Any, change: Any) -> Any:
    if value is None:
        return None
    return value.map(change) if isinstance(value, _Batch) else change(value)


@dataclass(frozen=True, repr=False)
class Tokens(_Batch):
    """Tokens as points: what an encoder makes of a batch of texts or videos."""

    embeddings: Tensor
    """[A, N, D], as the encoder gives them, not normalised."""
    mask: Tensor
    """[A, N] bool."""

    def __post_init__(self) -> None:
        _check("Tokens", self.embeddings, self.mask)


@dataclass(frozen=True, repr=False)
class TokenGaussians(_Batch):
    """Tokens as diagonal Gaussians."""

    mean: Tensor
    """[A, N, D], not normalised."""
    log_var: Tensor
    """[A, N, D], log σ²."""
    mask: Tensor
    """[A, N] bool."""

    def __post_init__(self) -> None:
        _check("TokenGaussians", self.mean, self.mask)
        if self.log_var.shape != self.mean.shape:
            raise ValueError(f"log_var {list(self.log_var.shape)} must have mean's shape {list(self.mean.shape)}")


@dataclass(frozen=True, repr=False)
class PreparedTokens(_Batch):
    """Encoded texts or videos: the side of a score that does not depend on the other side.

    A stored video is scored from ``direction``, ``spread``, ``weight`` and ``mask`` alone. Padding is zero in all.

    Example
    -------
    >>> import prota
    >>> texts = prota.load("prota-small").encode_text(["a cat", "a cup of coffee"])
    >>> texts
    PreparedTokens(2 items, at most 6 tokens)
    >>> texts[:1]
    PreparedTokens(1 item, at most 4 tokens)
    """

    direction: Tensor
    """[A, N, D], L2-normalised tokens (their means, where they are Gaussians)."""
    spread: Tensor | None
    """[A, N, D], σ² or σ as ``score.distance`` says; None where tokens are points."""
    weight: Tensor
    """[A, N], what a token weighs by its own side."""
    mask: Tensor
    """[A, N] bool."""
    source: Tokens | TokenGaussians | None = None
    """The tokens that these were computed from: the losses need them, a score does not."""

    def __post_init__(self) -> None:
        _check("PreparedTokens", self.direction, self.mask)

    def __len__(self) -> int:
        return self.mask.shape[0]

    def without_source(self) -> PreparedTokens:
        """A copy with only the tensors that a score needs."""
        return PreparedTokens(self.direction, self.spread, self.weight, self.mask)

    @staticmethod
    def cat(parts: Sequence[PreparedTokens]) -> PreparedTokens:
        """Concatenate batches, padding the token axis to the longest, without their sources."""
        if not parts:
            raise ValueError("no batches to concatenate: give at least one")
        if len({part.spread is None for part in parts}) > 1:
            raise ValueError("cannot concatenate batches of different models: only some have spread")
        length = max(part.mask.shape[1] for part in parts)

        def joined(name: str) -> Any:
            values = [getattr(part, name) for part in parts]
            return None if values[0] is None else torch.cat([pad_tokens(value, length) for value in values])

        return PreparedTokens(joined("direction"), joined("spread"), joined("weight"), joined("mask"))


def pad_tokens(tensor: Tensor, length: int) -> Tensor:
    """[A, N] or [A, N, D] with zeros, or False, behind its tokens up to ``length`` of them."""
    missing = length - tensor.shape[1]
    if missing < 0:
        raise ValueError(f"{tensor.shape[1]} tokens do not fit into {length}")
    return F.pad(tensor, (0, 0, 0, missing) if tensor.dim() == 3 else (0, missing))


@dataclass(frozen=True)
class Word:
    """A word of a text as it was written, and which of the text's scored tokens stand for it."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class ExplainedWord:
    """A whole word in one score: sums over its tokens; for uncertainty and similarities, means."""

    text: str
    contribution: float
    weight: float
    intra: float
    inter: float | None
    uncertainty: float | None
    similarities: tuple[float, ...]
    """[M], one per frame."""
    rest: bool = False
    """True for `REST`, which is not a word."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """The contributions to one text-video score, without padding; ``score`` is exactly their sum.

    Its fields have one entry per token; `by_word` gives whole words.

    Example
    -------
    >>> import prota
    >>> model = prota.load("prota-small")
    >>> explanation = model.explain(model.encode_text("a cat"), model.encode_video("clips/cat.mp4"))
    >>> explanation
    Explanation(score 0.2..., 4 text tokens, 12 frames)
    >>> [word.text for word in explanation.by_word(model.text_encoder.words("a cat"))]
    ['a', 'cat', 'rest of the sentence']
    """

    similarities: Tensor
    """[N, M], s of every word and frame."""
    text_low: Tensor
    """[N], l of each word."""
    video_low: Tensor
    """[M], l of each frame."""
    text_intra: Tensor
    """[N], h of each word by its own side (as a plain weight where the preset has no such head)."""
    video_intra: Tensor
    """[M]."""
    text_inter: Tensor | None
    """[N], h of each word by the other side; None where the preset has none."""
    video_inter: Tensor | None
    """[M]."""
    text_weight: Tensor
    """[N], ĥ, the weight that multiplies l."""
    video_weight: Tensor
    """[M]."""
    text_uncertainty: Tensor | None
    """[N], mean log σ² of each word; None where tokens are points."""
    video_uncertainty: Tensor | None
    """[M]."""

    def __repr__(self) -> str:
        texts, frames = self.similarities.shape
        return f"Explanation(score {self.score:.3f}, {texts} text tokens, {frames} frames)"

    @property
    def text_contributions(self) -> Tensor:
        """[N], what each word adds to the score."""
        return 0.5 * self.text_low * self.text_weight

    @property
    def video_contributions(self) -> Tensor:
        """[M], what each frame adds to the score."""
        return 0.5 * self.video_low * self.video_weight

    @property
    def score(self) -> float:
        return float(self.text_contributions.sum() + self.video_contributions.sum())

    def by_word(self, words: Sequence[Word]) -> list[ExplainedWord]:
        """One entry per word of the text, in order; ``words`` are those of `TextEncoder.words`.

        Tokens that belong to no word are summed into a last entry, `REST`, so that all contributions still add up to
        the score.
        """
        named = {token for word in words for token in word.tokens}
        others = tuple(token for token in range(len(self.text_low)) if token not in named)
        return [self._word(word) for word in words] + ([self._word(Word(REST, others), rest=True)] if others else [])

    def _word(self, word: Word, rest: bool = False) -> ExplainedWord:
        tokens = list(word.tokens)
        return ExplainedWord(
            text=word.text,
            contribution=float(self.text_contributions[tokens].sum()),
            weight=float(self.text_weight[tokens].sum()),
            intra=float(self.text_intra[tokens].sum()),
            inter=None if self.text_inter is None else float(self.text_inter[tokens].sum()),
            uncertainty=None if self.text_uncertainty is None else float(self.text_uncertainty[tokens].mean()),
            similarities=tuple(self.similarities[tokens].mean(dim=0).tolist()),
            rest=rest,
        )
