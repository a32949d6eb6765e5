"""Queries: encoded texts and clips."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prota.errors import UsageError
from prota.library.records import LibraryError

if TYPE_CHECKING:
    from prota.encoders.text import Tokenizer
    from prota.types import PreparedTokens

__all__ = ["ClipRange", "Query", "Reading", "clean_query", "parse_clip", "reading", "words_of"]

_ENGLISH = frozenset(("a", "the", "and", "of", "is", "are", "with", "his", "her", "their", "on", "at", "from", "to"))
# Words that hold sentences of other languages together, without those that are English words or parts of names.
_FOREIGN = frozenset((
    *("ein", "eine", "einen", "einem", "einer", "und", "auf", "mit", "ist", "nicht", "das", "unter", "zwei", "ins"),
    *("un", "une", "des", "dans", "avec", "sur", "et", "aux", "deux", "qui", "una", "unos"),
    *("gli", "della", "nel", "nella", "nell", "sul", "sulla", "che", "uma", "um", "em"),
    *("een", "het", "ett", "och", "en", "på", "jest", "się", "bir", "ve", "ile"),
))  # fmt: skip
# Vocabularies of several languages are larger than this.
_ONE_LANGUAGE = 100_000
# Pieces for each word of a text that is not English, with and without such a word in it.
_SOME_PIECES, _MANY_PIECES = 1.1, 1.75


@dataclass(frozen=True)
class ClipRange:
    """A video file, a range of it, or a picture."""

    path: Path
    start: float | None = None
    end: float | None = None


def parse_clip(text: str) -> ClipRange:
    """Parse ``clip.mp4`` or ``clip.mp4@12-20.5``, in seconds. An existing file takes precedence."""
    found = re.fullmatch(r"(.+)@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if found is None or Path(text).exists():
        return ClipRange(Path(text))
    start, end = float(found[2]), float(found[3])
    if end <= start:
        raise UsageError(f"{text}: the range ends before it starts; use FILE@START-END in seconds")
    return ClipRange(Path(found[1]), start, end)


@dataclass(frozen=True)
class Query:
    """An encoded text or clip."""

    text: str
    tokens: PreparedTokens
    cut: bool = False
    """Whether the text was truncated to the model's length."""
    like: tuple[str, float, float] | None = None
    """Of a clip: its content, start and end, which are excluded from the results."""
    unread: tuple[str, ...] = ()
    """Parts of the text that the model has no tokens for, such as emoji."""
    foreign: bool = False
    """Whether the text is probably of a language that the model does not read."""
    common: bool = False
    """Whether all words are in the model's vocabulary, as those of broad queries are, and not made of pieces."""

    def is_itself(self, video_id: str, start: float, end: float) -> bool:
        """Whether a segment is part of the query clip."""
        if self.like is None or self.like[0] != video_id:
            return False
        # A picture has one segment of length 0, which overlaps nothing.
        return start == end or (start < self.like[2] and self.like[1] < end)


@dataclass(frozen=True)
class Reading:
    """How much of a text a model reads: as in `Query`."""

    unread: tuple[str, ...] = ()
    foreign: bool = False
    common: bool = False


def reading(text: str, tokenizer: Tokenizer, length: int) -> Reading:
    """What a tokenizer makes of the words of a text."""
    pieces, words = tokenizer.pieces(text, length), tokenizer.words(text, length)
    unread = tuple(word for word, places in words if all(pieces[place] in ("[UNK]", "<unk>") for place in places))
    counts = [len(places) for word, places in words if word not in unread and any(map(str.isalpha, word))]
    if not counts:
        return Reading(unread)
    common = not unread and max(counts) == 1
    return Reading(unread, tokenizer.size <= _ONE_LANGUAGE and _is_foreign(text, words, counts), common)


def _is_foreign(text: str, words: Sequence[tuple[str, Sequence[int]]], counts: Sequence[int]) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    if sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters) > len(letters) / 2:
        return True
    names, share = {word.casefold() for word, _ in words}, sum(counts) / len(counts)
    # Names are long, too: one or two words say nothing.
    split = share >= (_SOME_PIECES if names & _FOREIGN else _MANY_PIECES) and (
        bool(names & _FOREIGN) or len(counts) >= 3
    )
    return split and not names & _ENGLISH


def clean_query(text: str) -> str:
    """Normalise a text query; LibraryError if it is empty."""
    words = words_of(text)
    if not words:
        raise LibraryError("empty query: describe the moment in words")
    return words


def words_of(text: str) -> str:
    """Normalise a text: no control characters, single spaces."""
    plain = "".join(" " if unicodedata.category(letter).startswith("C") else letter for letter in text)
    return " ".join(plain.split())
