"""A library of indexed videos: open, index, search."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

from prota.errors import UsageError
from prota.library.indexing import IndexOptions, IndexReport
from prota.library.indexing.pipeline import ExecutorMaker, Pipeline
from prota.library.records import LibraryError
from prota.library.search.clips import clip_query
from prota.library.search.hits import Results
from prota.library.search.queries import ClipRange, Query, parse_clip
from prota.library.search.view import View
from prota.library.segments import SegmentPlan
from prota.library.storage.location import Location, Where
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stamp_of
from prota.model.prota import ProTA
from prota.models import shipped
from prota.runs import best_checkpoint
from prota.runtime import choose_device

__all__ = ["Library", "load_model"]


def load_model(source: str | Path, device: str = "auto") -> tuple[ProTA, str]:
    """A model for text queries on a device, and the name by which a library remembers it."""
    # Of a folder its whole path: the library is opened from other folders, too.
    name = str(Path(source).absolute()) if Path(source).is_dir() else str(source)
    return ProTA.for_texts(best_checkpoint(name)).to(choose_device(device)), name


class Library:
    """Indexed videos in a folder or on object storage, and the model that encodes queries for them.

    Parameters
    ----------
    location
        A folder, or ``s3://``, ``gs://`` or ``az://`` with bucket and prefix. The first `index` creates the library.
    model
        A `ProTA`, the name of a shipped model, a model folder, a training run or a hub id. By default the library's
        own; for a new library ``prota-small``.
    device
        ``cpu``, ``cuda``, ``cuda:1``, ``mps``; ``auto``: a GPU if there is one.
    existing
        Raise a `LibraryError` if there is no library, before the model is loaded.

    Example
    -------
    >>> import prota
    >>> lib = prota.Library("lib")
    >>> lib.index("clips").finished
    True
    >>> [hit.path.name for hit in lib.search("a cup of coffee", k=1)]
    ['coffee.mp4']
    """

    def __init__(
        self,
        location: Where,
        model: str | Path | ProTA | None = None,
        *,
        device: str = "auto",
        existing: bool = False,
    ) -> None:
        self.location = Location.of(location)
        there = existing or self.location.exists("library.json")
        self._snapshot = Snapshot.open(self.location) if there else None
        self._view: View | None = None
        own = "" if self._snapshot is None else self._snapshot.stamp.name
        if isinstance(model, ProTA):
            self.name = own or "given in Python"
            self.model = model.to(choose_device(device)) if device != "auto" else model
        else:
            self.model, self.name = load_model(model if model is not None else own or shipped.DEFAULT, device)
        self.model.eval()

    def __repr__(self) -> str:
        return f"Library({str(self.location)!r}, model={self.name!r})"

    def index(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        fps: float = 1.0,
        frames: int = 0,
        overlap: float = 0.5,
        shots: bool = False,
        pictures: bool = True,
        prune: bool = False,
        retry: bool = False,
        within: Sequence[str] = (),
        workers: int = 0,
        timeout: float = 300.0,
        wait: float = 0.0,
        report: Callable[[IndexReport], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        executor: ExecutorMaker | None = None,
    ) -> IndexReport:
        """Add new and changed files and folders to the library; resumes an interrupted call.

        Parameters
        ----------
        paths
            Videos, pictures, or folders of them.
        fps
            Frames sampled per second.
        frames
            Frames of a segment; 0: as many as the model takes.
        overlap
            Share of a segment that the next one repeats.
        shots
            Let no segment cross a cut.
        pictures
            Index JPEG, PNG and WebP files, too.
        prune
            Remove videos whose files are gone, instead of marking them.
        retry
            Retry files that could not be indexed before.
        within
            Real paths of folders; files that links lead to from elsewhere are skipped. Empty: all are taken.
        workers
            Decoder processes; 0: one per core.
        timeout
            Seconds that a part of a video may take to decode.
        wait
            Seconds to wait for another process that is writing the library.
        report, should_stop
            Called with the `IndexReport` whenever it grows; asked whether to stop.
        executor
            Where files are read and encoded, by default on this machine; see `prota.cluster.executor`.

        Example
        -------
        >>> import prota
        >>> report = prota.Library("lib").index("clips", fps=2, shots=True)
        >>> report.finished, report.bad
        (True, {})
        """
        most = self.model.config.encoder.frames
        if frames > most:
            raise UsageError(f"frames={frames} exceeds what this model takes; allowed: up to {most}")
        plan = SegmentPlan(frames or most, fps, overlap, shots)
        options = IndexOptions(
            plan, workers or os.cpu_count() or 1, timeout, prune, retry, pictures=pictures, within=tuple(within)
        )
        given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
        given = [path.expanduser() for path in given]
        missing = [str(path) for path in given if not path.exists()]
        if missing:
            raise LibraryError(f"{', '.join(missing)}: no such file or folder")
        stamp = stamp_of(self.model, self.name, None if self._snapshot is None else self._snapshot.stamp)
        there = self.location.exists("library.json")
        waiting = (wait, should_stop)
        opened = Writer.open(self.location, *waiting) if there else Writer.create(self.location, stamp, *waiting)
        with opened as writer:
            writer.snapshot.check_model(stamp)
            self._snapshot = self._view = None
            pipeline = Pipeline(writer, self.model, options, report=report, should_stop=should_stop, executor=executor)
            return pipeline.run([path.absolute() for path in given])

    @property
    def view(self) -> View:
        """The version at opening, or after the last `index`; commits of other processes need a new `Library`."""
        if self._view is None:
            snapshot = self._snapshot or Snapshot.open(self.location)
            snapshot.check_model(stamp_of(self.model, self.name, snapshot.stamp))
            self._view = View(snapshot, self.model)
        return self._view

    @overload
    def search(
        self, query: str | None = ..., k: int = ..., *, like: str | Path | None = ..., start: float | None = ...,
        end: float | None = ..., where: str | None = ..., exact: bool = ...,
    ) -> Results: ...  # fmt: skip
    @overload
    def search(
        self, query: list[str] | tuple[str, ...], k: int = ..., *, like: str | Path | None = ...,
        start: float | None = ...,
        end: float | None = ..., where: str | None = ..., exact: bool = ...,
    ) -> list[Results]: ...  # fmt: skip
    def search(
        self,
        query: str | Sequence[str] | None = None,
        k: int = 10,
        *,
        like: str | Path | None = None,
        start: float | None = None,
        end: float | None = None,
        where: str | None = None,
        exact: bool = False,
    ) -> Results | list[Results]:
        """Search the library with a text query or with a clip.

        Parameters
        ----------
        query
            English text; or several texts, which gives a list of `Results`.
        k
            Moments to return, at most.
        like
            Instead of a text: a video or picture file that results should look like.
        start, end
            The part of ``like`` that counts, in seconds; by default its middle.
        where
            A filter in SQL, such as ``"duration < 60 and path like '%beach%'"``.
        exact
            Score every segment, however many there are.

        Returns
        -------
        Results
            Good matches, best first; its ``hits`` has the weaker ones, too.

        Example
        -------
        >>> import prota
        >>> lib = prota.Library("lib")
        >>> hit = lib.search("a cup of coffee", k=1)[0]
        >>> hit.path.name, hit.start, hit.end
        ('coffee.mp4', 0.0, 8.0)
        >>> [results[0].path.name for results in lib.search(["a cat", "a flower"])]
        ['cat.mp4', 'flower.mp4']
        """
        if (query is None) == (like is None):
            raise UsageError("give either a query or like=, a video or picture file")
        if (start is None) != (end is None) or (like is None and start is not None):
            raise UsageError("start and end name a part of like=: give all three")
        queries: list[Query]
        if like is not None:
            clip = ClipRange(Path(like).expanduser(), start, end) if start is not None else parse_clip(str(like))
            queries = [clip_query(self.model, clip)]
        else:
            texts = [query] if isinstance(query, str) else list(query or ())
            queries = self.view.encode(texts) if texts else []
        results = self.view.search(queries, k, where, exact=exact) if queries else []
        return results if like is None and not isinstance(query, str) else results[0]
