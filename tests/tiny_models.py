"""Small Hugging Face models in folders, made here: no hub is needed; and configs that use them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)

from prota import Config

WORDS = ["<pad>", "<unk>", "<start>", "<end>", "a", "cat", "dog", "runs", "red", "the"]
IMAGE = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 2), ("<end>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<start>", eos_token="<end>"
    ).save_pretrained(folder)


def _sizes(width: int = 32) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }


def _save(model: torch.nn.Module, folder: Path, tokenizer: bool, image: bool) -> Path:
    model.save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    if image:
        (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE))
    return folder


def write_vision(model: torch.nn.Module, folder: Path) -> Path:
    return _save(model, folder, tokenizer=False, image=True)


def write_clip(folder: Path) -> Path:
    text = _sizes() | {"vocab_size": len(WORDS), "max_position_embeddings": 20, "eos_token_id": 3, "bos_token_id": 2}
    vision = _sizes(24) | {"image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(projection_dim=32, text_config=text, vision_config=vision))
    return _save(model, folder, tokenizer=True, image=True)


def write_bert(folder: Path) -> Path:
    model = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **_sizes()))
    return _save(model, folder, tokenizer=True, image=False)


def write_dinov2(folder: Path) -> Path:
    model = Dinov2Model(
        Dinov2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=56, patch_size=14)
    )
    return _save(model, folder, tokenizer=False, image=True)


def write_siglip(folder: Path) -> Path:
    text = _sizes() | {"vocab_size": len(WORDS), "max_position_embeddings": 20}
    vision = _sizes(24) | {"image_size": 32, "patch_size": 8}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    return _save(model, folder, tokenizer=True, image=True)


def clip_config(folder: Path, *overrides: str) -> Config:
    size = ["encoder.width=32", "encoder.image_size=32", "encoder.text_length=10", "encoder.temporal_layers=2"]
    return Config.build("prota", "clip-vit-b32", [f"encoder.clip={folder}", *size, *overrides])


def pair_config(vision: Path, text: Path, *overrides: str) -> Config:
    size = ["encoder.width=16", "encoder.text_length=10", "encoder.image_size=28"]
    return Config.build(
        "prota", "dinov2-small+minilm", [f"encoder.vision={vision}", f"encoder.text={text}", *size, *overrides]
    )
