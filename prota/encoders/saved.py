"""The encoders of saved models without transformers: towers of `prota.encoders.plain`, and tokenizers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from prota.config.model import TEMPORAL_HEADS, EncoderConfig
from prota.encoders.plain import BertText, ClipText, ClipVision, Dinov2
from prota.encoders.text import (
    TOKENIZING,
    HashTokenizer,
    TextBatch,
    TextEncoder,
    TextTower,
    ids_of_context,
    words_of_tokens,
)
from prota.encoders.video import FrameTower, ImageFormat, TemporalTransformer, VideoEncoder

__all__ = ["FileTokenizer", "text_encoder", "video_encoder"]

# Classes of transformers that do to a text what tokenizer.json says. CLIP's also changes what is decoded.
_CLIP_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")
_TOKENIZERS = ("BertTokenizer", "BertTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast", *_CLIP_TOKENIZERS)


def text_encoder(config: EncoderConfig, record: Mapping[str, Any], folder: Path) -> TextEncoder | None:
    """The text encoder of a saved model, without weights: those of its tower are on the device ``meta``.

    None for a tower or tokenizer that only transformers knows.
    """
    pair = config.kind == "pair"
    try:
        settings = record["text"] if pair else _clip(record)["text_config"]
        with torch.device("meta"):
            model = BertText(settings) if pair else ClipText(settings)
            projection = nn.Linear(settings["hidden_size"], config.width, bias=pair)
        rows = settings["vocab_size"]
        tokenizer = HashTokenizer(rows) if config.kind == "toy" else FileTokenizer(folder)
        function_words = record["function_words"] if config.text_tokens == "content" else None
    except Exception:
        # If a file is damaged, loading the model as a whole says so.
        return None
    if config.text_length > settings["max_position_embeddings"] or not 0.9 * rows <= tokenizer.size <= rows:
        return None
    return TextEncoder(TextTower(model, projection, config.word_share), tokenizer, config.text_length, function_words)


def video_encoder(config: EncoderConfig, record: Mapping[str, Any]) -> VideoEncoder | None:
    """The video encoder of a saved model, likewise."""
    pair = config.kind == "pair"
    try:
        settings = record["vision"] if pair else _clip(record)["vision_config"]
        picture = record["image"]
        image = ImageFormat(picture["size"], tuple(picture["mean"]), tuple(picture["deviation"]))
        special = record["special_tokens"] if pair else 0
        with torch.device("meta"):
            model = Dinov2(settings) if pair else ClipVision(settings)
            inputs = settings["hidden_size"] * len(config.frame_feature.split("+")) if pair else settings["hidden_size"]
            projection = nn.Linear(inputs, config.width, bias=pair)
        quick = pair or record["clip"]["text_config"]["hidden_act"] == "quick_gelu"
    except Exception:
        return None
    if config.frame_layers > 1 or (not pair and image.size != settings["image_size"]):
        return None
    feature = config.frame_feature if pair else "pooler"
    tower = FrameTower(model, projection, feature=feature, image=image, special_tokens=special, standardised=pair)
    temporal = None
    if config.temporal_layers:
        temporal = TemporalTransformer(config.width, config.temporal_layers, TEMPORAL_HEADS, quick)
    return VideoEncoder(tower, temporal)


def _clip(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """CLIP's settings; some exception for other models of two towers."""
    settings: Mapping[str, Any] = record["clip"]
    if settings.get("model_type", "clip") != "clip":
        raise ValueError("not CLIP")
    return settings


class FileTokenizer:
    """The tokenizer in a model's folder, read by `tokenizers`."""

    def __init__(self, folder: Path) -> None:
        """Some exception if the files of the folder are not enough to do what transformers does."""
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        kind = settings["tokenizer_class"]
        usual = settings.get("truncation_side", "right") == "right" and not settings.get("split_special_tokens")
        if kind not in _TOKENIZERS or not usual:
            raise ValueError(f"a tokenizer of the class {kind}")
        self.folder = folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self._suffix = self.tokenizer.model.end_of_word_suffix if kind in _CLIP_TOKENIZERS else ""
        self._padding = self._id(settings["pad_token"])
        self._unknown = self._id(settings["unk_token"])
        names = [value for name, value in settings.items() if name.endswith("_token")]
        extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
        names += extra.values() if isinstance(extra, dict) else extra
        self._special = {self._id(name) for name in names if name is not None}

    def _id(self, token: str | Mapping[str, Any]) -> int:
        """Of a special token, which some files describe with its properties."""
        found = self.tokenizer.token_to_id(token if isinstance(token, str) else token["content"])
        if found is None:
            raise ValueError(f"no id for {token}")
        return int(found)

    def _encode(self, texts: Sequence[str], length: int | None, marks: bool = True) -> list[Any]:
        """``marks``: with special tokens at the ends."""
        with TOKENIZING:
            if length is None:
                self.tokenizer.no_truncation()
            else:
                self.tokenizer.enable_truncation(length)
            encoded: list[Any] = self.tokenizer.encode_batch(list(texts), add_special_tokens=marks)
        return encoded

    @property
    def size(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
        rows = [encoded.ids for encoded in self._encode(texts, length)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [self._padding] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[True] * len(row) + [False] * (longest - len(row)) for row in rows])
        return TextBatch(ids, mask)

    def pieces(self, text: str, length: int) -> list[str]:
        (encoded,) = self._encode([text], length)
        pieces = [self.tokenizer.decode([token], skip_special_tokens=False) for token in encoded.ids]
        return [(piece.replace(self._suffix, " ") if self._suffix else piece).strip() for piece in pieces]

    def words(self, text: str, length: int) -> list[tuple[str, list[int]]]:
        """See `Tokenizer`."""
        (encoded,) = self._encode([text], length)
        return words_of_tokens(text, encoded.word_ids, encoded.word_to_chars)

    def context_ids(self, words: Collection[str]) -> set[int]:
        """See `Tokenizer`."""

        def tokenize(spelling: str) -> list[int]:
            ids: list[int] = self._encode([spelling], None, marks=False)[0].ids
            return ids

        vocabulary = self.tokenizer.get_vocab()
        return ids_of_context(words, tokenize, vocabulary=vocabulary, special=self._special, unknown=self._unknown)

    def save(self, folder: Path) -> None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(self.folder / name, folder / name)
