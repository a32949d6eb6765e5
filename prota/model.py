"""ProTA: two encoders, a score head and a temperature; encode, score, explain, save, load."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prota.config import Config
from prota.encoders.backbones import Towers, load_towers, rebuild_towers, with_settings
from prota.encoders.int8 import use_int8
from prota.encoders.names import names_in_files, names_in_memory
from prota.encoders.text import TextBatch
from prota.errors import ProtaError, one_line
from prota.kernels.dispatch import Backend
from prota.models import shipped
from prota.relevance import RELEVANCE_FILE, Relevance
from prota.scoring.score import ScoreHead
from prota.settings import ConfigError, without_removed
from prota.types import Explanation, PreparedTokens
from prota.weights import KINDS, WEIGHTS_FILE, WeightsError, WeightsKind, read_weights, write_weights

__all__ = ["ModelFolderError", "ProTA", "model_folder", "saved_config"]

_FORMAT = "prota"
# The first version whose reader knows such weights: what is older reads the others still.
_VERSIONS: dict[WeightsKind, int] = {"float32": 1, "float16": 1, "int8": 2}
_NEWEST = max(_VERSIONS.values())
_CONFIG_FILE = "config.json"


class ModelFolderError(ProtaError, ValueError):
    """A folder or hub id that is not a whole ProTA model; the message says what is wrong and what to do."""

    code = "model"


class ProTA(nn.Module):
    """Texts and videos in, scores out."""

    def __init__(self, config: Config, towers: Towers) -> None:
        super().__init__()
        self.config = config
        self.record = towers.record
        self.text_encoder, self.video_encoder = towers.encoders(config.encoder)
        self.head = ScoreHead(config.encoder.width, config.score, config.distribution)
        self.logit_scale = nn.Parameter(torch.tensor(towers.logit_scale))
        self.relevance: Relevance | None = None
        """What calibration learned about these weights."""

    @classmethod
    def from_config(cls, config: Config) -> ProTA:
        """A model to train: pretrained towers, new head."""
        return cls(config, load_towers(config.encoder))

    def encode_text(self, texts: str | Sequence[str] | TextBatch) -> PreparedTokens:
        """Texts, ready to be scored against any videos."""
        return self.head.prepare_texts(self.text_encoder(texts))

    def encode_video(self, frames: Tensor, mask: Tensor | None = None) -> PreparedTokens:
        """Videos, ready to be scored against any texts: frames [B, M, 3, H, W], mask [B, M] (default: all real).

        Frames are uint8, or floats already normalised with the mean and deviation of ``video_encoder.tower.image``.
        """
        return self.head.prepare_videos(self.video_encoder(frames, mask))

    def score(self, texts: PreparedTokens, videos: PreparedTokens, backend: Backend = "auto") -> Tensor:
        """Scores [A, B] of every text with every video; ``backend``: see `prota.kernels.dispatch`."""
        return self.head.score(texts, videos, backend)

    def explain(self, text: PreparedTokens, video: PreparedTokens) -> Explanation:
        """What one score is made of; `Explanation.by_word` with ``text_encoder.words(text)`` names whole words."""
        return self.head.explain(text, video)

    def use_int8(self) -> ProTA:
        """Let the encoders multiply in int8 from now on: faster on a CPU (docs/results.md), no longer to be trained.

        Of a model that is stored as int8 the weights stay what they are; inputs are rounded too, token by token.
        """
        for part in (self.text_encoder.tower.model, self.video_encoder.tower.model, self.video_encoder.temporal):
            if part is not None:
                use_int8(part)
        return self

    def save_pretrained(self, folder: str | Path, weights: WeightsKind = "float32") -> None:
        """Write config.json, model.safetensors, the tokenizer and the relevance; config.json appears last.

        ``weights``: float32, float16 (half the size) or int8 (a quarter, see `prota.weights`).
        """
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise ModelFolderError(f"{folder} is a file: give a folder to save the model in")
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
        try:
            # The tokenizer goes first: some write a config.json of their own, which ours then replaces.
            self.text_encoder.tokenizer.save(staging)
            write_weights(staging / WEIGHTS_FILE, names_in_files(self, self.state_dict()), weights)
            record = {
                "format": _FORMAT,
                "version": _VERSIONS[weights],
                "weights": weights,
                "config": self.config.model_dump(),
                "towers": self.record,
            }
            (staging / _CONFIG_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            # safetensors writes for the owner's eyes alone; the others follow the umask.
            shutil.copymode(staging / _CONFIG_FILE, staging / WEIGHTS_FILE)
            if self.relevance is not None:
                self.relevance.save(staging)
            # Old settings beside new weights would be read as a model; no settings are not.
            for name in (_CONFIG_FILE, RELEVANCE_FILE):
                (folder / name).unlink(missing_ok=True)
            for path in sorted(staging.iterdir(), key=lambda path: path.name == _CONFIG_FILE):
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> ProTA:
        """A saved model, by its folder, shipped name or hub id; on the CPU, in float32 and in evaluation mode."""
        folder = model_folder(source)
        record, config = _read_record(folder), saved_config(folder)
        try:
            model = cls(config, rebuild_towers(config.encoder, record["towers"], folder))
        except Exception as error:
            # Whatever transformers and its tokenizers say about files that are missing, cut short or changed.
            raise ModelFolderError(
                f"{folder} does not hold a model that this version can build: {one_line(error)}; save or copy it again"
            ) from None
        _load_weights(model, folder / WEIGHTS_FILE)
        try:
            model.relevance = Relevance.load(folder)
        except WeightsError as error:
            raise ModelFolderError(str(error)) from None
        return model.eval()

    @classmethod
    def from_start(cls, source: str | Path, config: Config, towers_only: bool = False) -> ProTA:
        """A model to train that starts from a saved one, with settings of its own for all that leaves weights alone.

        ``towers_only``: only text and vision tower with their projections, and the temperature, are taken; the temporal
        transformer and the head are new. One of another architecture is refused with what differs.
        """
        folder = model_folder(source)
        record = _read_record(folder)
        theirs, ours = (_architecture(each, towers_only) for each in (saved_config(folder), config))
        pairs = {name: (theirs.get(name), ours.get(name)) for name in theirs | ours}
        differing = [f"{name} is {its} there, {own} here" for name, (its, own) in pairs.items() if its != own]
        if differing:
            raise ModelFolderError(f"cannot start from {source}, of another architecture: {'; '.join(differing)}")
        towers = with_settings(record["towers"], config.encoder)
        model = cls(config, rebuild_towers(config.encoder, towers, folder))
        parts = ("text_encoder.", "video_encoder.tower.", "logit_scale") if towers_only else ("",)
        _load_weights(model, folder / WEIGHTS_FILE, parts)
        return model


def saved_config(source: str | Path) -> Config:
    """The settings of a saved model, without its weights."""
    folder = model_folder(source)
    try:
        return Config(**without_removed(Config, _read_record(folder)["config"]))
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ModelFolderError(f"{folder} has settings that this version cannot read: {one_line(error)}") from None


def _architecture(config: Config, towers_only: bool) -> dict[str, object]:
    """The settings on which a model's weights depend, beside the towers themselves."""
    encoder, score = config.encoder, config.score
    names = ["kind", "width", *(("frame_feature", "frame_layers") if encoder.kind == "pair" else ())]
    if towers_only:
        return {f"encoder.{name}": getattr(encoder, name) for name in names}
    names += ["temporal_layers", "temporal_heads"]
    head = {
        "score.similarity": "of Gaussians" if score.probabilistic else "cosine",
        "score.weights": "learned" if score.aggregation == "tokens" and score.weights != "uniform" else "fixed",
    }
    mean = {"distribution.mean": config.distribution.mean} if score.probabilistic else {}
    return {f"encoder.{name}": getattr(encoder, name) for name in names} | head | mean


def model_folder(source: str | Path) -> Path:
    """Where a model's files lie: the folder itself, that of a shipped model, or that of a hub id's download."""
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists():
        raise ModelFolderError(f"{source} is a file: give the folder that save_pretrained wrote")
    if str(source) in shipped.names():
        return shipped.MODELS / str(source)
    names = ", ".join(shipped.names()) or "none"
    if str(source) == shipped.DEFAULT:
        raise ModelFolderError(
            f"{source} should come with prota, but {shipped.MODELS / shipped.DEFAULT} holds no {_CONFIG_FILE}: install "
            f"a prota that has it, or name another model, a folder or hub id (--model); shipped here: {names}"
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise ModelFolderError(
            f"{source}: no such folder, not a model that comes with prota (those are: {names}), "
            "and not a hub id of the form owner/name"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(source), allow_patterns=["*.json", "*.txt", "*.safetensors", "*.model"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelFolderError(
            f"{source}: no such folder here, and not to be had from the hub: {one_line(error)}"
        ) from None


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder} holds no {_CONFIG_FILE}: not a ProTA model, or its saving was interrupted; save it again"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFolderError(f"{path} cannot be read: {error}; save the model again") from None
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        kind = record.get("model_type") if isinstance(record, dict) else None
        hint = f" but a {kind!r} one: use it as a backbone (encoder.clip, .vision or .text)" if kind else ""
        raise ModelFolderError(f"{folder} is not a ProTA model{hint}")
    if record.get("version") not in _VERSIONS.values():
        raise ModelFolderError(
            f"{folder} is of format version {record.get('version')}, this prota reads versions up to {_NEWEST}: "
            "upgrade prota, or save the model again"
        )
    # Models that were saved before there was a choice do not name it.
    if record.get("weights", "float32") not in KINDS:
        raise ModelFolderError(
            f"{folder} has weights of the kind {record['weights']!r}, this prota reads {', '.join(KINDS)}: "
            "upgrade prota, or save the model again"
        )
    return record


def _load_weights(model: ProTA, path: Path, parts: tuple[str, ...] = ("",)) -> None:
    """Of the model, what begins with one of ``parts``: all of that, and nothing else."""
    try:
        weights = names_in_memory(model, read_weights(path))
    except WeightsError as error:
        raise ModelFolderError(str(error)) from None
    weights = {name: tensor for name, tensor in weights.items() if name.startswith(parts)}
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(parts)}
    wrong = [f"{name} is missing" for name in own if name not in weights]
    wrong += [f"{name} is not part of the model" for name in weights if name not in own]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise ModelFolderError(f"{path} does not fit its {_CONFIG_FILE}: {wrong[0]}{more}; save the model again")
    model.load_state_dict(weights, strict=False)
