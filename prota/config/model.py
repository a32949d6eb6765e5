"""All settings of a model, its score and its loss.

TOML files, dotted overrides (``score.lambda_=50``), help texts and the settings in a checkpoint all come from these
classes. Named settings are in ``presets.py``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import BeforeValidator, Field, model_validator

from prota.config.base import ConfigError, Derived, Section, merge, parse_override, table_row, without_removed
from prota.config.presets import BACKBONES, PRESETS, preset_fields

__all__ = [
    "LOG_VAR_MAX",
    "LOG_VAR_MIN",
    "TEMPORAL_HEADS",
    "Config",
    "ConfigError",
    "DistributionConfig",
    "EncoderConfig",
    "LossConfig",
    "ScoreConfig",
    "Temperature",
]


def _temperature(value: object) -> object:
    if value == "max":
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise ValueError("must be a positive number up to 1e6, or 'max' for the hard maximum")
    return float(value)


# Attention heads of the temporal transformer.
TEMPORAL_HEADS = 8
# Log-variances are clamped: above 4, float32 scores lose digits.
LOG_VAR_MIN, LOG_VAR_MAX = -10.0, 4.0

Temperature = Annotated[float | Literal["max"], BeforeValidator(_temperature)]


def _temporal_init(saved: Mapping[str, Any]) -> object:
    if saved.get("temporal_layers") == 0:
        return saved["temporal_init"]
    return "random" if saved.get("kind") == "pair" else "clip"


class EncoderConfig(Section):
    """The text and vision towers and the temporal transformer."""

    removed: ClassVar[Mapping[str, object]] = {
        "drop_path": 0.0,
        "temporal_heads": TEMPORAL_HEADS,
        "temporal_init": Derived(
            "encoder.kind decides: pair starts at random, others copy the layers of CLIP's text transformer",
            _temporal_init,
        ),
        "temporal_positions": 77,
    }

    kind: Literal["clip", "video", "pair", "toy"] = Field(
        "clip",
        description="clip: an aligned text and image encoder (CLIP, SigLIP, …); video: one that gives a single vector "
        "for all frames; pair: any vision and text encoder with new projections; toy: tiny, for tests",
    )
    clip: str = Field(
        "openai/clip-vit-base-patch32",
        description="kind=clip, video: hub id or folder of the model",
    )
    vision: str = Field(
        "facebook/dinov2-small",
        description="kind=pair: hub id or folder of the vision encoder",
    )
    text: str = Field(
        "sentence-transformers/all-MiniLM-L6-v2",
        description="kind=pair: hub id or folder of the text encoder",
    )
    frame_feature: Literal["cls", "mean", "cls+mean", "pooler"] = Field(
        "cls+mean",
        description="kind=pair: embedding of a frame: class token, mean of the patches, both, or the encoder's pooler",
    )
    frame_layers: int = Field(
        1, ge=1, description="kind=pair: concatenate frame features of this many last layers of the encoder"
    )
    width: int = Field(512, ge=1, description="D, the joint embedding width; kind=clip, video: that of the model")
    image_size: int = Field(224, ge=1, description="side of the square frames, in pixels")
    picture: Literal["centre", "whole", "centre-bilinear", "whole-bilinear"] = Field(
        "centre",
        description="centre: crop the frame to its central square; whole: resize the whole frame to a square; "
        "resampling is bicubic unless named",
    )
    text_length: int = Field(32, ge=3, description="N, maximum number of tokens of a text, start and end included")
    text_tokens: Literal["all", "content"] = Field(
        "all",
        description="tokens of a text that are scored: all, or content words only (the text tower still reads "
        "function words, punctuation and start and end tokens as context)",
    )
    word_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the word's input vector in its token; the rest is the output of the text tower",
    )
    frames: int = Field(12, ge=1, le=77, description="M, number of frames sampled from a video")
    logit_scale: float = Field(14.3, gt=0, description="kind=pair, toy: initial 1/tau; a CLIP model has its own")
    temporal_layers: int = Field(
        4,
        ge=0,
        description="layers of the temporal transformer, initialised from the text transformer of the model where "
        "shapes agree, else without effect, with kind=pair at random; 0 disables it",
    )

    @property
    def tokens(self) -> int:
        """The maximum of tokens of a video."""
        return 1 if self.kind == "video" else self.frames

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.width % TEMPORAL_HEADS:
            raise ValueError(f"width={self.width} must be a multiple of the {TEMPORAL_HEADS} attention heads")
        if self.frame_layers > 1 and (self.kind != "pair" or self.frame_feature == "pooler"):
            raise ValueError(
                f"frame_layers={self.frame_layers} needs kind='pair' and class tokens or patches, got "
                f"kind={self.kind!r} with frame_feature={self.frame_feature!r}; allowed: 1"
            )
        if self.kind == "video" and self.temporal_layers:
            raise ValueError(
                f"temporal_layers={self.temporal_layers} needs a token per frame, but kind='video' gives one for all "
                "frames; allowed: 0"
            )
        return self


class DistributionConfig(Section):
    """From tokens to Gaussians (the paper's W^mean and W^var)."""

    removed: ClassVar[Mapping[str, object]] = {"log_var_min": LOG_VAR_MIN, "log_var_max": LOG_VAR_MAX}

    mean: Literal["residual", "plain"] = Field(
        "residual",
        description="residual: f + W_mean(f), initially f; plain: W_mean(f), as printed",
    )
    log_var_init: float = Field(
        -4.0, ge=LOG_VAR_MIN, le=LOG_VAR_MAX, description="initial log-variance (the last bias of W_var)"
    )


class ScoreConfig(Section):
    """From two sets of tokens to one score."""

    removed: ClassVar[Mapping[str, object]] = {"bandwidth": "fixed"}

    similarity: Literal["cosine", "squared", "offset", "printed"] = Field(
        "squared",
        description="cosine: tokens are points; others: Gaussians, 1 - W2²/2 (squared), c - W2 (offset), -W2 (printed)",
    )
    offset: float = Field(1.5, description="c, for similarity=offset")
    distance: Literal["variance", "deviation"] = Field(
        "variance",
        description="W2 compares means and variances (as printed), or means and standard deviations",
    )
    aggregation: Literal["tokens", "pooling"] = Field(
        "tokens",
        description="tokens: compare every word with every frame; pooling: one vector each (CLIP4Clip's mean pooling)",
    )
    text_pooling: Literal["last", "mean"] = Field(
        "last",
        description="aggregation=pooling: a text is its last token (EOS) or the mean of its tokens",
    )
    lambda_: Temperature = Field(100.0, description="sharpness of the low-dimension aggregation, or 'max'")
    weights: Literal["uniform", "intra", "intra+inter"] = Field(
        "intra+inter",
        description="token weights: uniform, from its own modality, or from both",
    )
    weighting: Literal["literal", "normalised"] = Field(
        "literal",
        description="literal: token weights as printed; normalised: divided by their sum",
    )
    intra: Literal["softmax", "sigmoid", "none"] = Field(
        "softmax",
        description="activation of the token-weight MLP",
    )
    gram: Literal["gaussian", "dot", "none"] = Field(
        "gaussian",
        description="Gram matrix: mean of Gaussian kernels, dot products, or none (the MLP reads the tokens)",
    )
    kernels: int = Field(5, ge=1, le=16, description="R, number of Gaussian kernels")
    bandwidth_value: float = Field(1.0, gt=0, description="base bandwidth b of the Gaussian kernels")
    xi: Temperature = Field(100.0, description="sharpness of the inter-modality aggregation, or 'max'")

    @property
    def probabilistic(self) -> bool:
        """Whether tokens are Gaussians, not points."""
        return self.similarity != "cosine"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.aggregation == "pooling" and self.probabilistic:
            raise ValueError(f"aggregation='pooling' needs similarity='cosine', got {self.similarity!r}")
        if not self.probabilistic and self.distance != "variance":
            raise ValueError(
                f"distance={self.distance!r} needs token Gaussians; allowed similarity: squared, offset, printed"
            )
        if self.weights == "intra+inter" and self.gram == "none":
            raise ValueError(
                "weights='intra+inter' needs a Gram matrix; allowed: gram gaussian or dot, or weights uniform or intra"
            )
        signed = self.intra == "none" or (self.gram == "dot" and self.weights == "intra+inter")
        if self.weighting == "normalised" and self.weights != "uniform" and signed:
            raise ValueError(
                "weighting='normalised' could divide by zero: weights with intra='none' or dot-product inter weights "
                "may be negative; allowed: literal"
            )
        widest = self.bandwidth_value * 2 ** (self.kernels - self.kernels // 2)
        kernels = self.gram == "gaussian" and self.weights == "intra+inter"
        # For opposite tokens, at squared distance 4, the widest kernel is e^-80; float32 underflows at e^-87.
        if self.weighting == "normalised" and kernels and widest < 0.05:
            raise ValueError(
                f"bandwidth_value={self.bandwidth_value} is too small: normalised weights would divide by zero; "
                f"allowed with weighting='normalised': at least {0.05 * self.bandwidth_value / widest:g}"
            )
        return self


class LossConfig(Section):
    """The adaptive contrastive loss and the KL term."""

    removed: ClassVar[Mapping[str, object]] = {
        "divergence": "mean",
        "kl": "sum",
        "max_logit_scale": 100.0,
        "soft_temperature": 0.1,
    }

    contrast: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="softmax: InfoNCE; sigmoid: SigLIP's loss, a decision about each pair alone, with a learned bias",
    )
    eta: float = Field(5e-4, ge=0, description="weight of the adaptive margin; 0: none")
    beta: float = Field(5e-4, ge=0, description="weight of the KL term; 0 disables it")
    margin: Literal["additive", "literal"] = Field(
        "additive",
        description="subtract it from the positive in numerator and denominator (additive) or the numerator (literal)",
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each target spread over all candidates")
    soft_targets: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of each target spread over candidates with similar captions, by train.teacher",
    )
    locality: float = Field(
        0.0,
        ge=0,
        description="weight of the locality term: the change of a word's token and weight when another word of its "
        "sentence is replaced; 0 disables it",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("label_smoothing", "soft_targets"):
            if self.contrast == "sigmoid" and getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)} spreads a target over candidates, which contrast='sigmoid' decides "
                    "one by one; allowed: 0"
                )
        return self


class Config(Section):
    """All settings of a model.

    Example
    -------
    >>> import prota
    >>> config = prota.Config.build("prota", "toy", overrides=["score.lambda_=50"])
    >>> config
    Config(toy, width 32, 12 frames)
    >>> config.score.lambda_
    50.0
    """

    encoder: EncoderConfig = EncoderConfig()
    distribution: DistributionConfig = DistributionConfig()
    score: ScoreConfig = ScoreConfig()
    loss: LossConfig = LossConfig()

    def __repr__(self) -> str:
        encoder = self.encoder
        return f"{type(self).__name__}({encoder.kind}, width {encoder.width}, {encoder.frames} frames)"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        pooled_end = self.score.aggregation == "pooling" and self.score.text_pooling == "last"
        if self.encoder.text_tokens == "content" and pooled_end:
            raise ValueError(
                "encoder.text_tokens='content' drops the last token, which score.text_pooling='last' needs; "
                "allowed: text_tokens='all', or text_pooling='mean'"
            )
        if self.loss.locality and self.encoder.text_tokens == "all":
            raise ValueError(
                f"loss.locality={self.loss.locality} needs encoder.text_tokens='content'; allowed with 'all': 0"
            )
        for name, value in (("eta", self.loss.eta), ("beta", self.loss.beta)):
            if value > 0 and not self.score.probabilistic:
                raise ValueError(
                    f"loss.{name}={value} needs token Gaussians, but score.similarity='cosine' uses points; "
                    f"allowed: loss.{name}=0, or score.similarity squared, offset or printed"
                )
        return self

    @classmethod
    def build(
        cls,
        preset: str | None = None,
        backbone: str | None = None,
        overrides: Iterable[str] = (),
        *,
        values: Mapping[str, Any] | None = None,
        base: Callable[[str], Config] | None = None,
    ) -> Self:
        """Merge defaults, a row of `BACKBONES`, a row of `PRESETS`, ``values`` and ``overrides``; later ones win.

        ``base`` loads the settings of the model that ``train.start`` names. They replace the defaults of the encoder
        if no backbone is given, and those of head and loss if no preset is given.
        """
        asked: dict[str, Any] = {}
        merge(asked, values or {})
        for override in overrides:
            merge(asked, parse_override(override))
        tree: dict[str, Any] = {}
        train = asked.get("train")
        start = train.get("start") if isinstance(train, dict) else None
        if base is not None and start and isinstance(start, str):
            settings = base(start).model_dump()
            named = {"encoder": backbone, "distribution": preset, "score": preset, "loss": preset}
            merge(tree, {section: settings[section] for section, row in named.items() if row is None})
        merge(tree, table_row("backbone", BACKBONES, "clip-vit-b32" if backbone is None else backbone))
        merge(tree, table_row("preset", PRESETS, "prota" if preset is None else preset))
        merge(tree, asked)
        return cls(**tree)

    @classmethod
    def from_toml(
        cls,
        text: str,
        overrides: Iterable[str] = (),
        preset: str | None = None,
        base: Callable[[str], Config] | None = None,
    ) -> Self:
        """Read TOML; its optional top-level ``preset`` and ``backbone`` name rows of the tables.

        The argument ``preset`` replaces the file's preset and every field of the file that presets set.
        ``base``: see `build`.
        """
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"invalid TOML: {error}") from None
        rows = {key: values.pop(key) for key in ("preset", "backbone") if key in values}
        if preset:
            rows["preset"] = preset
            for section, field in preset_fields():
                if isinstance(values.get(section), dict):
                    values[section].pop(field, None)
        return cls.build(**rows, overrides=overrides, values=values, base=base)

    @classmethod
    def load(
        cls,
        path: str | Path,
        overrides: Iterable[str] = (),
        preset: str | None = None,
        base: Callable[[str], Config] | None = None,
    ) -> Self:
        """Read a TOML file; see `from_toml`."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the config file {path}: {error}") from None
        try:
            return cls.from_toml(text, overrides, preset, base)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def load_saved(cls, path: Path, *, resume: bool = False) -> Self:
        """Read what `to_toml` wrote, in this version or an earlier one.

        ``resume``: training settings that were removed must have the values that are now always used.
        """
        try:
            saved = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls(**without_removed(cls, saved, unchecked="" if resume else "train."))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_toml(self) -> str:
        """All settings as TOML; reading it gives an equal config."""
        # TOML has no null.
        return tomli_w.dumps(self.model_dump(exclude_none=True))
