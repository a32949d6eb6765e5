"""Which files a user means by the paths they give, and what each of them is, whatever its name."""

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

# In order of preference where several files have one name. The last two occur in DiDeMo, whose names come from Flickr:
# `x.null`, and `x.` for a container that Flickr did not name.
BENCHMARK_EXTENSIONS = (
    *("mp4", "m4v", "mov", "qt", "mkv", "webm", "avi", "divx", "mpg", "mpeg", "mpe", "m1v", "m2v", "ts", "mts", "m2ts"),
    *("vob", "wmv", "asf", "flv", "f4v", "3gp", "3gpp", "3g2", "ogv", "ogg", "mxf", "rm", "rmvb", "mjpg", "gif"),
    *("y4m", "ivf", "h264", "264", "h265", "265", "hevc"),
    *("null", ""),
)

# What is taken for a video inside a folder, lower case. Benchmarks also have videos called x.null, x. and x.ogg; in a
# folder of one's own, the last is nearly always music. Any file is taken that is named itself.
VIDEO_EXTENSIONS = frozenset(BENCHMARK_EXTENSIONS) - {"null", "", "ogg"} | {
    *("mk3d", "mp4v", "mpg4", "mpv", "mp2v", "m2p", "m2t", "mpgv", "tp", "trp", "tod", "mod", "dv", "xvid", "wtv"),
    *("dvr-ms", "f4p", "ogm", "nut", "nuv", "amv", "mj2", "mjpeg", "gxf", "lrv", "insv", "360"),
    *("obu", "av1", "h263", "263", "h266", "266", "vvc", "vc1"),
}
# Also extensions of TypeScript, of Qt's translations and of Go's modules: a folder of code has thousands of them.
PERHAPS_TEXT = frozenset({"ts", "mts", "mod"})
HEAD = 4096

Identity = tuple[int, int]


@dataclass(frozen=True)
class FoundFile:
    """A file that may be a video, or a picture."""

    path: Path
    """Absolute, by the name under which it was found: links in it are not resolved."""
    size: int
    modified: int
    """Nanoseconds, as the file system tells."""


@dataclass(frozen=True)
class Unreadable:
    """Something that was asked for, or lies in a folder that was, and cannot be looked at."""

    path: Path
    reason: str
    """One line, without the path."""


def walk(paths: Sequence[Path], pictures: bool = False) -> Iterator[FoundFile | Unreadable]:
    """The files among `paths`, whatever their extension, and the videos in the folders among them, at any depth.

    ``pictures``: also pictures, except previews. Players and downloaders write ``x.jpg`` or ``x.mp4.jpg`` beside
    ``x.mp4``; a library with both would return every result twice. A preview that is among `paths` is taken. Without
    ``pictures``, those among `paths` are skipped, too.

    Each file comes once, however many names lead to it, in an order that only names decide: path by path as given, the
    files of a folder before its subfolders, and links after everything else, so that a file's own name wins over a
    link to it. What starts with a dot is left out unless it is among `paths`. Links to folders are followed, each
    folder being visited once. Nothing is raised: what cannot be read is told in its place.
    """
    return _Walk(pictures).over([Path(path) for path in paths])


def content_id(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal; DecodeError where it cannot be read, or changes meanwhile."""
    # A name may hold line breaks; a message may not.
    name = " ".join(str(path).splitlines())
    try:
        with open(path, "rb", buffering=0, opener=open_nonblocking) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise DecodeError(f"{name}: not a regular file")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = os.fstat(file.fileno())
        # By its name too: most programs write a new file and give it the name of the old one.
        now = os.stat(path)
    except OSError as error:
        raise DecodeError(f"{name}: cannot be read: {_reason(error)}") from None
    if not _state(before) == _state(after) == _state(now):
        raise DecodeError(f"{name}: changed while it was being read; index it again when it is complete")
    return digest


def below(path: str | Path, folders: Sequence[str]) -> bool:
    """Whether a file really lies in or below one of these folders, which are given by their real paths."""
    return under(os.path.realpath(path), folders)


def placed(path: Path) -> Path:
    """Where a path leads. Two dots are resolved through the links before them, as the file system does."""
    return Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def under(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these or begins with one, as they are written."""
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Walk:
    """One walk: what has been seen, and which links are still to be followed."""

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
        """Whatever lies there, links followed. Inside a folder, files of other kinds are not reported."""
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
                yield Unreadable(_printable(current), f"the folder cannot be read: {_reason(error)}")
                continue
            if not _is_text(current):
                yield Unreadable(_printable(current), "the folder's name is not UTF-8; rename it")
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
                    yield Unreadable(_printable(Path(entry.path)), f"cannot be read: {_reason(error)}")
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
            yield Unreadable(path, "cannot be read: Permission denied")
        else:
            yield FoundFile(path, status.st_size, status.st_mtime_ns)

    def _is_wanted(self, name: str) -> bool:
        """Whether a file in a folder is to be indexed, by its name."""
        return _is_video_name(name) or (self._pictures and _is_picture_name(name))


def _previews(names: Sequence[str]) -> set[str]:
    """Of the files of a folder, the pictures that have the name of a video."""
    videos = {part for name in names if _is_video_name(name) for part in (name, os.path.splitext(name)[0])}
    return {name for name in names if _is_picture_name(name) and os.path.splitext(name)[0] in videos}


def _is_video_name(name: str) -> bool:
    return os.path.splitext(name)[1][1:].lower() in VIDEO_EXTENSIONS


def _is_picture_name(name: str) -> bool:
    return os.path.splitext(name)[1][1:].lower() in PICTURE_EXTENSIONS


def _is_prose(path: Path) -> bool:
    """Whether a file starts like text, which has neither of two bytes that no recording can do without."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return False
    return b"\0" not in head and b"\xff" not in head


def _is_text(path: Path) -> bool:
    """Whether a path can be written down. File systems take any bytes; Python smuggles them through as half letters."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(path: Path) -> Path:
    return path if _is_text(path) else Path(os.fsencode(path).decode("utf-8", "replace"))


def _missing(path: Path, error: Exception) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"cannot be read: {_reason(error)}"
    return "the link leads nowhere" if path.is_symlink() else "there is no such file or folder"


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
