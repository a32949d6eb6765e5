"""The folder of a library: what it says of itself, who writes it, and which versions of its datasets belong together.

`library.json` says what the folder is and which model made it. `head.json` names the versions of the two Lance datasets
that belong together and is written last, in one stroke: what it does not name does not exist.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import lance
import pyarrow as pa

from prota.files import hold, write_atomically
from prota.library.records import LibraryError, ModelStamp

__all__ = [
    "FORMAT",
    "Head",
    "create_folder",
    "files_of",
    "flush",
    "forget_versions",
    "lock_folder",
    "model_stamp",
    "open_at_head",
    "read_library",
    "settle",
    "short",
    "take_back",
    "upgrade",
    "write_head",
]

FORMAT = "prota-library"
SCHEMA = 1
# Step n makes schema n + 1 of schema n. After a crash it is run again, so it must not mind its own work.
STEPS: dict[int, Callable[[Path], None]] = {}
RESTORE = "restore it from a backup, or index anew"


@dataclass(frozen=True)
class Head:
    """The state of a library: what readers see."""

    version: int
    """Grows with each commit."""
    videos: int
    """Version of the dataset."""
    segments: int
    """Version of the dataset."""
    partitions: int = 0
    """Of the vector index; 0 where there is none."""


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LibraryError(f"{path} cannot be read ({error}): {RESTORE}") from error
    if not isinstance(values, dict):
        raise LibraryError(f"{path} is damaged: {RESTORE}")
    return values


def read_library(folder: Path) -> dict[str, Any]:
    """What `library.json` says: format, schema, model, created."""
    # This is the last file that creating a library writes.
    if not (folder / "library.json").exists():
        if holds_segments(folder):
            raise LibraryError(f"{folder} has lost its library.json: {RESTORE} in another folder")
        raise LibraryError(f"no library at {folder}: make one with `prota index PATH --library {folder}`")
    values = read_json(folder / "library.json")
    if values.get("format") != FORMAT or not isinstance(values.get("schema"), int):
        raise LibraryError(f"{folder / 'library.json'} does not describe a library of prota: give the folder of one")
    if values["schema"] > SCHEMA:
        raise LibraryError(
            f"{folder} was written by a newer prota (schema {values['schema']}, this one knows {SCHEMA}): update prota"
        )
    return values


def model_stamp(folder: Path, library: dict[str, Any]) -> ModelStamp:
    """The model that `library.json` names."""
    try:
        return ModelStamp(**library["model"])
    except (KeyError, TypeError) as error:
        raise LibraryError(f"{folder / 'library.json'} is damaged: {RESTORE}") from error


def holds_segments(folder: Path) -> bool:
    try:
        return bool(lance.dataset(str(folder / "segments.lance")).count_rows())
    except (ValueError, OSError):
        return False


def create_folder(folder: Path, stamp: ModelStamp, schemas: dict[str, pa.Schema]) -> None:
    """The files of an empty library; the caller holds the lock."""
    if (folder / "library.json").exists():
        raise LibraryError(f"{folder} holds a library already: open it, or choose another folder")
    if holds_segments(folder):
        raise LibraryError(f"{folder} holds a library that has lost its library.json: {RESTORE} in another folder")
    versions: dict[str, int] = {}
    for name, schema in schemas.items():
        # A creation that was cut short left empty datasets at most.
        mode = "overwrite" if (folder / f"{name}.lance").exists() else "create"
        versions[name] = lance.write_dataset(schema.empty_table(), str(folder / f"{name}.lance"), mode=mode).version
    settle(folder, set())
    write_head(folder, Head(version=0, **versions))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    library = {"format": FORMAT, "schema": SCHEMA, "model": asdict(stamp), "created": created}
    write_atomically(folder / "library.json", json.dumps(library, indent=2))


def upgrade(folder: Path, library: dict[str, Any], write: bool) -> dict[str, Any]:
    """Take a library of an older schema to this one, step by step, if its lock is held for writing."""
    if library["schema"] < SCHEMA and not write:
        raise LibraryError(f"{folder} was written by an older prota: upgrade it with `prota library compact {folder}`")
    while library["schema"] < SCHEMA:
        STEPS[library["schema"]](folder)
        library = library | {"schema": library["schema"] + 1}
        write_atomically(folder / "library.json", json.dumps(library, indent=2))
    return library


def lock_folder(folder: Path, wait: float) -> TextIO:
    """The writer's lock, waited for as long as allowed; its file tells others who holds it."""
    path = folder / "writer.lock"
    until = time.monotonic() + wait
    while True:
        try:
            lock = hold(path)
        except BlockingIOError as error:
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            who = path.read_text(encoding="utf-8").strip() or "another process"
            raise LibraryError(f"{folder} is being written by {who}: try again when it is done, or end it") from error
        except OSError as error:
            raise LibraryError(f"{folder} cannot be written ({error.strerror}): see to its permissions") from error
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n")
        lock.flush()
        return lock


def read_head(folder: Path) -> Head:
    path = folder / "head.json"
    values = read_json(path)
    try:
        return Head(**{name: int(value) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise LibraryError(f"{path} is damaged: {RESTORE}") from error


def write_head(folder: Path, head: Head) -> None:
    """Make a state the one that counts; everything it names must be on disk."""
    write_atomically(folder / "head.json", json.dumps(asdict(head)))


def open_at_head(folder: Path) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The head with its two datasets, videos and segments, just as it names them."""
    head = read_head(folder)
    while True:
        try:
            videos = lance.dataset(str(folder / "videos.lance"), version=head.videos)
            return head, videos, lance.dataset(str(folder / "segments.lance"), version=head.segments)
        except (ValueError, OSError) as error:
            # A writer may have gone on, and cleaned up behind itself, since the head was read.
            newer = read_head(folder)
            if newer == head:
                raise LibraryError(f"{folder} lacks what its head.json names ({short(error)}): {RESTORE}") from error
            head = newer


def take_back(folder: Path) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The head with its two datasets, ready to be written: what a writer that died had begun is undone.

    Lance goes back by a new version with the old content, so the head has to name that one from then on.
    """
    head, *_ = open_at_head(folder)
    datasets = []
    for name in ("videos", "segments"):
        dataset = lance.dataset(str(folder / f"{name}.lance"))
        if dataset.version != getattr(head, name):
            dataset = dataset.checkout_version(getattr(head, name))
            dataset.restore()
        datasets.append(dataset)
    videos, segments = datasets
    found = replace(head, videos=videos.version, segments=segments.version)
    if found != head:
        settle(folder, set())
        write_head(folder, found)
    return found, videos, segments


def files_of(folder: Path) -> set[str]:
    """All files of the two datasets."""
    roots = (folder / "videos.lance", folder / "segments.lance")
    return {os.path.join(parent, name) for root in roots for parent, _, names in os.walk(root) for name in names}


def settle(folder: Path, settled: set[str]) -> None:
    """Have all files of the datasets on disk that are not known to be: Lance leaves that to the system's leisure."""
    files = files_of(folder)
    fresh = files - settled
    folders = {str(parent) for path in fresh for parent in Path(path).parents if parent.is_relative_to(folder)}
    flush(fresh | folders)
    settled.clear()
    settled.update(files)


def flush(paths: Iterable[str]) -> None:
    """Have these files and folders on disk."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Lance gives a file its name when it is whole: what a worker still writes goes by another until then.
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def forget_versions(dataset: lance.LanceDataset, grace: float, orphans: bool) -> None:
    """Free the disk of versions that were replaced more than so many seconds ago, and of files that no version names.

    A version's own age says nothing: until it was replaced, readers opened it. Without `orphans`, files that no version
    names stay for a week: someone may be about to commit them.
    """
    versions = sorted(dataset.versions(), key=lambda version: int(version["version"]))
    before = time.time() - grace
    replaced = [int(old["version"]) for old, new in pairwise(versions) if new["timestamp"].timestamp() <= before]
    which: dict[str, Any] = {"versions": replaced} if replaced else {"older_than": timedelta(days=36500)}
    dataset.cleanup_old_versions(**which, delete_unverified=orphans)


def short(error: BaseException) -> str:
    """What Lance says, without the places in its own source."""
    text = re.sub(r",\s/\S+\.rs:\d+(:\d+)?", "", " ".join(str(error).split()))
    return text.replace("Invalid user input: ", "").replace("External error: ", "") or type(error).__name__
