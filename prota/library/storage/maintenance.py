"""Making, upgrading and keeping small the files of a library."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import lance
import pyarrow as pa

from prota.library.records import LibraryError, ModelStamp
from prota.library.storage.location import Location
from prota.library.storage.versions import (
    FORMAT,
    RESTORE,
    SCHEMA,
    Head,
    holds_rows,
    publish,
    read_library,
    roll_back,
    rows_in,
)

__all__ = ["FRAGMENT_ROWS", "build_index", "create_files", "forget_versions", "join_files", "scattered", "upgrade"]

# Every version lists all fragments, so many small commits would cost more and more.
MANY_FRAGMENTS = 200
# About 400 MB of M = 12, D = 512: a fragment that large is not written again because small ones came.
FRAGMENT_ROWS = 16384


def create_files(location: Location, stamp: ModelStamp, schemas: dict[str, pa.Schema]) -> None:
    """Write the files of an empty library; the lock is held.

    `library.json` is written last and names the first head: of several writers that create, the one that wrote it
    counts. The first `roll_back` writes the head to its own file.
    """
    if location.exists("library.json"):
        raise LibraryError(f"{location} holds a library already: open it, or choose another folder")
    if holds_rows(location):
        raise LibraryError(f"{location} holds a library that has lost its library.json: {RESTORE} in another folder")
    versions: dict[str, int] = {}
    for name, schema in schemas.items():
        # An interrupted creation leaves empty datasets at most, and a power cut empty files.
        location.discard(name)
        mode = "overwrite" if rows_in(location, name) is not None else "create"
        uri, empty = location.dataset(name), schema.empty_table()
        versions[name] = lance.write_dataset(empty, uri, mode=mode, storage_options=location.options).version
    location.settle()
    head = Head(0, versions["videos"], versions["segments"])
    created = datetime.now(UTC).isoformat(timespec="seconds")
    library = {"format": FORMAT, "schema": SCHEMA, "model": asdict(stamp), "created": created, "head": head.to_json()}
    location.write("library.json", json.dumps(library, indent=2), None)


def upgrade(location: Location) -> None:
    """Bring a library of an older schema to the present one; the lock is held. After a crash it is done again."""
    library = read_library(location)
    if library["schema"] == SCHEMA:
        return
    head, videos, segments = roll_back(location)
    if old := [name for name in ("path", "modified") if name in segments.dataset.schema.names]:
        # Only the list of columns is written anew, not the data.
        segments.drop_columns(old)
        publish(location, head, videos, segments)
    location.write("library.json", json.dumps(library | {"schema": SCHEMA}, indent=2), location.read("library.json"))


def scattered(*datasets: lance.LanceDataset) -> bool:
    """Whether small commits have left too many small files."""
    return any(
        sum(fragment.physical_rows < FRAGMENT_ROWS // 2 for fragment in dataset.get_fragments()) > MANY_FRAGMENTS
        for dataset in datasets
    )


def join_files(location: Location) -> Head:
    """Join small files into larger ones, and bring the index up to date."""
    head, videos, segments = roll_back(location)
    videos.tidy(lambda dataset: dataset.optimize.compact_files())
    # Lance reads many rows at once, which here are large.
    how = {"target_rows_per_fragment": FRAGMENT_ROWS, "batch_size": 256}
    segments.tidy(lambda dataset: dataset.optimize.compact_files(**how))
    if head.partitions:
        segments.tidy(lambda dataset: dataset.optimize.optimize_indices())
    if (videos.version, segments.version) == (head.videos, head.segments):
        return head
    return publish(location, head, videos, segments)


def build_index(location: Location) -> Head:
    """Index the pooled vectors."""
    head, videos, segments = roll_back(location)
    rows = segments.dataset.count_rows()
    if not rows:
        return head
    partitions = max(round(math.sqrt(rows)), 1)
    how = {"metric": "cosine", "num_partitions": partitions, "replace": True}
    segments.tidy(lambda dataset: dataset.create_index("pooled", "IVF_FLAT", **how))
    return publish(location, replace(head, partitions=partitions), videos, segments)


def forget_versions(present: lance.LanceDataset, grace: float, orphans: bool) -> None:
    """Delete versions that were replaced more than `grace` seconds ago, and files that no version names.

    A version's own age does not count: until it was replaced, readers opened it. Without `orphans`, files that no
    version names stay for a week: a worker may have written them for a commit that is still to come.
    """
    versions = sorted(present.versions(), key=lambda version: int(version["version"]))
    before = time.time() - grace
    replaced = [int(old["version"]) for old, new in pairwise(versions) if new["timestamp"].timestamp() <= before]
    # Another writer may have begun a newer version; this one counts until a head says otherwise.
    replaced = [version for version in replaced if version < present.version]
    which: dict[str, Any] = {"versions": replaced} if replaced else {"older_than": timedelta(days=36500)}
    present.cleanup_old_versions(**which, delete_unverified=orphans)
