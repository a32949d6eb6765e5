"""Small Hugging Face models in folders, made here: no hub is needed; and configs that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    Dinov2Config,
    Dinov2Model,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
    VideoPrismTokenizer,
    XLMRobertaTokenizer,
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


ALIGNED = ("clip", "siglip", "siglip2", "metaclip_2", "altclip", "chinese_clip", "videoprism")
"""Kinds of `write_aligned`; siglip2: SigLIP's architecture with a Gemma tokenizer."""

_PIECES = [*"abcdefghijklmnopqrstuvwxyz,.!", "re", "red", "do", "dog", "cat", "run", "runs", "the"]


def write_aligned(kind: str, folder: Path) -> Path:
    """The checkpoint of an aligned dual encoder as on the hub: weights, tokenizer and image processor."""
    tokenizer = _tokenizer(kind)
    tokenizer.save_pretrained(folder)
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    words = _sizes() | {"vocab_size": len(tokenizer), "max_position_embeddings": 16}
    words |= {f"{name}_token_id": number for name, number in ids.items() if number is not None}
    vision = _sizes(24) | {"image_size": 32, "patch_size": 8}
    model = _aligned_model(kind, words, vision)
    with torch.no_grad():
        for parameter in model.parameters():
            # Heads that start at zero would hide what goes in.
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    values = {
        "clip": {"size": 32, "crop_size": 32, "do_center_crop": True, "do_resize": True, "resample": 3} | IMAGE,
        "metaclip_2": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "resample": 2} | IMAGE,
        "altclip": {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}} | IMAGE,
        "chinese_clip": {"size": {"height": 32, "width": 32}, "do_center_crop": False, "resample": 3} | IMAGE,
        "siglip": {"size": {"height": 32, "width": 32}, "resample": 3, "rescale_factor": 1 / 128} | IMAGE,
        "siglip2": {"size": {"height": 32, "width": 32}, "resample": 2} | IMAGE,
        "videoprism": {"size": {"height": 36, "width": 36}, "do_normalize": False, "resample": 3},
    }[kind]
    name = "video_preprocessor_config.json" if kind == "videoprism" else "preprocessor_config.json"
    (folder / name).write_text(json.dumps(values))
    return folder


def _aligned_model(kind: str, words: dict[str, Any], vision: dict[str, Any]) -> Any:
    names = {"siglip2": "siglip", "videoprism": "videoprism"}
    settings: dict[str, Any] = {"text_config": words, "vision_config": vision, "projection_dim": 40}
    if kind == "altclip":
        words |= {"project_dim": 48, "max_position_embeddings": 18, "type_vocab_size": 1}
    if kind == "chinese_clip":
        words |= {"type_vocab_size": 2}
    if kind.startswith("siglip"):
        words |= {"projection_size": 24}
        # As some files have it.
        settings["projection_dim"] = 512
    if kind == "videoprism":
        del settings["projection_dim"], vision["patch_size"], vision["num_hidden_layers"]
        vision |= {"image_size": 36, "tubelet_size": [1, 18, 18], "num_frames": 4, "hidden_size": 32}
        vision |= {"num_spatial_layers": 2, "num_temporal_layers": 1, "num_auxiliary_layers": 1}
        vision["intermediate_size"] = 128
    if kind in ("clip", "metaclip_2"):
        settings["projection_dim"] = 32
    config = AutoConfig.for_model(names.get(kind, kind), **settings)
    return AutoModel.from_config(config)


def _tokenizer(kind: str) -> Any:
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "clip":
        clip = ["<|startoftext|>", "<|endoftext|>"]
        letters = [*_PIECES[:29], *(f"{piece}</w>" for piece in _PIECES)]
        merges = [("r", "e"), ("re", "d</w>"), ("d", "o"), ("do", "g</w>")]
        words = {word: number for number, word in enumerate([*dict.fromkeys(letters), "re", "do", *clip])}
        return CLIPTokenizer(words, merges, model_max_length=16)  # type: ignore[arg-type]
    if kind == "chinese_clip":
        pieces = [*bert, *_PIECES, *(f"##{piece}" for piece in _PIECES), "猫", "狗"]
        return BertTokenizer({word: number for number, word in enumerate(pieces)}, model_max_length=16)
    if kind == "siglip2":
        pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *_PIECES[:29], "re", "red", "do", "dog", "A"]
        merges = [("r", "e"), ("re", "d"), ("d", "o"), ("do", "g")]
        return GemmaTokenizer(
            {word: number for number, word in enumerate(pieces)}, merges, add_bos_token=False, add_eos_token=True
        )
    scored = [*(("▁" + piece, -2.0 - len(piece) % 3) for piece in _PIECES), *((piece, -6.0) for piece in _PIECES)]
    if kind == "videoprism":
        head = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
        return VideoPrismTokenizer([*head, *scored], extra_ids=0, additional_special_tokens=[])
    if kind == "siglip":
        tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 3)])
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<end>", unk_token="<unk>", eos_token="<end>"
        )
    head = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0)]
    return XLMRobertaTokenizer([*head, *scored, ("<mask>", 0.0)], model_max_length=16)
