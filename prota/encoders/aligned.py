"""Aligned dual encoders: what a checkpoint of transformers says about its own texts and pictures.

Such a model gives a vector for a picture, or for all frames of a video, and one for a text, in the same space. Its
files say how: size, colours and resampling of pictures, length and padding of texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from prota.config.base import ConfigError
from prota.config.model import Config
from prota.encoders.weight_names import quiet
from prota.errors import one_line
from prota.video.transforms import Extent

__all__ = ["KINDS", "PROCESSOR_FILES", "Kind", "PictureFormat", "joint_width", "kind_of", "picture_format", "untrained"]

# Defaults of image processors.
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_SIGLIP = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
# As the models above were trained, CLIP's own number of tokens; longer texts are cut.
_MOST_TOKENS = 77


@dataclass(frozen=True)
class Kind:
    """Where the vectors of a kind of model are; names of modules, "" for none."""

    vision: str
    text: str = "text_model"
    vision_projection: str = "visual_projection"
    text_projection: str = "text_projection"
    sentence: Literal["last", "first", "end", "added"] = "last"
    """The token that stands for a text: its last or first one; the last place, be it padding; or one that the model
    adds behind the last place."""
    masked: bool = True
    """Whether padding is masked; else texts are padded as in training."""
    extent: Extent = "centre"
    processor: Mapping[str, Any] = field(default_factory=lambda: _CLIP)
    """Defaults of its image processor."""
    joint: bool = False
    """Whether it takes the frames of a video together and gives one vector."""

    @property
    def padded(self) -> bool:
        """Whether all texts are padded to one length."""
        return self.sentence in ("end", "added")


KINDS: dict[str, Kind] = {
    "altclip": Kind("vision_model", sentence="first"),
    "chinese_clip": Kind("vision_model", sentence="first"),
    "clip": Kind("vision_model"),
    "metaclip_2": Kind("vision_model"),
    # SigLIP and SigLIP 2 of a fixed resolution.
    "siglip": Kind(
        "vision_model", vision_projection="", text_projection="text_model.head", sentence="end", masked=False,
        extent="whole", processor=_SIGLIP,
    ),
    "videoprism": Kind(
        "video_model", vision_projection="", text_projection="", sentence="added", extent="whole",
        processor={"do_normalize": False}, joint=True,
    ),
}  # fmt: skip
"""By ``model_type`` of a checkpoint's config.json."""


@dataclass(frozen=True)
class PictureFormat:
    """What a checkpoint's image processor does: size of the square, the part of a frame, and colours from 0 to 1."""

    size: int
    extent: Extent
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


def kind_of(model_type: object, source: object) -> Kind:
    """The kind of a checkpoint; a ConfigError with the list for any other."""
    if not isinstance(model_type, str) or model_type not in KINDS:
        extra = " (NaFlex; take the SigLIP 2 of a fixed resolution)" if model_type == "siglip2" else ""
        raise ConfigError(
            f"{source} is a {model_type!r} model{extra}, not an aligned text and vision encoder that prota knows; "
            f"allowed: {', '.join(KINDS)}; two encoders that are not aligned need encoder.kind='pair'"
        )
    return KINDS[model_type]


def joint_width(settings: Any) -> int:
    """D of a checkpoint, from its settings."""
    text = settings.text_config
    # SigLIP's own name first: some files have the other one, too, which nothing follows from.
    given = getattr(text, "projection_size", None) or getattr(settings, "projection_dim", None)
    return int(given or text.hidden_size)


def untrained(folder: Path) -> Config:
    """The settings with which a bare checkpoint is searched: its own vectors, the mean over frames, and cosines."""
    from transformers import AutoConfig

    try:
        with quiet():
            settings = AutoConfig.from_pretrained(folder)
    except Exception as error:
        # Whatever transformers says about settings that it cannot read.
        raise ConfigError(
            f"{folder}/config.json cannot be read: {one_line(error)}; copy or download it again"
        ) from None
    kind = kind_of(settings.model_type, folder)
    vision, text = settings.vision_config, settings.text_config
    pictures = picture_format(folder, kind, int(vision.image_size))
    if pictures.size != vision.image_size:
        raise ConfigError(
            f"{folder}: its image processor makes pictures of {pictures.size} pixels, its vision encoder takes "
            f"{vision.image_size}: files are missing or of another model"
        )
    encoder = {
        # Not the folder: a model is the same wherever it lies.
        "clip": settings.model_type,
        "width": joint_width(settings),
        "image_size": pictures.size,
        "picture": pictures.extent,
        "text_length": _text_length(folder, text),
        "temporal_layers": 0,
    }
    if kind.joint:
        encoder |= {"kind": "video", "frames": int(vision.num_frames)}
    return Config.build("global-pooling", values={"encoder": encoder})


def _text_length(folder: Path, text: Any) -> int:
    most = int(text.max_position_embeddings)
    said = _json(folder / "tokenizer_config.json").get("model_max_length")
    # Of no limit, some files have 1e30.
    return min(most, _MOST_TOKENS, int(said) if isinstance(said, int | float) and said >= 3 else most)


def picture_format(folder: Path, kind: Kind, size: int) -> PictureFormat:
    """What the image processor in a folder does; ``size``: where it does not say."""
    values = {**kind.processor, **_processor(folder, kind.joint)}
    # Pixels times a factor, less a mean, through a deviation.
    factor = float(values.get("rescale_factor", 1 / 255)) * 255 if values.get("do_rescale", True) else 255.0
    normalised = values.get("do_normalize", True)
    mean = [float(value) / factor for value in (values["image_mean"] if normalised else (0, 0, 0))]
    deviation = [float(value) / factor for value in (values["image_std"] if normalised else (1, 1, 1))]
    side, extent = _square(folder, values, kind.extent, size)
    return PictureFormat(side, extent, (mean[0], mean[1], mean[2]), (deviation[0], deviation[1], deviation[2]))


def _square(folder: Path, values: Mapping[str, Any], default: Extent, size: int) -> tuple[int, Extent]:
    """Side and extent of what a processor makes; a ConfigError if these are no squares."""
    given = values.get("size", size)
    given = {"shortest_edge" if default == "centre" else "height": given} if isinstance(given, int) else given
    resample = values.get("resample", 3)
    if resample not in (2, 3):
        raise ConfigError(
            f"{folder}: pictures are resized by PIL's method {resample}; allowed: 2 (bilinear), 3 (bicubic)"
        )
    crop = values.get("crop_size", given) if values.get("do_center_crop", default == "centre") else None
    cropped = crop.get("height", crop.get("shortest_edge")) if isinstance(crop, dict) else crop
    side = given.get("shortest_edge", given.get("height"))
    square = given.get("width", side) == side and (cropped is None or cropped == side)
    if not isinstance(side, int) or not square or (cropped is None and "shortest_edge" in given):
        raise ConfigError(
            f"{folder}: its image processor makes no squares that fill its size; size={given}, crop={crop}"
        )
    extent: Literal["centre", "whole"] = "centre" if "shortest_edge" in given else "whole"
    if resample == 3:
        return side, extent
    return side, "centre-bilinear" if extent == "centre" else "whole-bilinear"


def _processor(folder: Path, joint: bool) -> dict[str, Any]:
    """The settings of the image (or video) processor in a folder; empty where there are none."""
    kind = "video" if joint else "image"
    found = _json(folder / "processor_config.json").get(f"{kind}_processor")
    names = PROCESSOR_FILES[:0:-1] if joint else PROCESSOR_FILES[1:2]
    return found or next(filter(None, (_json(folder / name) for name in names)), {})


def _json(path: Path) -> dict[str, Any]:
    """An object in a file; empty where there is no file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); copy or download it again") from None
    return value if isinstance(value, dict) else {}
