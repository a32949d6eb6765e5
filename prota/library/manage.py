"""Manage a library: info, verify, repair, compact, merge, export, remove."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from prota.files import publish
from prota.library.records import DamagedError, LibraryError, VideoRecord
from prota.library.storage import repair as storage_repair
from prota.library.storage.faults import row_faults
from prota.library.storage.location import Where, short
from prota.library.storage.reader import Snapshot
from prota.library.storage.schema import CHECK, OF_CONTENT, checked_groups, damaged_rows, original, stored, with_checks
from prota.library.storage.versions import DATASETS, read_library
from prota.library.storage.writer import GRACE, Writer

__all__ = ["Repaired", "compact", "export", "info", "merge", "remove", "repair", "verify"]

Repaired = storage_repair.Repaired
# Shorter prefixes of ids would match by chance.
SHORTEST_ID = 8


def info(folder: Where) -> dict[str, Any]:
    """The contents and the size of a library, ready for JSON."""
    snapshot = Snapshot.open(folder)
    library = read_library(snapshot.location)
    videos = snapshot.videos()
    # Copies of one content count once.
    seconds = {video.video_id: video.duration for video in videos if video.state == "indexed"}
    states = Counter(str(video.state) for video in videos)
    return {
        "folder": str(folder),
        "videos": {state: states[state] for state in ("indexed", "bad", "gone")},
        "bad": {video.path: video.reason for video in videos if video.state == "bad"},
        "pictures": sum(video.kind == "picture" for video in videos if video.state == "indexed"),
        "segments": snapshot.count(),
        "hours": round(sum(seconds.values()) / 3600, 3),
        "bytes": snapshot.location.size(),
        "model": asdict(snapshot.stamp),
        "schema": library["schema"],
        "created": library["created"],
        "version": snapshot.version,
        "partitions": snapshot.partitions,
    }


def verify(folder: Where, deep: bool = False) -> list[str]:
    """Problems of a library, a sentence each; `deep` also compares every file with its recorded hash."""
    try:
        snapshot = Snapshot.open(folder)
        problems = [*_stored_problems(snapshot), *_unused_problems(snapshot)]
        if deep:
            problems += [problem for video in snapshot.videos() for problem in _file_problems(video)]
        return problems
    except LibraryError as error:
        return [str(error)]
    except (ValueError, OSError, LookupError, RuntimeError) as error:
        return [str(DamagedError.at(folder, f"{folder} is corrupt ({short(error)})"))]


def _stored_problems(snapshot: Snapshot) -> Iterator[str]:
    """Problems of the segments and their number."""
    indices: dict[str, list[int]] = defaultdict(list)
    wrong: Counter[tuple[str, str]] = Counter()
    catalogue, stamp = snapshot.catalogue, snapshot.stamp
    for batch in snapshot.batches(snapshot.columns):
        ids = batch.column("video_id").to_pylist()
        for video_id, index in zip(ids, batch.column("index").to_pylist(), strict=True):
            indices[video_id].append(index)
        for fault, rows in row_faults(batch, stamp, catalogue).items():
            wrong.update((ids[row], fault) for row in np.flatnonzero(rows))
    for video in catalogue.records.values():
        found = sorted(indices.get(video.video_id, []))
        if video.state == "bad" or found == list(range(video.segments)):
            continue
        if len(found) != video.segments:
            yield f"{video.path}: has {len(found)} segments instead of {video.segments}"
        else:
            yield f"{video.path}: its segments are not numbered from 0 to {video.segments - 1}"
    names = {owner.video_id: owner.path for owner in catalogue.owners()}
    for video_id, found in indices.items():
        if video_id not in names:
            yield f"content {video_id[:12]}: {len(found)} segments belong to no video"
    for (video_id, fault), count in sorted(wrong.items()):
        name = names.get(video_id, f"content {video_id[:12]}")
        yield f"{name}: {fault} in {count} of {len(indices[video_id])} segments"


def _unused_problems(snapshot: Snapshot) -> Iterator[str]:
    """Problems of files that answers do not depend on."""
    if not snapshot.index_is_whole:
        yield f"{snapshot.location}: the vector index is corrupt"
    for name in DATASETS:
        for version in storage_repair.versions(snapshot.location, name, snapshot.head)[1]:
            yield f"{snapshot.location}: the old version {version} of its {name} is corrupt"
    for path in storage_repair.corrupt_copies(snapshot.location):
        yield f"{snapshot.location}/spare/{path} is corrupt or missing"


def repair(folder: Where, wait: float = 0.0) -> Repaired:
    """Make a library whole: restore what has a copy, drop what is corrupt. `Library.index` makes it again.

    Example
    -------
    >>> import prota
    >>> from prota.library.manage import repair
    >>> repaired = repair("lib")
    >>> repaired.nothing
    True
    >>> if repaired.again:
    ...     prota.Library("lib").index(repaired.again)
    """
    return storage_repair.repair(folder, wait)


def _file_problems(video: VideoRecord) -> Iterator[str]:
    if video.state != "indexed":
        return
    try:
        with open(video.path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != video.video_id:
                yield f"{video.path}: the file has changed since it was indexed: index it again"
    except OSError as error:
        yield f"{video.path}: cannot read the file ({error.strerror}): index its folder again"


def compact(folder: Where, grace: float = GRACE, wait: float = 0.0) -> None:
    """Join small files, index a large library, and delete versions that were replaced `grace` seconds ago."""
    with Writer.open(folder, wait) as writer:
        writer.compact(grace)


def merge(folder: Where, others: Sequence[Where], wait: float = 0.0) -> None:
    """Add libraries of the same model, each in one commit. Known contents are not stored again."""
    with Writer.open(folder, wait) as writer:
        sources = [Snapshot.open(other) for other in others]
        # Check all of them before the first is merged.
        for source in sources:
            if source.location.same(writer.location):
                raise LibraryError(f"cannot merge {source.location} into itself: give other libraries")
            if replace(source.stamp, name="") != replace(writer.stamp, name=""):
                raise LibraryError(
                    f"{source.location} was made with model {source.stamp.name} "
                    f"(fingerprint {source.stamp.fingerprint[:12]}), {folder} with {writer.stamp.name} "
                    f"({writer.stamp.fingerprint[:12]}): index one of them again with the other's model"
                )
        for source in sources:
            _merge(writer, source)


def _merge(writer: Writer, source: Snapshot) -> None:
    """Add the records that a library lacks, with their segments."""
    known = writer.snapshot.catalogue
    videos: list[VideoRecord] = []
    fresh: set[str] = set()
    chosen: set[str] = set()
    for video in source.videos():
        here = known.records.get(video.path)
        own = known.records.get(video.path.removesuffix(f"#{video.video_id[:12]}"))
        if own is not None and own is not here and own.video_id == video.video_id:
            # Our own file, under the name that a merge gave it there.
            continue
        same = here is not None and here.video_id == video.video_id
        if here is not None and (video.state == "bad" or (same and here.state in ("indexed", video.state))):
            continue
        # Two machines may have different files at one path: both stay searchable, unless one is bad.
        taken = here is not None and here.state != "bad" and not same
        path = f"{video.path}#{video.video_id[:12]}" if taken else video.path
        owner = known.owner(video.video_id)
        if path in chosen or (taken and path in known.records):
            continue
        chosen.add(path)
        if video.state != "bad" and owner is not None:
            # The segments of this library stay, even if the other one cut the video differently.
            ours = {name: getattr(owner, name) for name in ("segments", *OF_CONTENT)}
            videos.append(replace(video, path=path, **ours))
        else:
            videos.append(replace(video, path=path))
            fresh |= {video.video_id} if video.whole else set()
    writer.commit_rows(videos, fresh, lambda: _rows_of(source, fresh))


def _rows_of(source: Snapshot, contents: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The segments of some contents; DamagedError if one of them is corrupt."""
    for batch in source.batches(source.columns, of=contents):
        if CHECK not in batch.schema.names:
            yield with_checks(batch, source.stamp)
            continue
        if any(wrong.any() for wrong in damaged_rows(batch, source.stamp, checked_groups(source.stamp)).values()):
            raise DamagedError.at(source.location, f"cannot merge {source.location}: it has corrupt segments")
        yield batch


def export(folder: Where, path: Path) -> None:
    """Write a row per segment, without tokens and thumbnails, as .jsonl or .parquet."""
    writers: dict[str, Callable[[pa.Table, Path], None]] = {".jsonl": _write_jsonl, ".parquet": parquet.write_table}
    if path.suffix not in writers:
        raise LibraryError(f"cannot export to {path}: the name must end in {' or '.join(writers)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise LibraryError(f"cannot export to {path}: {what}")
    snapshot = Snapshot.open(folder)
    snapshot.require(range(snapshot.count()), "place", "content")
    table = snapshot.segments().drop_columns("row")
    owners = {video.video_id: video for video in snapshot.catalogue.owners()}
    paths: dict[str, list[str]] = defaultdict(list)
    metadata: dict[str, dict[str, str]] = defaultdict(dict)
    for video in snapshot.videos():
        paths[video.video_id].append(stored(video.path))
        metadata[video.video_id] |= {stored(key): stored(value) for key, value in video.metadata.items()}
    ids = table.column("video_id").to_pylist()
    for name, values, kind in (
        ("path", [stored(owners[i].path) for i in ids], pa.string()),
        ("modified", [owners[i].modified // 1000 for i in ids], pa.timestamp("us")),
        ("kind", [owners[i].kind for i in ids], pa.string()),
        ("paths", [paths[i] for i in ids], pa.list_(pa.string())),
        ("metadata", [json.dumps(metadata[i]) for i in ids], pa.string()),
    ):
        table = table.append_column(name, pa.array(values, kind))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        writers[path.suffix](table, temporary)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            row |= {"metadata": json.loads(row["metadata"]), "modified": row["modified"].isoformat()}
            row |= {"path": original(row["path"]), "paths": [original(name) for name in row["paths"]]}
            file.write(json.dumps(row) + "\n")


def remove(folder: Where, videos: Sequence[str], wait: float = 0.0) -> None:
    """Remove videos, given by path, or by id or its prefix (all copies); their files stay."""
    with Writer.open(folder, wait) as writer:
        records = writer.snapshot.videos()
        chosen: set[str] = set()
        for name in videos:
            absolute = str(Path(name).absolute())
            is_id = len(name) >= SHORTEST_ID
            found = {video.path for video in records if video.path in (name, absolute)}
            found = found or {video.path for video in records if is_id and video.video_id.startswith(name)}
            if not found:
                raise LibraryError(f"{folder} has no video {name}: give the path or the id of one, nothing was removed")
            chosen |= found
        writer.commit((), (), remove=chosen)
