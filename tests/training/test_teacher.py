"""Captions that mean the same are alike, and a resumed run has the teacher it began with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from prota import Config, ProTA
from prota.config.base import ConfigError
from prota.data.batches import Pair
from prota.data.splits import Item, Split
from prota.encoders.text import PretrainedTokenizer
from prota.training.teacher import CaptionTeacher, sentence_encoder
from tests.tiny_models import pair_config, write_bert

pytestmark = pytest.mark.train

SPLIT = Split("train", (Item("v0", ("a red ball", "the red ball rolls")), Item("v1", ("two dogs", "a dog and a dog"))))
PAIRS = [Pair("v0", ("the red ball rolls", "a red ball")), Pair("v1", ("two dogs", "a dog and a dog"))]


@pytest.mark.parametrize("kind", ["toy", "pair", "pair with words", "other"])
def test_likeness_is_the_cosine_of_a_caption_and_the_mean_of_a_videos(
    kind: str, dinov2_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    words = ["encoder.text_tokens=content", "encoder.word_share=0.5"] if kind == "pair with words" else []
    config = Config.build(backbone="toy") if kind == "toy" else pair_config(dinov2_folder, bert_folder, *words)
    model = ProTA.from_config(config).train()
    source = str(write_bert(tmp_path)) if kind == "other" else ""
    encode = sentence_encoder(model, source, nullcontext)
    teacher = CaptionTeacher(SPLIT, encode)
    assert model.training
    model.eval()

    def sentence(text: str) -> torch.Tensor:
        tower, batch = model.text_encoder.tower, model.text_encoder.tokenize(text)
        hidden = tower.model(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        if source:
            from transformers import AutoModel

            batch = PretrainedTokenizer.from_pretrained(source)([text], 10)
            hidden = AutoModel.from_pretrained(source)(batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        tokens = (tower.projection(hidden) if kind == "toy" else hidden)[0]
        pooled = tokens.mean(dim=0) if config.score.text_pooling == "mean" else tokens[-1]
        return pooled / pooled.norm()

    with torch.no_grad():
        videos = [sum(sentence(text) for text in item.captions) for item in SPLIT.items]
        expected = [
            [[float(sentence(text) @ (video / video.norm())) for video in videos] for text in pair.captions]
            for pair in PAIRS
        ]
    similar = teacher.similar(PAIRS)
    torch.testing.assert_close(similar, torch.tensor(expected), rtol=0, atol=1e-5)
    assert not similar.requires_grad


def test_a_teacher_that_cannot_be_loaded(tmp_path: Path) -> None:
    model = ProTA.from_config(Config.build(backbone="toy"))
    with pytest.raises(ConfigError, match=r"train\.teacher: cannot load") as caught:
        sentence_encoder(model, str(tmp_path), nullcontext)
    assert "\n" not in str(caught.value)
