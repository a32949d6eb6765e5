"""Queries by clip or picture, from a file or the library, and captions that describe a clip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from prota.library.indexing.reading import PART, ReadRequest, VideoContent, read_video, remaining
from prota.library.records import Floats, LibraryError, VideoRecord
from prota.library.search.queries import ClipRange, Query, words_of
from prota.library.search.view import View
from prota.library.segments import SegmentPlan
from prota.library.storage.schema import one_of
from prota.library.tokens import encode_video, stored_tokens
from prota.model.prota import ProTA
from prota.video.sampling import SAME_TIME
from prota.video.timeline import TooLargeError
from prota.video.walk import content_id
from prota.workers.process_pool import MEMORY, DecodePool

__all__ = ["CaptionMatch", "clip_query", "match_captions", "stored_query"]


class _Reader:
    """Reads segments of a file in parts, in a worker process with limits."""

    def __init__(self, model: ProTA, path: Path, pool: DecodePool, most_pixels: int = 0) -> None:
        if not path.is_file():
            hint = "; for a range of a file use FILE@START-END in seconds" if "@" in path.name else ""
            raise LibraryError(f"{path}: " + ("is a folder" if path.is_dir() else f"no such file{hint}"))
        encoder = model.config.encoder
        self.request = ReadRequest(
            path.absolute(), SegmentPlan(encoder.frames), encoder.image_size, encoder.picture, most_pixels=most_pixels
        )
        self.pool = pool

    def read(self, first: int = 0, count: int = PART) -> VideoContent:
        """Read some segments. Read the first ones first: they determine the timeline of the others."""
        request = replace(self.request, first=first, count=count)
        ((_, outcome),) = self.pool.run(read_video, [("clip", request)])
        # Also for a bug: under a memory limit, a worker may fail anywhere.
        if outcome.error is not None:
            raise TooLargeError(outcome.error) if outcome.code == TooLargeError.code else LibraryError(outcome.error)
        content: VideoContent = outcome.value
        if first == 0:
            self.request = replace(self.request, counted=content.counted)
        return content

    def parts(self) -> Iterator[VideoContent]:
        """All segments, in parts."""
        part = self.read()
        yield part
        for later in remaining(self.request, part):
            yield self.read(later.first)

    def around(self, start: float) -> VideoContent:
        """The part that contains a time, and what follows."""
        part = self.read()
        before, after = len(part) - 1, part.total
        if after == len(part) or part.starts[before] > start:
            return part
        while after - before > 1:
            between = (before + after) // 2
            if self.read(between, 1).starts[0] <= start:
                before = between
            else:
                after = between
        # Segments overlap: the previous one may cover more.
        return self.read(max(0, before - 1))

    def middle(self) -> VideoContent:
        """The middle segment alone."""
        return self.read(self.read(count=1).total // 2, 1)


def clip_query(
    model: ProTA, clip: ClipRange, timeout: float = 300.0, memory: int = MEMORY, *, most_pixels: int = 0
) -> Query:
    """A query for moments similar to one segment of a clip: the one that covers most of the range, or the middle one.

    ``memory``: the most bytes for decoding; 0: no limit. ``most_pixels``: a TooLargeError for larger frames.
    """
    with DecodePool(1, timeout, memory) as pool:
        reader = _Reader(model, clip.path, pool, most_pixels)
        content = reader.middle() if clip.start is None else reader.around(clip.start)
    name = clip.path.name
    if clip.start is not None and clip.end is not None:
        if not content.duration:
            raise LibraryError(f"{clip.path} is a picture, which has no range in seconds")
        place, covered = _covering(content.starts, content.ends, clip.start, clip.end)
        if covered <= 0:
            raise LibraryError(f"{clip.path} has no frames from {clip.start:g} to {clip.end:g} s: it is shorter")
        content = _shown(content, place, clip.start, clip.end)
        name = f"{name}@{clip.start:g}-{clip.end:g}"
    batch = encode_video(model, content_id(clip.path), content)
    tokens = stored_tokens(batch, model.logit_scale.device)
    return Query(f"like {name}", tokens, like=(batch.video_id, float(batch.start[0]), float(batch.end[0])))


def stored_query(view: View, video: VideoRecord, start: float, end: float) -> Query | None:
    """A query for moments similar to a range of a stored video: by its segment that covers most of the range.

    A range that includes 0 covers a picture. None: the video has nothing in the range.
    """
    table = view.snapshot.segments(["row", "start", "end"], one_of("video_id", [video.video_id])).to_pydict()
    place, covered = _covering(np.array(table["start"]), np.array(table["end"]), start, end)
    if covered < 0 or (covered == 0 and video.kind != "picture"):
        return None
    tokens = stored_tokens(view.snapshot.tokens([table["row"][place]]), view.device)
    view.snapshot.require([table["row"][place]], "place", "tokens")
    # Exclude both the range and the segment that stands for it.
    around = (video.video_id, min(table["start"][place], start), max(table["end"][place], end))
    return Query(f"like {Path(video.path).stem}", tokens, like=around)


def _covering(starts: Floats, ends: Floats, start: float, end: float) -> tuple[int, float]:
    """The segment that covers most of a range, and how many seconds; less than 0 if none does."""
    covered = np.minimum(ends, end) - np.maximum(starts, start)
    place = int(covered.argmax()) if len(covered) else 0
    return place, float(covered[place]) if len(covered) else -1.0


def _shown(content: VideoContent, segment: int, start: float, end: float) -> VideoContent:
    """One segment, with its frames in a range only, or the nearest frame if none begins there."""
    times = content.times[segment]
    frames = np.flatnonzero(content.mask[segment] & (times >= start - SAME_TIME) & (times < end))
    if not len(frames):
        frames = np.array([np.nanargmin(np.abs(times - (start + end) / 2))])
    here = slice(segment, segment + 1)
    return replace(
        content, first=content.first + segment, starts=content.starts[here], ends=content.ends[here],
        times=times[None, frames], mask=np.ones((1, len(frames)), dtype=bool), index=content.index[here, frames],
        thumbnails=content.thumbnails[here],
    )  # fmt: skip


@dataclass(frozen=True)
class CaptionMatch:
    """How well a caption describes a clip."""

    caption: str
    score: float
    start: float
    end: float
    """Of the best segment."""


@torch.inference_mode()
def match_captions(model: ProTA, path: Path, captions: Sequence[str], timeout: float = 300.0) -> list[CaptionMatch]:
    """Rank captions by their best score over the segments of a clip."""
    texts = [words for caption in captions if (words := words_of(caption))]
    if not texts:
        raise LibraryError("no captions: give one per line")
    queries = [model.encode_text(texts[start : start + 256]).without_source() for start in range(0, len(texts), 256)]
    scores: list[torch.Tensor] = []
    spans: list[tuple[float, float]] = []
    with DecodePool(1, timeout) as pool:
        for content in _Reader(model, path, pool).parts():
            batch = encode_video(model, "clip", content)
            videos = stored_tokens(batch, model.logit_scale.device)
            scores.append(torch.cat([model.score(some, videos) for some in queries]))
            spans += zip(batch.start.tolist(), batch.end.tolist(), strict=True)
    best, places = torch.cat(scores, dim=1).max(dim=1)
    found = zip(texts, best.tolist(), places.tolist(), strict=True)
    matches = [CaptionMatch(caption, score, *spans[place]) for caption, score, place in found]
    return sorted(matches, key=lambda match: -match.score)
