"""Where the towers come from: an aligned dual encoder, any vision and text encoder pair, or a toy built in memory.

A `Towers` is made in two ways that end in the same modules: `load_towers` reads pretrained weights (hub ids or
folders), `rebuild_towers` only builds the architecture from the record that a saved model carries.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prota.config.base import ConfigError
from prota.config.model import TEMPORAL_HEADS, EncoderConfig
from prota.encoders.aligned import PROCESSOR_FILES, Kind, joint_width, kind_of, picture_format
from prota.encoders.text import (
    FUNCTION_WORDS,
    HashTokenizer,
    PretrainedTokenizer,
    Sentence,
    TextEncoder,
    TextTower,
    Tokenizer,
)
from prota.encoders.video import (
    FrameTower,
    ImageFormat,
    JointTower,
    TemporalTransformer,
    VideoEncoder,
    position_options,
)
from prota.encoders.weight_names import quiet
from prota.errors import one_line

__all__ = ["Towers", "load_towers", "rebuild_towers", "with_settings"]


@dataclass(frozen=True)
class Towers:
    """The two towers, and what a saved model must record to build them again."""

    text: TextTower
    frame: FrameTower | JointTower
    tokenizer: Tokenizer
    logit_scale: float
    record: dict[str, Any]
    sentence: Sentence | None = None
    logit_bias: float | None = None
    """That of a model of SigLIP's kind, for its loss."""

    def encoders(self, config: EncoderConfig) -> tuple[TextEncoder, VideoEncoder]:
        """The encoders of a model around these towers, with a temporal transformer as configured."""
        temporal = None
        if config.temporal_layers:
            text: Any = self.text.model
            quick = config.kind == "pair" or text.config.hidden_act == "quick_gelu"
            temporal = TemporalTransformer(config.width, config.temporal_layers, TEMPORAL_HEADS, quick)
            if config.kind != "pair":
                temporal.start_from_text(text)
        skipped = self.record["function_words"] if config.text_tokens == "content" else None
        text_encoder = TextEncoder(self.text, self.tokenizer, config.text_length, skipped, sentence=self.sentence)
        return text_encoder, VideoEncoder(self.frame, temporal)


def load_towers(config: EncoderConfig) -> Towers:
    """Towers with pretrained weights (for ``kind = toy``: random ones)."""
    if config.kind == "toy":
        return _toy_towers(config)
    try:
        with quiet():
            return _load_pair(config) if config.kind == "pair" else _load_aligned(config)
    except ConfigError:
        raise
    except Exception as error:
        # Whatever transformers says about a folder that is missing, foreign or cut short.
        source = f"{config.vision} or {config.text}" if config.kind == "pair" else config.clip
        raise ConfigError(
            f"encoder: cannot load {source}: {one_line(error)} (give a reachable hub id or a local folder)"
        ) from None


def rebuild_towers(config: EncoderConfig, record: dict[str, Any], folder: Path) -> Towers:
    """The same architecture without weights, from the record of a saved model; no network."""
    towers = _toy_towers(config) if config.kind == "toy" else _rebuilt(config, record, folder)
    # A model keeps the list that it was trained with.
    kept = {"function_words": record["function_words"]} if "function_words" in record else {}
    return replace(towers, record=towers.record | kept)


def with_settings(record: dict[str, Any], config: EncoderConfig) -> dict[str, Any]:
    """A saved model's record for another size of pictures, which leaves weights alone."""
    if config.kind != "pair":
        return record
    return record | {"image": record["image"] | {"size": config.image_size}}


def _rebuilt(config: EncoderConfig, record: dict[str, Any], folder: Path) -> Towers:
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    image = ImageFormat(record["image"]["size"], tuple(record["image"]["mean"]), tuple(record["image"]["deviation"]))
    tokenizer = PretrainedTokenizer.from_pretrained(folder)
    # Random weights take longer than reading the saved ones, which replace them.
    with no_init_weights():
        if config.kind != "pair":
            model = AutoModel.from_config(_settings(record["clip"]), dtype=torch.float32)
            return _aligned_towers(config, model, tokenizer, image)
        vision, text = (
            AutoModel.from_config(AutoConfig.for_model(**record[side]), dtype=torch.float32)
            for side in ("vision", "text")
        )
    # Models that were saved before the number was recorded are shown a picture again.
    return _pair_towers(config, vision, text, tokenizer=tokenizer, image=image, special=record.get("special_tokens"))


def _settings(record: dict[str, Any]) -> Any:
    """Those of an aligned model, from what a saved one recorded."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[record["model_type"]].from_dict(record)


def _load_aligned(config: EncoderConfig) -> Towers:
    from transformers import AutoConfig, AutoModel

    settings = AutoConfig.from_pretrained(config.clip)
    kind = kind_of(settings.model_type, config.clip)
    model, report = AutoModel.from_pretrained(config.clip, dtype=torch.float32, output_loading_info=True)
    # transformers makes up what a file lacks.
    missing = sorted(report["missing_keys"])
    if missing:
        raise ConfigError(
            f"encoder: {config.clip} lacks {len(missing)} weights, {missing[0]} for one: copy or download it again"
        )
    tokenizer = PretrainedTokenizer.from_pretrained(config.clip)
    pictures = picture_format(_processor_folder(config.clip), kind, config.image_size)
    image = ImageFormat(config.image_size, pictures.mean, pictures.deviation)
    return _aligned_towers(config, model, tokenizer, image)


def _aligned_towers(config: EncoderConfig, model: Any, tokenizer: Tokenizer, image: ImageFormat) -> Towers:
    settings = model.config
    kind = kind_of(settings.model_type, config.clip)
    vision, text = getattr(model, kind.vision), getattr(model, kind.text)
    _check_text(tokenizer, text, config.clip, config.text_length)
    for field, given, actual in (
        ("kind", config.kind, config.kind if config.kind == "toy" else "video" if kind.joint else "clip"),
        ("width", config.width, joint_width(settings)),
        ("image_size", config.image_size, settings.vision_config.image_size),
    ):
        if given != actual:
            raise ConfigError(f"encoder.{field} = {given} does not fit {config.clip}; allowed: {actual}")
    text_projection, vision_projection = (
        model.get_submodule(name) if name else nn.Identity() for name in (kind.text_projection, kind.vision_projection)
    )
    if isinstance(getattr(text, "head", None), nn.Module):
        # It is the projection; texts as a whole do not pass through it again.
        text.head = nn.Identity()
    scale = None if config.kind == "toy" else getattr(model, "logit_scale", None)
    bias = getattr(model, "logit_bias", None)
    frame: FrameTower | JointTower
    if kind.joint:
        frame = JointTower(vision, image)
    else:
        frame = FrameTower(vision, vision_projection, feature="pooler", image=image)
    return Towers(
        text=_text_tower(config, text, text_projection),
        frame=frame,
        tokenizer=tokenizer,
        logit_scale=math.log(config.logit_scale) if scale is None else scale.item(),
        record={"clip": settings.to_dict(), "image": asdict(image)} | _function_words(config),
        sentence=_sentence(kind, settings, tokenizer),
        logit_bias=None if bias is None else bias.item(),
    )


def _sentence(kind: Kind, settings: Any, tokenizer: Tokenizer) -> Sentence | None:
    """Where a text's own vector is, if not at its last token; and the tokenizer as it was in training."""
    if not isinstance(tokenizer, PretrainedTokenizer) or kind.sentence == "last":
        return None
    if settings.model_type == "siglip" and type(tokenizer.tokenizer).__name__.startswith("Gemma"):
        # SigLIP 2 learned from lower-case texts; the tokenizer that its files name does not say so.
        tokenizer.lowercased()
    length = settings.text_config.max_position_embeddings if kind.padded else 0
    return Sentence(kind.sentence, length, int(tokenizer.tokenizer.pad_token_id), kind.masked)


def _function_words(config: EncoderConfig) -> dict[str, Any]:
    """What a model that leaves words out records: it keeps this list when ours changes."""
    return {"function_words": list(FUNCTION_WORDS)} if config.text_tokens == "content" else {}


def _load_pair(config: EncoderConfig) -> Towers:
    from transformers import AutoModel

    vision = AutoModel.from_pretrained(config.vision, dtype=torch.float32)
    text = AutoModel.from_pretrained(config.text, dtype=torch.float32)
    image = _image_format(config.vision, config.image_size)
    return _pair_towers(config, vision, text, tokenizer=PretrainedTokenizer.from_pretrained(config.text), image=image)


def _pair_towers(
    config: EncoderConfig,
    vision: Any,
    text: Any,
    *,
    tokenizer: Tokenizer,
    image: ImageFormat,
    special: int | None = None,
) -> Towers:
    """``special``: the tokens that the vision encoder puts before its patches, where they have been counted."""
    record = {"vision": vision.config.to_dict(), "text": text.config.to_dict(), "image": asdict(image)}
    record |= _function_words(config)
    # Models of two towers (SigLIP's kind) give the one that is asked for.
    vision, text = getattr(vision, "vision_model", vision), getattr(text, "text_model", text)
    _check_text(tokenizer, text, config.text, config.text_length)
    _drop_unused(vision, text, config.frame_feature == "pooler")
    special = _special_tokens(vision, config) if special is None else special
    layers, feature = config.frame_layers, config.frame_feature
    # Encoders that are no transformers need not say how many they have.
    available = getattr(vision.config, "num_hidden_layers", 1)
    if layers > available:
        raise ConfigError(
            f"encoder.frame_layers = {layers} is more than {config.vision} has; allowed: up to {available}"
        )
    features = vision.config.hidden_size * layers * len(feature.split("+"))
    return Towers(
        text=_text_tower(config, text, nn.Linear(text.config.hidden_size, config.width)),
        frame=FrameTower(
            vision,
            nn.Linear(features, config.width),
            feature=feature,
            image=image,
            special_tokens=special,
            standardised=True,
            layers=layers,
        ),
        tokenizer=tokenizer,
        logit_scale=math.log(config.logit_scale),
        record=record | {"special_tokens": special},
    )


def _text_tower(config: EncoderConfig, text: Any, projection: nn.Linear | nn.Identity) -> TextTower:
    words = text.get_input_embeddings().embedding_dim
    hidden = projection.in_features if isinstance(projection, nn.Linear) else words
    if config.word_share and words != hidden:
        raise ConfigError(
            f"encoder.word_share must be 0, got {config.word_share}: its word vectors have width {words}, "
            f"its tokens {hidden}"
        )
    return TextTower(text, projection, config.word_share)


def _check_text(tokenizer: Tokenizer, text: Any, source: str, length: int) -> None:
    """transformers makes up an empty tokenizer where a folder has none: every word would be unknown, in silence."""
    rows = text.get_input_embeddings().num_embeddings
    if not 0.9 * rows <= tokenizer.size <= rows:
        raise ConfigError(
            f"encoder: the tokenizer of {source} knows {tokenizer.size} words, its model {rows}: tokenizer files are "
            "missing or of another model; copy them into the folder"
        )
    most = getattr(text.config, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ConfigError(f"encoder.text_length = {length} exceeds {source}; allowed: up to {most}")


def _drop_unused(vision: Any, text: Any, pooled: bool) -> None:
    """A pooler that no token passes through would be trained by nothing and saved for nothing."""
    if getattr(text, "pooler", None) is not None:
        text.pooler = None
    if isinstance(getattr(text, "head", None), nn.Module):
        text.head = nn.Identity()
    if not pooled:
        if getattr(vision, "pooler", None) is not None:
            vision.pooler = None
        if getattr(vision, "use_head", False):
            vision.use_head, vision.head = False, None


@torch.no_grad()
def _special_tokens(vision: Any, config: EncoderConfig) -> int:
    """How many tokens a vision encoder puts before its patches, found by showing it a picture."""
    size, patch = config.image_size, getattr(vision.config, "patch_size", None)
    if config.frame_feature == "pooler":
        return 0
    if not isinstance(patch, int) or size % patch:
        raise ConfigError(
            f"encoder.image_size = {size} does not fit {config.vision}; allowed: multiples of its patch size {patch}"
        )
    picture = torch.zeros(1, 3, size, size)
    hidden = vision(pixel_values=picture, **position_options(vision, size)).last_hidden_state
    special = hidden.shape[1] - (size // patch) ** 2 if hidden.dim() == 3 else -1
    if special < (0 if config.frame_feature == "mean" else 1):
        lacks = "a token per patch" if special < 0 else "a class token"
        raise ConfigError(
            f"encoder.frame_feature = {config.frame_feature!r} needs {lacks}, which {config.vision} does not give; "
            f"allowed: pooler{'' if special < 0 else ', mean'}"
        )
    return special


def _toy_towers(config: EncoderConfig) -> Towers:
    from transformers import CLIPConfig, CLIPModel

    if config.image_size % 2:
        raise ConfigError(f"encoder.image_size must be even with kind='toy', got {config.image_size}")
    vocabulary, sizes = 1024, {"hidden_size": config.width, "intermediate_size": 4 * config.width}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    clip = CLIPModel(
        CLIPConfig(
            projection_dim=config.width,
            text_config=sizes
            | layers
            | {
                "vocab_size": vocabulary,
                "max_position_embeddings": 77,
                "bos_token_id": vocabulary - 2,
                "eos_token_id": vocabulary - 1,
                "pad_token_id": 0,
            },
            vision_config=sizes | layers | {"image_size": config.image_size, "patch_size": config.image_size // 2},
        )
    )
    image = ImageFormat(config.image_size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return _aligned_towers(config.replace(clip="the toy encoder"), clip, HashTokenizer(vocabulary), image)


def _image_format(source: str, size: int) -> ImageFormat:
    """Mean and deviation from the model's own preprocessor file."""
    from transformers.image_processing_base import ImageProcessingMixin

    values, _ = ImageProcessingMixin.get_image_processor_dict(source)
    mean, deviation = (tuple(float(value) for value in values[key]) for key in ("image_mean", "image_std"))
    return ImageFormat(size, mean, deviation)  # type: ignore[arg-type]


def _processor_folder(source: str) -> Path:
    """Where the files of a model's image processor are, which are fetched if it is on the hub."""
    from transformers.utils import cached_file

    if Path(source).is_dir():
        return Path(source)
    found = (cached_file(source, name, _raise_exceptions_for_missing_entries=False) for name in PROCESSOR_FILES)
    places = [Path(path).parent for path in found if path is not None]
    return places[0] if places else Path(source)
