"""What a run learns from, and when: [data] and further sources, each batch from one of them."""

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
"""What [data] is called among the sources."""


@dataclass
class Source:
    """Captions and frames to learn from, with the settings that hold for them."""

    name: str
    experiment: Experiment
    """As this source sees it: see `Experiment.of_source`."""
    split: Split
    asked: str
    """Hash of the split before missing videos were taken out."""
    missing: int
    cache: Clips
    share: float
    weight: float = 1.0
    teacher: CaptionTeacher | None = None
    _drawn: tuple[int, list[list[Pair]]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.reader = ClipReader(self.cache, self.experiment, self.split)

    def read_from(self, clips: Clips) -> None:
        """Take frames, or their features, from elsewhere."""
        self.reader = ClipReader(clips, self.experiment, self.split)

    def count(self, epoch: int) -> int:
        """Batches of an epoch."""
        train = self.experiment.train
        return count_batches(
            self.split, train.batch_size, per_video=train.captions_per_video, seed=train.seed, epoch=epoch
        )

    def batches(self, epoch: int) -> list[list[Pair]]:
        """All batches of an epoch; those of the last one asked for are kept."""
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
    """Where a step's batch stands."""

    source: int
    epoch: int
    """Of the source."""
    batch: int
    """Of that epoch."""


class Schedule:
    """Which batch of which source each step learns: fixed by sources, shares and seed, so that a run can be resumed.

    An epoch of the run is one of the source with the largest share (the first of equal ones). The others' batches come
    between its own, evenly, and go on from epoch to epoch of theirs.
    """

    def __init__(self, sources: Sequence[Source], epochs: int) -> None:
        self._sources = sources
        leading = max(range(len(sources)), key=lambda number: sources[number].share)
        counts = [sources[leading].count(epoch) for epoch in range(epochs)]
        self._source = _interleaved([source.share for source in sources], leading, sum(counts))
        own = np.flatnonzero(self._source == leading)
        self.ends: list[int] = [int(own[end - 1]) + 1 for end in accumulate(counts)]
        """After how many steps each epoch ends."""
        # How many batches of the same source come before each step, and each source's batches up to each epoch's end.
        self._turn = np.empty_like(self._source)
        for number in range(len(sources)):
            mine = self._source == number
            self._turn[mine] = np.arange(int(mine.sum()))
        self._totals: list[list[int]] = [[] for _ in sources]
        self._totals[leading] = list(accumulate(counts))

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.ends[-1]

    def place(self, step: int) -> Location:
        """What the step after ``step`` steps learns."""
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
    """Numbers of sources, evenly mixed by their shares, up to the ``count``-th of the leading one."""
    if len(shares) == 1:
        return np.zeros(count, dtype=np.int64)
    given, order = [0] * len(shares), list[int]()
    while given[leading] < count:
        due = [share * (len(order) + 1) - had for share, had in zip(shares, given, strict=True)]
        # The leading one first among equals, so that every epoch ends with a step of its own.
        number = max(range(len(shares)), key=lambda place: (due[place], place == leading))
        given[number] += 1
        order.append(number)
    return np.array(order, dtype=np.int64)


def open_sources(experiment: Experiment, benchmark: Benchmark, main: Clips, allow_missing: int) -> list[Source]:
    """[data] first, even where it has no share, then the others in their order; each with what of it is there."""
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
    """Refuse a source that names videos of the folder of [data] that are tested or validated with."""
    if own.data.videos != experiment.data.videos:
        return
    held = {video for other in (benchmark.val, benchmark.test) if other is not None for video in other.video_ids}
    both = [video for video in split.video_ids if video in held]
    if both:
        raise DataError(f"{len(both)} of its videos are to be tested or validated with ({examples(both)})")
