"""What a library says of itself, and which versions of its datasets belong together.

`library.json` says what the place is and which model made it. `head.json` names the versions of the two Lance datasets
that belong together and is written last, in one stroke: what it does not name does not exist.

On an object store nobody can be kept from writing, so a writer proves at the end that it was alone. Each step of its
own makes one version of a dataset (`Draft`), and the head is replaced only while it is the one that the writer began
with. Whoever comes between, be it a second writer or `take_back` undoing what looks like a dead one's work, either
makes a version, and the next step of the slow writer does not get the number it expects; or writes the head, and the
slow writer cannot any more. Either way the slow one's versions are named by no head, and the next `take_back` goes
past them. The other way round, a head that the slow writer did write makes the other's write fail, and the versions
that `take_back` made hold what an older head named: they, too, are passed over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import lance
import pyarrow as pa

from prota.library.place import Place, SmallFile
from prota.library.problems import DisturbedError, short
from prota.library.records import LibraryError, ModelStamp

__all__ = [
    "FORMAT",
    "Draft",
    "Head",
    "create_library",
    "dataset",
    "forget_versions",
    "model_stamp",
    "open_at_head",
    "read_head",
    "read_library",
    "take_back",
    "upgrade",
    "write_head",
]

FORMAT = "prota-library"
SCHEMA = 1
# Step n makes schema n + 1 of schema n. After a crash it is run again, so it must not mind its own work.
STEPS: dict[int, Callable[[Place], None]] = {}
DATASETS = ("videos", "segments")
# Seconds for which another writer's unfinished work is left alone.
PATIENCE = 4.0
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
    read: SmallFile | None = field(default=None, compare=False)
    """What it was read from; None where it is still to be written."""

    def to_json(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "read"}


def parsed(place: Place, name: str, file: SmallFile) -> dict[str, Any]:
    try:
        values = json.loads(file.text)
    except ValueError as error:
        raise LibraryError(f"{place.file(name)} cannot be read ({error}): {RESTORE}") from error
    if not isinstance(values, dict):
        raise LibraryError(f"{place.file(name)} is damaged: {RESTORE}")
    return values


def read_file(place: Place, name: str) -> SmallFile | None:
    """None where there is no such file."""
    try:
        return place.read(name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except LibraryError:
        raise
    except (OSError, ValueError) as error:
        raise LibraryError(f"{place.file(name)} cannot be read ({error}): {RESTORE}") from error


def read_library(place: Place) -> dict[str, Any]:
    """What `library.json` says: format, schema, model, created, and the head of the beginning."""
    file = read_file(place, "library.json")
    if file is None:
        if holds_rows(place):
            raise LibraryError(f"{place} has lost its library.json: {RESTORE} in another folder")
        raise LibraryError(f"no library at {place}: make one with `prota index PATH --library {place}`")
    values = parsed(place, "library.json", file)
    if values.get("format") != FORMAT or not isinstance(values.get("schema"), int):
        raise LibraryError(f"{place.file('library.json')} does not describe a library of prota: give the folder of one")
    if values["schema"] > SCHEMA:
        raise LibraryError(
            f"{place} was written by a newer prota (schema {values['schema']}, this one knows {SCHEMA}): update prota"
        )
    return values


def model_stamp(place: Place, library: dict[str, Any]) -> ModelStamp:
    """The model that `library.json` names."""
    try:
        return ModelStamp(**library["model"])
    except (KeyError, TypeError) as error:
        raise LibraryError(f"{place.file('library.json')} is damaged: {RESTORE}") from error


def dataset(place: Place, name: str, version: int | None = None) -> lance.LanceDataset:
    """One of the two datasets; its newest version, where none is given."""
    try:
        return lance.dataset(place.dataset(name), version=version, storage_options=place.options)
    except (ValueError, OSError) as error:
        raise place.problem(error) from error


def rows_in(place: Place, name: str) -> int | None:
    """How many rows the newest version of a dataset has; None where there is no dataset, or none that can be read."""
    try:
        return int(dataset(place, name).count_rows())
    except LibraryError:
        # That it cannot be asked for now says nothing of what is there.
        raise
    except (ValueError, OSError):
        return None


def holds_rows(place: Place) -> bool:
    return any(rows_in(place, name) for name in DATASETS)


def create_library(place: Place, stamp: ModelStamp, schemas: dict[str, pa.Schema]) -> None:
    """The files of an empty library; the caller holds the lock.

    `library.json` makes it one, so it names the first head: of several who create, all is of the one who wrote it. The
    first `take_back` writes the head to its own file.
    """
    if place.exists("library.json"):
        raise LibraryError(f"{place} holds a library already: open it, or choose another folder")
    if holds_rows(place):
        raise LibraryError(f"{place} holds a library that has lost its library.json: {RESTORE} in another folder")
    versions: dict[str, int] = {}
    for name, schema in schemas.items():
        # A creation that was cut short left empty datasets at most.
        mode = "overwrite" if rows_in(place, name) is not None else "create"
        uri, empty = place.dataset(name), schema.empty_table()
        versions[name] = lance.write_dataset(empty, uri, mode=mode, storage_options=place.options).version
    place.settle(set())
    head = Head(0, versions["videos"], versions["segments"])
    created = datetime.now(UTC).isoformat(timespec="seconds")
    library = {"format": FORMAT, "schema": SCHEMA, "model": asdict(stamp), "created": created, "head": head.to_json()}
    place.write("library.json", json.dumps(library, indent=2), None)


def upgrade(place: Place, library: dict[str, Any], write: bool) -> dict[str, Any]:
    """Take a library of an older schema to this one, step by step, if its lock is held for writing."""
    if library["schema"] < SCHEMA and not write:
        raise LibraryError(
            f"{place} was written by an older prota: upgrade it with `prota library compact --library {place}`"
        )
    while library["schema"] < SCHEMA:
        before = read_file(place, "library.json")
        STEPS[library["schema"]](place)
        library = library | {"schema": library["schema"] + 1}
        place.write("library.json", json.dumps(library, indent=2), before)
    return library


def read_head(place: Place) -> Head:
    """The head; that of the beginning where creating was cut short before it was written."""
    file = read_file(place, "head.json")
    values = read_library(place).get("head") if file is None else parsed(place, "head.json", file)
    if values is None or (file is None and holds_rows(place)):
        raise LibraryError(f"{place} has lost its head.json: {RESTORE}")
    try:
        numbers: dict[str, Any] = {name: int(value) for name, value in values.items()}
        return Head(**numbers | {"read": file})
    except (TypeError, ValueError) as error:
        raise LibraryError(f"{place.file('head.json')} is damaged: {RESTORE}") from error


def write_head(place: Place, head: Head) -> Head:
    """Make a state the one that counts; everything it names must be on disk."""
    return replace(head, read=place.write("head.json", json.dumps(head.to_json()), head.read))


def open_at_head(place: Place, at: Head | None = None) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The head, or one of before, with its two datasets, videos and segments, just as it names them."""
    head = at or read_head(place)
    while True:
        try:
            return head, dataset(place, "videos", head.videos), dataset(place, "segments", head.segments)
        except LibraryError:
            raise
        except (ValueError, OSError) as error:
            if at is not None:
                raise LibraryError(f"{place} no longer has its version {at.version} ({short(error)})") from error
            # A writer may have gone on, and cleaned up behind itself, since the head was read.
            newer = read_head(place)
            if newer == head:
                raise LibraryError(f"{place} lacks what its head.json names ({short(error)}): {RESTORE}") from error
            head = newer


def take_back(place: Place) -> tuple[Head, Draft, Draft]:
    """The head with its two datasets, ready to be written: what a writer that died had begun is undone.

    Lance goes back by a new version with the old content, so the head has to name that one from then on.
    """
    head, *_ = open_at_head(place)
    newest = [dataset(place, name) for name in DATASETS]
    until = time.monotonic() + (0.0 if place.exclusive else PATIENCE)
    while time.monotonic() < until and [present.version for present in newest] != [head.videos, head.segments]:
        # Where nobody can be kept away, who has begun may be alive, and about to finish.
        time.sleep(PATIENCE / 20)
        head, newest = read_head(place), [dataset(place, name) for name in DATASETS]
    drafts = []
    for present, version in zip(newest, (head.videos, head.segments), strict=True):
        begun = present if present.version == version else present.checkout_version(version)
        if begun is not present:
            begun.restore()
        drafts.append(Draft(place, begun))
    videos, segments = drafts
    found = replace(head, videos=videos.version, segments=segments.version)
    if found != head or head.read is None:
        place.settle(set())
        found = write_head(place, found)
    return found, videos, segments


class Draft:
    """A dataset on its way from one head to the next."""

    def __init__(self, place: Place, begun: lance.LanceDataset) -> None:
        self.place, self.dataset = place, begun

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
        """Append what is written already."""
        before = self.version
        operation = lance.LanceOperation.Append(fragments)
        self.dataset = lance.LanceDataset.commit(self.dataset, operation, read_version=before)
        self._alone(before)

    def tidy(self, work: Callable[[lance.LanceDataset], object]) -> None:
        """Work that changes no rows, in as many versions as Lance likes."""
        before = self.version
        work(self.dataset)
        if not self.place.exclusive and any(map(self._changed_rows, range(before + 1, self.version + 1))):
            raise DisturbedError.at(self.place)

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
        """Lance joins what another committed meanwhile to one's own: such a version must not become the library."""
        if not self.place.exclusive and self.version > before + 1:
            raise DisturbedError.at(self.place)


def forget_versions(present: lance.LanceDataset, grace: float, orphans: bool) -> None:
    """Free the disk of versions that were replaced more than so many seconds ago, and of files that no version names.

    A version's own age says nothing: until it was replaced, readers opened it. Without `orphans`, files that no version
    names stay for a week: someone may be about to commit them.
    """
    versions = sorted(present.versions(), key=lambda version: int(version["version"]))
    before = time.time() - grace
    replaced = [int(old["version"]) for old, new in pairwise(versions) if new["timestamp"].timestamp() <= before]
    # Another may have begun a newer version; this one is the library until a head says otherwise.
    replaced = [version for version in replaced if version < present.version]
    which: dict[str, Any] = {"versions": replaced} if replaced else {"older_than": timedelta(days=36500)}
    present.cleanup_old_versions(**which, delete_unverified=orphans)
