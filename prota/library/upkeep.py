"""Looking after a library: what it holds, whether it is whole, smaller files, joining, exporting, removing."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from prota.files import publish
from prota.library.folder import read_library
from prota.library.place import Where
from prota.library.problems import short
from prota.library.records import Bools, Floats, LibraryError, VideoRecord
from prota.library.store import GRACE, Store
from prota.library.tables import COPIED, FILTERABLE, Catalogue, block, copied, original, stored

__all__ = ["compact", "export", "info", "merge", "remove", "verify"]

# fp16 keeps 11 bits of each number, and a length no worse.
UNIT_TOLERANCE = 2e-3
# Beginnings of ids that are shorter would hit by chance.
SHORTEST_ID = 8


def info(folder: Where) -> dict[str, Any]:
    """What a library holds and what it takes, ready for JSON."""
    with Store.open(folder) as store:
        library = read_library(store.folder)
        videos = store.videos()
        # Copies of one content count once.
        seconds = {video.video_id: video.duration for video in videos if video.state == "indexed"}
        states = Counter(str(video.state) for video in videos)
        return {
            "folder": str(folder),
            "videos": {state: states[state] for state in ("indexed", "bad", "gone")},
            "bad": {video.path: video.reason for video in videos if video.state == "bad"},
            "pictures": sum(video.kind == "picture" for video in videos if video.state == "indexed"),
            "segments": store.count(),
            "hours": round(sum(seconds.values()) / 3600, 3),
            "bytes": store.folder.size(),
            "model": asdict(store.stamp),
            "schema": library["schema"],
            "created": library["created"],
            "version": store.version,
            "partitions": store.partitions,
        }


def verify(folder: Where, deep: bool = False) -> list[str]:
    """All that is wrong with a library, a sentence each; `deep` also reads every file again and compares."""
    try:
        with Store.open(folder) as store:
            catalogue = Catalogue(store.videos())
            problems = list(stored_problems(store, catalogue))
            if deep:
                problems += [problem for video in store.videos() for problem in file_problems(video)]
            return problems
    except LibraryError as error:
        return [str(error)]
    except (ValueError, OSError, LookupError) as error:
        return [f"{folder} is damaged ({short(error)}): restore it from a backup, or index anew"]


def stored_problems(store: Store, catalogue: Catalogue) -> Iterator[str]:
    """What is wrong with the segments themselves and with how many there are."""
    indices: dict[str, list[int]] = defaultdict(list)
    wrong: Counter[tuple[str, str]] = Counter()
    spread = ["spread"] if store.stamp.spread else []
    columns = [*FILTERABLE, "times", "direction", *spread, "weight", "mask", "pooled"]
    for batch in store.batches(columns):
        ids = batch.column("video_id").to_pylist()
        for video_id, index in zip(ids, batch.column("index").to_pylist(), strict=True):
            indices[video_id].append(index)
        faults = number_faults(batch, store.stamp.frames, store.stamp.width) | copy_faults(batch, catalogue)
        for fault, rows in faults.items():
            wrong.update((ids[row], fault) for row in np.flatnonzero(rows))
    yield from count_problems(catalogue, indices)
    for (video_id, fault), count in sorted(wrong.items()):
        yield f"{named(catalogue, video_id)}: {fault} in {count} of {len(indices[video_id])} segments"


def named(catalogue: Catalogue, video_id: str) -> str:
    owner = catalogue.owner(video_id)
    return f"content {video_id[:12]}" if owner is None else owner.path


def count_problems(catalogue: Catalogue, indices: dict[str, list[int]]) -> Iterator[str]:
    for video in catalogue.records.values():
        found = sorted(indices.get(video.video_id, []))
        if video.state == "bad" or found == list(range(video.segments)):
            continue
        if len(found) != video.segments:
            yield f"{video.path}: has {len(found)} segments instead of {video.segments}"
        else:
            yield f"{video.path}: its segments are not numbered from 0 to {video.segments - 1}"
    for video_id, found in indices.items():
        if catalogue.owner(video_id) is None:
            yield f"content {video_id[:12]}: {len(found)} segments belong to no video"


def number_faults(batch: pa.RecordBatch, M: int, D: int) -> dict[str, Bools]:
    """For each thing that can be wrong with the numbers of a segment, where it is."""
    mask = block(batch, "mask", M).astype(bool)
    direction = block(batch, "direction", M, D).astype(np.float32)
    pooled = block(batch, "pooled", D)
    weight, times = (block(batch, name, M) for name in ("weight", "times"))
    start, end = (batch.column(name).to_numpy() for name in ("start", "end"))
    faults = {
        "no frames": ~mask.any(1),
        "directions that are not finite": ~np.isfinite(direction).all((1, 2)),
        "directions that are not unit vectors": (mask & not_unit(direction)).any(1),
        "a pooled vector that is not a unit vector": not_unit(pooled),
        "weights that are not finite": (mask & ~np.isfinite(weight)).any(1),
        "frames without a time": (mask & ~np.isfinite(times)).any(1),
        "times that run backwards": ~(start <= end),
    }
    if "spread" in batch.schema.names:
        faults["spreads that are not finite"] = ~np.isfinite(block(batch, "spread", M, D)).all((1, 2))
    return faults


def not_unit(vectors: Floats) -> Bools:
    result: Bools = ~(np.abs(np.linalg.norm(vectors.astype(np.float32), axis=-1) - 1) < UNIT_TOLERANCE)
    return result


def copy_faults(batch: pa.RecordBatch, catalogue: Catalogue) -> dict[str, Bools]:
    """Where a segment does not repeat what its video says."""
    ids = batch.column("video_id").to_pylist()
    owners = {video_id: catalogue.owner(video_id) for video_id in set(ids)}
    expected = {video_id: copied(owner) for video_id, owner in owners.items() if owner is not None}
    wrong = np.zeros(len(ids), dtype=bool)
    for name in COPIED:
        column = batch.column(name)
        found = (column.cast(pa.int64()) if name == "modified" else column).to_pylist()
        wrong |= [i in expected and expected[i][name] != value for i, value in zip(ids, found, strict=True)]
    return {"another video's path or properties": wrong}


def file_problems(video: VideoRecord) -> Iterator[str]:
    if video.state != "indexed":
        return
    try:
        with open(video.path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != video.video_id:
                yield f"{video.path}: the file has changed since it was indexed: index it again"
    except OSError as error:
        yield f"{video.path}: cannot be read ({error.strerror}): index its folder again"


def compact(folder: Where, grace: float = GRACE, wait: float = 0.0) -> None:
    """Join small files, index a large library, drop what was replaced more than `grace` seconds ago."""
    with Store.open(folder, write=True, wait=wait) as store:
        store.compact(grace)


def merge(folder: Where, others: Sequence[Where], wait: float = 0.0) -> None:
    """Take in libraries of the same model, each in one commit. What is known by its content is not stored again."""
    with Store.open(folder, write=True, wait=wait) as store:
        sources = [Store.open(other) for other in others]
        # All are looked at before the first is taken in.
        for source in sources:
            if source.folder.same(store.folder):
                raise LibraryError(f"{source.folder} cannot be merged into itself: give other libraries")
            if replace(source.stamp, name="") != replace(store.stamp, name=""):
                raise LibraryError(
                    f"{source.folder} was made with model {source.stamp.name} "
                    f"(fingerprint {source.stamp.fingerprint[:12]}), {folder} with {store.stamp.name} "
                    f"({store.stamp.fingerprint[:12]}): index one of them anew with the other's model"
                )
        for source in sources:
            take_in(store, source)


def take_in(store: Store, source: Store) -> None:
    """All records of another library that this one lacks, with their segments."""
    known = Catalogue(store.videos())
    videos: list[VideoRecord] = []
    fresh: set[str] = set()
    chosen: set[str] = set()
    for video in source.videos():
        here = known.records.get(video.path)
        own = known.records.get(video.path.removesuffix(f"#{video.video_id[:12]}"))
        if own is not None and own is not here and own.video_id == video.video_id:
            # Ours, under the name that it was given there.
            continue
        if here is not None and (video.state == "bad" or _as_good(here, video)):
            continue
        # Two machines may use one path for two files; both stay searchable. A bad file is no second one.
        taken = here is not None and here.state != "bad" and here.video_id != video.video_id
        path = f"{video.path}#{video.video_id[:12]}" if taken else video.path
        owner = known.owner(video.video_id)
        if path in chosen or (taken and path in known.records):
            continue
        chosen.add(path)
        if video.state != "bad" and owner is not None:
            # It may have been cut into other segments there; those that are here count.
            videos.append(replace(video, path=path, segments=owner.segments))
        else:
            videos.append(replace(video, path=path))
            fresh |= {video.video_id} if video.whole else set()
    columns = [name for name in source.columns if name not in COPIED]
    store.transact(videos, fresh, lambda: source.batches(columns, of=fresh) if fresh else ())


def _as_good(here: VideoRecord, there: VideoRecord) -> bool:
    """Whether a record of the same file is no worse than another library's."""
    return here.video_id == there.video_id and (here.state == "indexed" or here.state == there.state)


def export(folder: Where, path: Path) -> None:
    """Write one row per segment, without tokens and pictures, as .jsonl or .parquet."""
    writers: dict[str, Callable[[pa.Table, Path], None]] = {".jsonl": write_jsonl, ".parquet": write_parquet}
    if path.suffix not in writers:
        raise LibraryError(f"cannot export to {path}: give it a name that ends in {' or '.join(writers)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise LibraryError(f"cannot export to {path}: {what}")
    with Store.open(folder) as store:
        table = store.segments().drop_columns("row")
        paths: dict[str, list[str]] = defaultdict(list)
        metadata: dict[str, dict[str, str]] = defaultdict(dict)
        kinds = {video.video_id: video.kind for video in store.videos() if video.whole}
        for video in store.videos():
            paths[video.video_id].append(stored(video.path))
            metadata[video.video_id] |= {stored(key): stored(value) for key, value in video.metadata.items()}
        ids = table.column("video_id").to_pylist()
        table = table.append_column("kind", pa.array([kinds[i] for i in ids], pa.string()))
        table = table.append_column("paths", pa.array([paths[i] for i in ids], pa.list_(pa.string())))
        table = table.append_column("metadata", pa.array([json.dumps(metadata[i]) for i in ids], pa.string()))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        writers[path.suffix](table, temporary)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_jsonl(table: pa.Table, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            row |= {"metadata": json.loads(row["metadata"]), "modified": row["modified"].isoformat()}
            row |= {"path": original(row["path"]), "paths": [original(name) for name in row["paths"]]}
            file.write(json.dumps(row) + "\n")


def write_parquet(table: pa.Table, path: Path) -> None:
    parquet.write_table(table, path)


def remove(folder: Where, videos: Sequence[str], wait: float = 0.0) -> None:
    """Take out videos, given by path, by id or by the beginning of an id (all copies of it); their files stay."""
    with Store.open(folder, write=True, wait=wait) as store:
        records = store.videos()
        chosen: set[str] = set()
        for name in videos:
            absolute = str(Path(name).absolute())
            is_id = len(name) >= SHORTEST_ID
            found = {video.path for video in records if video.path in (name, absolute)}
            found = found or {video.path for video in records if is_id and video.video_id.startswith(name)}
            if not found:
                raise LibraryError(f"{folder} has no video {name}: give the path or the id of one, nothing was removed")
            chosen |= found
        store.commit((), (), remove=chosen)
