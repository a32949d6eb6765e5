"""The record of a result: metrics, data, model, code and machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

import prota
from prota.errors import ProtaError
from prota.files import write_atomically

if TYPE_CHECKING:
    import torch
    from rich.table import Table

__all__ = ["CheckpointRecord", "Passport", "PassportError", "collect_environment"]

_FORMAT, _VERSION = "prota-result", 1
_DIRECTIONS = {"text_to_video": "text → video", "video_to_text": "video → text"}
_COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "median_rank": "median", "mean_rank": "mean rank"}


class PassportError(ProtaError, ValueError):
    """A record that cannot be written or read."""

    code = "result"


@dataclass(frozen=True)
class CheckpointRecord:
    """The weights that were evaluated, and how they were chosen."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    path: str
    rule: str
    """Such as "best on validation at step 1200", "last" or "as given"; the test set is never one."""
    step: int | None
    """Training steps; None if not known."""
    fingerprint: str
    """See `prota.model.weights.fingerprint`."""
    missing: dict[str, int] = field(default_factory=dict)
    """Split → items that were missing in training, by permission; empty if not known."""
    started_from: dict[str, str] = field(default_factory=dict)
    """``model`` and ``fingerprint`` of the start of training; empty: pretrained towers, or not known."""


def collect_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Library versions, hardware, git commit, time and command line; None for unknown values.

    ``device``: where the model ran, if any.
    """
    commit, dirty = _git_state(Path(prota.__file__).resolve().parent.parent)
    return {
        "versions": {
            "python": platform.python_version(),
            "prota": prota.__version__,
            **{name: _version(name) for name in ("torch", "transformers", "numpy")},
        },
        "hardware": _hardware(device),
        "commit": commit,
        "dirty": dirty,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(sys.argv),
    }


@dataclass(frozen=True, repr=False)
class Passport:
    """The record of one evaluation of one system on one split.

    Example
    -------
    >>> import prota
    >>> prota.evaluate("prota-small", data="samples.toml").write("result.json")
    >>> result = prota.Passport.read("result.json")
    >>> result.videos, result.queries
    (13, 38)
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    metrics: dict[str, dict[str, float]]
    """`RetrievalMetrics`: direction → metric → value."""
    intervals: dict[str, dict[str, tuple[float, float]]]
    """Direction → metric → 95 % interval, see `bootstrap`; a direction without intervals may be absent."""
    split: str
    split_hash: str
    queries: int
    """Number of texts."""
    videos: int
    """Number of videos."""
    missing: tuple[str, ...]
    """Missing items of the split, by permission."""
    normalisation: str | None
    """Normalisation of the scores, if any."""
    candidates: Literal["captions", "videos"]
    """See `video_ranks`."""
    checkpoint: CheckpointRecord | None
    """None for a score matrix."""
    config: dict[str, Any]
    seed: int | None
    faithfulness: dict[str, float] | None = None
    """`Faithfulness`, if measured."""
    environment: dict[str, Any] = field(default_factory=collect_environment)

    def __post_init__(self) -> None:
        if set(self.metrics) != set(_DIRECTIONS) or any(not set(_COLUMNS) <= set(m) for m in self.metrics.values()):
            raise PassportError(f"metrics must have {' and '.join(_DIRECTIONS)}, each with {', '.join(_COLUMNS)}")
        if not set(self.intervals) <= set(_DIRECTIONS):
            raise PassportError(f"intervals must be of {', '.join(_DIRECTIONS)}, got {', '.join(self.intervals)}")

    def __repr__(self) -> str:
        forth = self.text_to_video
        return f"Passport({self.split}: text → video R@1 {forth['r1']:.1f}, R@10 {forth['r10']:.1f})"

    @property
    def text_to_video(self) -> dict[str, float]:
        """Metrics of this direction: ``r1``, ``r5``, ``r10``, ``median_rank``, ``mean_rank``."""
        return self.metrics["text_to_video"]

    @property
    def video_to_text(self) -> dict[str, float]:
        """Metrics of this direction, as in `text_to_video`."""
        return self.metrics["video_to_text"]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON or a table."""
        return asdict(self)

    def write(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        path = Path(path)
        record = {"format": _FORMAT, "version": _VERSION, **self.to_dict()}
        try:
            text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise PassportError(f"cannot write the result as JSON: {error}") from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
        except OSError as error:
            raise PassportError(f"{path} cannot be written ({error.strerror}): use another path") from None

    @classmethod
    def read(cls, path: str | Path) -> Passport:
        """Read a record of `write`."""
        record = _read_record(Path(path))
        try:
            # Strict validation of JSON accepts lists as tuples, but no other conversions.
            return TypeAdapter(cls).validate_json(json.dumps(record), strict=True)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in problem["loc"]) or "the record"
            message = str(problem["msg"]).removeprefix("Value error, ")
            raise PassportError(f"{path} is incomplete or corrupt: {place}: {message}; evaluate again") from None

    def table(self) -> Table:
        """Both directions with intervals and remarks, for the terminal."""
        from rich.table import Table
        from rich.text import Text

        # As Text: rich parses brackets in a string as markup.
        table = Table(
            title=Text(f"{self.split}: {self.queries:,} texts, {self.videos:,} videos"),
            caption=Text("\n".join(self._remarks())),
            pad_edge=False,
        )
        table.add_column("", no_wrap=True)
        for title in _COLUMNS.values():
            table.add_column(title, justify="right", no_wrap=True)
        for direction, title in _DIRECTIONS.items():
            table.add_row(title, *(self._cell(direction, metric) for metric in _COLUMNS))
        return table

    def _cell(self, direction: str, metric: str) -> str:
        value, interval = self.metrics[direction][metric], self.intervals.get(direction, {}).get(metric)
        return f"{value:.1f}" + (f"\n{interval[0]:.1f}–{interval[1]:.1f}" if interval else "")

    def _remarks(self) -> list[str]:
        remarks = []
        if self.intervals:
            remarks.append("below each value: its 95 % bootstrap interval over videos")
        if self.normalisation:
            remarks.append(f"normalised: {self.normalisation}")
        if self.missing:
            remarks.append(f"{len(self.missing)} items of the split are missing")
        if self.candidates == "videos":
            remarks.append("video → text ranks videos by their best caption")
        elif self.queries > self.videos:
            # Papers use the other rule, so their figures do not compare with these.
            remarks.append("video → text ranks a video's best caption among all captions")
        if self.checkpoint:
            remarks.append(
                f"model: {Path(self.checkpoint.path).name}"
                if self.checkpoint.step is None
                else f"checkpoint: {self.checkpoint.rule}"
            )
            if self.checkpoint.started_from:
                remarks.append(f"training started from {self.checkpoint.started_from['model']}")
            left_out = [f"{count} {split} items" for split, count in self.checkpoint.missing.items() if count]
            if left_out:
                remarks.append(f"trained without {' and '.join(left_out)} that were missing")
        return remarks


def _read_record(path: Path) -> dict[str, Any]:
    """The JSON object of a result file, without its format and version, which are checked."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PassportError(f"{path}: no such file") from None
    except OSError as error:
        raise PassportError(f"{path} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise PassportError(f"{path} is not valid JSON ({error}); evaluate again") from None
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise PassportError(f"{path} is not a result of prota")
    version = record.pop("version", None)
    if version != _VERSION:
        raise PassportError(
            f"{path} is of format version {version}, this prota reads version {_VERSION}: "
            "upgrade prota, or evaluate again"
        )
    return record


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _hardware(device: torch.device | None) -> dict[str, Any]:
    """The machine and the device that was used."""
    gpu = None
    if device is not None and device.type == "cuda":
        import torch

        gpu = torch.cuda.get_device_name(device)
    used = None if device is None else str(device)
    return {"cpu": _cpu_model(), "cores": os.cpu_count(), "device": used, "gpu": gpu}


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git_state(root: Path) -> tuple[str | None, bool | None]:
    """Commit of a checkout, and whether it has changes; None each if not known."""
    # An installed prota may be inside the checkout of another project.
    if not (root / ".git").exists():
        return None, None
    commit, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return commit, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    # Inherited GIT_ variables, such as those of a hook, may name another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            env=clean | {"GIT_OPTIONAL_LOCKS": "0"},
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.strip()
