"""Whether words mean what they say, of models of which that is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from prota import Config, ProTA
from prota.cli import app
from prota.encoders.text import TextBatch
from prota.evaluation.faithfulness import measure_faithfulness
from prota.evaluation.passport import Passport
from tests.training.runs import train

CAPTIONS = ["the red dog runs on a hill", "a green bird sings in the tree", "some men cook", "a man", "the", "cat"]


class Bag(nn.Module):
    """A text tower whose tokens know their own word alone; or, ``mixed``, the whole sentence equally."""

    def __init__(self, width: int, mixed: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width, bias=False)
        self.words, self.mixed = nn.Embedding(1024, width), mixed

    def hidden(self, batch: TextBatch) -> Tensor:
        own: Tensor = self.words(batch.ids)
        if not self.mixed:
            return own
        mask = batch.mask.unsqueeze(-1)
        return ((own * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)).expand_as(own)

    def forward(self, batch: TextBatch) -> Tensor:
        projected: Tensor = self.projection(self.hidden(batch))
        return projected


def bag(mixed: bool, *overrides: str) -> ProTA:
    model = ProTA.from_config(Config.build("mean-max", "toy", overrides)).eval()
    model.text_encoder.tower = Bag(32, mixed)  # type: ignore[assignment]
    return model


def videos(model: ProTA) -> object:
    with torch.inference_mode():
        return model.encode_video(torch.randint(0, 256, (len(CAPTIONS), 3, 3, 32, 32), dtype=torch.uint8))


def test_words_that_stand_alone_are_faithful() -> None:
    model = bag(mixed=False)
    found = measure_faithfulness(model, CAPTIONS, videos(model))  # type: ignore[arg-type]
    # Of "cat" alone (with its ends) a word can be replaced, of "the" none.
    assert (found.captions, found.replaced) == (6, 5)
    assert (found.own_similarities, found.own_contribution) == (100, 100)
    # mean-max weighs all tokens alike: of 9, 9, 5, 4, 3 and 3 tokens 4, 4, 2, 1, 0 and 1 are content.
    assert found.content_weight == pytest.approx(100 * (4 / 9 + 4 / 9 + 2 / 5 + 1 / 4 + 0 + 1 / 3) / 6, abs=1e-3)
    assert found.function_weight == pytest.approx(100 * (3 / 9 + 3 / 9 + 1 / 5 + 1 / 4 + 1 / 3 + 0) / 6, abs=1e-3)
    assert found.chance == pytest.approx(100 * (1 / 9 + 1 / 9 + 1 / 5 + 1 / 4 + 1 / 3) / 5)


def test_words_that_know_the_whole_sentence_are_not() -> None:
    model = bag(mixed=True)
    found = measure_faithfulness(model, CAPTIONS, videos(model))  # type: ignore[arg-type]
    # All rows change alike: the first word is as good a guess as any.
    assert found.own_similarities < 50


def test_with_content_words_alone_they_carry_everything() -> None:
    model = bag(False, "encoder.text_tokens=content")
    found = measure_faithfulness(model, CAPTIONS[:3], videos(model))  # type: ignore[arg-type]
    assert found.content_weight == pytest.approx(100)
    assert found.function_weight == 0
    # The same replacements for the same seed, others for another.
    again = measure_faithfulness(model, CAPTIONS[:3], videos(model))  # type: ignore[arg-type]
    assert again == found


@pytest.mark.train
def test_evaluate_measures_it_on_request(world_config: Path, tmp_path: Path) -> None:
    train(world_config, tmp_path / "run", "train.epochs=1")
    command = ["evaluate", str(tmp_path / "run"), "--faithfulness", "--json", str(tmp_path / "result.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    measured = Passport.read(tmp_path / "result.json").faithfulness
    assert measured is not None
    assert measured["captions"] == 7
    assert 0 <= measured["content_weight"] <= 100
    assert CliRunner().invoke(app, ["evaluate", "--scores", "x.npy", "--faithfulness"]).exit_code == 2
