"""The library of the server, loaded in the background and replaced by newer versions.

Only the loading thread imports torch, so that the page is served before the model is loaded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from prota.errors import one_line
from prota.library.records import ModelStamp, VideoRecord
from prota.library.storage.location import Location, Where
from prota.library.storage.schema import one_of, stored
from prota.models import shipped
from prota.server.problems import ProblemError, readable
from prota.server.schemas import FileOrder, Kind, LibraryState

if TYPE_CHECKING:
    import torch

    from prota.cluster.shards import ShardedFinder
    from prota.library.search.view import View
    from prota.library.storage.reader import Snapshot
    from prota.model.prota import ProTA
    from prota.scoring.score import ScoreHead

__all__ = ["Catalogue", "Folders", "LibraryVersion", "Listing", "ancestors", "file_id"]

# After an error, the interval between attempts is this many times longer.
_BACKOFF = 5
# An index run commits often. After loading a version, wait this many times the loading time.
_REST = 4.0
_log = logging.getLogger("prota.server")
# With more videos, filter by folder instead, unless there are many folders.
_FEW_VIDEOS, _FEW_FOLDERS = 500, 50


class Folders:
    """The folders of all files of a version, including duplicates; built when the version is loaded."""

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        """``files``: (path, content) of each existing file."""
        self._contents: dict[str, set[str]] = {}
        self._paths: dict[str, str] = {}
        for path, content in files:
            self._contents.setdefault(os.path.dirname(path), set()).add(content)
            # A filter sees one path per content: the first one.
            self._paths[content] = min(path, self._paths.get(content, path))
        self._named: dict[str, set[str]] = {}
        for parent in self._contents:
            for folder in ancestors(parent):
                self._named.setdefault(readable(os.path.basename(folder)), set()).add(folder)

    @cached_property
    def names(self) -> list[str]:
        """Names of folders that contain videos."""
        return sorted({readable(os.path.basename(parent)) for parent in self._contents} - {""})

    def condition(self, name: str) -> str:
        """SQL over the segments for files in or below any folder with this name."""
        named = self._named.get(name, set())
        within = {parent for parent in self._contents if any(folder in named for folder in ancestors(parent))}
        contents = set[str]().union(*(self._contents[parent] for parent in within))
        tops = {folder for folder in named if not any(above in named for above in ancestors(os.path.dirname(folder)))}
        if len(contents) <= _FEW_VIDEOS or len(tops) > _FEW_FOLDERS:
            return one_of("video_id", contents or [""])
        starts = [stored(folder.rstrip("/") + "/").replace("'", "''") for folder in sorted(tops)]
        parts = [f"starts_with(path, '{start}')" for start in starts]
        elsewhere = [content for content in contents if os.path.dirname(self._paths[content]) not in within]
        return "(" + " OR ".join([*parts, *([one_of("video_id", elsewhere)] if elsewhere else [])]) + ")"


@dataclass(frozen=True)
class Listing:
    """All files of a version, bad and missing ones too; built by the first request that lists them."""

    records: Sequence[VideoRecord]

    @cached_property
    def _sorted(self) -> dict[FileOrder, list[tuple[VideoRecord, str]]]:
        """Records with their names for comparison, by order; filled when needed."""
        return {}

    def find(
        self, name: str = "", folder: str | None = None, kind: Kind | None = None, order: FileOrder = "name"
    ) -> list[VideoRecord]:
        """The files that pass: ``name`` is a part of their names, ``folder`` the name of a folder above them."""
        if order not in self._sorted:
            named = [(record, os.path.basename(record.path).casefold()) for record in self.records]
            self._sorted[order] = sorted(named, key=_ORDERS[order])
        found = self._sorted[order]
        if name:
            wanted = name.casefold()
            found = [pair for pair in found if wanted in pair[1]]
        if kind is not None:
            found = [pair for pair in found if pair[0].kind == kind]
        if folder is not None:
            within = _Within(folder)
            found = [pair for pair in found if within[os.path.dirname(pair[0].path)]]
        return [record for record, _ in found]

    def files(self, ids: Collection[str]) -> list[VideoRecord]:
        """The files with these ids; ProblemError 404 if one is not in the library."""
        found = {name: record for record in self.records if (name := file_id(record)) in ids}
        if len(found) < len(set(ids)):
            raise ProblemError(404, "no such file in the library")
        return list(found.values())


_ORDERS: dict[FileOrder, Callable[[tuple[VideoRecord, str]], Any]] = {
    "name": lambda pair: (pair[1], pair[0].path),
    "newest": lambda pair: (-pair[0].modified, pair[0].path),
    "longest": lambda pair: (-pair[0].duration, pair[0].path),
    "largest": lambda pair: (-pair[0].size, pair[0].path),
}


class _Within(dict[str, bool]):
    """Whether folders are, or lie below, one of a name; each is looked at once."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __missing__(self, folder: str) -> bool:
        self[folder] = any(readable(os.path.basename(above)) == self._name for above in ancestors(folder))
        return self[folder]


def file_id(record: VideoRecord) -> str:
    """The id of a file in the library: clients know no paths."""
    return hashlib.sha256(stored(record.path).encode()).hexdigest()


def ancestors(folder: str) -> list[str]:
    """The folder and its parents, without the root."""
    found = []
    while os.path.basename(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found


@dataclass(frozen=True)
class LibraryVersion:
    """A version of the library, which can be shown before the model is loaded. A request keeps its version."""

    number: int
    """Unique within a server; version numbers repeat when a library is deleted and created again."""
    snapshot: Snapshot
    folders: Folders
    view: View | None = None
    """For searching; None until the model is loaded."""

    @classmethod
    def of(cls, number: int, snapshot: Snapshot) -> LibraryVersion:
        # Computed in the loading thread, not by the first request.
        _ = snapshot.shown
        files = ((record.path, record.video_id) for record in snapshot.videos() if record.state == "indexed")
        return cls(number, snapshot, Folders(files))

    @property
    def version(self) -> int:
        return self.snapshot.version

    @cached_property
    def hours(self) -> float:
        """Total duration of the videos."""
        return sum(record.duration for record in self.snapshot.shown.values()) / 3600

    @cached_property
    def listing(self) -> Listing:
        return Listing(self.snapshot.videos())

    @cached_property
    def segments(self) -> int:
        return self.snapshot.count()

    @cached_property
    def pictures(self) -> int:
        return sum(record.kind == "picture" for record in self.snapshot.shown.values())

    @property
    def videos(self) -> int:
        return len(self.snapshot.shown) - self.pictures

    def record(self, video_id: str) -> VideoRecord:
        """ProblemError 404 if the video is not in the library."""
        if video_id not in self.snapshot.shown:
            raise ProblemError(404, "no such video in the library")
        return self.snapshot.shown[video_id]

    def check_row(self, row: int) -> None:
        """ProblemError 404 if no segment has this row."""
        if not 0 <= row < self.segments:
            raise ProblemError(404, "no such segment in the library")


class Catalogue:
    """The current version of a library and the previous one, which clients may still show."""

    def __init__(
        self,
        folder: Where,
        model: str | None,
        *,
        device: str,
        refresh: float,
        shards: Callable[[Snapshot, ScoreHead, torch.device], ShardedFinder] | None = None,
    ) -> None:
        """``shards``: distributes a version of the library over a cluster; None: searches run in this process."""
        self.folder, self.device, self.refresh = Location.of(folder), device, refresh
        self.state: LibraryState = "loading"
        self.reason = ""
        self.model_source, self.model_name = model, model or shipped.DEFAULT
        self.current: LibraryVersion | None = None
        """None if there is no library yet."""
        self._previous: LibraryVersion | None = None
        self._versions = 0
        self._states: object = None
        self._rest_until = 0.0
        self._model: ProTA | None = None
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
        """Check for a newer version now."""
        self._wake.set()

    def at(self, version: int | None = None) -> LibraryVersion:
        """The current version, or the previous one by its number; ProblemError otherwise."""
        current = self.current
        if current is None:
            raise ProblemError(404, "the library is empty") if self.state == "ready" else self.not_ready()
        if version is None or version == current.version:
            return current
        if self._previous is not None and version == self._previous.version:
            return self._previous
        raise ProblemError(404, "the library has changed; search again")

    def searchable(self, version: int | None = None) -> LibraryVersion:
        """Like `at`; ProblemError 503 until the model is loaded."""
        found = self.at(version)
        if found.view is None:
            raise self.not_ready()
        return found

    def not_ready(self) -> ProblemError:
        if self.state == "failed":
            return ProblemError(503, f"cannot open the library: {self.reason}", {"Retry-After": "10"})
        return ProblemError(503, "the model is being loaded", {"Retry-After": "1"})

    @property
    def shards(self) -> tuple[int, int]:
        """Number of shards that respond, and of all shards."""
        finder = self._sharded
        return (0, 0) if finder is None else (finder.up, len(finder.shards))

    def _run(self) -> None:
        """Load the library, then check for newer versions until the server stops."""
        while not self._ended.is_set():
            self._wake.clear()
            pause = self.refresh
            try:
                self._update()
            except Exception as error:
                self._fail(one_line(error))
                # Loading a model is expensive.
                pause = _BACKOFF * self.refresh
            self._wake.wait(pause)
            self._ended.wait(max(0.0, self._rest_until - time.monotonic()))

    def _fail(self, reason: str) -> None:
        """Log each reason once. A version that can be searched is kept."""
        if reason != self.reason:
            _log.warning("cannot open the library: %s", reason)
        self.reason = reason
        if self.current is None or self.current.view is None:
            self.state = "failed"

    def _update(self) -> None:
        from prota.library.storage.reader import Snapshot
        from prota.library.storage.versions import read_head, read_library

        if not self.folder.exists("library.json"):
            # No library yet: the first index job creates it.
            self.current, self._previous = None, None
            self.state, self.reason = "ready", ""
            return
        before = self.current
        # A library that was created again in the same place may have the same version.
        states = (read_library(self.folder), read_head(self.folder))
        if before is not None and before.view is not None and states == self._states:
            return
        snapshot = Snapshot.open(self.folder)
        self._versions += 1
        new = LibraryVersion.of(self._versions, snapshot)
        if self._model is None or self._stamp != snapshot.stamp:
            # Videos can be shown while the model is loading.
            self.state, self.current, self._previous = "loading", new, None
            self._model = None
            self._model, self._stamp = self._load(snapshot), snapshot.stamp
        started = time.monotonic()
        finder = self._finder(snapshot, self._model)
        built = time.monotonic()
        from prota.library.search.view import View

        view = View(snapshot, self._model, finder)
        # Once, before the first request.
        view.finder.warm()
        # Other processes build shards, which delays searches less.
        self._rest_until = time.monotonic() + (built - started) + _REST * (time.monotonic() - built)
        if before is not None and before.view is not None and before.snapshot.stamp == snapshot.stamp:
            # Without tokens in memory: requests for an old version read single rows.
            self._previous = replace(before, view=View(before.snapshot, self._model))
        self.current, self._states = replace(new, view=view), states
        self.state, self.reason = "ready", ""

    def _load(self, snapshot: Snapshot) -> ProTA:
        from prota.library.library import load_model
        from prota.library.tokens import stamp_of

        model, name = load_model(self.model_source or snapshot.stamp.name, self.device)
        snapshot.check_model(stamp_of(model, name, snapshot.stamp))
        self.model_name = snapshot.stamp.name
        return model

    def _finder(self, snapshot: Snapshot, model: ProTA) -> ShardedFinder | None:
        """The finder of this version on a cluster; until it is ready, requests use the previous version."""
        if self._make_shards is None:
            return None
        self._loading = self._make_shards(snapshot, model.head, model.logit_scale.device)
        self._loading.warm()
        self._sharded = self._loading
        return self._sharded
