"""A clip as a query: what it looks like, and which of some captions it means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from prota.frames.pool import DecodePool
from prota.library.encoding import encode_video, stored_tokens
from prota.library.reading import ReadRequest, VideoContent, read_video
from prota.library.records import LibraryError, SegmentBatch
from prota.library.search import Query, clean_query
from prota.library.segments import SegmentPlan
from prota.library.snapshot import SegmentTokens
from prota.library.walk import content_id
from prota.model import ProTA

__all__ = ["CaptionMatch", "ClipRange", "like_query", "match_captions", "parse_clip"]


@dataclass(frozen=True)
class ClipRange:
    """A video file, or a stretch of it."""

    path: Path
    start: float | None = None
    end: float | None = None


def parse_clip(text: str) -> ClipRange:
    """``clip.mp4`` or ``clip.mp4@12-20.5``, in seconds. A file whose name ends like that is a file."""
    found = re.fullmatch(r"(.+)@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)", text)
    if found is None or Path(text).exists():
        return ClipRange(Path(text))
    start, end = float(found[2]), float(found[3])
    if end <= start:
        raise LibraryError(f"{text}: the stretch ends before it starts; allowed: clip.mp4@START-END in seconds")
    return ClipRange(Path(found[1]), start, end)


def _encoded(model: ProTA, path: Path, timeout: float, memory: int = 0) -> SegmentBatch:
    """The first segments of a file, up to the size of one part; read in a process that may be killed."""
    if not path.is_file():
        raise LibraryError(f"{path}: no such file")
    encoder = model.config.encoder
    request = ReadRequest(path.absolute(), SegmentPlan(encoder.frames), encoder.image_size)
    with DecodePool(1, timeout, memory) as pool:
        ((_, outcome),) = pool.run(read_video, [("clip", request)])
    if not isinstance(outcome.value, VideoContent):
        raise LibraryError(outcome.error or f"{path}: nothing could be read")
    return encode_video(model, content_id(path), outcome.value)


def _tokens(batch: SegmentBatch) -> SegmentTokens:
    return SegmentTokens(batch.direction, batch.spread, batch.weight, batch.mask)


def like_query(model: ProTA, clip: ClipRange, timeout: float = 300.0, memory: int = 0) -> Query:
    """A query for moments that look like a clip: its segment that covers most of the stretch, or the middle one.

    ``memory``: bytes that decoding may take; 0: any.
    """
    batch = _encoded(model, clip.path, timeout, memory)
    if clip.start is None or clip.end is None:
        chosen = len(batch) // 2
    else:
        covered = np.minimum(batch.end, clip.end) - np.maximum(batch.start, clip.start)
        chosen = int(covered.argmax())
        if covered[chosen] <= 0:
            raise LibraryError(f"{clip.path} shows nothing from {clip.start:g} to {clip.end:g} s: it is shorter")
    tokens = stored_tokens(_tokens(batch), model.logit_scale.device)[chosen : chosen + 1]
    span = (float(batch.start[chosen]), float(batch.end[chosen]))
    return Query(f"like {clip.path.name}", tokens, False, like=(batch.video_id, *span))


@dataclass(frozen=True)
class CaptionMatch:
    """How well a caption describes a clip."""

    caption: str
    score: float
    start: float
    end: float
    """Of the segment that it describes best."""


@torch.inference_mode()
def match_captions(model: ProTA, path: Path, captions: Sequence[str], timeout: float = 300.0) -> list[CaptionMatch]:
    """Captions by how well they describe any moment of a clip, best first."""
    texts = [clean_query(caption) for caption in captions if caption.strip()]
    if not texts:
        raise LibraryError("no captions given: one a line")
    batch = _encoded(model, path, timeout)
    videos = stored_tokens(_tokens(batch), model.logit_scale.device)
    found = []
    for start in range(0, len(texts), 256):
        some = texts[start : start + 256]
        scores, places = model.score(model.encode_text(some).without_source(), videos).max(dim=1)
        for caption, score, place in zip(some, scores.tolist(), places.tolist(), strict=True):
            found.append(CaptionMatch(caption, score, float(batch.start[place]), float(batch.end[place])))
    return sorted(found, key=lambda match: -match.score)
