"""An experiment: a model's settings, the data it learns from and is tested on, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from prota.config.base import ConfigError, Derived, Section
from prota.config.model import Config

__all__ = ["COLOUR", "DataConfig", "Experiment", "SourceConfig", "TrainConfig"]

# How far brightness, contrast and saturation of augmented videos vary.
COLOUR = 0.3


def _max_seconds(benchmark: object) -> float:
    # DiDeMo's sentences describe the first 30 seconds, and the field looks no further.
    return 30.0 if benchmark == "didemo" else 0.0


class DataConfig(Section):
    """Which captions and videos, and where they are."""

    removed: ClassVar[Mapping[str, object]] = {
        "annotations": Derived("data.captions names the folder"),
        "cache_jitter": 1,
        "max_seconds": Derived("data.benchmark decides", lambda saved: _max_seconds(saved.get("benchmark"))),
    }

    benchmark: Literal["msrvtt-9k", "msrvtt-7k", "msrvtt-full", "msvd", "lsmdc", "didemo", "folder"] = Field(
        "msrvtt-9k", description="defines the format of the captions and the splits"
    )
    captions: str = Field(
        "",
        description="folder of the benchmark's annotation files; with benchmark=folder a CSV, TSV or JSONL file with "
        "video, caption and optionally split and tag",
    )
    tags: tuple[str, ...] = Field(
        (),
        description="benchmark=folder: use only captions with one of these tags (human includes human:…); empty: all",
    )
    videos: str = Field("", description="folder of the videos, searched recursively; files are matched by id")
    cache: str = Field("", description="folder of the frame cache, filled by `prota data prepare`")
    train_list: str = Field("", description="file of video ids that replaces the benchmark's training list")
    test_list: str = Field("", description="file that replaces the benchmark's test list, in the same format")
    test_captions: Literal["one", "all"] = Field(
        "one", description="msrvtt-9k and -7k: test with the test list's one sentence per video, or with all captions"
    )
    validation: int = Field(0, ge=0, description="number of training videos held out for validation, by hash of the id")
    cache_size: int = Field(224, ge=8, description="side of the cached square frames, in pixels")
    dilution: int = Field(0, ge=0, description="number of unrelated videos mixed into each video in equal parts")

    @classmethod
    def upgraded(cls, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        # One setting for both now; "annotations" itself is removed.
        return {**saved, "captions": saved.get("captions") or saved.get("annotations", "")}

    @property
    def max_seconds(self) -> float:
        """Only this much of the beginning of each video is sampled; 0: all of it."""
        return _max_seconds(self.benchmark)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.benchmark == "folder" and not self.captions:
            raise ValueError("captions must name a CSV, TSV or JSONL file with benchmark='folder'")
        if self.tags and self.benchmark != "folder":
            raise ValueError(f"tags={list(self.tags)} needs benchmark='folder', got {self.benchmark!r}")
        return self


class SourceConfig(Section):
    """A source of training data in addition to [data], in the form of benchmark=folder: captioned pictures, say."""

    share: float = Field(gt=0, le=1, description="share of the training steps; [data] has the rest")
    weight: float = Field(1.0, gt=0, description="factor on the loss of its batches")
    captions: str = Field(
        description="CSV, TSV or JSONL file with video, caption and optionally split (default: train) and tag"
    )
    tags: tuple[str, ...] = Field((), description="as data.tags")
    videos: str = Field("", description="folder of its videos or pictures")
    cache: str = Field(description="folder of its frame cache")
    cache_size: int = Field(224, ge=8, description="side of its cached square frames, in pixels")
    batch_size: int | None = Field(None, ge=2, description="default: train.batch_size")
    captions_per_video: int | None = Field(None, ge=0, description="default: train.captions_per_video")
    frames: int | None = Field(None, ge=0, description="default: train.frames")
    crop: float | None = Field(None, gt=0, le=1, description="default: train.crop")
    mixing: float | None = Field(None, ge=0, le=1, description="default: train.mixing")


class TrainConfig(Section):
    """How a model is trained; the defaults are the paper's recipe."""

    removed: ClassVar[Mapping[str, object]] = {
        "captions": Derived("captions_per_video decides: 0 for every caption, 1 for one per video"),
        "checkpoint_steps": Derived("a checkpoint is saved every 1,000 steps"),
        "clip_norm": 1.0,
        "colour": Derived("crop below 1 includes colours", lambda saved: COLOUR if saved.get("crop", 1) < 1 else 0.0),
        "crop_per": Derived(
            "each video has its own crop", lambda saved: "video" if saved.get("crop", 1) < 1 else saved["crop_per"]
        ),
        "deterministic": False,
        "flip": Derived("crop below 1 includes mirroring", lambda saved: saved.get("crop", 1) < 1),
        "gradient_checkpointing": False,
        "jitter": False,
        "layer_decay": 1.0,
        "precision": "bf16",
        "warmup": 0.1,
        "weight_decay": 0.2,
    }

    @classmethod
    def upgraded(cls, saved: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {name: value for name, value in saved.items() if name != "captions"}
        return kept | ({"captions_per_video": 0} if saved.get("captions") == "all" else {})

    start: str = Field(
        "",
        description="model to start training from: a shipped name, a folder, a hub id or a run; "
        "empty: the encoder's pretrained towers",
    )
    start_with: Literal["model", "towers"] = Field(
        "model",
        description="part of it to load: everything, or only the text and vision towers and the temperature, with a "
        "new temporal transformer and head",
    )
    epochs: int = Field(
        5, ge=1, description="passes over the training data; with [sources], over the source with the largest share"
    )
    batch_size: int = Field(128, ge=2, description="text-video pairs in a batch over all devices; videos are distinct")
    micro_batch: int = Field(
        0, ge=0, description="pairs encoded at a time, to save memory; the gradients stay those of the batch; 0: all"
    )
    captions_per_video: int = Field(
        0,
        ge=0,
        description="an epoch shows every video once, with this many of its captions (losses are averaged); "
        "0: every caption once",
    )
    lr_vision: float = Field(1e-7, ge=0, description="learning rate of the vision tower; 0: frozen")
    lr_text: float = Field(1e-7, ge=0, description="learning rate of the text tower; 0: frozen")
    lr_temporal: float = Field(1e-4, ge=0, description="learning rate of the temporal transformer; 0: frozen")
    lr_new: float = Field(1e-3, gt=0, description="learning rate of the head and of new projections")
    compile: bool = Field(False, description="compile the layers of the towers with torch.compile")
    frames: int = Field(0, ge=0, description="random frames of a video used in a training step; 0: encoder.frames")
    crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="smallest side of a random crop, as a share of the frame; crops are also mirrored at random and "
        "vary in colour, differently for each video; 1 disables all three",
    )
    mixing: float = Field(0.0, ge=0, le=1, description="probability of adding another video's frames, half as many")
    teacher: str = Field(
        "",
        description="hub id or folder of the sentence encoder whose similarities loss.soft_targets uses; "
        "empty: the text tower before training",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="random seed")
    validate_epochs: int = Field(1, ge=1, description="epochs between validations; each saves a checkpoint")
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the moving average of the weights, which is validated and saved (0.999, say); "
        "0 disables it",
    )

    @property
    def augments(self) -> bool:
        """Whether frames are augmented."""
        return self.crop < 1


class Experiment(Config):
    """All settings of an experiment, as in its TOML file: a model, its data and its training.

    Example
    -------
    >>> import prota
    >>> experiment = prota.Experiment.load("samples.toml", ["train.epochs=3"])
    >>> experiment.data.videos, experiment.train.epochs
    ('clips', 3)
    """

    data: DataConfig = DataConfig()
    sources: dict[str, SourceConfig] = Field(default_factory=dict)
    train: TrainConfig = TrainConfig()

    @property
    def model(self) -> Config:
        """The settings that a saved model records."""
        return Config(**{name: getattr(self, name) for name in Config.model_fields})

    @property
    def share(self) -> float:
        """[data]'s own share of the training steps."""
        left = 1 - sum(source.share for source in self.sources.values())
        # Shares such as 0.1 are not exact.
        return left if left > 1e-9 else 0.0

    def of_source(self, name: str) -> Experiment:
        """The experiment with the data and the settings of one of the sources."""
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
                f"the shares of sources {', '.join(self.sources)} add up to {total:g}; allowed: at most 1, [data] has "
                "the rest"
            )
        for name in self.sources:
            try:
                self.of_source(name)
            except ConfigError as error:
                raise ValueError(f"sources.{name}: {error}") from None
        if self.train.start_with == "towers" and not self.train.start:
            raise ValueError("train.start_with='towers' needs train.start (--from)")
        if self.train.teacher and not self.loss.soft_targets:
            raise ValueError("train.teacher needs loss.soft_targets above 0")
        if self.data.dilution + 1 > self.encoder.frames:
            raise ValueError(f"data.dilution={self.data.dilution} must be below encoder.frames={self.encoder.frames}")
        return self
