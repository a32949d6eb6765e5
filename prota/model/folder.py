"""The folder of a model: where it lies, and what its config.json records.

It is one that `ProTA.save_pretrained` wrote, or a bare checkpoint of an aligned dual encoder.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal, get_args

from prota.config.base import ConfigError, without_removed
from prota.config.model import Config
from prota.encoders.aligned import kind_of, untrained
from prota.errors import ProtaError, one_line
from prota.models import shipped

__all__ = ["CONFIG_FILE", "FORMAT", "KINDS", "VERSIONS", "ModelFolderError", "WeightsKind", "model_folder"]
__all__ += ["is_bare", "read_record", "saved_config", "upload"]

WeightsKind = Literal["float32", "float16", "int8"]
KINDS: tuple[str, ...] = get_args(WeightsKind)
FORMAT = "prota"
# The first version whose reader knows such weights: what is older reads the others still.
VERSIONS: dict[WeightsKind, int] = {"float32": 1, "float16": 1, "int8": 2}
_NEWEST = max(VERSIONS.values())
CONFIG_FILE = "config.json"
# Of weights in several formats one is enough.
_FILES, _WEIGHTS = ["*.json", "*.txt", "*.safetensors", "*.model"], ["pytorch_model*.bin"]


class ModelFolderError(ProtaError, ValueError):
    """A folder or hub id that is not a complete ProTA model.

    Example
    -------
    >>> import prota
    >>> try:
    ...     prota.load("prota-smal")
    ... except prota.ModelFolderError as error:
    ...     print(error)
    prota-smal: no such folder, not a shipped model (prota-small), and not a hub id of the form owner/name
    """

    code = "model"


def saved_config(source: str | Path) -> Config:
    """The settings of a saved model, without its weights; of a bare checkpoint, those with which it is searched."""
    folder = model_folder(source)
    if is_bare(folder):
        return _untrained(folder)
    try:
        return Config(**without_removed(Config, read_record(folder)["config"]))
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise ModelFolderError(f"{folder} has settings that this version cannot read: {one_line(error)}") from None


def _untrained(folder: Path) -> Config:
    try:
        return untrained(folder)
    except ConfigError as error:
        raise ModelFolderError(str(error)) from None


def is_bare(folder: Path) -> bool:
    """Whether a folder has the checkpoint of an aligned dual encoder; a ModelFolderError for any other model."""
    record = _json_object(folder)
    if record.get("format") == FORMAT or "model_type" not in record:
        return False
    try:
        kind_of(record["model_type"], folder)
    except ConfigError as error:
        raise ModelFolderError(str(error)) from None
    return True


def model_folder(source: str | Path, revision: str | None = None) -> Path:
    """Where a model's files lie: the folder itself, that of a shipped model, or that of a hub id's download.

    ``revision``: branch, tag or commit of a hub id.
    """
    if revision is not None and (Path(source).is_dir() or str(source) in shipped.names()):
        raise ModelFolderError(f"revision={revision!r} needs a hub id, got {source}")
    if Path(source).is_dir():
        return Path(source)
    if Path(source).exists():
        raise ModelFolderError(f"{source} is a file: give the folder that save_pretrained wrote")
    if str(source) in shipped.names():
        return shipped.MODELS / str(source)
    names = ", ".join(shipped.names()) or "none"
    if str(source) == shipped.DEFAULT:
        raise ModelFolderError(
            f"{source} should come with prota, but {shipped.MODELS / shipped.DEFAULT} has no {CONFIG_FILE}: install "
            f"a prota that has it, or name another model, a folder or hub id (--model); shipped here: {names}"
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise ModelFolderError(
            f"{source}: no such folder, not a shipped model ({names}), and not a hub id of the form owner/name"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(str(source), revision=revision, allow_patterns=_FILES))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(str(source), revision=revision, allow_patterns=_FILES + _WEIGHTS))
        return folder
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelFolderError(
            f"{source}: no such folder, and not available from the hub ({one_line(error)})"
        ) from None


def upload(folder: Path, repository: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a saved model to a hub; returns its address."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = HfApi(token=token)
    try:
        created = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(folder_path=folder, repo_id=created.repo_id, commit_message="Upload a ProTA model")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelFolderError(
            f"{repository}: cannot upload: {one_line(error)}; check the name, the network and the access token"
        ) from None
    return str(created)


def _json_object(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder} has no {CONFIG_FILE}: not a ProTA model, or incompletely saved; save it again"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFolderError(f"{path} cannot be read: {error}; save the model again") from None
    return record if isinstance(record, dict) else {}


def read_record(folder: Path) -> dict[str, Any]:
    record = _json_object(folder)
    if record.get("format") != FORMAT:
        raise ModelFolderError(f"{folder} is not a ProTA model")
    if record.get("version") not in VERSIONS.values():
        raise ModelFolderError(
            f"{folder} is of format version {record.get('version')}, this prota reads versions up to {_NEWEST}: "
            "upgrade prota, or save the model again"
        )
    # Models that were saved before there was a choice do not name it.
    if record.get("weights", "float32") not in KINDS:
        raise ModelFolderError(
            f"{folder} has {record['weights']!r} weights; this version reads {', '.join(KINDS)}: "
            "upgrade prota, or save the model again"
        )
    return record
