"""Faithfulness of explanations: the weights of words, and the effect of replacing one.

An explanation by words is faithful if the similarities and the contribution of a word come from that word. One content
word of a caption is replaced by one of another caption; its similarities and its contribution should change most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from prota.encoders.text import Word, is_content
from prota.evaluation.scoring import Progress
from prota.model.prota import ProTA
from prota.types import Explanation, PreparedTokens

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Faithfulness", "measure_faithfulness"]


@dataclass(frozen=True)
class Faithfulness:
    """Result of `measure_faithfulness`; shares and rates in percent."""

    captions: int
    content_weight: float
    """Share of content words in the token weights of a caption."""
    function_weight: float
    """Share of function words and punctuation; the rest belongs to start and end tokens."""
    replaced: int
    """Number of captions with a replaced word."""
    own_similarities: float
    """How often the similarities of the replaced word change most."""
    own_contribution: float
    """How often the contribution of the replaced word changes most."""
    chance: float
    """How often a random word would be the replaced one."""

    def table(self) -> Table:
        """For the terminal."""
        from rich.table import Table

        table = Table("", "%", title=f"{self.captions} captions, {self.replaced} with a replaced word", pad_edge=False)
        for label, value in (
            ("weight of content words", self.content_weight),
            ("weight of function words and punctuation", self.function_weight),
            ("replaced word: its similarities change most", self.own_similarities),
            ("replaced word: its contribution changes most", self.own_contribution),
            ("a word picked at random", self.chance),
        ):
            table.add_row(label, f"{value:.1f}")
        return table


@torch.inference_mode()
def measure_faithfulness(
    model: ProTA,
    captions: Sequence[str],
    videos: PreparedTokens,
    progress: Progress | None = None,
) -> Faithfulness:
    """Measure captions with their videos: caption i belongs to video i."""
    words = [_words(model, caption) for caption in captions]
    vocabulary = sorted({found[place].text for found in words for place in _replaceable(found)})
    generator = np.random.default_rng(0)
    weights: dict[str, list[float]] = {"content": [], "function": [], "": []}
    own_row, own_part, chance = list[bool](), list[bool](), list[float]()
    for number, (caption, found) in enumerate(zip(captions, words, strict=True)):
        video = videos[[number]]
        before = model.explain(model.encode_text(caption), video)
        shares = (before.text_weight / before.text_weight.sum()).tolist()
        for kind, values in weights.items():
            values.append(sum(shares[token] for word in found if _kind(word) == kind for token in word.tokens))
        changed = _replaced(caption, found, vocabulary, generator)
        if changed is not None:
            text, place = changed
            after = model.explain(model.encode_text(text), video)
            if len(after.text_low) == len(before.text_low):
                rows, parts = _changes(before, after, found)
                own_row.append(int(rows.argmax()) == place)
                own_part.append(int(parts.argmax()) == place)
                chance.append(1 / len(found))
        if progress:
            progress("captions", number + 1, len(captions))
    return Faithfulness(
        captions=len(captions),
        content_weight=_percent(weights["content"]),
        function_weight=_percent(weights["function"]),
        replaced=len(own_row),
        own_similarities=_percent(own_row),
        own_contribution=_percent(own_part),
        chance=_percent(chance),
    )


def _percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / max(1, len(values))


def _words(model: ProTA, caption: str) -> list[Word]:
    """All words with scored tokens, and start and end tokens, which compete with them."""
    words = model.text_encoder.words(caption)
    named = {token for word in words for token in word.tokens}
    marks = [Word("", (token,)) for token in range(len(model.text_encoder.pieces(caption))) if token not in named]
    return words + marks


def _kind(word: Word) -> str:
    if not word.text:
        return ""
    return "content" if is_content(word.text) else "function"


def _replaceable(words: list[Word]) -> list[int]:
    """Indices of content words that have one token and occur once."""
    texts = [word.text.lower() for word in words]
    return [
        place
        for place, word in enumerate(words)
        # Replacing several tokens would shift the others.
        if _kind(word) == "content" and len(word.tokens) == 1 and texts.count(texts[place]) == 1
    ]


def _replaced(
    caption: str, words: list[Word], vocabulary: list[str], generator: np.random.Generator
) -> tuple[str, int] | None:
    """The caption with a content word replaced, and the index of that word; None if there is no such word."""
    mentioned = {word.text.lower() for word in words}
    places, others = _replaceable(words), [word for word in vocabulary if word.lower() not in mentioned]
    if not places or not others or len(words) < 2:
        return None
    place = places[generator.integers(len(places))]
    other = others[generator.integers(len(others))]
    start = _find(caption, words, place)
    return caption[:start] + other + caption[start + len(words[place].text) :], place


def _find(caption: str, words: list[Word], place: int) -> int:
    """Position of a word in a caption, not inside another word."""
    position = 0
    for word in words[:place]:
        position = max(position, caption.find(word.text, position) + len(word.text))
    return caption.find(words[place].text, position)


def _changes(
    before: Explanation, after: Explanation, words: list[Word]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Changes of the similarities and the contribution of each word between two texts with equally many tokens."""
    rows = (after.similarities - before.similarities).square().sum(dim=1)
    parts = after.text_contributions - before.text_contributions
    by_word = [(float(rows[list(word.tokens)].mean()), abs(float(parts[list(word.tokens)].sum()))) for word in words]
    first, second = np.array(by_word).T
    return first, second
