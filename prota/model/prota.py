"""ProTA: two encoders, a score head and a temperature; encode, score, explain, save, load."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from prota.config.base import ConfigError
from prota.config.model import Config
from prota.encoders.backbones import Towers, load_towers, rebuild_towers, with_settings
from prota.encoders.int8 import use_int8
from prota.encoders.saved import text_encoder, video_encoder
from prota.encoders.text import TextBatch, TextEncoder
from prota.encoders.video import VideoEncoder
from prota.encoders.weight_names import names_in_files, names_in_memory
from prota.errors import UsageError, one_line
from prota.kernels.dispatch import Backend
from prota.model.folder import (
    CONFIG_FILE,
    FORMAT,
    VERSIONS,
    ModelFolderError,
    WeightsKind,
    is_bare,
    model_folder,
    read_record,
    saved_config,
    upload,
)
from prota.model.relevance import RELEVANCE_FILE, Relevance
from prota.model.vectors import NoCard, Rows, frames_of, from_rows, is_single, to_rows
from prota.model.weights import WEIGHTS_FILE, WeightsError, fingerprint, read_weights, write_weights
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
        self.logit_bias: nn.Parameter | None = None
        """Of the sigmoid loss."""
        if config.loss.contrast == "sigmoid":
            own = towers.logit_bias is not None
            scale, bias = (towers.logit_scale, towers.logit_bias) if own else _SIGMOID_START
            self.logit_scale = nn.Parameter(torch.tensor(scale))
            self.logit_bias = nn.Parameter(torch.tensor(bias))
        self.relevance: Relevance | None = None
        """What calibration learned about these weights."""

    def __repr__(self) -> str:
        encoder = self.config.encoder
        millions = sum(parameter.numel() for parameter in self.parameters()) / 1e6
        return f"ProTA({encoder.kind}, width {encoder.width}, {encoder.frames} frames, {millions:.1f} M parameters)"

    @classmethod
    def from_config(cls, config: Config) -> ProTA:
        """Build a model to train: pretrained towers and a new head."""
        return cls(config, load_towers(config.encoder))

    def encode_text(self, texts: str | Sequence[str] | TextBatch) -> PreparedTokens:
        """Encode texts once, to score them against any videos.

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
        """Encode videos once, to score them against any texts.

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
    def similarity(self, texts: PreparedTokens | Rows, videos: PreparedTokens | Rows, **_: object) -> Tensor:
        """Similarity of every text with every video: [texts, videos], higher is better.

        Parameters
        ----------
        texts, videos
            What `encode_text` and `encode_video` return, or `encode_query` and `encode_document`.

        Example
        -------
        >>> import prota
        >>> model = prota.load("prota-small")
        >>> texts = model.encode_text(["a cat", "a cup of coffee"])
        >>> videos = model.encode_video(["clips/coffee.mp4", "clips/cat.mp4"])
        >>> model.similarity(texts, videos).argmax(dim=1).tolist()
        [1, 0]
        """
        return self.score(self._prepared(texts), self._prepared(videos))

    def _prepared(self, items: PreparedTokens | Rows) -> PreparedTokens:
        prepared = items if isinstance(items, PreparedTokens) else from_rows(items, self.config)
        return prepared.to(self.logit_scale.device)

    # The methods and names by which sentence-transformers and its evaluators know a model of several vectors.
    similarity_fn_name = "prota"
    modalities: ClassVar[list[str]] = ["text", "image", "video"]
    prompts: ClassVar[dict[str, str]] = {}
    model_card_data: ClassVar[NoCard] = NoCard()

    def supports(self, modality: str | tuple[str, ...]) -> bool:
        """Whether the model encodes a modality.

        Parameters
        ----------
        modality
            ``text``, ``image`` or ``video``; of no other and no combination it is true.

        Example
        -------
        >>> import prota
        >>> prota.load("prota-small").supports("video")
        True
        """
        return modality in self.modalities

    @torch.no_grad()
    def encode_query(
        self, inputs: str | Sequence[str], *, batch_size: int = 256, convert_to_numpy: bool = False, **_: object
    ) -> Any:
        """Encode texts as sentence-transformers does: a matrix [tokens, width] each.

        Parameters
        ----------
        inputs
            A text, which gives a matrix, or several, which give a list.
        batch_size
            Texts that are encoded together.
        convert_to_numpy
            Return arrays, not tensors. Other options of sentence-transformers have no effect.

        Example
        -------
        >>> import prota
        >>> model = prota.load("prota-small")
        >>> query = model.encode_query("a cat")
        >>> float(model.similarity(query, model.encode_document("clips/cat.mp4"))) > 0
        True
        """
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        rows = [
            row
            for start in range(0, len(texts), batch_size)
            for row in to_rows(self.encode_text(texts[start : start + batch_size]))
        ]
        return _as_asked(rows, isinstance(inputs, str), convert_to_numpy)

    @torch.no_grad()
    def encode_document(self, inputs: Any, *, convert_to_numpy: bool = False, **_: object) -> Any:
        """Encode videos as sentence-transformers does: a matrix [tokens, width] each.

        Parameters
        ----------
        inputs
            A video, which gives a matrix, or several, which give a list: paths of videos or pictures, pictures of
            Pillow, uint8 frames [frames, height, width, 3] or [frames, 3, height, width], or mappings of one of these
            by ``video`` or ``image``.
        convert_to_numpy
            Return arrays, not tensors. Other options of sentence-transformers have no effect.

        Example
        -------
        >>> import prota
        >>> [rows.shape[0] for rows in prota.load("prota-small").encode_document(["clips/cat.mp4"])]
        [12]
        """
        single = is_single(inputs)
        documents = [frames_of(each, self.config.encoder) for each in ([inputs] if single else inputs)]
        paths = [place for place, each in enumerate(documents) if not isinstance(each, Tensor)]
        found: dict[int, Tensor] = {}
        if paths:
            rows = to_rows(self.encode_video([str(documents[place]) for place in paths]))
            found = dict(zip(paths, rows, strict=True))
        for place, each in enumerate(documents):
            if isinstance(each, Tensor):
                (found[place],) = to_rows(self.encode_video(each[None].to(self.logit_scale.device)))
        return _as_asked([found[place] for place in range(len(documents))], single, convert_to_numpy)

    def score(self, texts: PreparedTokens, videos: PreparedTokens, backend: Backend = "auto") -> Tensor:
        """Scores [A, B] of every text with every video; ``backend``: see `prota.kernels.dispatch`."""
        return self.head.score(texts, videos, backend)

    def explain(self, text: PreparedTokens, video: PreparedTokens) -> Explanation:
        """Decompose one score; `Explanation.by_word` with ``text_encoder.words(text)`` gives whole words."""
        return self.head.explain(text, video)

    def use_int8(self) -> ProTA:
        """Multiply in int8 in the encoders: faster on a CPU (docs/results/kernels.md), for inference only.

        Of a model that is stored as int8 the weights stay what they are; inputs are rounded too, token by token.
        """
        for part in (self.text_encoder.tower.model, self.video_encoder.tower.model, self.video_encoder.temporal):
            if part is not None:
                use_int8(part)
        return self

    def identity(self, saved: bool = True) -> str:
        """A hash of the settings and of every weight, which identifies the model.

        ``saved``: of a model that is loaded for texts, what was saved with it will do. Weights have other names in some
        versions of transformers, and with them another hash.
        """
        return _identity(self.config, self.state_dict())

    def save_pretrained(self, folder: str | Path, weights: WeightsKind = "float32") -> None:
        """Write config.json, model.safetensors, the tokenizer and the relevance; config.json is written last.

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
            # Of the weights as they will be read: rounded.
            identity = _identity(self.config, names_in_memory(self, read_weights(staging / WEIGHTS_FILE)))
            record = {
                "format": FORMAT,
                "version": VERSIONS[weights],
                "weights": weights,
                "identity": {"model": identity, "files": _files(self.config, staging)},
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
        """Load a saved model, or a bare CLIP, SigLIP, …, on the CPU, in float32 and in evaluation mode.

        Parameters
        ----------
        source
            A folder, the name of a shipped model, or a hub id. The checkpoint of an aligned text and image encoder is
            used untrained: its own vectors, the mean of those of the frames, and cosines.
        revision
            Branch, tag or commit of a hub id.

        Example
        -------
        >>> from prota import ProTA
        >>> ProTA.from_pretrained("prota-small").config.score.similarity
        'squared'
        """
        folder = model_folder(source, revision)
        if is_bare(folder):
            config = saved_config(folder)
            return cls(config, _bare_towers(folder, config)).eval()
        record, config = read_record(folder), saved_config(folder)
        try:
            model = cls(config, rebuild_towers(config.encoder, record["towers"], folder))
        except Exception as error:
            # Whatever transformers and its tokenizers say about files that are missing, cut short or changed.
            raise ModelFolderError(
                f"{folder} has a model that this version cannot build: {one_line(error)}; save or copy it again"
            ) from None
        _load_weights(model, folder / WEIGHTS_FILE)
        try:
            model.relevance = Relevance.load(folder)
        except WeightsError as error:
            raise ModelFolderError(str(error)) from None
        return model.eval()

    @classmethod
    def for_texts(cls, source: str | Path) -> ProTA:
        """Like `from_pretrained`, but load only what texts need; the first video loads the vision tower.

        Its weights are not to be changed. The same numbers come out, in a fraction of the time, because transformers is
        not imported; towers that `prota.encoders.saved` does not know are loaded with it.
        """
        folder = model_folder(source)
        if is_bare(folder):
            return cls.from_pretrained(folder)
        record, config = read_record(folder), saved_config(folder)
        encoder = text_encoder(config.encoder, record.get("towers", {}), folder)
        if encoder is None:
            return cls.from_pretrained(source)
        try:
            model = _ForTexts(config, encoder, folder, record)
            weights = read_weights(folder / WEIGHTS_FILE, lambda name: not name.startswith(_VIDEO))
            if not _assigned(model, weights):
                # Under other names perhaps; if not, the error says what is wrong.
                return cls.from_pretrained(source)
            model.relevance = Relevance.load(folder)
        except WeightsError as error:
            raise ModelFolderError(str(error)) from None
        return model.eval()

    @classmethod
    def from_start(cls, source: str | Path, config: Config, towers_only: bool = False) -> ProTA:
        """Build a model to train from a saved one; settings that do not affect the weights may differ.

        ``towers_only``: only text and vision tower with their projections, and the temperature, are taken; the temporal
        transformer and the head are new. One of another architecture is refused with what differs.
        """
        folder = model_folder(source)
        theirs, ours = (_architecture(each, towers_only) for each in (saved_config(folder), config))
        pairs = {name: (theirs.get(name), ours.get(name)) for name in theirs | ours}
        differing = [f"{name} is {its} there, {own} here" for name, (its, own) in pairs.items() if its != own]
        if differing:
            raise ModelFolderError(f"cannot start from {source}, of another architecture: {'; '.join(differing)}")
        if is_bare(folder):
            return cls(config, _bare_towers(folder, config))
        towers = with_settings(read_record(folder)["towers"], config.encoder)
        model = cls(config, rebuild_towers(config.encoder, towers, folder))
        parts: tuple[str, ...] = ("text_encoder.", "video_encoder.tower.", "logit_scale") if towers_only else ("",)
        if towers_only and config.loss.contrast == "sigmoid":
            # Scale and bias go together.
            parts = parts[:2]
        _load_weights(model, folder / WEIGHTS_FILE, parts)
        temporal = model.video_encoder.temporal
        if towers_only and temporal is not None and config.encoder.kind != "pair":
            # Copied from the text tower before that had its weights.
            temporal.start_from_text(model.text_encoder.tower.model)
        return model


def _bare_towers(folder: Path, config: Config) -> Towers:
    """Those of a checkpoint that is no ProTA model."""
    try:
        return load_towers(config.encoder.replace(clip=str(folder)))
    except ConfigError as error:
        raise ModelFolderError(str(error)) from None


# Logarithm of 1/τ, and bias, with which SigLIP began to learn.
_SIGMOID_START = math.log(10), -10.0
_VIDEO = "video_encoder."
# By whichever thread needs a vision tower first.
_LOADING = threading.Lock()


class _ForTexts(ProTA):
    """A saved model of which only the text encoder, the head and the temperature are loaded until more is needed."""

    def __init__(self, config: Config, encoder: TextEncoder, folder: Path, record: dict[str, Any]) -> None:
        nn.Module.__init__(self)
        self.config, self.record, self.relevance = config, record["towers"], None
        self.text_encoder = encoder
        self.head = ScoreHead(config.encoder.width, config.score, config.distribution)
        self.logit_scale = nn.Parameter(torch.zeros(()))
        self.logit_bias = nn.Parameter(torch.zeros(())) if config.loss.contrast == "sigmoid" else None
        self._folder, self._files = folder, _files(config, folder)
        saved = record.get("identity")
        self._identity = saved["model"] if isinstance(saved, dict) and saved.get("files") == self._files else None

    def __getattr__(self, name: str) -> Any:
        if name == "video_encoder" and name not in self._modules:
            with _LOADING:
                if name not in self._modules:
                    self.video_encoder = self._load_video().to(self.logit_scale.device)
        return super().__getattr__(name)

    def _check(self) -> None:
        if _files(self.config, self._folder) != self._files:
            raise ModelFolderError(f"{self._folder} has changed since it was opened: open it again")

    def _load_video(self) -> VideoEncoder:
        self._check()
        encoder = video_encoder(self.config.encoder, self.record)
        if encoder is not None:
            weights = read_weights(self._folder / WEIGHTS_FILE, lambda name: name.startswith(_VIDEO))
            if _assigned(encoder, {name.removeprefix(_VIDEO): tensor for name, tensor in weights.items()}):
                return encoder.eval()
        return self._whole().video_encoder

    def _whole(self) -> ProTA:
        self._check()
        model = ProTA.from_pretrained(self._folder)
        model.relevance = self.relevance
        return model

    def identity(self, saved: bool = True) -> str:
        if self._identity is None or not saved:
            self._identity = self._whole().identity()
        return self._identity

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return self._whole().state_dict(*args, **options)

    def save_pretrained(self, folder: str | Path, weights: WeightsKind = "float32") -> None:
        self._whole().save_pretrained(folder, weights)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies, also in other processes, are whole."""
        return _itself, (self._whole().to(self.logit_scale.device),)


def _assigned(module: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Whether these are a module's weights, which it then has: all of them, and no others."""
    own = {name: tensor.shape for name, tensor in nn.Module.state_dict(module).items()}
    if own != {name: tensor.shape for name, tensor in weights.items()}:
        return False
    nn.Module.load_state_dict(module, weights, assign=True)
    return True


def _as_asked(rows: list[Tensor], single: bool, numpy: bool) -> Any:
    given = [row.cpu().numpy() for row in rows] if numpy else rows
    return given[0] if single else given


def _itself(model: ProTA) -> ProTA:
    return model


def _settings(config: Config) -> bytes:
    """Those that are not at their defaults, so that a model stays the same where a new version of prota has more."""
    settings = config.model_dump(exclude_defaults=True)
    if config.encoder.kind == "pair":
        # A setting of earlier versions that follows from the kind: identities stay the same.
        settings["encoder"]["temporal_init"] = "random"
    return json.dumps(settings, sort_keys=True).encode()


def _identity(config: Config, weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(_settings(config))
    for key, value in sorted(weights.items()):
        digest.update(key.encode() + value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _files(config: Config, folder: Path) -> str:
    """A hash of what a saved model's identity follows from: cheaper, because the file of the weights may be small."""
    return hashlib.sha256(_settings(config) + fingerprint(folder).encode()).hexdigest()


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
    head["loss.contrast"] = config.loss.contrast
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
        raise ModelFolderError(f"{path} does not match its {CONFIG_FILE}: {wrong[0]}{more}; save the model again")
    model.load_state_dict(weights, strict=False, assign=True)
