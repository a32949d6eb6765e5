"""Faults in stored segments: checksums that do not match, and numbers that no model makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from prota.library.records import Bools, Floats, ModelStamp
from prota.library.storage.schema import (
    CHECK,
    OF_CONTENT,
    Catalogue,
    as_stored,
    block,
    checked_groups,
    damaged_rows,
    number_columns,
)

__all__ = ["row_faults"]

# fp16 has 11 significant bits.
UNIT_TOLERANCE = 2e-3


def row_faults(batch: pa.RecordBatch | pa.Table, stamp: ModelStamp, catalogue: Catalogue) -> dict[str, Bools]:
    """The rows that have each possible fault; ``batch`` has all columns of the segments."""
    if any(_has_nulls(column) for column in batch.columns):
        return {"missing values": np.ones(batch.num_rows, dtype=bool)}
    faults = _number_faults(batch, stamp) | _copy_faults(batch, catalogue)
    if CHECK in batch.schema.names:
        for group, rows in damaged_rows(batch, stamp, checked_groups(stamp)).items():
            faults[f"a wrong checksum of its {group}"] = rows
    return faults


def _has_nulls(column: pa.Array | pa.ChunkedArray) -> bool:
    return bool(column.null_count) or (pa.types.is_fixed_size_list(column.type) and bool(column.flatten().null_count))


def _number_faults(batch: pa.RecordBatch | pa.Table, stamp: ModelStamp) -> dict[str, Bools]:
    found = {name: block(batch, name, *shape) for name, (_, shape) in number_columns(stamp).items() if shape}
    # Corrupt numbers may be too large for what follows.
    with np.errstate(all="ignore"):
        mask, direction = found["mask"].astype(bool), found["direction"].astype(np.float32)
        start, end = (np.asarray(batch.column(name)) for name in ("start", "end"))
        faults = {
            "no frames": ~mask.any(1),
            "directions that are not finite": ~np.isfinite(direction).all((1, 2)),
            "directions that are not unit vectors": (mask & _not_unit(direction)).any(1),
            "a pooled vector that is not a unit vector": _not_unit(found["pooled"]),
            "weights that are not finite": (mask & ~np.isfinite(found["weight"])).any(1),
            "frames without a time": (mask & ~np.isfinite(found["times"])).any(1),
            "times that run backwards": ~(start <= end),
        }
        if "spread" in found:
            faults["spreads that are not finite"] = ~np.isfinite(found["spread"]).all((1, 2))
    return faults


def _not_unit(vectors: Floats) -> Bools:
    result: Bools = ~(np.abs(np.linalg.norm(vectors.astype(np.float32), axis=-1) - 1) < UNIT_TOLERANCE)
    return result


def _copy_faults(batch: pa.RecordBatch | pa.Table, catalogue: Catalogue) -> dict[str, Bools]:
    """The rows that differ from their video in the properties of its content."""
    ids = batch.column("video_id").to_pylist()
    owners = {video_id: owner for video_id in set(ids) if (owner := catalogue.owner(video_id)) is not None}
    wrong = np.zeros(len(ids), dtype=bool)
    for name in OF_CONTENT:
        expected = {video_id: as_stored(getattr(owner, name)) for video_id, owner in owners.items()}
        found = zip(ids, batch.column(name).to_pylist(), strict=True)
        wrong |= [video_id in expected and value != expected[video_id] for video_id, value in found]
    return {"another video's properties": wrong}
