"""Weights as files: float32, float16, or matrices of int8 with one scale a row.

A model computes in float32 whatever its file holds; the kinds differ in bytes and in rounding. A file is safetensors,
and int8 matrices have their scales beside them, under ``NAME:scale``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from prota.encoders.int8 import round_rows
from prota.errors import ProtaError, one_line
from prota.model.folder import KINDS, WeightsKind

__all__ = ["KINDS", "WEIGHTS_FILE", "WeightsError", "WeightsKind", "fingerprint", "read_weights"]
__all__ += ["rounding_error", "write_weights"]

WEIGHTS_FILE = "model.safetensors"
_SCALE = ":scale"


class WeightsError(ProtaError, ValueError):
    """Weights that cannot be stored, or a file that does not hold any; the message says what is wrong."""

    code = "weights"


def write_weights(path: Path, weights: Mapping[str, Tensor], kind: WeightsKind = "float32") -> None:
    """Write a model's weights in one of the `KINDS`."""
    from safetensors.torch import save_file

    if kind not in KINDS:
        raise WeightsError(f"weights must be one of {', '.join(KINDS)}; got {kind!r}")
    save_file(_stored(weights, kind), path, metadata={"format": "pt"})


def read_weights(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """The weights of a file of any kind, matrices of int8 multiplied out again; ``wanted``: whether a name is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 (no dict)
            stored = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing: the model folder is incomplete; copy or save it again") from None
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} is corrupt or truncated ({one_line(error)}); copy or save it again") from None
    weights = {name: tensor for name, tensor in stored.items() if not name.endswith(_SCALE)}
    for name in stored.keys() - weights.keys():
        if name.removesuffix(_SCALE) not in weights:
            raise WeightsError(f"{path} is corrupt: the scale {name} has no matching tensor; copy or save it again")
    for name, tensor in weights.items():
        if tensor.dtype == torch.int8:
            scale = stored.get(name + _SCALE)
            _check_scale(path, name, tensor, scale)
            assert scale is not None
            weights[name] = _rows(tensor).float().mul_(scale[:, None]).view(tensor.shape)
        else:
            # Copied out of the mapped file: that may be overwritten, and where tensors do not begin at a multiple of 64
            # bytes, products may differ in the last bit.
            weights[name] = tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
    return weights


def fingerprint(checkpoint: str | Path) -> str:
    """SHA-256 of a saved model's weights, from its folder or from model.safetensors itself."""
    path = Path(checkpoint)
    path = path / WEIGHTS_FILE if path.is_dir() else path
    # A checkpoint of the hub may have them in several files, or in another format.
    paths = [path] if path.exists() else sorted(path.parent.glob("*.safetensors")) or sorted(path.parent.glob("*.bin"))
    digest = hashlib.sha256()
    try:
        for part in paths or [path]:
            with part.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}): give the folder of a saved model") from None
    return digest.hexdigest()


def rounding_error(weights: Mapping[str, Tensor], kind: WeightsKind) -> tuple[str, float]:
    """(matrix, error): the row that storing moves most, by the length of the change over the length of the row."""
    worst, where = 0.0, ""
    for name, tensor in weights.items():
        if kind == "float32" or not _is_matrix(tensor):
            continue
        rows = _rows(tensor.detach().float())
        if kind == "int8":
            whole, scale = round_rows(rows)
            moved = whole.float() * scale[:, None] - rows
        else:
            moved = rows.half().float() - rows
        length = rows.norm(dim=1)
        error = float((moved.norm(dim=1) / length.clamp(min=torch.finfo(torch.float32).tiny)).max())
        if error > worst:
            worst, where = error, name
    return where, worst


def _stored(weights: Mapping[str, Tensor], kind: WeightsKind) -> dict[str, Tensor]:
    """What goes into the file. Vectors and scalars stay float32: a hundredth of a model, and its most delicate part."""
    stored: dict[str, Tensor] = {}
    for name, given in weights.items():
        tensor = given.detach().cpu().contiguous()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        stored[name] = tensor
        if kind == "float32" or not _is_matrix(tensor):
            continue
        if not bool(tensor.isfinite().all()):
            raise WeightsError(f"{name} contains NaN or infinity and cannot be rounded; save with weights='float32'")
        if kind == "int8":
            whole, stored[name + _SCALE] = round_rows(_rows(tensor))
            stored[name] = whole.view(tensor.shape)
        elif float(tensor.abs().max()) <= torch.finfo(torch.float16).max:
            stored[name] = tensor.half()
    return stored


def _is_matrix(tensor: Tensor) -> bool:
    """Tables of positions are [1, N, D], class tokens [1, 1, D]: an axis of length 1 in front makes no rows."""
    return tensor.is_floating_point() and tensor.numel() > 0 and _rows(tensor).shape[0] > 1


def _rows(tensor: Tensor) -> Tensor:
    """[rows, columns]: what each output (of a layer), word or position owns."""
    lengths = list(tensor.shape)
    while len(lengths) > 1 and lengths[0] == 1:
        lengths.pop(0)
    if len(lengths) < 2:
        return tensor.reshape(1, -1)
    return tensor.reshape(lengths[0], math.prod(lengths[1:]))


def _check_scale(path: Path, name: str, tensor: Tensor, scale: Tensor | None) -> None:
    if scale is None:
        raise WeightsError(f"{path} is corrupt: {name} is int8 and has no scales; copy or save it again")
    rows = _rows(tensor).shape[0]
    if scale.dtype != torch.float32 or list(scale.shape) != [rows]:
        found = f"{str(scale.dtype).removeprefix('torch.')} {list(scale.shape)}"
        raise WeightsError(f"{path} is corrupt: the scales of {name} are {found}, not float32 [{rows}]; save it again")
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise WeightsError(f"{path} is corrupt: the scales of {name} must be positive numbers; copy or save it again")
