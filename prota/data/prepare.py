"""Decode the videos and pictures of an experiment into its frame caches, each file once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.data.benchmarks import load_benchmark, load_source
from prota.data.doctor import require_disjoint
from prota.data.frame_cache import CacheError, CachePlan, CacheReport, FrameCache, Progress, fill_cache
from prota.data.splits import DataError, Split
from prota.data.videos import find_videos

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """One folder of videos and its frame cache."""

    videos: Path
    found: int
    wanted: int
    """Videos that the splits name."""
    cache: Path
    report: CacheReport


def prepare(
    experiment: Experiment,
    *,
    workers: int = 0,
    timeout: float = 60.0,
    retry: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Iterator[Prepared]:
    """Fill the frame caches of [data], then of each source; a call that was stopped is continued by the next.

    ``workers``: decoder processes; 0: one per core. ``timeout``: seconds that a video may take. ``retry``: decode
    quarantined videos again.
    """
    for section, data in (("data", experiment.data), *((f"sources.{n}", own) for n, own in experiment.sources.items())):
        for name in ("cache", "videos"):
            if not getattr(data, name):
                raise ConfigError(f"{section}.{name} is not set; set it in the file or with -s {section}.{name}=FOLDER")
    return _prepared(experiment, workers=workers, timeout=timeout, retry=retry, on_progress=on_progress)


def _prepared(
    experiment: Experiment,
    *,
    workers: int,
    timeout: float,
    retry: bool,
    on_progress: Callable[[Progress], None] | None,
) -> Iterator[Prepared]:
    benchmark = load_benchmark(experiment.data)
    sources = [(experiment, benchmark.splits)]
    own = [experiment.of_source(name) for name in experiment.sources]
    sources += [(source, [load_source(source.data)]) for source in own]
    for place, (source, splits) in enumerate(sources):
        paths = _find(source, splits)
        if place == 0:
            require_disjoint(benchmark, paths)
        encoder, settings, cache = source.encoder, source.data, Path(source.data.cache).expanduser()
        report = fill_cache(
            cache,
            paths,
            CachePlan(encoder.frames, settings.cache_size, settings.max_seconds, encoder.picture),
            workers=workers or os.cpu_count() or 1,
            timeout=timeout,
            retry=retry,
            on_progress=on_progress,
        )
        problems = FrameCache.open(cache).verify()
        if problems:
            raise CacheError(f"corrupt frame cache {cache}: {problems[0]}; delete it and prepare again")
        yield Prepared(Path(settings.videos).expanduser(), len(paths), sum(map(len, splits)), cache, report)


def _find(experiment: Experiment, splits: Sequence[Split]) -> dict[str, Path]:
    """The files of all videos of some splits."""
    folder = Path(experiment.data.videos).expanduser()
    found = find_videos(folder, [video for split in splits for video in split.video_ids])
    if not found.paths:
        raise DataError(f"none of the {sum(map(len, splits))} videos is in {folder}: set data.videos to their folder")
    return found.paths
