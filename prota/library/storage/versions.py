"""Which versions of the two datasets belong together, and how a writer makes the next pair.

`library.json` makes a folder a library and names its model. `head.json` names the versions of the two Lance datasets
that belong together. It is replaced last and atomically: readers see no version that it does not name.

An object store has no locks, so commits use optimistic concurrency. Each step of a commit makes exactly one version
of a dataset (`Draft`), and the head is replaced only if it has not changed since the commit began. A concurrent commit,
or a `roll_back` of what looks like a dead writer's work, makes the next step of a slow writer fail: the step gets an
unexpected version number, or the head has changed. No head then names the slow writer's versions, and the next
`roll_back` skips them. Conversely, if the slow writer replaces the head first, the other's write of the head fails, and
the versions that its `roll_back` made are skipped.

In a folder the head has checksums of the small files that it names, and `spare/` has copies of them: `repair` restores
them.

`docs/design.md` compares this with the alternatives.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import lance
import pyarrow as pa

from prota.library.records import DamagedError, LibraryError, ModelStamp
from prota.library.storage.location import (
    LAST_VERSION,
    ConflictError,
    Location,
    SmallFile,
    UnreachableError,
    contained,
    short,
)
from prota.library.storage.schema import (
    CHECK,
    VIDEO_SCHEMA,
    segment_schema,
    video_records,
    video_table,
    with_checks,
)

__all__ = ["DATASETS", "LIBRARY", "SCHEMA", "Draft", "Head", "create_files", "dataset", "index_checks", "is_whole"]
__all__ += [
    "library_text",
    "model_stamp",
    "open_at_head",
    "publish",
    "read_head",
    "read_library",
    "retried",
    "roll_back",
]
__all__ += ["sealed", "upgrade", "write_head"]

FORMAT = "prota-library"
# 1: segments also repeated the path and the date of their video. 2: without checksums.
SCHEMA = 3
DATASETS = ("videos", "segments")
LIBRARY = "library.json"
# Seconds before another writer's unfinished commit is rolled back.
PATIENCE = 4.0
# Attempts to commit to an object store, and seconds before the second; the pause doubles with each attempt.
TRIES, PAUSE = 6, 0.5

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
    files: Mapping[str, int] = field(default_factory=dict)
    """Checksums of the small files of both versions, see `small_files`; none in libraries of older schemas."""
    indices: Mapping[str, int] = field(default_factory=dict)
    """Checksums of the files of the vector index."""
    read: SmallFile | None = field(default=None, compare=False)
    """The file it was read from; None before the first is written."""

    @classmethod
    def of_json(cls, values: Mapping[str, Any], read: SmallFile | None = None) -> Head:
        """ValueError, TypeError or LookupError for anything else than a head."""
        version, videos, segments = (int(values[name]) for name in ("version", "videos", "segments"))
        files, indices = (
            {str(name): int(value) for name, value in values.get(part, {}).items()} for part in ("files", "indices")
        )
        head = cls(version, videos, segments, int(values.get("partitions", 0)), files, indices, read)
        if unknown := values.keys() - head.to_json().keys() - {CHECK}:
            raise ValueError(f"unknown: {', '.join(unknown)}")
        return head

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "read"}


def _check_of(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps({name: values[name] for name in values if name != CHECK}, sort_keys=True).encode())


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with its checksum."""
    return {**values, CHECK: _check_of(values)}


def read_json(location: Location, name: str) -> tuple[SmallFile | None, Any]:
    """A small file and the JSON object in it; None if the file does not exist."""
    try:
        file = location.read(name)
        values = json.loads(file.text)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except LibraryError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedError.at(location, f"cannot read {location}/{name} ({error})") from error
    if not isinstance(values, dict) or values.get(CHECK, _check_of(values)) != _check_of(values):
        raise DamagedError.at(location, f"corrupt file: {location}/{name}")
    return file, values


def read_library(location: Location) -> dict[str, Any]:
    """The content of `library.json`: format, schema, model, created, and the first head."""
    file, values = read_json(location, LIBRARY)
    if file is None:
        if _holds_rows(location):
            raise DamagedError.at(location, f"{location}/{LIBRARY} is missing")
        raise LibraryError(f"no library at {location}: create one with `prota index FOLDER --library {location}`")
    if values.get("format") != FORMAT or not isinstance(values.get("schema"), int):
        raise LibraryError(f"{location}/{LIBRARY} does not describe a library: give the folder of one")
    if values["schema"] == SCHEMA and CHECK not in values:
        raise DamagedError.at(location, f"corrupt file: {location}/{LIBRARY}")
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
        raise DamagedError.at(location, f"corrupt file: {location}/{LIBRARY}") from error


def dataset(location: Location, name: str, version: int | None = None) -> lance.LanceDataset:
    """One of the two datasets, by default in its newest version."""
    try:
        with contained():
            return lance.dataset(location.dataset(name), version=version, storage_options=location.options)
    except (ValueError, OSError) as error:
        raise location.problem(error) from error


def _rows_in(location: Location, name: str) -> int | None:
    """The number of rows of the newest version of a dataset; None if it does not exist or cannot be read."""
    try:
        return int(dataset(location, name).count_rows())
    except (ValueError, OSError, RuntimeError) as error:
        if isinstance(error, LibraryError) and not isinstance(error, DamagedError):
            # An unreachable object store does not show that there are none.
            raise
        return None


def _holds_rows(location: Location) -> bool:
    return any(_rows_in(location, name) for name in DATASETS)


def read_head(location: Location) -> Head:
    """The head; the one in `library.json` if creation was interrupted before head.json was written."""
    file, values = read_json(location, "head.json")
    if file is None:
        values = None if _holds_rows(location) else read_library(location).get("head")
    if values is None:
        raise DamagedError.at(location, f"{location}/head.json is missing")
    try:
        return Head.of_json(values, file)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise DamagedError.at(location, f"corrupt file: {location}/head.json") from error


def small_files(location: Location, name: str, present: lance.LanceDataset) -> dict[str, bytes]:
    """In a folder, the files of a version by name: its manifest, its lists of deleted rows, and the rows of videos."""
    if not location.exclusive:
        return {}
    # Manifest names count down, so that the newest version sorts first.
    names = [f"_versions/{LAST_VERSION - int(present.version):020d}.manifest"]
    for fragment in present.get_fragments():
        if (deleted := fragment.deletion_file()) is not None:
            names.append(deleted)
        if name == "videos":
            names += [f"data/{file.path}" for file in fragment.data_files()]
    return {path: location.content(path) for path in (f"{name}.lance/{part}" for part in names)}


def is_whole(location: Location, head: Head, path: str) -> bool:
    """Whether a small file that a head names exists and agrees with its checksum."""
    try:
        return zlib.crc32(location.content(path)) == head.files[path]
    except FileNotFoundError:
        return False


def index_checks(
    location: Location, segments: lance.LanceDataset, known: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Checksums of the parts of the vector index; those that are ``known`` are not computed."""
    names = [str(part.uuid) for index in segments.describe_indices() for part in index.segments]
    return {name: (known or {}).get(name) or location.checksum(f"segments.lance/_indices/{name}") for name in names}


def write_head(location: Location, head: Head, videos: lance.LanceDataset, segments: lance.LanceDataset) -> Head:
    """Flush all files, then replace the head by one of these two versions."""
    location.settle()
    files = small_files(location, "videos", videos) | small_files(location, "segments", segments)
    checks = {path: zlib.crc32(content) for path, content in files.items()}
    indices = index_checks(location, segments, head.indices) if head.partitions else {}
    head = replace(head, videos=int(videos.version), segments=int(segments.version), files=checks, indices=indices)
    text = json.dumps(sealed(head.to_json()))
    # Before the head: a corrupt description must not replace its copy.
    library = library_text(read_library(location)) if location.exclusive else ""
    head = replace(head, read=location.write("head.json", text, head.read))
    location.keep({**files, LIBRARY: library.encode(), "head.json": text.encode()})
    return head


def open_at_head(location: Location, at: Head | None = None) -> tuple[Head, lance.LanceDataset, lance.LanceDataset]:
    """The current head, or an earlier one, with its two datasets, videos and segments."""
    head = at or read_head(location)
    while True:
        try:
            if corrupt := [path for path in head.files if not is_whole(location, head, path)]:
                raise DamagedError.at(location, f"{location}/{corrupt[0]} is corrupt or missing")
            return head, dataset(location, "videos", head.videos), dataset(location, "segments", head.segments)
        except (ValueError, OSError, RuntimeError) as error:
            if isinstance(error, LibraryError) and not isinstance(error, DamagedError):
                raise
            if at is not None:
                raise LibraryError(f"version {at.version} of {location} was deleted ({short(error)})") from error
            # A concurrent writer may have committed and deleted old versions.
            newer = read_head(location)
            if newer == head:
                if isinstance(error, LibraryError):
                    raise
                problem = f"{location}/head.json refers to missing data ({short(error)})"
                raise DamagedError.at(location, problem) from error
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
    if (videos.version, segments.version) != (head.videos, head.segments) or head.read is None:
        head = write_head(location, head, videos.dataset, segments.dataset)
    return head, videos, segments


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

    def overwrite(self, rows: pa.Table) -> None:
        """Replace all rows, and the schema."""
        with self._one_version():
            self.dataset = lance.write_dataset(rows, self.dataset, mode="overwrite")

    def exchange(self, removed: list[int], fragments: list[lance.fragment.FragmentMetadata]) -> None:
        """Replace some fragments, by their ids, with others that are written already."""
        operation = lance.LanceOperation.Update(removed_fragment_ids=removed, new_fragments=fragments)
        with self._one_version():
            self.dataset = lance.LanceDataset.commit(self.dataset, operation, read_version=self.version)

    def adopt(self, fragments: list[lance.fragment.FragmentMetadata]) -> None:
        """Append fragments that are written already."""
        operation = lance.LanceOperation.Append(fragments)
        with self._one_version():
            self.dataset = lance.LanceDataset.commit(self.dataset, operation, read_version=self.version)

    def drop_columns(self, names: list[str]) -> None:
        """Rewrites the schema, not the data."""
        with self._one_version():
            self.dataset.drop_columns(names)

    def add_checks(self, stamp: ModelStamp) -> None:
        """Add the checksums of segments. Reads all of them."""
        schema = segment_schema(stamp)
        add = lance.batch_udf(output_schema=pa.schema([schema.field(CHECK)]))
        columns = [name for name in schema.names if name != CHECK]
        with self._one_version():
            self.dataset.add_columns(
                add(lambda batch: with_checks(batch, stamp).select([CHECK])), read_columns=columns, batch_size=512
            )

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
    return write_head(location, replace(head, version=head.version + 1), videos.dataset, segments.dataset)


def create_files(location: Location, stamp: ModelStamp) -> None:
    """Write the files of an empty library; the lock is held.

    `library.json` is written last and names the first head: of several writers that create, the one that wrote it
    succeeds. The first `roll_back` writes the head to its own file.
    """
    if location.exists(LIBRARY):
        raise LibraryError(f"{location} already holds a library: open it, or choose another folder")
    if _holds_rows(location):
        raise DamagedError.at(location, f"{location}/{LIBRARY} is missing")
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
    location.write(LIBRARY, library_text(library), None)


def library_text(library: Mapping[str, Any]) -> str:
    """`library.json`."""
    return json.dumps(sealed(library), indent=2)


def upgrade(location: Location) -> None:
    """Upgrade a library of an older schema; the lock is held. After a crash it is repeated."""
    library = read_library(location)
    if library["schema"] == SCHEMA:
        return
    head, videos, segments = roll_back(location)
    if old := [name for name in ("path", "modified") if name in segments.dataset.schema.names]:
        segments.drop_columns(old)
    if CHECK not in segments.dataset.schema.names:
        segments.add_checks(model_stamp(location, library))
    if CHECK not in videos.dataset.schema.names:
        videos.overwrite(video_table(list(video_records(videos.dataset.to_table()))))
    head = publish(location, head, videos, segments)
    location.write(LIBRARY, library_text(library | {"schema": SCHEMA}), location.read(LIBRARY))
    # The spare copy, too.
    write_head(location, head, videos.dataset, segments.dataset)
