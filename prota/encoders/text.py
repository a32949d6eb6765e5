"""Texts → token ids → tokens."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from prota.types import Tokens

__all__ = ["HashTokenizer", "PretrainedTokenizer", "TextBatch", "TextEncoder", "TextTower", "Tokenizer"]


# A call sets padding and length of the one tokenizer there is, and threads that serve share it.
_TOKENIZING = threading.Lock()


@dataclass(frozen=True)
class TextBatch:
    """Token ids of a batch of texts, padded on the right to its longest."""

    ids: Tensor
    """[A, N] long."""
    mask: Tensor
    """[A, N] bool."""

    def to(self, device: torch.device | str) -> TextBatch:
        return TextBatch(self.ids.to(device), self.mask.to(device))


class Tokenizer(Protocol):
    """What a text encoder asks of its tokenizer."""

    @property
    def size(self) -> int:
        """Number of ids it can give."""

    def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
        """Ids of at most ``length`` tokens a text, both ends included."""

    def pieces(self, text: str, length: int) -> list[str]:
        """The same tokens as readable strings."""

    def save(self, folder: Path) -> None:
        """Write what `from_pretrained` of the class needs."""


class PretrainedTokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.pad_token_id is None:
            raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no padding token: it cannot make batches")
        tokenizer.padding_side = "right"
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(cls, source: str | Path) -> PretrainedTokenizer:
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(str(source)))

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
        # Some models were trained without a mask, and their tokenizers give none unless told to.
        options = {"padding": True, "truncation": True, "return_attention_mask": True, "return_tensors": "pt"}
        with _TOKENIZING:
            batch = self.tokenizer(list(texts), max_length=length, **options)
        return TextBatch(batch["input_ids"], batch["attention_mask"].bool())

    def pieces(self, text: str, length: int) -> list[str]:
        with _TOKENIZING:
            ids = self.tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return [self.tokenizer.decode([token]).strip() for token in ids]

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(str(folder))


class HashTokenizer:
    """Words to ids by checksum: no vocabulary, no files; for the toy encoder."""

    def __init__(self, vocabulary: int) -> None:
        self.start, self.end, self._size = vocabulary - 2, vocabulary - 1, vocabulary

    @property
    def size(self) -> int:
        return self._size

    def _words(self, text: str, length: int) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())[: length - 2]

    def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
        rows = [
            [self.start, *(zlib.crc32(word.encode()) % self.start for word in self._words(text, length)), self.end]
            for text in texts
        ]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
        return TextBatch(ids, mask)

    def pieces(self, text: str, length: int) -> list[str]:
        return ["<start>", *self._words(text, length), "<end>"]

    def save(self, folder: Path) -> None:
        """Nothing to write: the vocabulary's size is the encoder's."""


class TextTower(nn.Module):
    """A transformer over token ids and the projection of *all* its tokens to the joint width."""

    def __init__(self, model: nn.Module, projection: nn.Linear) -> None:
        super().__init__()
        self.model = model
        self.projection = projection

    def forward(self, batch: TextBatch) -> Tensor:
        """[A, N] → [A, N, D]."""
        projected: Tensor = self.projection(self.hidden(batch))
        return projected

    def hidden(self, batch: TextBatch) -> Tensor:
        """[A, N] → [A, N, C], what the projection takes."""
        hidden: Tensor = self.model(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        return hidden


class TextEncoder(nn.Module):
    """Texts → tokens."""

    def __init__(self, tower: TextTower, tokenizer: Tokenizer, length: int) -> None:
        super().__init__()
        self.tower = tower
        self.tokenizer = tokenizer
        self.length = length

    def tokenize(self, texts: str | Sequence[str]) -> TextBatch:
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise ValueError("no texts given: there is nothing to encode")
        return self.tokenizer(texts, self.length)

    def pieces(self, text: str) -> list[str]:
        """The tokens of a text as readable strings, in the order of the encoder's tokens."""
        return self.tokenizer.pieces(text, self.length)

    def forward(self, texts: str | Sequence[str] | TextBatch) -> Tokens:
        batch = texts if isinstance(texts, TextBatch) else self.tokenize(texts)
        batch = batch.to(self.tower.projection.weight.device)
        return Tokens(self.tower(batch), batch.mask)
