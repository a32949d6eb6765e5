"""Check the videos and captions of a benchmark; all problems are reported."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prota.config.experiment import DataConfig
from prota.data.splits import Benchmark, DataError, Split, examples
from prota.data.videos import Found, find_videos

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Inventory", "SplitInventory", "check", "inspect_video", "require_complete", "require_disjoint"]

MIN_FRAMES = 2
MIN_SECONDS = 0.1
TOO_SHORT = "too short: "
"""Prefix of the reasons of too short videos."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SplitInventory:
    """The videos and captions of one split."""

    name: str
    hash: str
    total: int
    """Videos in the split."""
    sound: int
    """Videos with a readable file of sufficient length."""
    missing: list[str]
    """Videos without a file."""
    corrupt: dict[str, str]
    """Videos whose file cannot be read, with the reason."""
    too_short: dict[str, str]
    """Videos with fewer than 2 frames or shorter than 0.1 s."""
    duplicated: dict[str, list[str]]
    """Videos that match several files, the used one first."""
    one_file: list[list[str]]
    """Groups of videos that are the same file."""
    captions: int
    captionless: list[str]
    """Videos without captions."""
    identical_captions: int
    """Captions that another video has too."""

    @property
    def found(self) -> int:
        return self.total - len(self.missing)

    @property
    def unusable(self) -> list[str]:
        """Videos that cannot be used, by problem."""
        return list(dict.fromkeys([*self.missing, *self.corrupt, *self.too_short, *self.captionless]))


@dataclass(frozen=True)
class Inventory:
    """All splits of a benchmark."""

    benchmark: str
    folder: str
    splits: list[SplitInventory]
    shared: dict[str, list[str]]
    """Videos in two splits, by id or by file: ``train+test`` → videos."""

    @property
    def complete(self) -> bool:
        """Whether all videos can be used, none is in two splits and none is listed twice."""
        return not self.shared and not any(split.unusable or split.one_file for split in self.splits)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        tree = asdict(self)
        for split, shown in zip(self.splits, tree["splits"], strict=True):
            shown["found"] = split.found
        return {**tree, "complete": self.complete}

    def table(self) -> Table:
        """Counts, with a row for each finding and a column for each split; ``as_dict`` has the ids."""
        from rich.table import Table

        table = Table(title=f"{self.benchmark} in {self.folder}")
        table.add_column("")
        for split in self.splits:
            table.add_column(split.name, justify="right")
        rows: dict[str, Callable[[SplitInventory], int]] = {
            "videos listed": lambda split: split.total,
            "found": lambda split: split.found,
            "missing": lambda split: len(split.missing),
            "corrupt": lambda split: len(split.corrupt),
            "too short": lambda split: len(split.too_short),
            "usable": lambda split: split.sound,
            "several files": lambda split: len(split.duplicated),
            "one file, two names": lambda split: len(split.one_file),
            "captions": lambda split: split.captions,
            "without caption": lambda split: len(split.captionless),
            "captions not unique": lambda split: split.identical_captions,
        }
        for label, count in rows.items():
            table.add_row(label, *(f"{count(split):,}" for split in self.splits))
        for pair, videos in self.shared.items():
            table.add_row(
                f"LEAK {pair}", *(f"{len(videos):,}" if s.name in pair.split("+") else "" for s in self.splits)
            )
        return table


def check(
    benchmark: Benchmark,
    config: DataConfig,
    *,
    workers: int,
    timeout: float,
    on_progress: Progress | None = None,
) -> Inventory:
    """Find all videos of ``benchmark`` and open each file, in ``workers`` processes, with ``timeout`` seconds each.

    ``on_progress(done, total)`` is called after each file.
    """
    if not config.videos:
        raise DataError("data.videos is not set: set it to the folder of the videos")
    folder = Path(config.videos).expanduser()
    ids = dict.fromkeys(video for split in benchmark.splits for video in split.video_ids)
    found = find_videos(folder, ids)
    reasons = _inspect_all(found.paths, workers, timeout, on_progress)
    return Inventory(
        benchmark.name,
        str(folder),
        [_inventory(split, found, reasons) for split in benchmark.splits],
        _shared(benchmark, found.paths),
    )


def _inventory(split: Split, found: Found, reasons: Mapping[str, str | None]) -> SplitInventory:
    videos = split.video_ids
    problems = {video: reason for video in videos if (reason := reasons.get(video)) is not None}
    missing = [video for video in videos if video not in found.paths]
    # A caption that one video has twice counts once.
    videos_with = Counter(caption for item in split.items for caption in set(item.captions))
    return SplitInventory(
        name=split.name,
        hash=split.hash,
        total=len(split),
        sound=len(split) - len(missing) - len(problems),
        missing=missing,
        corrupt={video: reason for video, reason in problems.items() if not reason.startswith(TOO_SHORT)},
        too_short={video: reason for video, reason in problems.items() if reason.startswith(TOO_SHORT)},
        duplicated={
            video: [str(path) for path in found.duplicated[video]] for video in videos if video in found.duplicated
        },
        one_file=_same_file(split, found.paths),
        captions=len(split.pairs),
        captionless=[item.video_id for item in split.items if not item.captions],
        identical_captions=sum(videos_with[caption] > 1 for _, caption in split.pairs),
    )


def _same_file(split: Split, paths: Mapping[str, Path]) -> list[list[str]]:
    names: dict[Path, list[str]] = {}
    for video in split.video_ids:
        if video in paths:
            names.setdefault(paths[video].resolve(), []).append(video)
    return [videos for videos in names.values() if len(videos) > 1]


def _shared(benchmark: Benchmark, paths: Mapping[str, Path]) -> dict[str, list[str]]:
    """Videos in two splits, with the same id or the same file."""
    shared = {}
    for first, second in itertools.combinations(benchmark.splits, 2):
        ids = set(second.video_ids)
        files = {paths[video].resolve() for video in ids if video in paths}
        both = [v for v in first.video_ids if v in ids or (v in paths and paths[v].resolve() in files)]
        if both:
            shared[f"{first.name}+{second.name}"] = both
    return shared


def inspect_video(path: Path) -> str | None:
    """Why a file cannot be used; None if it can. An unreadable file raises a DecodeError."""
    from prota.video.decode import read_timeline
    from prota.video.pictures import is_picture

    timeline = read_timeline(path)
    if is_picture(path):
        return None
    if len(timeline.times) < MIN_FRAMES:
        return f"{TOO_SHORT}{len(timeline.times)} frame(s), at least {MIN_FRAMES} are needed"
    if timeline.duration < MIN_SECONDS:
        return f"{TOO_SHORT}{timeline.duration:.3f} s, at least {MIN_SECONDS} s are needed"
    return None


def _inspect_all(
    paths: Mapping[str, Path], workers: int, timeout: float, on_progress: Progress | None
) -> dict[str, str | None]:
    from prota.workers.process_pool import DecodePool

    reasons: dict[str, str | None] = {}
    if not paths:
        return reasons
    with DecodePool(workers, timeout) as pool:
        for video, outcome in pool.run(inspect_video, paths.items()):
            reasons[video] = outcome.value if outcome.error is None else str(outcome.error)
            if on_progress is not None:
                on_progress(len(reasons), len(paths))
    return reasons


def require_complete(split: Split, available: Collection[str], allow_missing: int) -> tuple[Split, int]:
    """``split`` without videos that are not ``available`` or have no caption, and their number.

    More than ``allow_missing`` of them is an error.
    """
    there = set(available)
    unavailable = [item.video_id for item in split.items if item.video_id not in there]
    captionless = [item.video_id for item in split.items if item.video_id in there and not item.captions]
    missing = [*unavailable, *captionless]
    if len(missing) > allow_missing:
        what = " and ".join(
            f"{len(videos)} {problem} ({examples(videos)})"
            for videos, problem in ((unavailable, "are missing"), (captionless, "have no caption"))
            if videos
        )
        raise DataError(
            f"of {len(split)} {split.name} videos {what}: run `prota data check`, or skip them with "
            f"--allow-missing {len(missing)}"
        )
    if len(missing) == len(split):
        raise DataError(f"all {len(split)} {split.name} videos are missing: run `prota data check`")
    gone = set(missing)
    return Split(split.name, tuple(item for item in split.items if item.video_id not in gone)), len(missing)


def require_disjoint(benchmark: Benchmark, paths: Mapping[str, Path] | None = None) -> None:
    """Raise an error if a video is in two splits.

    With the ``paths`` of the videos, also if two videos of one split or of two splits are the same file.
    """
    for pair, videos in _shared(benchmark, paths or {}).items():
        raise DataError(
            f"{benchmark.name} has {len(videos)} videos in both splits of {pair} ({examples(videos)}): "
            "remove them from one of the two"
        )
    for split in benchmark.splits:
        same = _same_file(split, paths or {})
        if same:
            raise DataError(
                f"{benchmark.name} {split.name}: {len(same)} videos are one file under two names "
                f"({examples(same[0])}): list each video once"
            )
