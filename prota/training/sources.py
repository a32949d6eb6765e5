"""Sources of training data, [data] and further ones, and the schedule of their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from prota.config.experiment import Experiment
from prota.data.batches import Array, ClipReader, Clips, Pair, count_batches, epoch_batches, open_cache
from prota.data.benchmarks import load_source
from prota.data.doctor import require_complete
from prota.data.splits import Benchmark, DataError, Split, examples
from prota.training.teacher import CaptionTeacher

__all__ = ["MAIN", "Location", "Schedule", "Source", "open_sources"]

MAIN = "data"
"""The name of [data] among the sources."""


@dataclass
class Source:
    """Captions and frames of one source, with their settings."""

    name: str
    experiment: Experiment
    """See `Experiment.of_source`."""
    split: Split
    asked: str
    """Hash of the split with missing videos."""
    missing: int
    cache: Clips
    share: float
    weight: float = 1.0
    teacher: CaptionTeacher | None = None
    _drawn: tuple[int, list[list[Pair]]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.reader = ClipReader(self.cache, self.experiment, self.split)

    def read_from(self, clips: Clips) -> None:
        """Read frames, or their features, from ``clips``."""
        self.reader = ClipReader(clips, self.experiment, self.split)

    def count(self, epoch: int) -> int:
        """Number of batches of an epoch."""
        train = self.experiment.train
        return count_batches(
            self.split, train.batch_size, per_video=train.captions_per_video, seed=train.seed, epoch=epoch
        )

    def batches(self, epoch: int) -> list[list[Pair]]:
        """All batches of an epoch; the last epoch is cached."""
        if self._drawn is None or self._drawn[0] != epoch:
            train = self.experiment.train
            drawn = epoch_batches(
                self.split,
                train.batch_size,
                per_video=train.captions_per_video,
                seed=train.seed,
                epoch=epoch,
            )
            self._drawn = epoch, drawn
        return self._drawn[1]


@dataclass(frozen=True)
class Location:
    """The batch of a step."""

    source: int
    epoch: int
    """Of the source."""
    batch: int
    """Of that epoch."""


class Schedule:
    """The batch of each step, determined by sources, shares and seed, so that runs can be resumed.

    An epoch of the run is one of the source with the largest share (the first of equal ones). Batches of the others are
    interleaved evenly and continue through epochs of their own.
    """

    def __init__(self, sources: Sequence[Source], epochs: int) -> None:
        self._sources = sources
        leading = max(range(len(sources)), key=lambda number: sources[number].share)
        counts = [sources[leading].count(epoch) for epoch in range(epochs)]
        self._source = _interleaved([source.share for source in sources], leading, sum(counts))
        own = np.flatnonzero(self._source == leading)
        self.ends: list[int] = [int(own[end - 1]) + 1 for end in accumulate(counts)]
        """The number of steps after which each epoch ends."""
        # Batches of the same source before each step, and batches of each source up to the end of each epoch.
        self._turn = np.empty_like(self._source)
        for number in range(len(sources)):
            mine = self._source == number
            self._turn[mine] = np.arange(int(mine.sum()))
        self._totals: list[list[int]] = [[] for _ in sources]
        self._totals[leading] = list(accumulate(counts))

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.ends[-1]

    def place(self, step: int) -> Location:
        """The batch of the step after ``step`` steps."""
        number, turn = int(self._source[step]), int(self._turn[step])
        totals = self._totals[number]
        while not totals or totals[-1] <= turn:
            totals.append((totals[-1] if totals else 0) + self._sources[number].count(len(totals)))
        epoch = int(np.searchsorted(totals, turn, side="right"))
        return Location(number, epoch, turn - (totals[epoch - 1] if epoch else 0))

    def per_source(self) -> list[int]:
        """Steps of each source in the whole run."""
        return [int((self._source == number).sum()) for number in range(len(self._sources))]


def _interleaved(shares: Sequence[float], leading: int, count: int) -> Array:
    """Indices of sources, interleaved by their shares, up to the ``count``-th of the leading one."""
    if len(shares) == 1:
        return np.zeros(count, dtype=np.int64)
    given, order = [0] * len(shares), list[int]()
    while given[leading] < count:
        due = [share * (len(order) + 1) - had for share, had in zip(shares, given, strict=True)]
        # The leading source wins ties, so that every epoch ends with one of its steps.
        number = max(range(len(shares)), key=lambda place: (due[place], place == leading))
        given[number] += 1
        order.append(number)
    return np.array(order, dtype=np.int64)


def open_sources(experiment: Experiment, benchmark: Benchmark, main: Clips, allow_missing: int) -> list[Source]:
    """[data] first, even without a share, then the others in order; without their missing videos."""
    train, share = benchmark.split("train"), experiment.share
    sources = [_source(MAIN, experiment, train, main, share=share, weight=1.0, allow_missing=allow_missing)]
    for name, settings in experiment.sources.items():
        own = experiment.of_source(name)
        try:
            split = load_source(own.data)
            _require_apart(experiment, own, split, benchmark)
            cache = open_cache(own)
            source = _source(
                name, own, split, cache, share=settings.share, weight=settings.weight, allow_missing=allow_missing
            )
        except ValueError as error:
            raise DataError(f"sources.{name}: {error}") from None
        sources.append(source)
    return sources


def _source(
    name: str, experiment: Experiment, asked: Split, cache: Clips, *, share: float, weight: float, allow_missing: int
) -> Source:
    ids = {item.video_id for item in asked.items if item.video_id in cache}
    split, missing = require_complete(asked, ids, allow_missing)
    return Source(name, experiment, split, asked.hash, missing, cache, share, weight)


def _require_apart(experiment: Experiment, own: Experiment, split: Split, benchmark: Benchmark) -> None:
    """Raise an error if a source has test or validation videos of [data]."""
    if own.data.videos != experiment.data.videos:
        return
    held = {video for other in (benchmark.val, benchmark.test) if other is not None for video in other.video_ids}
    both = [video for video in split.video_ids if video in held]
    if both:
        raise DataError(f"{len(both)} of its videos are test or validation videos ({examples(both)})")
