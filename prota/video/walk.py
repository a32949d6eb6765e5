"""Finding video and picture files, and identifying them by content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prota.platform import open_nonblocking
from prota.video.pictures import PICTURE_EXTENSIONS
from prota.video.timeline import DecodeError

__all__ = ["BENCHMARK_EXTENSIONS", "VIDEO_EXTENSIONS", "FoundFile", "Unreadable"]
__all__ += ["below", "content_id", "placed", "under", "walk"]

# In order of preference if several files have the same stem. The last two occur in DiDeMo, with names from Flickr:
# `x.null`, and `x.` for an unknown container.
BENCHMARK_EXTENSIONS = (
    *("mp4", "m4v", "mov", "qt", "mkv", "webm", "avi", "divx", "mpg", "mpeg", "mpe", "m1v", "m2v", "ts", "mts", "m2ts"),
    *("vob", "wmv", "asf", "flv", "f4v", "3gp", "3gpp", "3g2", "ogv", "ogg", "mxf", "rm", "rmvb", "mjpg", "gif"),
    *("y4m", "ivf", "h264", "264", "h265", "265", "hevc"),
    *("null", ""),
)

# Extensions of videos in folders, lower case. x.null, x. and x.ogg occur in benchmarks; elsewhere .ogg is mostly music.
# Files that are given by path may have any extension.
VIDEO_EXTENSIONS = frozenset(BENCHMARK_EXTENSIONS) - {"null", "", "ogg"} | {
    *("mk3d", "mp4v", "mpg4", "mpv", "mp2v", "m2p", "m2t", "mpgv", "tp", "trp", "tod", "mod", "dv", "xvid", "wtv"),
    *("dvr-ms", "f4p", "ogm", "nut", "nuv", "amv", "mj2", "mjpeg", "gxf", "lrv", "insv", "360"),
    *("obu", "av1", "h263", "263", "h266", "266", "vvc", "vc1"),
}
# Also extensions of TypeScript, Qt translations and Go modules.
PERHAPS_TEXT = frozenset({"ts", "mts", "mod"})
HEAD = 4096

Identity = tuple[int, int]


@dataclass(frozen=True)
class FoundFile:
    """A file that may be a video or a picture."""

    path: Path
    """Absolute path; links in it are not resolved."""
    size: int
    modified: int
    """Modification time of the file system in nanoseconds."""


@dataclass(frozen=True)
class Unreadable:
    """A file or folder that cannot be read."""

    path: Path
    reason: str
    """One line, without the path."""


def walk(paths: Sequence[Path], pictures: bool = False) -> Iterator[FoundFile | Unreadable]:
    """Yield the files among ``paths``, whatever their extension, and the videos in the folders among them, recursively.

    ``pictures``: also yield pictures, except previews. Players and downloaders write ``x.jpg`` or ``x.mp4.jpg`` beside
    ``x.mp4``; indexing both would return every result twice. A preview among ``paths`` is yielded. Without
    ``pictures``, pictures among ``paths`` are skipped, too.

    Each file is yielded once, in an order that depends on names only: in the order of ``paths``, the files of a folder
    before its subfolders, and links last, so that the name of a file takes precedence over links to it. Hidden files
    are skipped unless they are among ``paths``. Links to folders are followed; each folder is visited once. Errors are
    yielded as `Unreadable`, not raised.
    """
    return _Walk(pictures).over([Path(path) for path in paths])


def content_id(path: Path) -> str:
    """SHA-256 of the content of a file, hexadecimal; DecodeError if it is unreadable or changes meanwhile."""
    # Names may contain line breaks, messages may not.
    name = " ".join(str(path).splitlines())
    try:
        with open(path, "rb", buffering=0, opener=open_nonblocking) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise DecodeError(f"{name}: not a regular file")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
        # By name, too: most programs write a new file and rename it.
        now = os.stat(path)
    except OSError as error:
        raise DecodeError(f"{name}: cannot read: {_reason(error)}") from None
    if not _state(before) == _state(after) == _state(now):
        raise DecodeError(f"{name}: changed while being read; index it again when it is complete")
    return digest


def below(path: str | Path, folders: Sequence[str]) -> bool:
    """Whether the real path of a file is in or below one of these folders, given by their real paths."""
    return under(os.path.realpath(path), folders)


def placed(path: Path) -> Path:
    """The absolute path. Like the file system, resolves links before `..`."""
    return Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def under(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders or below one, compared as text."""
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Walk:
    """The state of one walk: visited files and folders, and links to follow."""

    def __init__(self, pictures: bool) -> None:
        self._pictures = pictures
        self._folders: set[Identity] = set()
        self._files: set[Identity] = set()
        self._links: deque[Path] = deque()

    def over(self, paths: list[Path]) -> Iterator[FoundFile | Unreadable]:
        for path in paths:
            yield from self._visit(placed(path), named=True)
        while self._links:
            yield from self._visit(self._links.popleft(), named=False)

    def _visit(self, path: Path, named: bool) -> Iterator[FoundFile | Unreadable]:
        """A file or folder, links followed. Files of other kinds in folders are not reported."""
        wanted = named or self._is_wanted(path.name)
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            if wanted or not path.suffix:
                yield Unreadable(_printable(path), _missing(path, error))
            return
        if stat.S_ISDIR(status.st_mode):
            yield from self._below(path)
        elif wanted:
            yield from self._file(path, status, named)

    def _below(self, folder: Path) -> Iterator[FoundFile | Unreadable]:
        """A folder and its subfolders. A stack instead of recursion, because folders may be nested very deeply."""
        stack = [folder]
        while stack:
            current = stack.pop()
            try:
                status = current.stat()
                if (status.st_dev, status.st_ino) in self._folders:
                    continue
                self._folders.add((status.st_dev, status.st_ino))
                with os.scandir(current) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                yield Unreadable(_printable(current), f"cannot read the folder: {_reason(error)}")
                continue
            if not _is_text(current):
                yield Unreadable(_printable(current), "the name of the folder is not UTF-8; rename it")
                continue
            subfolders = []
            previews = _previews([entry.name for entry in entries])
            for entry in entries:
                if entry.name.startswith(".") or entry.name in previews:
                    continue
                try:
                    if entry.is_symlink():
                        self._links.append(Path(entry.path))
                    elif entry.is_dir(follow_symlinks=False):
                        subfolders.append(Path(entry.path))
                    elif self._is_wanted(entry.name):
                        yield from self._file(Path(entry.path), entry.stat(follow_symlinks=False), named=False)
                except OSError as error:
                    yield Unreadable(_printable(Path(entry.path)), f"cannot read: {_reason(error)}")
            stack += reversed(subfolders)

    def _file(self, path: Path, status: os.stat_result, named: bool) -> Iterator[FoundFile | Unreadable]:
        identity = (status.st_dev, status.st_ino)
        if identity in self._files or (_is_picture_name(path.name) and not self._pictures):
            return
        if not named and path.suffix[1:].lower() in PERHAPS_TEXT and stat.S_ISREG(status.st_mode) and _is_prose(path):
            return
        self._files.add(identity)
        if not stat.S_ISREG(status.st_mode):
            yield Unreadable(_printable(path), "not a regular file")
        elif not _is_text(path):
            yield Unreadable(_printable(path), "the name is not UTF-8; rename it")
        elif not os.access(path, os.R_OK):
            yield Unreadable(path, "cannot read: Permission denied")
        else:
            yield FoundFile(path, status.st_size, status.st_mtime_ns)

    def _is_wanted(self, name: str) -> bool:
        """Whether to index a file in a folder, by its name."""
        return _is_video_name(name) or (self._pictures and _is_picture_name(name))


def _previews(names: Sequence[str]) -> set[str]:
    """The pictures in a folder that are named after a video."""
    videos = {part for name in names if _is_video_name(name) for part in (name, os.path.splitext(name)[0])}
    return {name for name in names if _is_picture_name(name) and os.path.splitext(name)[0] in videos}


def _is_video_name(name: str) -> bool:
    return os.path.splitext(name)[1][1:].lower() in VIDEO_EXTENSIONS


def _is_picture_name(name: str) -> bool:
    return os.path.splitext(name)[1][1:].lower() in PICTURE_EXTENSIONS


def _is_prose(path: Path) -> bool:
    """Whether a file is probably text: it has neither of two bytes that every recording contains."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False
    return b"\0" not in head and b"\xff" not in head


def _is_text(path: Path) -> bool:
    """Whether a path is valid UTF-8. Python represents other bytes as surrogates."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(path: Path) -> Path:
    return path if _is_text(path) else Path(os.fsencode(path).decode("utf-8", "replace"))


def _missing(path: Path, error: Exception) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"cannot read: {_reason(error)}"
    return "broken link" if path.is_symlink() else "no such file or folder"


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
