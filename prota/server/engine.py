"""The library behind the server: loaded in the background, and replaced when a newer version of it is there.

Nothing here imports torch until the loading thread does: the page is there before the model is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from prota.errors import one_line
from prota.library.records import ModelStamp, VideoRecord
from prota.library.storage.location import Location, Where
from prota.models import shipped
from prota.server.folders import Folders
from prota.server.problems import ProblemError
from prota.server.waiting import Batcher, Kept

if TYPE_CHECKING:
    import torch

    from prota.cluster.shards import ShardedFinder
    from prota.library.finding import Finder
    from prota.library.library import Library
    from prota.library.search import Query, Searcher
    from prota.library.storage.reader import Snapshot
    from prota.scoring.score import ScoreHead

__all__ = ["Engine", "State", "View"]

State = Literal["loading", "ready", "failed"]
_PATIENCE = 5
# A library that is being indexed changes all the time. After a version was read, so many times as long is for those who
# search.
_REST = 4.0
_log = logging.getLogger("prota.server")


@dataclass(frozen=True)
class View:
    """One version of the library."""

    number: int
    """Grows with each view of a server; versions may repeat where a library is made anew."""
    store: Snapshot
    videos: dict[str, VideoRecord]
    """By content, pictures too; of several copies, the first whose file was there when it was indexed."""
    folders: Folders
    hours: float
    """Of all videos."""
    searcher: Searcher | None
    """None until the model is there."""
    pictures: int = 0
    """How many of the videos are pictures."""

    @property
    def version(self) -> int:
        return self.store.version


class Engine:
    """The present version of a library and its model; the one before is kept for what clients still show of it."""

    def __init__(
        self,
        folder: Where,
        model: str | None,
        device: str,
        cached: int,
        refresh: float,
        shards: Callable[[Snapshot, ScoreHead, torch.device], ShardedFinder] | None = None,
    ) -> None:
        """``shards``: spreads a version of the library over a cluster; None: it is searched in this process."""
        self.folder, self.device, self.refresh = Location.of(folder), device, refresh
        self.state: State = "loading"
        self.reason = ""
        self.model, self.model_name = model, model or shipped.DEFAULT
        self.view: View | None = None
        """None where there is no library yet."""
        self._queries: Kept[Query] = Kept(cached)
        self.batcher: Batcher[str, Query] = Batcher(self._encode)
        self._before: View | None = None
        self._views = 0
        self._states: object = None
        self._rests_until = 0.0
        self._library: Library | None = None
        self._make_shards = shards
        self._loading: ShardedFinder | None = None
        self._sharded: ShardedFinder | None = None
        self._stamp: ModelStamp | None = None
        self._wake, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="prota-library", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        self.batcher.close()
        for finder in (self._loading, self._sharded):
            if finder is not None:
                finder.close()

    def look(self) -> None:
        """See now whether there is a newer version, and not only after a while."""
        self._wake.set()

    @property
    def version(self) -> int:
        return -1 if self.view is None else self.view.version

    def at(self, version: int | None) -> View:
        """The present version, or the one before where that is asked for; ProblemError otherwise."""
        view = self.view
        if view is None:
            raise ProblemError(404, "the library is empty") if self.state == "ready" else self.not_ready()
        if version is None or version == view.version:
            return view
        if self._before is not None and version == self._before.version:
            return self._before
        raise ProblemError(404, "the library has changed since: search again")

    def searcher(self, version: int | None = None) -> Searcher:
        """What searches that version; ProblemError where it is not there, or not yet."""
        return self.searcher_of(self.at(version))

    def searcher_of(self, view: View) -> Searcher:
        if view.searcher is None:
            raise self.not_ready()
        return view.searcher

    def not_ready(self) -> ProblemError:
        if self.state == "failed":
            return ProblemError(503, f"the library cannot be opened: {self.reason}", {"Retry-After": "10"})
        return ProblemError(503, "the model is being loaded", {"Retry-After": "1"})

    def _encode(self, texts: Sequence[str]) -> list[Query]:
        stamp = self._stamp
        queries = self.searcher().encode_all(texts)
        for text, query in zip(texts, queries, strict=True):
            self._queries.put((stamp, text), query)
        return queries

    def known(self, text: str) -> Query | None:
        """What this text was encoded to before, by the same model."""
        return self._queries.get((self._stamp, text))

    def _keep_up(self) -> None:
        """The thread's life: load, then look now and then whether there is something new."""
        while not self._ended.is_set():
            self._wake.clear()
            pause = self.refresh
            try:
                self._take_over()
            except Exception as error:
                self._complain(one_line(error))
                # A model that cannot be read is not to be read all the time.
                pause = _PATIENCE * self.refresh
            self._wake.wait(pause)
            self._ended.wait(max(0.0, self._rests_until - time.monotonic()))

    def _complain(self, reason: str) -> None:
        """Once for each reason. A library that was being searched goes on as it was."""
        if reason != self.reason:
            _log.warning("the library cannot be opened: %s", reason)
        self.reason = reason
        if self.view is None or self.view.searcher is None:
            self.state = "failed"

    def _take_over(self) -> None:
        from prota.library.storage.reader import Snapshot
        from prota.library.storage.versions import read_head, read_library

        if not self.folder.exists("library.json"):
            # Where there is nothing to search, there is nothing to load: the first index job makes the library.
            self.view, self._before = None, None
            self.state, self.reason = "ready", ""
            return
        present = self.view
        # One made anew in the same place may be of the same version.
        states = (read_library(self.folder), read_head(self.folder))
        if present is not None and present.searcher is not None and states == self._states:
            return
        store = Snapshot.open(self.folder)
        files = [record for record in store.videos() if record.state == "indexed"]
        videos: dict[str, VideoRecord] = {}
        for record in files:
            videos.setdefault(record.video_id, record)
        folders = Folders((record.path, record.video_id) for record in files)
        if self._library is None or self._stamp != store.stamp:
            # The videos can be looked at while the model is read.
            self.state, self.view, self._before = "loading", self._next(store, videos, folders, None), None
            self._load(store)
        assert self._library is not None
        began = time.monotonic()
        searcher = self._new_searcher(store, self._finder(store))
        built = time.monotonic()
        # Before the first who asks, and once: later they are only read.
        searcher.warm()
        # What other processes built took less from those who search.
        self._rests_until = time.monotonic() + (built - began) + _REST * (time.monotonic() - built)
        if present is not None and present.searcher is not None:
            # Without the tokens in memory: what is still asked of it reads single rows.
            before = self._new_searcher(present.store)
            self._before = replace(present, searcher=before)
        self.view, self._states = self._next(store, videos, folders, searcher), states
        self.state, self.reason = "ready", ""

    def _next(
        self, store: Snapshot, videos: dict[str, VideoRecord], folders: Folders, searcher: Searcher | None
    ) -> View:
        self._views += 1
        hours = sum(record.duration for record in videos.values()) / 3600
        pictures = sum(record.kind == "picture" for record in videos.values())
        return View(self._views, store, videos, folders, hours, searcher, pictures)

    def _new_searcher(self, store: Snapshot, finder: Finder | None = None) -> Searcher:
        from prota.library.search import Searcher

        assert self._library is not None
        return Searcher(store, self._library.model, finder=finder)

    def _finder(self, store: Snapshot) -> Finder | None:
        """What searches a version, where that is not this process; requests go on with the one before meanwhile."""
        if self._make_shards is None:
            return None
        assert self._library is not None
        model = self._library.model
        self._loading = self._make_shards(store, model.head, model.logit_scale.device)
        self._loading.warm()
        self._sharded = self._loading
        return self._sharded

    @property
    def shards(self) -> tuple[int, int]:
        """How many shards the next search will ask, and of how many."""
        finder = self._sharded
        return (0, 0) if finder is None else (finder.up, len(finder.shards))

    def _load(self, store: Snapshot) -> None:
        from prota.library.encoding import stamp_of
        from prota.library.library import Library
        from prota.runtime import start_world

        self._library, self._stamp = None, None
        library = Library.open(self.folder, self.model, str(start_world(self.device).device))
        store.check_model(stamp_of(library.model, library.name))
        self._library, self._stamp, self.model_name = library, store.stamp, store.stamp.name

    def record(self, video_id: str) -> VideoRecord:
        """Of a video of the present version; ProblemError 404 where there is none."""
        found = self.view.videos.get(video_id) if self.view is not None else None
        if found is None:
            raise ProblemError(404, "there is no such video in the library")
        return found
