"""An experiment: a model's settings, the data it learns from and is tested on, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prota.config.base import ConfigError, Section
from prota.config.model import Config

__all__ = ["DataConfig", "Experiment", "SourceConfig", "TrainConfig"]


class DataConfig(Section):
    """Which captions and videos, and where they lie."""

    removed: ClassVar[Mapping[str, object]] = {"cache_jitter": 1}

    benchmark: Literal["msrvtt-9k", "msrvtt-7k", "msrvtt-full", "msvd", "lsmdc", "didemo", "folder"] = Field(
        "msrvtt-9k", description="whose files and splits"
    )
    annotations: str = Field("", description="folder of the benchmark's own annotation files")
    captions: str = Field(
        "", description="benchmark=folder: CSV or JSONL with video, caption and optionally split and tag"
    )
    tags: tuple[str, ...] = Field(
        (),
        description="benchmark=folder: only captions with one of these tags (human: also human:…); empty: all",
    )
    videos: str = Field("", description="folder that holds the videos, at any depth, by id, whatever their extension")
    cache: str = Field("", description="folder of the frame cache that `prota data prepare` fills")
    train_list: str = Field("", description="file of video ids that replaces the benchmark's own training list")
    test_list: str = Field("", description="file that replaces the benchmark's own test list, in the same format")
    test_captions: Literal["one", "all"] = Field(
        "one", description="msrvtt-9k and -7k: the test list's one sentence a video, or all captions of the annotations"
    )
    validation: int = Field(
        0, ge=0, description="training videos held back for validation, chosen by a hash of their id"
    )
    cache_size: int = Field(224, ge=8, description="side of the cached square frames, in pixels")
    max_seconds: float = Field(
        0.0, ge=0, description="only the first so many seconds of a video are sampled; 0: all of it"
    )
    dilution: int = Field(0, ge=0, description="unrelated videos mixed into each video, sharing its frames evenly")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.benchmark == "folder" and not self.captions:
            raise ValueError("captions='' leaves benchmark='folder' without captions; allowed: a CSV or JSONL file")
        if self.tags and self.benchmark != "folder":
            raise ValueError(f"tags={list(self.tags)} needs benchmark='folder', and here is {self.benchmark!r}")
        return self


class SourceConfig(Section):
    """Another source of training data beside [data], in the form of benchmark=folder: captioned pictures, say."""

    share: float = Field(gt=0, le=1, description="share of the training steps; [data] has what the sources leave")
    weight: float = Field(1.0, gt=0, description="what the loss of its batches is multiplied with")
    captions: str = Field(description="CSV or JSONL with video, caption and optionally split and tag; no split: train")
    tags: tuple[str, ...] = Field((), description="as data.tags")
    videos: str = Field("", description="folder that holds its videos or pictures")
    cache: str = Field(description="folder of its frame cache")
    cache_size: int = Field(224, ge=8, description="side of its cached square frames, in pixels")
    batch_size: int | None = Field(None, ge=2, description="default: train.batch_size")
    captions_per_video: int | None = Field(None, ge=1, description="default: train.captions_per_video")
    frames: int | None = Field(None, ge=0, description="default: train.frames")
    crop: float | None = Field(None, gt=0, le=1, description="default: train.crop")
    mixing: float | None = Field(None, ge=0, le=1, description="default: train.mixing")


class TrainConfig(Section):
    """How a model is trained; the defaults are the paper's recipe."""

    removed: ClassVar[Mapping[str, object]] = {
        "clip_norm": 1.0,
        "deterministic": False,
        "gradient_checkpointing": False,
        "jitter": False,
        "layer_decay": 1.0,
        "warmup": 0.1,
        "weight_decay": 0.2,
    }

    start: str = Field(
        "",
        description="model that training starts from: a shipped name, a folder, a hub id or a run; "
        "empty: the encoder's pretrained towers",
    )
    start_with: Literal["model", "towers"] = Field(
        "model",
        description="what is taken from it: all, or its text and vision towers and temperature, with a new temporal "
        "transformer and head",
    )
    epochs: int = Field(
        5, ge=1, description="passes over the training data; with [sources], over the one with the largest share"
    )
    batch_size: int = Field(128, ge=2, description="pairs in a batch over all devices, of distinct videos")
    micro_batch: int = Field(
        0, ge=0, description="pairs encoded at a time; 0: all. Smaller saves memory, gradients stay those of the batch"
    )
    captions: Literal["all", "one"] = Field(
        "all", description="an epoch shows every caption once, or every video once with a random caption"
    )
    captions_per_video: int = Field(
        1, ge=1, description="captions=one: how many captions of its own a video meets in a batch; losses are averaged"
    )
    lr_vision: float = Field(1e-7, ge=0, description="learning rate of the vision tower; 0: frozen")
    lr_text: float = Field(1e-7, ge=0, description="learning rate of the text tower; 0: frozen")
    lr_temporal: float = Field(1e-4, ge=0, description="learning rate of the temporal transformer; 0: frozen")
    lr_new: float = Field(1e-3, gt=0, description="learning rate of the head and of new projections")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="of the encoders on a GPU; scores are always fp32")
    compile: bool = Field(False, description="compile the layers of the towers with torch.compile")
    frames: int = Field(
        0, ge=0, description="frames a video shows in training, drawn at random; 0: all of encoder.frames"
    )
    crop: float = Field(1.0, gt=0, le=1, description="smallest side of a random crop, as a share; 1: none")
    crop_per: Literal["batch", "video"] = Field(
        "batch", description="one crop for a whole batch, or each video its own"
    )
    colour: float = Field(
        0.0, ge=0, lt=1, description="how far brightness, contrast and saturation of a video go at random; 0: not"
    )
    mixing: float = Field(
        0.0, ge=0, le=1, description="share of videos that get half as many frames again of another, unrelated video"
    )
    flip: bool = Field(False, description="mirror videos at random")
    teacher: str = Field(
        "",
        description="hub id or folder of the sentence encoder that tells loss.soft_targets which captions are alike; "
        "empty: the text tower as it was before training",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="of everything random")
    validate_epochs: int = Field(1, ge=1, description="epochs between validations, each with a checkpoint")
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the old in the moving average of the weights that is validated and saved (0.999, say); "
        "0: the weights themselves",
    )
    checkpoint_steps: int = Field(0, ge=0, description="also save a checkpoint every so many steps; 0: not between")

    @property
    def augments(self) -> bool:
        """Whether pictures are changed at random."""
        return self.crop < 1 or self.flip or self.colour > 0


class Experiment(Config):
    """One TOML file: a model, its data and its training."""

    data: DataConfig = DataConfig()
    sources: dict[str, SourceConfig] = Field(default_factory=dict)
    train: TrainConfig = TrainConfig()

    @property
    def model(self) -> Config:
        """The part that a saved model records."""
        return Config(**{name: getattr(self, name) for name in Config.model_fields})

    @property
    def share(self) -> float:
        """[data]'s own share of the training steps."""
        left = 1 - sum(source.share for source in self.sources.values())
        # Shares such as 0.1 are not exact.
        return left if left > 1e-9 else 0.0

    def of_source(self, name: str) -> Experiment:
        """The experiment as one of the further sources takes part in it: with its data, and settings of its own."""
        own = self.sources[name]
        data = DataConfig(
            benchmark="folder",
            captions=own.captions,
            tags=own.tags,
            videos=own.videos,
            cache=own.cache,
            cache_size=own.cache_size,
        )
        names = ("batch_size", "captions_per_video", "frames", "crop", "mixing")
        changes: dict[str, Any] = {field: getattr(own, field) for field in names if getattr(own, field) is not None}
        train = self.train.replace(**changes)
        return self.replace(data=data, train=train, sources={})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        total = sum(source.share for source in self.sources.values())
        if total > 1 + 1e-9:
            raise ValueError(
                f"the shares of sources {', '.join(self.sources)} add up to {total:g}; allowed: up to 1, the rest is "
                "that of [data]"
            )
        for name in self.sources:
            try:
                self.of_source(name)
            except ConfigError as error:
                raise ValueError(f"sources.{name}: {error}") from None
        if self.train.start_with == "towers" and not self.train.start:
            raise ValueError("train.start_with='towers' needs train.start, a model to take them from (--from)")
        if self.train.teacher and not self.loss.soft_targets:
            raise ValueError("train.teacher is of use to loss.soft_targets alone, which is 0; allowed: above 0")
        if self.train.captions == "all" and self.train.captions_per_video > 1:
            raise ValueError(
                f"train.captions_per_video={self.train.captions_per_video} draws captions anew in every epoch; "
                "allowed: with train.captions='one'"
            )
        if self.data.dilution + 1 > self.encoder.frames:
            raise ValueError(
                f"data.dilution={self.data.dilution} leaves no frame for the video itself; "
                f"allowed: below encoder.frames={self.encoder.frames}"
            )
        return self
