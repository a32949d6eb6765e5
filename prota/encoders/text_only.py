"""The text encoder of a saved model in plain torch and `tokenizers`: importing transformers takes seconds.

The towers have the modules of those of transformers, so that the same weights fit, and compute in evaluation mode what
those do, to the last bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from prota.config.model import EncoderConfig
from prota.encoders.text import (
    TOKENIZING,
    HashTokenizer,
    TextBatch,
    TextEncoder,
    TextTower,
    ids_of_context,
    words_of_tokens,
)

__all__ = ["BertText", "ClipText", "FileTokenizer", "text_encoder"]

# Classes of transformers that do to a text what tokenizer.json says. CLIP's also changes what is decoded.
_CLIP_TOKENIZERS = ("CLIPTokenizer", "CLIPTokenizerFast")
_TOKENIZERS = ("BertTokenizer", "BertTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast", *_CLIP_TOKENIZERS)


def text_encoder(config: EncoderConfig, record: Mapping[str, Any], folder: Path) -> TextEncoder | None:
    """The text encoder of a saved model, without weights: those of its tower are on the device ``meta``.

    None for a tower or tokenizer of another kind, which `rebuild_towers` may know.
    """
    pair = config.kind == "pair"
    try:
        settings = record["text"] if pair else record["clip"]["text_config"]
        with torch.device("meta"):
            model = BertText(settings) if pair else ClipText(settings)
            projection = nn.Linear(settings["hidden_size"], config.width, bias=pair)
        rows = settings["vocab_size"]
        tokenizer = HashTokenizer(rows) if config.kind == "toy" else FileTokenizer(folder)
        function_words = record["function_words"] if config.text_tokens == "content" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if config.text_length > settings["max_position_embeddings"] or not 0.9 * rows <= tokenizer.size <= rows:
        return None
    return TextEncoder(TextTower(model, projection, config.word_share), tokenizer, config.text_length, function_words)


class BertText(nn.Module):
    """BERT, without its pooler."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' BertConfig; KeyError or ValueError if this is another model."""
        super().__init__()
        fixed = {"model_type": "bert", "is_decoder": False, "add_cross_attention": False, "chunk_size_feed_forward": 0}
        if any(settings.get(name, value) != value for name, value in fixed.items()):
            raise ValueError("not BERT's encoder")
        width, eps = settings["hidden_size"], settings["layer_norm_eps"]
        self.embeddings = _group(
            word_embeddings=_embedding(settings["vocab_size"], width),
            position_embeddings=_embedding(settings["max_position_embeddings"], width),
            token_type_embeddings=_embedding(settings["type_vocab_size"], width),
            LayerNorm=nn.LayerNorm(width, eps),
        )
        layers = (_BertLayer(settings) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layer=nn.ModuleList(layers))

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.get_submodule("word_embeddings")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """[A, N], [A, N] → an object with ``last_hidden_state`` [A, N, C]."""
        parts: Any = self.embeddings
        positions = parts.position_embeddings.weight[: input_ids.shape[1]]
        values = parts.LayerNorm(parts.word_embeddings(input_ids) + parts.token_type_embeddings.weight[0] + positions)
        real = attention_mask.bool()
        # Without padding, attention is computed in another way, which may differ in the last bit.
        mask = None if bool(real.all()) else real[:, None, None, :].expand(-1, 1, real.shape[1], -1)
        for layer in self.encoder.get_submodule("layer").children():
            values = layer(values, mask)
        return SimpleNamespace(last_hidden_state=values)


class _BertLayer(nn.Module):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, eps = settings["hidden_size"], settings["intermediate_size"], settings["layer_norm_eps"]
        self.heads, self.activation = settings["num_attention_heads"], _activation(settings["hidden_act"])
        inputs = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        mixed = _group(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, eps))
        self.attention = _group(**{"self": _group(**inputs), "output": mixed})
        self.intermediate = _group(dense=nn.Linear(width, inner))
        self.output = _group(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width, eps))

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        attention: Any = self.attention
        one: Any = attention.get_submodule("self")
        inner: Any = self.intermediate
        output: Any = self.output
        mixed = _attend([one.query(values), one.key(values), one.value(values)], self.heads, mask)
        values = attention.output.LayerNorm(attention.output.dense(mixed) + values)
        result: Tensor = output.LayerNorm(output.dense(self.activation(inner.dense(values))) + values)
        return result


class ClipText(nn.Module):
    """CLIP's text transformer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' CLIPTextConfig; KeyError or ValueError if this is another model."""
        super().__init__()
        width = settings["hidden_size"]
        self.embeddings = _group(
            token_embedding=_embedding(settings["vocab_size"], width),
            position_embedding=_embedding(settings["max_position_embeddings"], width),
        )
        layers = (_ClipLayer(settings) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layers=nn.ModuleList(layers))
        self.final_layer_norm = nn.LayerNorm(width, settings["layer_norm_eps"])

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.get_submodule("token_embedding")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """[A, N], [A, N] → an object with ``last_hidden_state`` [A, N, C]."""
        parts: Any = self.embeddings
        count = input_ids.shape[1]
        values = parts.token_embedding(input_ids) + parts.position_embedding.weight[:count]
        real = attention_mask.bool()
        mask = None
        if not bool(real.all()):
            earlier = torch.ones(count, count, dtype=torch.bool, device=real.device).tril()
            mask = earlier & real[:, None, None, :]
        for layer in self.encoder.get_submodule("layers").children():
            values = layer(values, mask)
        return SimpleNamespace(last_hidden_state=self.final_layer_norm(values))


class _ClipLayer(nn.Module):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, eps = settings["hidden_size"], settings["intermediate_size"], settings["layer_norm_eps"]
        self.heads, self.activation = settings["num_attention_heads"], _activation(settings["hidden_act"])
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = _group(**{name: nn.Linear(width, width) for name in names})
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.mlp = _group(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width))

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        one: Any = self.self_attn
        mlp: Any = self.mlp
        normal = self.layer_norm1(values)
        projected = [one.q_proj(normal), one.k_proj(normal), one.v_proj(normal)]
        mixed = _attend(projected, self.heads, mask, causal=True)
        values = values + one.out_proj(mixed)
        result: Tensor = values + mlp.fc2(self.activation(mlp.fc1(self.layer_norm2(values))))
        return result


def _group(**parts: nn.Module) -> nn.Module:
    """Modules under their names; what is computed with them is the owner's matter."""
    group = nn.Module()
    for name, part in parts.items():
        group.add_module(name, part)
    return group


def _embedding(count: int, width: int) -> nn.Embedding:
    # Making up random numbers on the device meta imports half of torch.
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ("gelu", "quick_gelu"):
        raise ValueError(f"the activation {name}")
    return F.gelu if name == "gelu" else _quick_gelu


def _quick_gelu(values: Tensor) -> Tensor:
    return values * torch.sigmoid(1.702 * values)


def _attend(projected: Sequence[Tensor], heads: int, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """Queries, keys and values [A, N, C] → [A, N, C]; ``causal`` counts only without a mask."""
    count, length, width = projected[0].shape
    query, key, value = (values.view(count, length, heads, -1).transpose(1, 2) for values in projected)
    scale, causal = (width // heads) ** -0.5, causal and mask is None
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2).flatten(-2)


class FileTokenizer:
    """The tokenizer in a model's folder, read by `tokenizers`."""

    def __init__(self, folder: Path) -> None:
        """ValueError, KeyError or OSError if the files of the folder are not enough to do what transformers does."""
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        kind = settings["tokenizer_class"]
        if (kind, settings.get("truncation_side", "right"), settings.get("split_special_tokens", False)) not in [
            (known, "right", False) for known in _TOKENIZERS
        ]:
            raise ValueError(f"a tokenizer of the class {kind}")
        self.folder = folder
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            # Of no type of its own.
            raise ValueError(f"no tokenizer.json: {error}") from None
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
