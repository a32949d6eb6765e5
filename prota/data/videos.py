"""Find videos and pictures by id in a folder, recursively and with any extension."""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from prota.data.splits import DataError
from prota.video.pictures import PICTURE_EXTENSIONS, is_picture
from prota.video.walk import BENCHMARK_EXTENSIONS

__all__ = ["Found", "find_videos"]

_PREFERENCE = {extension: place for place, extension in enumerate((*BENCHMARK_EXTENSIONS, *PICTURE_EXTENSIONS))}


@dataclass(frozen=True)
class Found:
    """The files found for video ids."""

    paths: dict[str, Path]
    """The file that is used for each id."""
    missing: list[str]
    """Ids without a file, in their given order."""
    duplicated: dict[str, list[Path]]
    """Ids that match several different files, the used one first."""


def find_videos(folder: Path, ids: Iterable[str]) -> Found:
    """Match ids with the video files and pictures below ``folder``.

    An id is a path relative to ``folder`` or a file name, with or without the extension; ``x.mov`` also matches
    ``x.mp4`` and ``x.mov.mp4``, as videos are often converted. Of several matches, an exact relative path wins, then
    mp4 over other extensions, then the first by path; a picture next to a video of the same name is its preview.
    Hidden files and folders are skipped. Links are followed, but each folder is visited once.
    """
    by_path: dict[str, list[Path]] = defaultdict(list)
    by_name: dict[str, list[Path]] = defaultdict(list)
    exact: dict[str, Path] = {}
    for relative in _video_files(folder):
        path = folder / relative
        whole = _normal(relative)
        exact[whole] = path
        for key in _without_extensions(whole):
            by_path[key].append(path)
            by_name[key.rpartition("/")[2]].append(path)

    found = Found({}, [], {})
    for video in dict.fromkeys(ids):
        key = _normal(video)
        if key in exact:
            found.paths[video] = exact[key]
            continue
        matches: list[Path] = []
        for name in _without_extensions(key):
            fits = [*sorted(by_path.get(name, []), key=_order), *sorted(by_name.get(name, []), key=_order)]
            matches = [path for path in dict.fromkeys(fits) if not is_picture(path)] or list(dict.fromkeys(fits))
            if matches:
                break
        if not matches:
            found.missing.append(video)
            continue
        found.paths[video] = matches[0]
        if len(matches) > 1:
            different: dict[Path, Path] = {}
            for path in matches:
                different.setdefault(path.resolve(), path)
            if len(different) > 1:
                found.duplicated[video] = list(different.values())
    return found


def _video_files(folder: Path) -> Iterator[str]:
    """Relative paths of the video files below ``folder``; linked folders last, so that real paths win over links."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; set data.videos to the folder that holds the videos")
    real, linked = [folder], list[Path]()
    visited: set[tuple[int, int]] = set()
    while real or linked:
        current = real.pop() if real else linked.pop(0)
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            with os.scandir(current) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            raise DataError(f"{current} cannot be read: {error.strerror}") from None
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _leads_to(entry, os.DirEntry.is_dir):
                (linked if entry.is_symlink() else real).append(Path(entry.path))
            elif _extension(entry.name) is not None and _leads_to(entry, os.DirEntry.is_file):
                yield Path(entry.path).relative_to(folder).as_posix()


def _leads_to(entry: os.DirEntry[str], kind: Callable[[os.DirEntry[str]], bool]) -> bool:
    """Whether an entry is of this kind; a link to itself, for which Python raises an error, is not."""
    try:
        return kind(entry)
    except OSError:
        return False


def _extension(name: str) -> str | None:
    """The extension in lower case; None if it is not one of a video."""
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if stem and dot and extension.lower() in _PREFERENCE else None


def _without_extensions(name: str) -> list[str]:
    """The name with fewer and fewer extensions: ``x.mov.mp4``, ``x.mov``, ``x``."""
    names = [name]
    while _extension(names[-1]) is not None:
        names.append(names[-1].rpartition(".")[0])
    return names


def _normal(name: str) -> str:
    """Normalise accents (macOS decomposes them) and ``./``."""
    return unicodedata.normalize("NFC", str(PurePosixPath(name)))


def _order(path: Path) -> tuple[int, str]:
    return _PREFERENCE[_extension(path.name) or ""], str(path)
