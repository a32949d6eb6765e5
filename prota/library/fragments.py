"""Segments that are written where they are made, by processes that hold no lock, for the one that does to adopt.

A worker's fragment is a file of Lance in the library's own place that no version names: readers do not see it, and
where it is never adopted, nothing but its bytes is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from prota.library.folder import Draft
from prota.library.place import Place, Where, flush
from prota.library.records import ModelStamp, SegmentBatch, VideoRecord
from prota.library.tables import copied, one_of, recopied, segment_rows, segment_schema

__all__ = ["Written", "append", "write_segments"]


def write_segments(where: Where, stamp: ModelStamp, videos: Sequence[tuple[VideoRecord, SegmentBatch]]) -> list[str]:
    """Write the segments of some videos, and say in JSON what `Store.adopt` must know; nothing for no segments."""
    given = [(video, batch) for video, batch in videos if len(batch)]
    if not given:
        return []
    schema = segment_schema(stamp)
    # A list: what does not fit is told before Lance begins, and in its own words.
    rows = [recopied(segment_rows(batch, stamp), {video.video_id: video}, schema) for video, batch in given]
    place = Place.of(where)
    reader = pa.RecordBatchReader.from_batches(schema, rows)
    target = place.dataset("segments")
    try:
        fragments = lance.fragment.write_fragments(reader, target, mode="append", storage_options=place.options)
    except (ValueError, OSError) as error:
        raise place.problem(error) from error
    if place.exclusive:
        # By the process that wrote: on a file system that several machines share, only its own can be sure of it.
        files = [f"{target}/data/{file.path}" for fragment in fragments for file in fragment.files]
        flush([*files, f"{target}/data", target])
    told = [
        {"video_id": video.video_id, "first": batch.first, "segments": len(batch), "copied": copied(video)}
        for video, batch in given
    ]
    return [json.dumps({"fragments": [fragment.to_json() for fragment in fragments], "videos": told})]


@dataclass(frozen=True)
class Written:
    """What workers wrote."""

    fragments: list[lance.fragment.FragmentMetadata]
    lengths: dict[str, int]
    """Segments of each content."""
    copies: dict[str, dict[str, Any]]
    """What the rows of each content repeat of its video."""

    @classmethod
    def read(cls, texts: Iterable[str]) -> Written:
        """Of what `write_segments` said, in one call or more; a long video comes in parts."""
        written = cls([], {}, {})
        parts: set[tuple[str, int]] = set()
        for told in map(json.loads, texts):
            for values in told["videos"]:
                video_id = values["video_id"]
                if (video_id, values["first"]) in parts:
                    raise ValueError(f"segments of {video_id} come twice")
                parts.add((video_id, values["first"]))
                written.lengths[video_id] = written.lengths.get(video_id, 0) + values["segments"]
                written.copies[video_id] = values["copied"]
            written.fragments.extend(
                lance.fragment.FragmentMetadata.from_json(json.dumps(values)) for values in told["fragments"]
            )
        return written

    def others(self, owners: Mapping[str, VideoRecord]) -> set[str]:
        """Contents whose rows cannot stay as they are: they are nobody's, or repeat what their owner does not say."""
        return {
            video_id
            for video_id, values in self.copies.items()
            if video_id not in owners or copied(owners[video_id]) != values
        }


def append(segments: Draft, written: Written, owners: Mapping[str, VideoRecord]) -> Iterator[pa.RecordBatch]:
    """Add those rows of the fragments that can stay as they are, and give the owners' rows that cannot.

    The latter are read from the version in which the fragments are whole, which no head ever names.
    """
    segments.adopt(written.fragments)
    others = written.others(owners)
    if not others:
        return iter(())
    whole = segments.dataset.checkout_version(segments.version)
    segments.delete(one_of("video_id", others))
    again = others & owners.keys()
    return whole.to_batches(filter=one_of("video_id", again), batch_size=512) if again else iter(())
