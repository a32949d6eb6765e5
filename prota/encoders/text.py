"""Texts → token ids → tokens."""

from __future__ import annotations

import re
import threading
import unicodedata
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prota.types import Tokens, Word

__all__ = ["FUNCTION_WORDS", "HashTokenizer", "PretrainedTokenizer", "TextBatch", "TextEncoder", "TextTower"]
__all__ += ["TOKENIZING", "Sentence", "Tokenizer", "Word", "ids_of_context", "in_context", "is_content"]
__all__ += ["words_of_tokens"]

# English words that hold a sentence together and name nothing that a frame could show. Directions (up, behind) and
# numbers are not among them.
FUNCTION_WORDS = (
    *("a", "an", "the", "this", "that", "these", "those", "some", "any", "and", "or", "but", "nor", "so", "as", "if"),
    *("than", "then", "while", "when", "where", "which", "who", "whom", "whose", "what", "why", "how", "because", "of"),
    *("in", "on", "at", "to", "from", "with", "for", "by", "into", "onto", "about", "there", "here", "also", "too"),
    *("is", "are", "was", "were", "be", "been", "being", "am", "has", "have", "had", "having", "do", "does", "did"),
    *("doing", "can", "could", "will", "would", "shall", "should", "may", "might", "must", "very", "just", "s", "t"),
    *("i", "me", "my", "mine", "we", "us", "our", "ours", "you", "your", "yours", "he", "him", "his", "she", "her"),
    *("hers", "it", "its", "they", "them", "their", "theirs", "himself", "herself", "itself", "themselves"),
)
_FUNCTION = frozenset(FUNCTION_WORDS)


def is_content(word: str) -> bool:
    """Whether a word is neither a function word nor punctuation."""
    return word.casefold() not in _FUNCTION and any(letter.isalnum() for letter in word)


# A call sets padding and length of the one tokenizer there is, and threads that serve share it.
TOKENIZING = threading.Lock()


@dataclass(frozen=True)
class TextBatch:
    """Token ids of a batch of texts, padded on the right to its longest, or as `Sentence` says."""

    ids: Tensor
    """[A, N] long."""
    mask: Tensor
    """[A, N] bool."""
    scored: Tensor | None = None
    """[A, K] long, the places of the tokens that are scored, in order, then -1; None: every token is."""

    def to(self, device: torch.device | str) -> TextBatch:
        return self.map(lambda tensor: tensor.to(device))

    def map(self, change: Any) -> TextBatch:
        """The same batch with ``change`` applied to every tensor."""
        return TextBatch(change(self.ids), change(self.mask), None if self.scored is None else change(self.scored))


@dataclass(frozen=True)
class Sentence:
    """For a tower whose texts are not represented by their last token: that token is moved to the end of the others."""

    place: Literal["first", "end", "added"]
    """The first token; the last place, padding included; or one that the tower adds behind that."""
    length: int
    """Number of places, for ``end`` and ``added``."""
    padding: int
    """Id of the padding token."""
    masked: bool = True
    """Whether the tower's attention leaves padding out."""

    def arranged(self, batch: TextBatch) -> TextBatch:
        """Pad texts, and name the places of their tokens."""
        ids, mask = batch.ids, batch.mask
        if self.place != "first":
            room = (0, self.length - ids.shape[1])
            ids, mask = F.pad(ids, room, value=self.padding), F.pad(mask, room, value=False)
        rows = [self._places(count) for count in batch.mask.sum(dim=1).tolist()]
        longest = max(map(len, rows))
        scored = torch.tensor([row + [-1] * (longest - len(row)) for row in rows])
        return TextBatch(ids, mask if self.masked else torch.ones_like(mask), scored)

    def _places(self, count: int) -> list[int]:
        if self.place == "first":
            return [*range(1, count), 0]
        if self.place == "added":
            return [*range(count), self.length]
        return [*range(count), *([self.length - 1] if count < self.length else [])]


class Tokenizer(Protocol):
    """What a text encoder asks of its tokenizer."""

    @property
    def size(self) -> int:
        """Number of ids it can give."""

    def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
        """Ids of at most ``length`` tokens a text, both ends included."""

    def pieces(self, text: str, length: int) -> list[str]:
        """The same tokens as readable strings."""

    def words(self, text: str, length: int) -> list[tuple[str, list[int]]]:
        """The words of a text and the places of their tokens; tokens that mark its ends belong to none."""

    def context_ids(self, words: Collection[str]) -> set[int]:
        """Ids of these words, of punctuation and of the marks at the ends of a text."""

    def save(self, folder: Path) -> None:
        """Write what `from_pretrained` of the class needs."""


class PretrainedTokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.pad_token_id is None:
            raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no padding token, which batches need")
        tokenizer.padding_side = "right"
        self.tokenizer = tokenizer

    def lowercased(self) -> PretrainedTokenizer:
        """The same tokenizer, which reads capitals as small letters."""
        from tokenizers import normalizers

        backend = self.tokenizer.backend_tokenizer
        parts = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer is not None else [])]
        backend.normalizer = normalizers.Sequence(parts)
        return self

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
        with TOKENIZING:
            batch = self.tokenizer(list(texts), max_length=length, **options)
        return TextBatch(batch["input_ids"], batch["attention_mask"].bool())

    def pieces(self, text: str, length: int) -> list[str]:
        with TOKENIZING:
            ids = self.tokenizer(text, truncation=True, max_length=length)["input_ids"]
        return [self.tokenizer.decode([token]).strip() for token in ids]

    def words(self, text: str, length: int) -> list[tuple[str, list[int]]]:
        """See `Tokenizer`."""
        with TOKENIZING:
            encoded = self.tokenizer(text, truncation=True, max_length=length)
        if not self.tokenizer.is_fast:
            special = set(self.tokenizer.all_special_ids)
            named = zip(encoded["input_ids"], self.pieces(text, length), strict=True)
            return [(piece, [place]) for place, (token, piece) in enumerate(named) if token not in special]
        return words_of_tokens(text, encoded.word_ids(), encoded.word_to_chars)

    def context_ids(self, words: Collection[str]) -> set[int]:
        """See `Tokenizer`."""

        def tokenize(spelling: str) -> list[int]:
            ids: list[int] = self.tokenizer(spelling, add_special_tokens=False)["input_ids"]
            return ids

        special, unknown = set(self.tokenizer.all_special_ids), self.tokenizer.unk_token_id
        return ids_of_context(words, tokenize, vocabulary=self.tokenizer.get_vocab(), special=special, unknown=unknown)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(str(folder))


def words_of_tokens(
    text: str, numbers: Sequence[int | None], span: Callable[[int], tuple[int, int]]
) -> list[tuple[str, list[int]]]:
    """The words of a text and the places of their tokens.

    ``numbers``: of each token, which word it belongs to, if any; ``span``: of a word, where it begins and ends.
    """
    found: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        if number is not None:
            found.setdefault(number, []).append(place)
    return [(text[slice(*span(number))].strip(), places) for number, places in found.items()]


def ids_of_context(
    words: Collection[str],
    tokenize: Callable[[str], Sequence[int]],
    *,
    vocabulary: Mapping[str, int],
    special: Collection[int],
    unknown: int | None,
) -> set[int]:
    """Ids of words that are one token, of punctuation and of special tokens; ``tokenize`` adds none of these."""
    ids = {token for token in special if token != unknown}
    for word in words:
        # At the beginning of a text and inside of it a word may have different ids.
        for spelling in (word, word.capitalize(), f" {word}"):
            tokens = tokenize(spelling)
            ids |= set(tokens) if len(tokens) == 1 and tokens[0] != unknown else set()
    for piece, token in vocabulary.items():
        bare = piece.removeprefix("##").removesuffix("</w>").strip("Ġ▁ ")
        if bare and all(unicodedata.category(letter).startswith("P") for letter in bare):
            ids.add(token)
    return ids


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

    def words(self, text: str, length: int) -> list[tuple[str, list[int]]]:
        """See `Tokenizer`."""
        return [(word, [place]) for place, word in enumerate(self._words(text, length), start=1)]

    def context_ids(self, words: Collection[str]) -> set[int]:
        """See `Tokenizer`."""
        marks = (chr(code) for code in range(128) if unicodedata.category(chr(code)).startswith("P"))
        return {self.start, self.end, *(zlib.crc32(word.encode()) % self.start for word in (*words, *marks))}

    def save(self, folder: Path) -> None:
        """Nothing to write: the vocabulary's size is the encoder's."""


def in_context(model: nn.Module, batch: TextBatch) -> Tensor:
    """[A, N] → [A, N, C], what a transformer makes of each token in its sentence."""
    hidden: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
    return hidden


class TextTower(nn.Module):
    """A transformer over token ids and the projection of *all* its tokens to the joint width."""

    def __init__(self, model: nn.Module, projection: nn.Linear | nn.Identity, word_share: float = 0.0) -> None:
        """``word_share``: how much of a token is its own word's input vector, whatever its sentence says."""
        super().__init__()
        self.model = model
        self.projection = projection
        self.word_share = word_share

    def forward(self, batch: TextBatch) -> Tensor:
        """[A, N] → [A, N, D]."""
        projected: Tensor = self.projection(self.hidden(batch))
        return projected

    def hidden(self, batch: TextBatch) -> Tensor:
        """[A, N] → [A, N, C], what the projection takes."""
        hidden = in_context(self.model, batch)
        if not self.word_share:
            return hidden
        own = self.model.get_input_embeddings()(batch.ids)  # type: ignore[operator]
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).detach()
        return torch.lerp(hidden, F.normalize(own, dim=-1).to(hidden.dtype) * length, self.word_share)


class TextEncoder(nn.Module):
    """Texts → tokens."""

    def __init__(
        self,
        tower: TextTower,
        tokenizer: Tokenizer,
        length: int,
        function_words: Collection[str] | None = None,
        *,
        sentence: Sentence | None = None,
    ) -> None:
        """``function_words``: these, punctuation and the ends of a text are read by the tower and not scored.

        ``sentence``: None where a text is represented by its last token.
        """
        super().__init__()
        self.tower = tower
        self.tokenizer = tokenizer
        self.length = length
        self.sentence = sentence
        self._context: Tensor | None = None
        if function_words is not None:
            self._context = torch.zeros(tokenizer.size, dtype=torch.bool)
            self._context[sorted(tokenizer.context_ids(function_words))] = True

    @property
    def most_tokens(self) -> int:
        """The maximum of tokens of a text."""
        return self.length + (self.sentence is not None and self.sentence.place != "first")

    def tokenize(self, texts: str | Sequence[str]) -> TextBatch:
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise ValueError("no texts given: give at least one")
        given = self.tokenizer(texts, self.length)
        batch = given if self.sentence is None else self.sentence.arranged(given)
        if self._context is None:
            return batch
        real = F.pad(given.mask, (0, batch.ids.shape[1] - given.mask.shape[1]))
        return replace(batch, scored=self._scored(batch.ids, real, self._context))

    def _scored(self, ids: Tensor, real: Tensor, context: Tensor) -> Tensor:
        """The places of content words; of a text without any, of all its tokens."""
        content = real & ~context[ids]
        content |= real & ~content.any(dim=1, keepdim=True)
        places = torch.arange(ids.shape[1]).expand_as(content).masked_fill(~content, ids.shape[1])
        chosen = places.sort(dim=1).values[:, : int(content.sum(dim=1).max())]
        return chosen.masked_fill(chosen == ids.shape[1], -1)

    def words(self, text: str) -> list[Word]:
        """The words of a text of which tokens are scored, in order."""
        batch = self.tokenize(text)
        places = range(int(batch.mask.sum())) if batch.scored is None else batch.scored[0].tolist()
        position = {place: number for number, place in enumerate(places) if place >= 0}
        words = (
            Word(word, tuple(position[place] for place in found if place in position))
            for word, found in self.tokenizer.words(text, self.length)
        )
        return [word for word in words if word.tokens]

    def pieces(self, text: str) -> list[str]:
        """The scored tokens of a text as readable strings, in the order of the encoder's tokens."""
        pieces = self.tokenizer.pieces(text, self.length)
        scored = self.tokenize(text).scored
        if scored is None:
            return pieces
        # Behind the tokens of the text may be one that stands for all of it.
        return [pieces[place] if place < len(pieces) else "<sentence>" for place in scored[0].tolist()]

    def forward(self, texts: str | Sequence[str] | TextBatch) -> Tokens:
        batch = texts if isinstance(texts, TextBatch) else self.tokenize(texts)
        batch = batch.to(next(self.tower.parameters()).device)
        if batch.scored is None:
            return Tokens(self.tower(batch), batch.mask)
        hidden = self.tower.hidden(batch)
        places = batch.scored.clamp(min=0).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        return Tokens(self.tower.projection(hidden.gather(1, places)), batch.scored >= 0)
