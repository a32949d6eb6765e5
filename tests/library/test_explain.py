"""Which words match which seconds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prota.config.model import Config
from prota.library.records import clock
from prota.library.search.explain import MomentExplanation, explain_segment
from prota.library.search.moments import Segment
from prota.model.prota import ProTA
from prota.types import PreparedTokens

SEGMENT = Segment(10.0, 14.0, (10.5, 11.0, 12.0, 13.0))


@pytest.fixture(scope="module")
def model() -> ProTA:
    torch.manual_seed(0)
    return ProTA.from_config(Config.build("dpa", "toy")).eval()


def of_words(model: ProTA, *words: str) -> PreparedTokens:
    """A video whose frames are texts."""
    frames = [model.encode_text(word).direction[0].mean(dim=0) for word in words]
    direction = torch.nn.functional.normalize(torch.stack(frames), dim=-1)[None]
    mask = torch.ones(1, len(words), dtype=torch.bool)
    return PreparedTokens(direction, None, torch.full(mask.shape, 1 / len(words)), mask)


def explained(model: ProTA, query: str, *frames: str) -> MomentExplanation:
    unrelated = of_words(model, "cat", "tree", "car", "sky", "street", "house", "music", "game")
    tokens, segment = model.encode_text(query), Segment(SEGMENT.start, SEGMENT.end, SEGMENT.times[: len(frames)])
    return explain_segment(model, query, tokens, video=of_words(model, *frames), segment=segment, unrelated=unrelated)


def test_words_have_their_heat_where_their_frames_are(model: ProTA) -> None:
    why = explained(model, "the dog, in water!", "dog", "water", "water", "water")
    assert [word.text for word in why.words] == ["the", "dog", "in", "water"]
    the, dog, within, water = why.words
    assert not the.heat + within.heat
    assert not the.chosen or within.chosen
    assert np.argmax(dog.heat) == 0
    assert all(0 <= heat <= 1 for word in why.words for heat in word.heat)
    assert min(water.heat[1:]) > water.heat[0]
    parts = [part.contribution for part in (*why.words, *why.frames, why.rest)]
    assert sum(parts) == pytest.approx(why.score, abs=1e-5)
    record = why.to_dict()
    assert [len(row) for row in record["similarities"]] == [4] * 4
    assert [frame["time"] for frame in record["frames"]] == list(SEGMENT.times)


def test_the_sentence_names_chosen_words_alone(model: ProTA) -> None:
    why = explained(model, "the dog and the dog", "dog", "dog")
    chosen = {word.text for word in why.words if word.chosen}
    assert chosen == {"dog"}
    assert why.sentence.count("“dog”") == 1
    assert "the" not in why.sentence.split()
    assert explained(model, "the and", "dog").words[0].chosen is False


@pytest.mark.parametrize(
    ("seconds", "decimals", "shown"),
    [(0, 1, "0:00.0"), (59.96, 1, "1:00.0"), (59.4, 0, "0:59"), (59.6, 0, "1:00"), (3725.25, 0, "1:02:05")],
)
def test_times_are_written_as_on_a_clock(seconds: float, decimals: int, shown: str) -> None:
    assert clock(seconds, decimals) == shown
