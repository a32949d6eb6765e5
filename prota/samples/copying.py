"""Copy the sample clips to a folder, each file complete or absent, and never over a user's own file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import av

from prota.errors import ProtaError
from prota.files import hold, write_atomically

__all__ = ["CLIPS", "Copied", "SamplesError", "copy_samples"]

CLIPS = Path(__file__).parent / "clips"
TABLE, SOURCES = "samples.csv", "sources.txt"
# How files of this and of earlier versions begin: the comment in a clip, and the first line of a text.
MARK = "prota samples"
HEADS = {TABLE: ("video,caption,start,end\n",), SOURCES: ("Clips of `prota samples`:", "Made by `prota samples`:")}


class SamplesError(ProtaError, RuntimeError):
    """The folder is in use, or holds a file of the same name that is not a sample."""

    code = "samples"


@dataclass(frozen=True)
class Copied:
    """Names of clips."""

    copied: list[str]
    unchanged: list[str]
    removed: list[str]
    """Clips of an earlier version, listed in the folder's own table."""


def copy_samples(folder: Path, source: Path = CLIPS) -> Copied:
    """Copy clips, table and sources that are missing or of another version; remove clips that exist no longer."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = hold(folder / ".lock")
    except BlockingIOError:
        raise SamplesError(f"another process is copying samples to {folder}: wait for it") from None
    with lock:
        clips = sorted(path.name for path in source.glob("*.mp4"))
        content = {name: (source / name).read_bytes() for name in (*clips, SOURCES, TABLE)}
        other = [name for name in content if _differs(folder / name, content[name])]
        removed = _former(folder, clips)
        for name in removed:
            (folder / name).unlink()
        for name in content:
            # With the lock held, these were left by runs that were killed.
            for left in folder.glob(f".{name}.*tmp"):
                left.unlink()
            if name in other:
                write_atomically(folder / name, content[name])
        return Copied([name for name in clips if name in other], [name for name in clips if name not in other], removed)


def _differs(path: Path, content: bytes) -> bool:
    """Whether a file is missing or of another version; SamplesError where it is the user's own."""
    if not path.exists():
        return True
    if path.is_file() and path.read_bytes() == content:
        return False
    if not _ours(path):
        raise SamplesError(f"{path} is not a file of `prota samples`: move it, or choose another folder")
    return True


def _ours(path: Path) -> bool:
    try:
        if path.name in HEADS:
            return path.read_bytes().startswith(tuple(head.encode() for head in HEADS[path.name]))
        with av.open(str(path.absolute()), metadata_errors="replace") as file:
            return str(file.metadata.get("comment", "")).startswith(MARK)
    except (OSError, ValueError):
        return False


def _former(folder: Path, clips: list[str]) -> list[str]:
    """Clips that the folder's table lists and the source does not have."""
    table = folder / TABLE
    if not table.exists():
        return []
    with table.open(newline="", encoding="utf-8", errors="replace") as file:
        listed = {Path(row["video"]).name for row in csv.DictReader(file)}
    return [name for name in sorted(listed - set(clips)) if _ours(folder / name)]
