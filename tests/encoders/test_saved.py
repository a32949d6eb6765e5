"""Saved encoders without transformers: the same bits as with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken
from transformers import BertTokenizer, CLIPTokenizer, PreTrainedTokenizerBase

from prota import Config, ProTA
from prota.encoders.plain import BertText, ClipText, ClipVision, Dinov2
from prota.encoders.saved import FileTokenizer, text_encoder, video_encoder
from prota.encoders.text import FUNCTION_WORDS, PretrainedTokenizer, Tokenizer
from prota.model.folder import WeightsKind
from tests.conftest import imported
from tests.tiny_models import clip_config, pair_config

TEXTS = ["the red dog runs", "a cat", "", "dog dog dog dog dog dog dog dog dog dog dog dog", "Ein Hörnchen, <end>!"]


@pytest.fixture(params=["toy", "pair", "clip"])
def config(request: pytest.FixtureRequest, clip_folder: Path, dinov2_folder: Path, bert_folder: Path) -> Config:
    if request.param == "toy":
        return Config.build(backbone="toy")
    return clip_config(clip_folder) if request.param == "clip" else pair_config(dinov2_folder, bert_folder)


def saved(config: Config, folder: Path, weights: WeightsKind = "float32") -> tuple[ProTA, ProTA]:
    """A model as it is loaded for texts alone, and as a whole."""
    ProTA.from_config(config).save_pretrained(folder, weights)
    return ProTA.for_texts(folder), ProTA.from_pretrained(folder)


def same(one: ProTA, other: ProTA, texts: list[str]) -> None:
    with torch.inference_mode():
        ours, theirs = one.encode_text(texts).without_source(), other.encode_text(texts).without_source()
    for name, tensor in vars(ours).items():
        assert (tensor is None and getattr(theirs, name) is None) or torch.equal(tensor, getattr(theirs, name)), name


@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
def test_every_bit_is_that_of_transformers(config: Config, weights: WeightsKind, tmp_path: Path) -> None:
    ours, theirs = saved(config, tmp_path, weights)
    assert isinstance(ours.text_encoder.tower.model, BertText | ClipText)
    assert not isinstance(theirs.text_encoder.tower.model, BertText | ClipText)
    for texts in (TEXTS, *([text] for text in TEXTS)):
        same(ours, theirs, texts)
    same(ours.use_int8(), theirs.use_int8(), TEXTS)


@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
def test_every_bit_of_a_video_is_that_of_transformers(config: Config, weights: WeightsKind, tmp_path: Path) -> None:
    ours, theirs = saved(config, tmp_path, weights)
    size = config.encoder.image_size
    frames, mask = torch.randint(0, 256, (3, 4, 3, size, size), dtype=torch.uint8), torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2:] = False
    for _ in range(2):
        with torch.inference_mode():
            one, other = ours.encode_video(frames, mask), theirs.encode_video(frames, mask)
        assert isinstance(ours.video_encoder.tower.model, ClipVision | Dinov2)
        assert not isinstance(theirs.video_encoder.tower.model, ClipVision | Dinov2)
        assert torch.equal(one.direction, other.direction)
        assert torch.equal(one.weight, other.weight)
        ours.use_int8(), theirs.use_int8()


def test_pictures_of_the_size_of_the_towers_own_and_of_others(
    dinov2_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    """Learned positions are used as they are, or resized."""
    for size in (28, 56, 70):
        config = pair_config(dinov2_folder, bert_folder, f"encoder.image_size={size}", "encoder.frame_feature=cls+mean")
        ours, theirs = saved(config, tmp_path / str(size))
        frames = torch.randint(0, 256, (1, 2, 3, size, size), dtype=torch.uint8)
        with torch.inference_mode():
            assert torch.equal(ours.encode_video(frames).direction, theirs.encode_video(frames).direction)


def test_words_are_scored_as_configured(config: Config, tmp_path: Path) -> None:
    share = {} if config.encoder.kind == "clip" else {"word_share": 0.3}
    settings = config.encoder.replace(text_tokens="content", **share)
    ours, theirs = saved(config.replace(encoder=settings), tmp_path)
    same(ours, theirs, TEXTS)
    for text in TEXTS:
        assert ours.text_encoder.words(text) == theirs.text_encoder.words(text)
        assert ours.text_encoder.pieces(text) == theirs.text_encoder.pieces(text)


def test_another_kind_of_tower_is_left_to_transformers(
    dinov2_folder: Path, siglip_folder: Path, tmp_path: Path
) -> None:
    ours, theirs = saved(pair_config(dinov2_folder, siglip_folder), tmp_path)
    assert not isinstance(ours.text_encoder.tower.model, BertText | ClipText)
    same(ours, theirs, TEXTS)


@pytest.mark.parametrize(
    "change", [{"use_swiglu_ffn": True}, {"model_type": "vit"}, {"hidden_act": "silu"}, {"hidden_size": None}]
)
def test_other_settings_of_vision_are_left_to_transformers(
    change: dict[str, object], dinov2_folder: Path, bert_folder: Path
) -> None:
    config = pair_config(dinov2_folder, bert_folder)
    record = ProTA.from_config(config).record
    assert video_encoder(config.encoder, record) is not None
    assert video_encoder(config.encoder, record | {"vision": record["vision"] | change}) is None
    assert video_encoder(config.encoder.replace(frame_layers=2), record) is None
    # Of models that were saved before the number was recorded.
    assert video_encoder(config.encoder, {name: record[name] for name in ("vision", "text", "image")}) is None


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "silu"},
        {"is_decoder": True},
        {"model_type": "roberta"},
        {"num_hidden_layers": None},
        {"max_position_embeddings": 5},
        {"vocab_size": 100},
    ],
)
def test_other_settings_are_left_to_transformers(
    change: dict[str, object], dinov2_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    config = pair_config(dinov2_folder, bert_folder)
    ProTA.from_config(config).save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["towers"]
    assert text_encoder(config.encoder, record, tmp_path) is not None
    assert text_encoder(config.encoder, record | {"text": record["text"] | change}, tmp_path) is None
    assert text_encoder(config.encoder, {}, tmp_path) is None


def bert() -> PreTrainedTokenizerBase:
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "red",
        "dog",
        "run",
        "##s",
        ",",
        "!",
        "'",
        "ho",
        "##r",
    ]
    return BertTokenizer({word: number for number, word in enumerate(words)})


def clip() -> PreTrainedTokenizerBase:
    letters = [*"abcdefghijklmnopqrstuvwxyz,!'", *(f"{letter}</w>" for letter in "abcdefghijklmnopqrstuvwxyz,!'")]
    words = [*letters, "re", "red</w>", "do", "dog</w>", "<|startoftext|>", "<|endoftext|>"]
    merges = [("r", "e"), ("re", "d</w>"), ("d", "o"), ("do", "g</w>")]
    return CLIPTokenizer({word: number for number, word in enumerate(words)}, merges)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [bert, clip])
def test_a_tokenizer_is_read_from_its_files(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make().save_pretrained(tmp_path)
    ours, theirs = FileTokenizer(tmp_path), PretrainedTokenizer.from_pretrained(tmp_path)
    agree(ours, theirs)
    again = tmp_path / "again"
    again.mkdir()
    ours.save(again)
    agree(FileTokenizer(again), PretrainedTokenizer.from_pretrained(again))


def agree(ours: Tokenizer, theirs: Tokenizer) -> None:
    texts = ["the red dogs run, don't they!", "Red  dog\n", "", "hör 你好 🙂", "dogs " * 40, "[SEP] dog <|endoftext|>"]
    for length in (3, 8, 32):
        for some in (texts, texts[:1], texts[2:3]):
            mine, its = ours(some, length), theirs(some, length)
            assert torch.equal(mine.ids, its.ids)
            assert torch.equal(mine.mask, its.mask)
        for text in texts:
            assert ours.pieces(text, length) == theirs.pieces(text, length)
            assert ours.words(text, length) == theirs.words(text, length)
    assert ours.size == theirs.size
    assert ours.context_ids(FUNCTION_WORDS) == theirs.context_ids(FUNCTION_WORDS)


def test_added_special_tokens_are_special(tmp_path: Path) -> None:
    tokenizer = bert()
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("[SHOT]")]})
    tokenizer.save_pretrained(tmp_path)
    agree(FileTokenizer(tmp_path), PretrainedTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize(
    "change",
    [{"tokenizer_class": "T5Tokenizer"}, {"truncation_side": "left"}, {"pad_token": "[NO]"}, {"pad_token": None}],
)
def test_what_its_files_do_not_tell_is_left_to_transformers(change: dict[str, object], tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises((ValueError, KeyError, TypeError)):
        FileTokenizer(tmp_path)


def test_transformers_is_not_imported(tmp_path: Path, dinov2_folder: Path, bert_folder: Path) -> None:
    ProTA.from_config(pair_config(dinov2_folder, bert_folder)).save_pretrained(tmp_path)
    code = f"from prota import ProTA; ProTA.for_texts({str(tmp_path)!r}).encode_text('a cat')"
    assert imported(code, ["torch", "transformers", "torch._dynamo", "sympy"]) == ["torch"]
