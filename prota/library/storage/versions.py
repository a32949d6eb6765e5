"""Which versions of the two datasets belong together, and how a writer makes the next pair.

`library.json` makes a folder a library and names its model. `head.json` names the versions of the two Lance datasets
that belong together. It is replaced last and atomically: readers see no version that it does not name.

An object store has no locks, so commits use optimistic concurrency. Each step of a commit makes exactly one version
of a dataset (`Draft`), and the head is replaced only if it has not changed since the commit began. A concurrent commit,
or a `roll_back` of what looks like a dead writer's work, makes the next step of a slow writer fail: the step gets an
unexpected version number, or the head has changed. No head then names the slow writer's versions, and the next
`roll_back` skips them. Conversely, if the slow writer replaces the head first, the other's write of the head fails, and
the versions that its `roll_back` made are skipped.

`docs/design.md` compares this with the alternatives.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import lance
import pyarrow as pa

from prota.library.records import LibraryError, ModelStamp
from prota.library.storage.location import ConflictError, Location, SmallFile, UnreachableError, short
from prota.library.storage.schema import VIDEO_SCHEMA, segment_schema

__all__ = ["SCHEMA", "Draft", "Head", "create_files", "dataset", "model_stamp", "open_at_head", "publish", "read_head"]
__all__ += ["read_library", "retried", "roll_back", "upgrade"]

FORMAT = "prota-library"
# 1: segments also repeated the path and the date of their video.
SCHEMA = 2
DATASETS = ("videos", "segments")
# Seconds before another writer's unfinished commit is rolled back.
PATIENCE = 4.0
# Attempts to commit to an object store, and seconds before the second; the pause doubles with each attempt.
TRIES, PAUSE = 6, 0.5
RESTORE = "restore it from a backup, or index again"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Head:
    """A version of a library, as readers see it."""

    version: int
    """Grows with each commit."""
    videos: int
    """Version of the dataset."""
    segments: int
    """Version of the dataset."""
    partitions: int = 0
    """Of the vector index; 0 without one."""
    read: SmallFile | None = field(default=None, compare=False)
    """The file it was read from; None before the first is written."""

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "read"}


def _read_json(location: Location, name: str) -> tuple[SmallFile | None, Any]:
    """A small file and the JSON object in it; None if the file does not exist."""
    try:
        file = location.read(name)
        values = json.loads(file.text)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except LibraryError:
        raise
    except (OSError, ValueError) as error:
        raise LibraryError(f"cannot read {location}/{name} ({error}): {RESTORE}") from error
    if not isinstance(values, dict):
        raise LibraryError(f"corrupt file: {location}/{name}: {RESTORE}")
    return file, values


def read_library(location: Location) -> dict[str, Any]:
    """The content of `library.json`: format, schema, model, created, and the first head."""
    file, values = _read_json(location, "library.json")
    if file is None:
        if _holds_rows(location):
            raise LibraryError(f"{location}/library.json is missing: {RESTORE} in another folder")
        raise LibraryError(f"no library at {location}: create one with `prota index FOLDER --library {location}`")
    if values.get("format") != FORMAT or not isinstance(values.get("schema"), int):
        raise LibraryError(f"{location}/library.json does not describe a library: give the folder of one")
    if values["schema"] > SCHEMA:
        raise LibraryError(
            f"{location} was written by a newer prota (schema {values['schema']}, not {SCHEMA}): update prota"
        )
    library: dict[str, Any] = values
    return library


def model_stamp(location: Location, library: dict[str, Any]) -> ModelStamp:
    """The model that `library.json` names."""
    try:
        return ModelStamp(**library["model"])
    except (KeyError, TypeError) as error:
        raise LibraryError(f"corrupt file: {location}/library.json: {RESTORE}") from error


def dataset(location: Location, name: str, version: int | None = None) -> lance.LanceDataset:
    """One of the two datasets, by default in its newest version."""
    try:
        return lance.dataset(location.dataset(name), version=version, storage_options=location.options)
    except (ValueError, OSError) as error:
        raise location.problem(error) from error


def _rows_in(location: Location, name: str) -> int | None:
    """The number of rows of the newest version of a dataset; None if it does not exist or cannot be read."""
    try:
        return int(dataset(location, name).count_rows())
    except LibraryError:
        # An unreachable object store does not show that there are none.
        raise
    except (ValueError, OSError):
        return None


def _holds_rows(location: Location) -> bool:
    return any(_rows_in(location, name) for name in DATASETS)


def read_head(location: Location) -> Head:
    """The head; the one in `library.json` if creation was interrupted before head.json was written."""
    file, values = _read_json(location, "head.json")
    if file is None:
        values = None if _holds_rows(location) else read_library(location).get("head")
    if values is None:
        raise LibraryError(f"{location}/head.json is missing: {RESTORE}")
    try:
        numbers: dict[str, Any] = {name: int(value) for name, value in values.items()}
        return Head(**numbers | {"read": file})
    except (TypeError, ValueError) as error:
        raise LibraryError(f"corrupt file: {location}/head.json: {RESTORE}") from error


def _write_head(location: Location, head: Head) -> Head:
    """Flush all files, then replace the head."""
    location.settle()
    return replace(head, read=location.write("head.json", json.dumps(head.to_json()), head.read))


def open_at_head(location: Location, at: Head | None = None) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The current head, or an earlier one, with its two datasets, videos and segments."""
    head = at or read_head(location)
    while True:
        try:
            return head, dataset(location, "videos", head.videos), dataset(location, "segments", head.segments)
        except LibraryError:
            raise
        except (ValueError, OSError) as error:
            if at is not None:
                raise LibraryError(f"version {at.version} of {location} was deleted ({short(error)})") from error
            # A concurrent writer may have committed and deleted old versions.
            newer = read_head(location)
            if newer == head:
                raise LibraryError(
                    f"{location}/head.json refers to missing data ({short(error)}): {RESTORE}"
                ) from error
            head = newer


def retried(location: Location, work: Callable[[], Result]) -> Result:
    """Run a commit that begins with reading the head and ends with replacing it; without a lock, retry on conflict.

    The answer to a request that the client cannot retry may also get lost. Pauses are random, so that of two writers in
    conflict one goes first.
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
    """The head with its two datasets, ready to be written; the unfinished commit of a dead writer is undone.

    Under a lock, its versions are deleted. Without a lock, the writer may be alive: it gets `PATIENCE` to finish, then
    a new version with the old content (Lance's restore) makes its next step fail.
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
        restored = _write_head(location, restored)
    return restored, videos, segments


class Draft:
    """A dataset being written, from one head to the next."""

    def __init__(self, location: Location, begun: lance.LanceDataset) -> None:
        self.location, self.dataset = location, begun

    @property
    def version(self) -> int:
        return int(self.dataset.version)

    def delete(self, where: str) -> None:
        with self._one_version():
            self.dataset.delete(where)

    def append(self, rows: pa.Table) -> None:
        with self._one_version():
            self.dataset = lance.write_dataset(rows, self.dataset, mode="append")

    def adopt(self, fragments: list[lance.fragment.FragmentMetadata]) -> None:
        """Append fragments that are written already."""
        operation = lance.LanceOperation.Append(fragments)
        with self._one_version():
            self.dataset = lance.LanceDataset.commit(self.dataset, operation, read_version=self.version)

    def drop_columns(self, names: list[str]) -> None:
        """Rewrites the schema, not the data."""
        with self._one_version():
            self.dataset.drop_columns(names)

    def tidy(self, work: Callable[[lance.LanceDataset], object]) -> None:
        """Do work that changes no rows; Lance may make several versions."""
        before = self.version
        work(self.dataset)
        if not self.location.exclusive and any(map(self._changed_rows, range(before + 1, self.version + 1))):
            raise ConflictError.at(self.location)

    def _changed_rows(self, version: int) -> bool:
        try:
            operation = self.dataset.read_transaction(version).operation
        except TypeError:
            # Lance 14 cannot represent a rewrite that also updates an index.
            return False
        # Lance reserves fragment ids with an operation that has no Python class of its own.
        quiet = (lance.LanceOperation.Rewrite, lance.LanceOperation.CreateIndex, lance.LanceOperation.BaseOperation)
        return type(operation) not in quiet

    @contextmanager
    def _one_version(self) -> Iterator[None]:
        """Lance merges concurrent commits without an error: ConflictError for such a version."""
        before = self.version
        yield
        if not self.location.exclusive and self.version > before + 1:
            raise ConflictError.at(self.location)


def publish(location: Location, head: Head, videos: Draft, segments: Draft) -> Head:
    """Replace the head by one that names these versions."""
    return _write_head(
        location, replace(head, version=head.version + 1, videos=videos.version, segments=segments.version)
    )


def create_files(location: Location, stamp: ModelStamp) -> None:
    """Write the files of an empty library; the lock is held.

    `library.json` is written last and names the first head: of several writers that create, the one that wrote it
    succeeds. The first `roll_back` writes the head to its own file.
    """
    if location.exists("library.json"):
        raise LibraryError(f"{location} already holds a library: open it, or choose another folder")
    if _holds_rows(location):
        raise LibraryError(f"{location}/library.json is missing: {RESTORE} in another folder")
    versions: dict[str, int] = {}
    for name, schema in zip(DATASETS, (VIDEO_SCHEMA, segment_schema(stamp)), strict=True):
        # An interrupted creation leaves at most empty datasets, or empty files after a power cut.
        location.discard(name)
        mode = "overwrite" if _rows_in(location, name) is not None else "create"
        uri, empty = location.dataset(name), schema.empty_table()
        versions[name] = lance.write_dataset(empty, uri, mode=mode, storage_options=location.options).version
    location.settle()
    head = Head(0, versions["videos"], versions["segments"])
    created = datetime.now(UTC).isoformat(timespec="seconds")
    library = {"format": FORMAT, "schema": SCHEMA, "model": asdict(stamp), "created": created, "head": head.to_json()}
    location.write("library.json", json.dumps(library, indent=2), None)


def upgrade(location: Location) -> None:
    """Upgrade a library of an older schema; the lock is held. After a crash it is repeated."""
    library = read_library(location)
    if library["schema"] == SCHEMA:
        return
    head, videos, segments = roll_back(location)
    if old := [name for name in ("path", "modified") if name in segments.dataset.schema.names]:
        segments.drop_columns(old)
        publish(location, head, videos, segments)
    location.write("library.json", json.dumps(library | {"schema": SCHEMA}, indent=2), location.read("library.json"))
