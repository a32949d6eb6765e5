"""The folders that the videos of a library lie in, and what a search is limited to that asks for one by its name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property

from prota.library.storage.schema import one_of, stored
from prota.server.problems import readable

__all__ = ["Folders"]

# Beyond so many videos their folders are asked for instead, unless these are many too.
_FEW_VIDEOS, _FEW_FOLDERS = 500, 50


class Folders:
    """Of all files of a version of a library, copies too; made where the library is loaded, for it takes a while."""

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        """``files``: (path, content) of those that are there."""
        self._contents: dict[str, set[str]] = {}
        self._paths: dict[str, str] = {}
        for path, content in files:
            self._contents.setdefault(os.path.dirname(path), set()).add(content)
            # Segments carry one path, of copies the first.
            self._paths[content] = min(path, self._paths.get(content, path))
        self._named: dict[str, set[str]] = {}
        for parent in self._contents:
            for folder in _upwards(parent):
                self._named.setdefault(readable(os.path.basename(folder)), set()).add(folder)

    @cached_property
    def names(self) -> list[str]:
        """Of the folders that videos lie in."""
        return sorted({readable(os.path.basename(parent)) for parent in self._contents} - {""})

    def condition(self, name: str) -> str:
        """SQL over the segments: a copy lies in or below a folder of that name; there may be several."""
        named = self._named.get(name, set())
        within = {parent for parent in self._contents if any(folder in named for folder in _upwards(parent))}
        contents = set[str]().union(*(self._contents[parent] for parent in within))
        tops = {folder for folder in named if not any(above in named for above in _upwards(os.path.dirname(folder)))}
        if len(contents) <= _FEW_VIDEOS or len(tops) > _FEW_FOLDERS:
            return one_of("video_id", contents or [""])
        starts = [stored(folder.rstrip("/") + "/").replace("'", "''") for folder in sorted(tops)]
        parts = [f"starts_with(path, '{start}')" for start in starts]
        elsewhere = [content for content in contents if os.path.dirname(self._paths[content]) not in within]
        return "(" + " OR ".join([*parts, *([one_of("video_id", elsewhere)] if elsewhere else [])]) + ")"


def _upwards(folder: str) -> list[str]:
    """The folder and those above it, without the root, which has no name."""
    found = []
    while os.path.basename(folder):
        found.append(folder)
        folder = os.path.dirname(folder)
    return found
