"""Splits of captioned videos: without duplicates, with a hash of their contents."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from prota.errors import ProtaError

__all__ = ["SPLITS", "Benchmark", "DataError", "Item", "Split", "SplitName", "examples", "hold_back"]

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class DataError(ProtaError, ValueError):
    """Missing, malformed or inconsistent data."""

    code = "data"


@dataclass(frozen=True)
class Item:
    """A video and its captions; without any it is kept, so that it is reported as missing."""

    video_id: str
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """The items of one split, each video once."""

    name: SplitName
    items: tuple[Item, ...]

    def __post_init__(self) -> None:
        if self.name not in SPLITS:
            raise DataError(f"a split must be one of {', '.join(SPLITS)}, got {self.name!r}")
        doubles = [video for video, count in Counter(self.video_ids).items() if count > 1]
        if doubles:
            raise DataError(
                f"the {self.name} split lists {len(doubles)} videos more than once ({examples(doubles)}): "
                "remove the duplicates"
            )

    def __len__(self) -> int:
        return len(self.items)

    @property
    def video_ids(self) -> list[str]:
        return [item.video_id for item in self.items]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every (video id, caption), in order."""
        return [(item.video_id, caption) for item in self.items for caption in item.captions]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all ids and captions, the same on every machine and for every order of the videos."""
        contents = sorted([item.video_id, list(item.captions)] for item in self.items)
        canonical = json.dumps(contents, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Benchmark:
    """The splits of a data set; None for a split without files."""

    name: str
    train: Split | None
    val: Split | None
    test: Split | None

    def __post_init__(self) -> None:
        for name in SPLITS:
            split = getattr(self, name)
            if split is not None and split.name != name:
                raise DataError(f"{self.name}: expected a {name} split, got {split.name}")

    @property
    def splits(self) -> list[Split]:
        """Existing splits in the order train, val, test."""
        return [split for split in (self.train, self.val, self.test) if split is not None]

    def split(self, name: str) -> Split:
        for split in self.splits:
            if split.name == name:
                return split
        there = ", ".join(split.name for split in self.splits) or "none"
        hint = "; a column `split` says which rows are train, val or test" if self.name == "folder" else ""
        raise DataError(f"{self.name} has no {name} split; splits: {there}{hint}")


def hold_back(train: Split, count: int) -> tuple[Split, Split]:
    """Split off ``count`` validation videos: those with the smallest SHA-256 of their id.

    The choice depends on the ids alone, so that adding a training video changes at most one validation video. Both
    splits keep the order of ``train``.
    """
    if not 0 < count < len(train):
        raise DataError(f"data.validation={count} must be 1 to {len(train) - 1}, of {len(train)} training videos")
    by_hash = sorted(train.video_ids, key=lambda video: hashlib.sha256(video.encode("utf-8", "surrogatepass")).digest())
    chosen = set(by_hash[:count])
    kept = tuple(item for item in train.items if item.video_id not in chosen)
    held = tuple(item for item in train.items if item.video_id in chosen)
    return Split("train", kept), Split("val", held)


def examples(ids: Iterable[str], count: int = 3) -> str:
    """The first few ids, for error messages: ``a, b, c, …``."""
    shown = list(ids)
    return ", ".join(shown[:count]) + (", …" if len(shown) > count else "")
