"""ProTA: two encoders, a score head and a temperature; encode, score, explain, save, load."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from prota.config.model import Config
from prota.encoders.backbones import Towers, load_towers, rebuild_towers, with_settings
from prota.encoders.int8 import use_int8
from prota.encoders.text import TextBatch
from prota.encoders.weight_names import names_in_files, names_in_memory
from prota.errors import UsageError, one_line
from prota.kernels.dispatch import Backend
from prota.model.folder import (
    CONFIG_FILE,
    FORMAT,
    VERSIONS,
    ModelFolderError,
    model_folder,
    read_record,
    saved_config,
    upload,
)
from prota.model.relevance import RELEVANCE_FILE, Relevance
from prota.model.weights import WEIGHTS_FILE, WeightsError, WeightsKind, read_weights, write_weights
from prota.scoring.score import ScoreHead
from prota.types import Explanation, PreparedTokens

__all__ = ["ProTA"]


class ProTA(nn.Module):
    """A text-video retrieval model: encodes texts and videos, and scores every pair.

    Example
    -------
    >>> import prota
    >>> prota.load("prota-small")
    ProTA(pair, width 384, 12 frames, 50.1 M parameters)
    """

    def __init__(self, config: Config, towers: Towers) -> None:
        super().__init__()
        self.config = config
        self.record = towers.record
        self.text_encoder, self.video_encoder = towers.encoders(config.encoder)
        self.head = ScoreHead(config.encoder.width, config.score, config.distribution)
        self.logit_scale = nn.Parameter(torch.tensor(towers.logit_scale))
        self.relevance: Relevance | None = None
        """What calibration learned about these weights."""

    def __repr__(self) -> str:
        encoder = self.config.encoder
        millions = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        return f"ProTA({encoder.kind}, width {encoder.width}, {encoder.frames} frames, {millions:.1f} M parameters)"

    @classmethod
    def from_config(cls, config: Config) -> ProTA:
        """A model to train: pretrained towers, new head."""
        return cls(config, load_towers(config.encoder))

    def encode_text(self, texts: str | Sequence[str] | TextBatch) -> PreparedTokens:
        """Encode texts, to be scored against any videos.

        Parameters
        ----------
        texts
            One text or several; the model reads English and at most ``config.encoder.text_length`` tokens.

        Example
        -------
        >>> import prota
        >>> texts = prota.load("prota-small").encode_text(["a dog", "a cup of coffee"])
        >>> len(texts)
        2
        """
        return self.head.prepare_texts(self.text_encoder(texts))

    def encode_video(
        self, videos: str | Path | Sequence[str | Path] | Tensor, mask: Tensor | None = None
    ) -> PreparedTokens:
        """Encode videos, to be scored against any texts.

        Parameters
        ----------
        videos
            Video or picture files, of which frames are sampled uniformly in time; or frames as a tensor
            [B, M, 3, H, W], uint8 or floats already normalised with the mean and deviation of
            ``video_encoder.tower.image``. Gradients flow through tensors only.
        mask
            Of a tensor [B, M]: True for real frames; by default all are.

        Example
        -------
        >>> import prota
        >>> videos = prota.load("prota-small").encode_video(["clips/cat.mp4", "clips/coffee.mp4"])
        >>> len(videos)
        2
        """
        if isinstance(videos, Tensor):
            return self.head.prepare_videos(self.video_encoder(videos, mask))
        if mask is not None:
            raise UsageError("mask belongs to frames given as a tensor; files have none")
        from prota.model.clips import read_clips

        paths = [videos] if isinstance(videos, str | Path) else list(videos)
        if not paths:
            raise UsageError("no videos given: name at least one file")
        device = self.logit_scale.device
        with torch.no_grad():
            batches = read_clips(paths, self.config.encoder)
            return PreparedTokens.cat(
                [self.encode_video(frames.to(device), real.to(device)) for frames, real in batches]
            )

    @torch.no_grad()
    def similarity(self, texts: PreparedTokens, videos: PreparedTokens) -> Tensor:
        """Similarity of every text with every video: [texts, videos], higher is better.

        Parameters
        ----------
        texts, videos
            What `encode_text` and `encode_video` return.

        Example
        -------
        >>> import prota
        >>> model = prota.load("prota-small")
        >>> texts = model.encode_text(["a cat", "a cup of coffee"])
        >>> videos = model.encode_video(["clips/coffee.mp4", "clips/cat.mp4"])
        >>> model.similarity(texts, videos).argmax(dim=1).tolist()
        [1, 0]
        """
        return self.score(texts, videos)

    def score(self, texts: PreparedTokens, videos: PreparedTokens, backend: Backend = "auto") -> Tensor:
        """Scores [A, B] of every text with every video; ``backend``: see `prota.kernels.dispatch`."""
        return self.head.score(texts, videos, backend)

    def explain(self, text: PreparedTokens, video: PreparedTokens) -> Explanation:
        """What one score is made of; `Explanation.by_word` with ``text_encoder.words(text)`` names whole words."""
        return self.head.explain(text, video)

    def use_int8(self) -> ProTA:
        """Let the encoders multiply in int8: faster on a CPU (docs/results/kernels.md), no longer to be trained.

        Of a model that is stored as int8 the weights stay what they are; inputs are rounded too, token by token.
        """
        for part in (self.text_encoder.tower.model, self.video_encoder.tower.model, self.video_encoder.temporal):
            if part is not None:
                use_int8(part)
        return self

    def save_pretrained(self, folder: str | Path, weights: WeightsKind = "float32") -> None:
        """Write config.json, model.safetensors, the tokenizer and the relevance; config.json appears last.

        Parameters
        ----------
        folder
            Created if missing; files of an earlier save are replaced.
        weights
            ``float32``, ``float16`` (half the size) or ``int8`` (a quarter, see `prota.model.weights`).

        Example
        -------
        >>> import prota
        >>> prota.load("prota-small").save_pretrained("mine", weights="float16")
        >>> prota.load("mine")
        ProTA(pair, width 384, 12 frames, 50.1 M parameters)
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
                "format": FORMAT,
                "version": VERSIONS[weights],
                "weights": weights,
                "config": self.config.model_dump(),
                "towers": self.record,
            }
            (staging / CONFIG_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            # safetensors writes for the owner's eyes alone; the others follow the umask.
            shutil.copymode(staging / CONFIG_FILE, staging / WEIGHTS_FILE)
            if self.relevance is not None:
                self.relevance.save(staging)
            # Old settings beside new weights would be read as a model; no settings are not.
            for name in (CONFIG_FILE, RELEVANCE_FILE):
                (folder / name).unlink(missing_ok=True)
            for path in sorted(staging.iterdir(), key=lambda path: path.name == CONFIG_FILE):
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def push_to_hub(
        self, repository: str, weights: WeightsKind = "float32", *, private: bool = False, token: str | None = None
    ) -> str:
        """Upload the model to a model hub; returns its address.

        Parameters
        ----------
        repository
            Hub id of the form ``owner/name``; created if missing.
        weights
            See `save_pretrained`.
        private
            Of a new repository: whether only its owner sees it.
        token
            Access token; by default the one that huggingface_hub is logged in with.

        Example
        -------
        >>> import prota
        >>> prota.load("prota-small").push_to_hub("me/mine")  # doctest: +SKIP
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, weights)
            return upload(Path(folder), repository, private=private, token=token)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None) -> ProTA:
        """Load a saved model; on the CPU, in float32 and in evaluation mode.

        Parameters
        ----------
        source
            A folder, the name of a shipped model, or a hub id.
        revision
            Branch, tag or commit of a hub id.

        Example
        -------
        >>> from prota import ProTA
        >>> ProTA.from_pretrained("prota-small").config.score.similarity
        'squared'
        """
        folder = model_folder(source, revision)
        record, config = read_record(folder), saved_config(folder)
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
        record = read_record(folder)
        theirs, ours = (_architecture(each, towers_only) for each in (saved_config(folder), config))
        pairs = {name: (theirs.get(name), ours.get(name)) for name in theirs | ours}
        differing = [f"{name} is {its} there, {own} here" for name, (its, own) in pairs.items() if its != own]
        if differing:
            raise ModelFolderError(f"cannot start from {source}, of another architecture: {'; '.join(differing)}")
        towers = with_settings(record["towers"], config.encoder)
        model = cls(config, rebuild_towers(config.encoder, towers, folder))
        parts = ("text_encoder.", "video_encoder.tower.", "logit_scale") if towers_only else ("",)
        _load_weights(model, folder / WEIGHTS_FILE, parts)
        temporal = model.video_encoder.temporal
        if towers_only and temporal is not None and config.encoder.kind != "pair":
            # Copied from the text tower before that had its weights.
            temporal.start_from_clip(model.text_encoder.tower.model)
        return model


def _architecture(config: Config, towers_only: bool) -> dict[str, object]:
    """The settings on which a model's weights depend, beside the towers themselves."""
    encoder, score = config.encoder, config.score
    names = ["kind", "width", *(("frame_feature", "frame_layers") if encoder.kind == "pair" else ())]
    if towers_only:
        return {f"encoder.{name}": getattr(encoder, name) for name in names}
    names.append("temporal_layers")
    head = {
        "score.similarity": "of Gaussians" if score.probabilistic else "cosine",
        "score.weights": "learned" if score.aggregation == "tokens" and score.weights != "uniform" else "fixed",
    }
    mean = {"distribution.mean": config.distribution.mean} if score.probabilistic else {}
    return {f"encoder.{name}": getattr(encoder, name) for name in names} | head | mean


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
        raise ModelFolderError(f"{path} does not fit its {CONFIG_FILE}: {wrong[0]}{more}; save the model again")
    model.load_state_dict(weights, strict=False)
