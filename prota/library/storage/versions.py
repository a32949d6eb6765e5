"""Which versions of the two datasets belong together, and how a writer makes the next pair.

`library.json` says what the folder is and which model made it. `head.json` names the versions of the two Lance datasets
that belong together. It is replaced last and atomically: a version that it does not name does not exist for readers.

On an object store, which has no locks, commits use optimistic concurrency. Each step of a commit makes exactly one
version of a dataset (`Draft`), and the head is replaced only if it is still the one that the commit began with. If a
second writer comes in between, or `roll_back` undoes what looks like the work of a dead one, either it makes a version,
and the next step of the slow writer does not get the number that it expects; or it writes the head, and the slow writer
no longer can. The slow writer's versions are then named by no head, and the next `roll_back` passes them by. The other
way round, a head that the slow writer did write makes the other's write fail, and the versions that `roll_back` made
hold what an older head named: they are passed by, too.

`docs/design.md` compares this with what else was tried.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import lance
import pyarrow as pa

from prota.library.records import LibraryError, ModelStamp
from prota.library.storage.location import ConflictError, Location, SmallFile, UnreachableError, short

__all__ = [
    "DATASETS",
    "FORMAT",
    "RESTORE",
    "SCHEMA",
    "Draft",
    "Head",
    "dataset",
    "holds_rows",
    "model_stamp",
    "open_at_head",
    "publish",
    "read_head",
    "read_library",
    "retried",
    "roll_back",
    "rows_in",
    "write_head",
]

FORMAT = "prota-library"
# 1: segments also repeated the path and the time of their video.
SCHEMA = 2
DATASETS = ("videos", "segments")
# Seconds for which another writer's unfinished work is left alone.
PATIENCE = 4.0
# How often a commit to an object store is tried, and seconds before the second time; each pause may be twice as long.
TRIES, PAUSE = 6, 0.5
RESTORE = "restore it from a backup, or index anew"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Head:
    """A version of a library: what readers see."""

    version: int
    """Grows with each commit."""
    videos: int
    """Version of the dataset."""
    segments: int
    """Version of the dataset."""
    partitions: int = 0
    """Of the vector index; 0 without one."""
    read: SmallFile | None = field(default=None, compare=False)
    """What it was read from; None if it is not written yet."""

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "read"}


def parsed(location: Location, name: str, file: SmallFile) -> dict[str, Any]:
    try:
        values = json.loads(file.text)
    except ValueError as error:
        raise LibraryError(f"{location.file(name)} cannot be read ({error}): {RESTORE}") from error
    if not isinstance(values, dict):
        raise LibraryError(f"{location.file(name)} is damaged: {RESTORE}")
    return values


def read_file(location: Location, name: str) -> SmallFile | None:
    """None if the file does not exist."""
    try:
        return location.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LibraryError:
        raise
    except (OSError, ValueError) as error:
        raise LibraryError(f"{location.file(name)} cannot be read ({error}): {RESTORE}") from error


def read_library(location: Location) -> dict[str, Any]:
    """The content of `library.json`: format, schema, model, created, and the first head."""
    file = read_file(location, "library.json")
    if file is None:
        if holds_rows(location):
            raise LibraryError(f"{location} has lost its library.json: {RESTORE} in another folder")
        raise LibraryError(f"no library at {location}: make one with `prota index PATH --library {location}`")
    values = parsed(location, "library.json", file)
    if values.get("format") != FORMAT or not isinstance(values.get("schema"), int):
        raise LibraryError(
            f"{location.file('library.json')} does not describe a library of prota: give the folder of one"
        )
    if values["schema"] > SCHEMA:
        raise LibraryError(
            f"{location} was written by a newer prota (schema {values['schema']}, not {SCHEMA}): update prota"
        )
    return values


def model_stamp(location: Location, library: dict[str, Any]) -> ModelStamp:
    """The model that `library.json` names."""
    try:
        return ModelStamp(**library["model"])
    except (KeyError, TypeError) as error:
        raise LibraryError(f"{location.file('library.json')} is damaged: {RESTORE}") from error


def dataset(location: Location, name: str, version: int | None = None) -> lance.LanceDataset:
    """One of the two datasets, by default in its newest version."""
    try:
        return lance.dataset(location.dataset(name), version=version, storage_options=location.options)
    except (ValueError, OSError) as error:
        raise location.problem(error) from error


def rows_in(location: Location, name: str) -> int | None:
    """The number of rows of the newest version of a dataset; None if it does not exist or cannot be read."""
    try:
        return int(dataset(location, name).count_rows())
    except LibraryError:
        # An object store that does not answer now is no proof that there are none.
        raise
    except (ValueError, OSError):
        return None


def holds_rows(location: Location) -> bool:
    return any(rows_in(location, name) for name in DATASETS)


def read_head(location: Location) -> Head:
    """The head; the first one if creation was interrupted before head.json was written."""
    file = read_file(location, "head.json")
    values = read_library(location).get("head") if file is None else parsed(location, "head.json", file)
    if values is None or (file is None and holds_rows(location)):
        raise LibraryError(f"{location} has lost its head.json: {RESTORE}")
    try:
        numbers: dict[str, Any] = {name: int(value) for name, value in values.items()}
        return Head(**numbers | {"read": file})
    except (TypeError, ValueError) as error:
        raise LibraryError(f"{location.file('head.json')} is damaged: {RESTORE}") from error


def write_head(location: Location, head: Head) -> Head:
    """Make a version the present one; everything it names must be on disk."""
    return replace(head, read=location.write("head.json", json.dumps(head.to_json()), head.read))


def open_at_head(location: Location, at: Head | None = None) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The present head, or an earlier one, with its two datasets, videos and segments."""
    head = at or read_head(location)
    while True:
        try:
            return head, dataset(location, "videos", head.videos), dataset(location, "segments", head.segments)
        except LibraryError:
            raise
        except (ValueError, OSError) as error:
            if at is not None:
                raise LibraryError(f"{location} no longer has its version {at.version} ({short(error)})") from error
            # A writer may have committed and deleted old versions since the head was read.
            newer = read_head(location)
            if newer == head:
                raise LibraryError(f"{location} lacks what its head.json names ({short(error)}): {RESTORE}") from error
            head = newer


def retried(location: Location, work: Callable[[], Result]) -> Result:
    """Do a commit that reads the newest head and ends with one of its own; repeat it on conflict.

    Under a lock once is enough. Without, another writer may come in between, or the answer to a request that no client
    may repeat gets lost. The pauses are random, so that one of two writers in conflict goes first.
    """
    tries = 1 if location.exclusive else TRIES
    for attempt in range(1, tries + 1):
        try:
            return work()
        except (ConflictError, UnreachableError, OSError, RuntimeError) as error:
            problem = location.problem(error)
        if attempt == tries or not isinstance(problem, ConflictError | UnreachableError):
            break
        time.sleep(random.uniform(0, PAUSE * 2**attempt))
    raise problem


def roll_back(location: Location) -> tuple[Head, Draft, Draft]:
    """The head with its two datasets, ready to be written: the unfinished commit of a dead writer is undone.

    Under a lock, the versions that it made are deleted. Without, the writer may be alive and about to finish: it gets
    some time, and then a new version with the old content (Lance's restore) makes its next step fail.
    """
    head, *found = open_at_head(location)
    if location.exclusive:
        for name in DATASETS:
            location.discard(name, getattr(head, name))
    else:
        newest = [dataset(location, name) for name in DATASETS]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and [present.version for present in newest] != [head.videos, head.segments]:
            time.sleep(PATIENCE / 20)
            head, newest = read_head(location), [dataset(location, name) for name in DATASETS]
        found = [
            present if present.version == version else present.checkout_version(version)
            for present, version in zip(newest, (head.videos, head.segments), strict=True)
        ]
        for begun, present in zip(found, newest, strict=True):
            if begun is not present:
                begun.restore()
    videos, segments = (Draft(location, begun) for begun in found)
    restored = replace(head, videos=videos.version, segments=segments.version)
    if restored != head or head.read is None:
        location.settle()
        restored = write_head(location, restored)
    return restored, videos, segments


class Draft:
    """A dataset on its way from one head to the next."""

    def __init__(self, location: Location, begun: lance.LanceDataset) -> None:
        self.location, self.dataset = location, begun

    @property
    def version(self) -> int:
        return int(self.dataset.version)

    def delete(self, where: str) -> None:
        before = self.version
        self.dataset.delete(where)
        self._alone(before)

    def append(self, rows: pa.Table | pa.RecordBatchReader) -> None:
        before = self.version
        self.dataset = lance.write_dataset(rows, self.dataset, mode="append")
        self._alone(before)

    def adopt(self, fragments: list[lance.fragment.FragmentMetadata]) -> None:
        """Append fragments that are written already."""
        before = self.version
        operation = lance.LanceOperation.Append(fragments)
        self.dataset = lance.LanceDataset.commit(self.dataset, operation, read_version=before)
        self._alone(before)

    def drop_columns(self, names: list[str]) -> None:
        """Only the description of the table is written anew, not its data."""
        before = self.version
        self.dataset.drop_columns(names)
        self._alone(before)

    def tidy(self, work: Callable[[lance.LanceDataset], object]) -> None:
        """Work that changes no rows; Lance may make several versions of it."""
        before = self.version
        work(self.dataset)
        if not self.location.exclusive and any(map(self._changed_rows, range(before + 1, self.version + 1))):
            raise ConflictError.at(self.location)

    def _changed_rows(self, version: int) -> bool:
        try:
            operation = self.dataset.read_transaction(version).operation
        except TypeError:
            # Lance 14 stumbles over what it tells of a rewrite that took an index along.
            return False
        # Numbers for new files are set aside by an operation that Python is not told more of.
        quiet = (lance.LanceOperation.Rewrite, lance.LanceOperation.CreateIndex, lance.LanceOperation.BaseOperation)
        return type(operation) not in quiet

    def _alone(self, before: int) -> None:
        """Lance merges concurrent commits without an error: such a version must not become the library."""
        if not self.location.exclusive and self.version > before + 1:
            raise ConflictError.at(self.location)


def publish(location: Location, head: Head, videos: Draft, segments: Draft) -> Head:
    """Make these versions the library."""
    location.settle()
    return write_head(
        location, replace(head, version=head.version + 1, videos=videos.version, segments=segments.version)
    )
