"""What the machines of a cluster do when a library is indexed: files are read, and their segments encoded and written.

Ray's workers import this module. Those that decode have no need of torch, so it is imported where it is used.
"""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray

from prota.library.reading import ReadRequest, VideoContent, read_video, remaining
from prota.library.records import LibraryError, ModelStamp, SegmentBatch, VideoRecord
from prota.library.segments import SegmentPlan
from prota.library.storage.location import Location
from prota.video.transforms import Extent
from prota.video.walk import FoundFile, content_id
from prota.workers.process_pool import DecodePool

if TYPE_CHECKING:
    from prota.library.working import Part

__all__ = ["Claims", "EncodeOrder", "Encoder", "ReadOrder", "Reading", "Result", "pack", "read_files", "unpack"]


@dataclass(frozen=True)
class ReadOrder:
    """How files are read."""

    plan: SegmentPlan
    size: int
    """Side of the square pictures that the model sees."""
    extent: Extent
    """What they show of a frame."""
    timeout: float


@dataclass(frozen=True)
class EncodeOrder:
    """What encodes, and where the segments go."""

    folder: Location
    """Of the library."""
    stamp: ModelStamp
    model: Any
    """A reference to it in Ray's object store: so it is the same on all machines, wherever its files are."""
    device: str


@dataclass(frozen=True)
class Reading:
    """A part of a file, or why there is none."""

    found: FoundFile
    video_id: str = ""
    content: VideoContent | None = None
    error: str = ""
    missing: str = ""
    """The machine on which there was no such file."""


@dataclass(frozen=True)
class Result:
    """What became of a reading: a part of a video, or a file that somebody else has to judge."""

    reading: Reading
    """Without its content."""
    part: Part | None = None


def pack(items: Sequence[object]) -> pa.Table:
    """Objects as rows: Ray counts their bytes, and need not know more of them."""
    return pa.table({"item": pa.array([pickle.dumps(item, protocol=5) for item in items], pa.large_binary())})


def unpack(rows: pa.Table) -> list[Any]:
    return [pickle.loads(item.as_buffer()) for chunk in rows.column("item").chunks for item in chunk]


class Claims:
    """An actor that says who reads a content: copies of a file are read once, wherever they are come upon."""

    def __init__(self, known: Sequence[str]) -> None:
        self._readers = dict.fromkeys(known, "")

    def claim(self, video_id: str, path: str) -> bool:
        """Whether the file at this path is the one to be read. Asked again, when a worker died, it says the same."""
        return self._readers.setdefault(video_id, path) == path


_pools: dict[float, DecodePool] = {}


def _pool(timeout: float) -> DecodePool:
    """The decoder of this worker: a process of its own, because it may hang, which outlives a task."""
    if timeout not in _pools:
        _pools[timeout] = DecodePool(1, timeout)
    return _pools[timeout]


def read_files(rows: pa.Table, order: ReadOrder, claims: Any) -> Iterator[pa.Table]:
    """What is to be read of some files, part by part: Ray takes a part away before the next one is asked for."""
    for found in unpack(rows):
        for reading in _read(found, order, claims):
            yield pack([reading])


def _read(found: FoundFile, order: ReadOrder, claims: Any) -> Iterator[Reading]:
    try:
        video_id = content_id(found.path)
    except (OSError, ValueError) as error:
        missing = "" if os.path.lexists(found.path) else platform.node()
        yield Reading(found, error=str(error), missing=missing)
        return
    if not ray.get(claims.claim.remote(video_id, str(found.path))):
        yield Reading(found, video_id)
        return
    requests = [ReadRequest(str(found.path), order.plan, order.size, order.extent)]
    while requests:
        request = requests.pop(0)
        [(_, outcome)] = _pool(order.timeout).run(read_video, [(str(found.path), request)])
        content = outcome.value
        if outcome.error is not None or not isinstance(content, VideoContent):
            yield Reading(found, video_id, error=outcome.error or "nothing was read")
            return
        if request.first == 0:
            requests = remaining(request, content)
        yield Reading(found, video_id, content)


class Encoder:
    """An actor with a model: encodes what was read, and writes it into the library."""

    def __init__(self, order: EncodeOrder) -> None:
        import torch

        self.order, self._seen = order, False
        self.device = torch.device(order.device)
        # There may be as many encoders as cores.
        torch.set_num_threads(1)
        self.model = ray.get(order.model).to(self.device).eval()

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Readings in, results out, in one row: whole videos share a fragment, and a part of a long one has its own."""
        self._look()
        readings: list[Reading] = unpack(rows)
        whole = [each for each in readings if each.content is not None and len(each.content) == each.content.total]
        parts = [each for each in readings if each.content is not None and len(each.content) < each.content.total]
        results = [Result(reading) for reading in readings if reading.content is None]
        for group in (whole, *([part] for part in parts)):
            results += self._written(group)
        return pack([results])

    def _look(self) -> None:
        """Be sure, once, that this machine sees the library: what it wrote elsewhere nobody would find."""
        if self._seen:
            return
        from prota.library.storage.reader import Snapshot

        try:
            Snapshot.open(self.order.folder).check_model(self.order.stamp)
        except LibraryError as error:
            raise LibraryError(
                f"machine {platform.node()} does not see the library ({error}): "
                "put it into a folder that all machines share, or on object storage"
            ) from None
        self._seen = True

    def _written(self, readings: Sequence[Reading]) -> list[Result]:
        from prota.library.storage.writer import write_segments
        from prota.library.working import Part, described

        # On a CPU one by one, which is no slower: then the numbers are those of a single machine, to the last bit.
        groups = [readings] if self.device.type != "cpu" else [[each] for each in readings]
        results: list[Result] = []
        videos: list[tuple[VideoRecord, SegmentBatch]] = []
        for group in filter(None, groups):
            try:
                batches = self._encoded(group)
            except ValueError as error:
                results += [Result(replace(each, content=None, error=str(error))) for each in group]
                continue
            for reading, segments in zip(group, batches, strict=True):
                assert reading.content is not None
                record = described(VideoRecord.of(reading.found, reading.video_id), reading.content)
                videos.append((record, segments))
                part = Part(record, segments.first, len(segments))
                results.append(Result(replace(reading, content=None), part))
        return _telling(results, write_segments(self.order.folder, self.order.stamp, videos))

    def _encoded(self, readings: Sequence[Reading]) -> list[SegmentBatch]:
        from prota.library.encoding import encode_videos

        given = [(each.video_id, each.content) for each in readings if each.content is not None]
        return encode_videos(self.model, given)


def _telling(results: Sequence[Result], fragments: Sequence[str]) -> list[Result]:
    """The first part tells where all are: they are saved together."""
    told = list(results)
    for place, result in enumerate(results):
        if result.part is not None:
            told[place] = replace(result, part=replace(result.part, fragments=tuple(fragments)))
            break
    return told
