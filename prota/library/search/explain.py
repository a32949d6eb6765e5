"""Why a moment matches: one sentence, the heat of words and frames, and what the score is made of.

The tokens of a model carry the whole sentence, so a word's part of the score says little about the word. Its *heat* is
how well a frame fits the word alone, in standard deviations above the frames of unrelated videos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from prota.encoders.text import is_content
from prota.library.records import Floats, clock
from prota.library.search.moments import Segment, stretch
from prota.model.prota import ProTA
from prota.types import ExplainedWord, PreparedTokens

__all__ = ["ExplainedFrame", "MatchedWord", "MomentExplanation", "Share", "Unrelated", "explain_segment"]

# Standard deviations above the mean of unrelated frames that count as full heat.
_FULL = 4.0
# A word is chosen with at least this heat, and this share of the hottest word's.
_CHOSEN, _SHARE = 0.25, 0.5


@dataclass(frozen=True)
class Unrelated:
    """Fits of unrelated frames to some texts: mean and standard deviation, [A, 1]."""

    mean: torch.Tensor
    deviation: torch.Tensor

    @classmethod
    def of(cls, model: ProTA, texts: PreparedTokens, videos: PreparedTokens) -> Unrelated:
        fits = model.head.frame_fits(texts, videos)[:, videos.mask]
        return cls(fits.mean(dim=1, keepdim=True), fits.std(dim=1, correction=0, keepdim=True).clamp(min=1e-6))

    def heats(self, model: ProTA, texts: PreparedTokens, videos: PreparedTokens) -> list[Floats]:
        """Heats of the frames of each pair: all videos of the first text, then those of the next."""
        fits = model.head.frame_fits(texts, videos)
        heats = ((fits - self.mean[:, None]) / self.deviation[:, None] / _FULL).double().cpu().numpy()
        mask = videos.mask.cpu().numpy()
        return [heat[mask[place]] for row in heats for place, heat in enumerate(row)]


@dataclass(frozen=True)
class Share:
    """A part of a score."""

    contribution: float
    weight: float


@dataclass(frozen=True)
class MatchedWord:
    """A whole word of the query."""

    text: str
    chosen: bool
    """Whether it carries the match; False for function words."""
    heat: tuple[float, ...]
    """[M] in 0 to 1: how well each frame fits this word alone, from the mean of unrelated frames to four standard
    deviations above it. Empty for function words."""
    contribution: float
    """What its tokens add to the score."""
    weight: float
    similarities: tuple[float, ...]
    """[M], of its tokens in the query."""


@dataclass(frozen=True)
class ExplainedFrame:
    """A frame: how well it fits the query, and what it adds to the score."""

    time: float
    heat: float
    """As `MatchedWord.heat`, of the whole query."""
    contribution: float
    weight: float


@dataclass(frozen=True)
class MomentExplanation:
    """Why a segment matches. The contributions of words, rest and frames add up to the score."""

    score: float
    sentence: str
    start: float
    """Of the seconds that the sentence names."""
    end: float
    words: Sequence[MatchedWord]
    """Whole words, in the order of the query."""
    frames: Sequence[ExplainedFrame]
    rest: Share
    """Of all other tokens: punctuation and the marks at the ends of a text."""

    @property
    def similarities(self) -> list[tuple[float, ...]]:
        """Words x frames."""
        return [word.similarities for word in self.words]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in the HTTP API."""
        shown = ("text", "chosen", "heat", "contribution", "weight")
        return {
            "score": self.score,
            "sentence": self.sentence,
            "start": round(self.start, 3),
            "end": round(self.end, 3),
            "words": [{name: getattr(word, name) for name in shown} for word in self.words],
            "frames": [asdict(frame) | {"time": round(frame.time, 3)} for frame in self.frames],
            "rest": asdict(self.rest),
            "similarities": self.similarities,
        }


@torch.inference_mode()
def explain_segment(
    model: ProTA,
    text: str,
    query: PreparedTokens,
    *,
    video: PreparedTokens,
    segment: Segment,
    unrelated: PreparedTokens,
) -> MomentExplanation:
    """Explain the score of a segment for a text.

    ``query``, ``video``: their tokens; ``unrelated``: those of videos to compare with.
    """
    found = model.explain(query, video)
    parts = found.by_word(model.text_encoder.words(text))
    names = list(dict.fromkeys(part.text for part in parts if not part.rest and is_content(part.text)))
    texts = [query] + ([model.encode_text(names).without_source()] if names else [])
    every = PreparedTokens.cat(texts)
    whole, *alone = [heat.clip(0, 1) for heat in Unrelated.of(model, every, unrelated).heats(model, every, video)]
    heats = dict(zip(names, alone, strict=True))
    hottest = max((float(heat.max()) for heat in alone), default=0.0)
    least = max(_CHOSEN, _SHARE * hottest)
    words = [
        _word(part, heats.get(part.text, np.zeros(0)), least) for part in parts if not part.rest and _written(part.text)
    ]
    chosen = [heats[name] for name in names if float(heats[name].max()) >= least]
    heat = np.mean(chosen, axis=0) if chosen else whole
    start, end = stretch(heat, segment, int(heat.argmax()))
    shown = zip(
        segment.times, whole.tolist(), found.video_contributions.tolist(), found.video_weight.tolist(), strict=True
    )
    others = [part for part in parts if part.rest or not _written(part.text)]
    return MomentExplanation(
        score=found.score,
        sentence=_sentence([word.text for word in words if word.chosen], start, end),
        start=start,
        end=end,
        words=words,
        frames=[ExplainedFrame(*frame) for frame in shown],
        rest=Share(sum(part.contribution for part in others), sum(part.weight for part in others)),
    )


def _written(text: str) -> bool:
    """Whether a word is more than punctuation."""
    return any(letter.isalnum() for letter in text)


def _word(part: ExplainedWord, heat: Floats, least: float) -> MatchedWord:
    chosen = bool(len(heat)) and float(heat.max()) >= least
    heats = tuple(round(float(value), 3) for value in heat)
    return MatchedWord(part.text, chosen, heats, part.contribution, part.weight, part.similarities)


def _sentence(words: Sequence[str], start: float, end: float) -> str:
    place = "the picture" if start == end else _span(start, end)
    if not words:
        return f"The query as a whole matches {place}; no single word stands out"
    quoted = [f"“{word}”" for word in dict.fromkeys(words)]
    subject = " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
    return f"{subject} {'match' if len(quoted) > 1 else 'matches'} {place}"


def _span(start: float, end: float) -> str:
    """Whole seconds, such as 0:12–0:15."""
    first, last = (clock(seconds, decimals=0) for seconds in (start, end))
    return first if first == last else f"{first}–{last}"
