"""The library behind the server: loaded in the background, replaced when it has a newer version.

Nothing here imports torch until the loading thread does: the page is served before the model is loaded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from prota.errors import one_line
from prota.library.records import ModelStamp, VideoRecord
from prota.library.storage.location import Location, Where
from prota.library.storage.schema import one_of, stored
from prota.models import shipped
from prota.server.problems import ProblemError, readable

if TYPE_CHECKING:
    import torch

    from prota.cluster.shards import ShardedFinder
    from prota.library.finding import Finder
    from prota.library.library import Library
    from prota.library.search import Searcher
    from prota.library.storage.reader import Snapshot
    from prota.scoring.score import ScoreHead

__all__ = ["Catalogue", "Folders", "State", "View"]

State = Literal["loading", "ready", "failed"]
# After an error, wait this many times longer before the next attempt.
_BACKOFF = 5
# An indexing run commits all the time. After loading a version, leave this many times the loading time to searches.
_REST = 4.0
_log = logging.getLogger("prota.server")
# With more videos, filter by their folders instead, unless those are many as well.
_FEW_VIDEOS, _FEW_FOLDERS = 500, 50


class Folders:
    """The folders of all files of one version, copies included; built once, when the version is loaded."""

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        """``files``: (path, content) of each existing file."""
        self._contents: dict[str, set[str]] = {}
        self._paths: dict[str, str] = {}
        for path, content in files:
            self._contents.setdefault(os.path.dirname(path), set()).add(content)
            # A filter sees one path of each content, of copies the first.
            self._paths[content] = min(path, self._paths.get(content, path))
        self._named: dict[str, set[str]] = {}
        for parent in self._contents:
            for folder in _ancestors(parent):
                self._named.setdefault(readable(os.path.basename(folder)), set()).add(folder)

    @cached_property
    def names(self) -> list[str]:
        """Names of the folders that contain videos."""
        return sorted({readable(os.path.basename(parent)) for parent in self._contents} - {""})

    def condition(self, name: str) -> str:
        """SQL over the segments: some copy lies in or below a folder of that name; several folders may have it."""
        named = self._named.get(name, set())
        within = {parent for parent in self._contents if any(folder in named for folder in _ancestors(parent))}
        contents = set[str]().union(*(self._contents[parent] for parent in within))
        tops = {folder for folder in named if not any(above in named for above in _ancestors(os.path.dirname(folder)))}
        if len(contents) <= _FEW_VIDEOS or len(tops) > _FEW_FOLDERS:
            return one_of("video_id", contents or [""])
        starts = [stored(folder.rstrip("/") + "/").replace("'", "''") for folder in sorted(tops)]
        parts = [f"starts_with(path, '{start}')" for start in starts]
        elsewhere = [content for content in contents if os.path.dirname(self._paths[content]) not in within]
        return "(" + " OR ".join([*parts, *([one_of("video_id", elsewhere)] if elsewhere else [])]) + ")"


def _ancestors(folder: str) -> list[str]:
    """The folder and those above it, without the root, which has no name."""
    found = []
    while os.path.basename(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


@dataclass(frozen=True)
class View:
    """One version of the library. A request keeps the view it began with."""

    number: int
    """Unique within a server; versions repeat if a library is deleted and made again."""
    store: Snapshot
    videos: dict[str, VideoRecord]
    """By content, pictures included; of several copies, the first existing file."""
    folders: Folders
    searcher: Searcher | None = None
    """None until the model is loaded."""

    @classmethod
    def of(cls, number: int, store: Snapshot) -> View:
        files = [record for record in store.videos() if record.state == "indexed"]
        videos: dict[str, VideoRecord] = {}
        for record in files:
            videos.setdefault(record.video_id, record)
        return cls(number, store, videos, Folders((record.path, record.video_id) for record in files))

    @property
    def version(self) -> int:
        return self.store.version

    @cached_property
    def hours(self) -> float:
        """Total duration of the videos."""
        return sum(record.duration for record in self.videos.values()) / 3600

    @cached_property
    def segments(self) -> int:
        return self.store.count()

    @cached_property
    def pictures(self) -> int:
        return sum(record.kind == "picture" for record in self.videos.values())

    def record(self, video_id: str) -> VideoRecord:
        """ProblemError 404 if the video is not in the library."""
        if video_id not in self.videos:
            raise ProblemError(404, "there is no such video in the library")
        return self.videos[video_id]

    def check_row(self, row: int) -> None:
        """ProblemError 404 if no segment has this row."""
        if not 0 <= row < self.segments:
            raise ProblemError(404, "there is no such segment in the library")


class Catalogue:
    """The current view of a library and the one before it, which clients may still show."""

    def __init__(
        self,
        folder: Where,
        model: str | None,
        *,
        device: str,
        refresh: float,
        shards: Callable[[Snapshot, ScoreHead, torch.device], ShardedFinder] | None = None,
    ) -> None:
        """``shards``: distributes a version of the library over a cluster; None: search in this process."""
        self.folder, self.device, self.refresh = Location.of(folder), device, refresh
        self.state: State = "loading"
        self.reason = ""
        self.model, self.model_name = model, model or shipped.DEFAULT
        self.view: View | None = None
        """None if there is no library yet."""
        self._previous: View | None = None
        self._views = 0
        self._states: object = None
        self._rest_until = 0.0
        self._library: Library | None = None
        self._stamp: ModelStamp | None = None
        self._make_shards = shards
        self._loading: ShardedFinder | None = None
        self._sharded: ShardedFinder | None = None
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="prota-library", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        for finder in (self._loading, self._sharded):
            if finder is not None:
                finder.close()

    def refresh_soon(self) -> None:
        """Look for a newer version now."""
        self._wake.set()

    def at(self, version: int | None = None) -> View:
        """The current view, or the previous one by its version; ProblemError otherwise."""
        view = self.view
        if view is None:
            raise ProblemError(404, "the library is empty") if self.state == "ready" else self.not_ready()
        if version is None or version == view.version:
            return view
        if self._previous is not None and version == self._previous.version:
            return self._previous
        raise ProblemError(404, "the library has changed since: search again")

    def searchable(self, version: int | None = None) -> View:
        """As `at`; ProblemError 503 while the model is not loaded."""
        view = self.at(version)
        if view.searcher is None:
            raise self.not_ready()
        return view

    def not_ready(self) -> ProblemError:
        if self.state == "failed":
            return ProblemError(503, f"the library cannot be opened: {self.reason}", {"Retry-After": "10"})
        return ProblemError(503, "the model is being loaded", {"Retry-After": "1"})

    @property
    def shards(self) -> tuple[int, int]:
        """How many shards the next search will ask, and of how many."""
        finder = self._sharded
        return (0, 0) if finder is None else (finder.up, len(finder.shards))

    def _run(self) -> None:
        """Load, then look for newer versions until the server ends."""
        while not self._ended.is_set():
            self._wake.clear()
            pause = self.refresh
            try:
                self._update()
            except Exception as error:
                self._fail(one_line(error))
                # Reading a model is expensive.
                pause = _BACKOFF * self.refresh
            self._wake.wait(pause)
            self._ended.wait(max(0.0, self._rest_until - time.monotonic()))

    def _fail(self, reason: str) -> None:
        """Log each reason once. A view that can be searched stays."""
        if reason != self.reason:
            _log.warning("the library cannot be opened: %s", reason)
        self.reason = reason
        if self.view is None or self.view.searcher is None:
            self.state = "failed"

    def _update(self) -> None:
        from prota.library.storage.reader import Snapshot
        from prota.library.storage.versions import read_head, read_library

        if not self.folder.exists("library.json"):
            # Nothing to search, nothing to load: the first index job makes the library.
            self.view, self._previous = None, None
            self.state, self.reason = "ready", ""
            return
        current = self.view
        # A library made again in the same place may have the same version.
        states = (read_library(self.folder), read_head(self.folder))
        if current is not None and current.searcher is not None and states == self._states:
            return
        store = Snapshot.open(self.folder)
        self._views += 1
        view = View.of(self._views, store)
        if self._library is None or self._stamp != store.stamp:
            # Videos can be shown while the model is loading.
            self.state, self.view, self._previous = "loading", view, None
            self._library = None
            self._library, self._stamp = self._load(store), store.stamp
        started = time.monotonic()
        finder = self._finder(store, self._library)
        built = time.monotonic()
        searcher = _searcher(store, self._library, finder)
        # Before the first request, and only once.
        searcher.warm()
        # Shards are built by other processes, which take less from searches.
        self._rest_until = time.monotonic() + (built - started) + _REST * (time.monotonic() - built)
        if current is not None and current.searcher is not None and current.store.stamp == store.stamp:
            # Without its tokens in memory: requests for an old version read single rows.
            self._previous = replace(current, searcher=_searcher(current.store, self._library))
        self.view, self._states = replace(view, searcher=searcher), states
        self.state, self.reason = "ready", ""

    def _load(self, store: Snapshot) -> Library:
        from prota.library.library import Library
        from prota.library.tokens import stamp_of
        from prota.runtime import start_world

        library = Library.open(self.folder, self.model, str(start_world(self.device).device))
        store.check_model(stamp_of(library.model, library.name))
        self.model_name = store.stamp.name
        return library

    def _finder(self, store: Snapshot, library: Library) -> Finder | None:
        """Searches this version on a cluster; requests use the previous one until it is ready. None: no cluster."""
        if self._make_shards is None:
            return None
        self._loading = self._make_shards(store, library.model.head, library.model.logit_scale.device)
        self._loading.warm()
        self._sharded = self._loading
        return self._sharded


def _searcher(store: Snapshot, library: Library, finder: Finder | None = None) -> Searcher:
    from prota.library.search import Searcher

    return Searcher(store, library.model, finder=finder)
