"""`encoder.text_tokens = content`: function words give context and are not scored; words are whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prota import Config, ProTA
from prota.config.base import ConfigError
from prota.encoders.text import FUNCTION_WORDS
from tests.tiny_models import clip_config, pair_config

CONTENT = "encoder.text_tokens=content"


@pytest.fixture(params=["toy", "pair", "clip"])
def config(request: pytest.FixtureRequest, clip_folder: Path, dinov2_folder: Path, bert_folder: Path) -> Config:
    if request.param == "toy":
        return Config.build(backbone="toy")
    return clip_config(clip_folder) if request.param == "clip" else pair_config(dinov2_folder, bert_folder)


def content(model: ProTA, folder: Path) -> ProTA:
    """The same weights, with content words alone."""
    model.save_pretrained(folder)
    encoder = model.config.encoder.replace(text_tokens="content")
    return ProTA.from_start(folder, model.config.replace(encoder=encoder)).eval()


def test_scored_tokens_are_those_of_content_words(config: Config, tmp_path: Path) -> None:
    whole = ProTA.from_config(config).eval()
    model = content(whole, tmp_path)
    texts = ["the red dog runs", "a cat", "a dog"]
    with torch.inference_mode():
        all_tokens, tokens = whole.text_encoder(texts), model.text_encoder(texts)
    assert tokens.mask.sum(dim=1).tolist() == [3, 1, 1]
    # The tower read the whole sentence: the same vectors, without those of the ends and of function words.
    torch.testing.assert_close(tokens.embeddings[0, :3], all_tokens.embeddings[0, 2:5])
    torch.testing.assert_close(tokens.embeddings[1, 0], all_tokens.embeddings[1, 2])
    assert model.text_encoder.pieces("the red dog runs") == ["red", "dog", "runs"]
    assert [(word.text, word.tokens) for word in model.text_encoder.words("the red dog runs")] == [
        ("red", (0,)),
        ("dog", (1,)),
        ("runs", (2,)),
    ]


def test_a_text_without_content_words_keeps_all_its_tokens(config: Config, tmp_path: Path) -> None:
    model = content(ProTA.from_config(config), tmp_path)
    mask = model.text_encoder(["the a", "red"]).mask
    assert mask.sum(dim=1).tolist() == [4, 1]
    assert [word.text for word in model.text_encoder.words("the a")] == ["the", "a"]


def test_a_text_scores_the_same_in_any_company(config: Config, tmp_path: Path) -> None:
    model = content(ProTA.from_config(config), tmp_path)
    size = config.encoder.image_size
    with torch.inference_mode():
        videos = model.encode_video(torch.randint(0, 256, (2, 3, 3, size, size), dtype=torch.uint8))
        together = model.score(model.encode_text(["a cat", "the red dog runs", "the a"]), videos)
        alone = [model.score(model.encode_text(text), videos)[0] for text in ("a cat", "the red dog runs", "the a")]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-5)


def test_the_list_of_words_is_saved_with_the_model(config: Config, tmp_path: Path) -> None:
    content(ProTA.from_config(config), tmp_path / "a").save_pretrained(tmp_path / "b")
    record = json.loads((tmp_path / "b" / "config.json").read_text())
    assert record["towers"]["function_words"] == list(FUNCTION_WORDS)
    # A model that was trained with another list keeps it.
    record["towers"]["function_words"] = ["red"]
    (tmp_path / "b" / "config.json").write_text(json.dumps(record))
    loaded = ProTA.from_pretrained(tmp_path / "b")
    assert loaded.text_encoder.pieces("the red dog") == ["the", "dog"]
    loaded.save_pretrained(tmp_path / "c")
    assert json.loads((tmp_path / "c" / "config.json").read_text())["towers"]["function_words"] == ["red"]
    assert "function_words" not in ProTA.from_config(config).record


def test_pieces_of_a_word_are_one_word(bert_folder: Path, dinov2_folder: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from prota.encoders.text import PretrainedTokenizer

    vocabulary = {word: index for index, word in enumerate(["[UNK]", "[PAD]", "jug", "##gling", "##!", "a", ",", "."])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ours = PretrainedTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    )
    assert ours.words("a juggling, a ⚽", 32) == [("a", [0]), ("juggling", [1, 2]), (",", [3]), ("a", [4]), ("⚽", [5])]
    # An unknown word may mean anything: it is scored.
    assert ours.context_ids(FUNCTION_WORDS) == {vocabulary[piece] for piece in ("[PAD]", "a", ",", ".", "##!")}


def test_pooling_by_the_last_token_needs_it() -> None:
    with pytest.raises(ConfigError, match="text_pooling"):
        Config.build("global-pooling", "toy", [CONTENT])
    Config.build("global-pooling", "toy", [CONTENT, "score.text_pooling=mean"])


def test_a_token_has_a_share_of_its_own_word(config: Config, tmp_path: Path) -> None:
    """Of that share nothing depends on the sentence: here a token, less what its sentence makes of it, is its word."""
    whole = ProTA.from_config(config).eval()
    whole.save_pretrained(tmp_path)
    shared = config.replace(encoder=config.encoder.replace(word_share=0.4))
    model = ProTA.from_start(tmp_path, shared).eval()
    batch = model.text_encoder.tokenize(["the red dog runs", "a cat"])
    with torch.inference_mode():
        context, hidden = whole.text_encoder.tower.hidden(batch), model.text_encoder.tower.hidden(batch)
        words = model.text_encoder.tower.model.get_input_embeddings()(batch.ids)  # type: ignore[operator]
    own = (hidden - 0.6 * context)[batch.mask]
    torch.testing.assert_close(own.norm(dim=-1), 0.4 * context[batch.mask].norm(dim=-1))
    assert torch.cosine_similarity(own, words[batch.mask], dim=-1).min() > 0.999
    model.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(
        ProTA.from_pretrained(tmp_path / "again").text_encoder(batch).embeddings, model.text_encoder(batch).embeddings
    )


def test_words_of_another_width_have_no_share(dinov2_folder: Path, tmp_path: Path) -> None:
    from transformers import AlbertConfig, AlbertModel

    from tests.tiny_models import WORDS, write_tokenizer

    AlbertModel(
        AlbertConfig(
            vocab_size=len(WORDS), embedding_size=8, hidden_size=16, num_attention_heads=2, intermediate_size=32,
            num_hidden_layers=1, max_position_embeddings=20,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    write_tokenizer(tmp_path)
    ProTA.from_config(pair_config(dinov2_folder, tmp_path))
    with pytest.raises(ConfigError, match="word vectors have width 8, its tokens 16"):
        ProTA.from_config(pair_config(dinov2_folder, tmp_path, "encoder.word_share=0.5"))
