"""Video and picture files over HTTP: originals, whole or a range of bytes.

Paths come from the library, never from the client.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path

from starlette.responses import Response, StreamingResponse

from prota.library.records import VideoRecord
from prota.platform import open_nonblocking, open_without_links
from prota.server.problems import ProblemError
from prota.server.queueing import LruCache

__all__ = ["Originals", "parse_range", "stream_video"]

_CHUNK = 256 * 1024
# Files up to this size, hashed in a fraction of a second, are hashed before they are served.
_QUICK = 128 * 2**20
# Files of which the server remembers whether they have the right content.
_REMEMBERED = 10_000
# By the decoded format: x.jpg may contain a PNG. MPO is a JPEG with several pictures, written by some cameras.
_MEDIA_TYPES = {kind: f"image/{kind}" for kind in ("jpeg", "png", "webp", "gif", "bmp")} | {"mpo": "image/jpeg"}


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The first byte and the end of a range; None: the whole file. ProblemError 416 for a range beyond the end.

    Invalid and multiple ranges are ignored, as RFC 9110 allows: players do not use them, and thousands of overlapping
    ranges are a known attack.
    """
    found = re.fullmatch(r"\s*bytes\s*=\s*(\d{0,20})\s*-\s*(\d{0,20})\s*", header or "", flags=re.ASCII)
    if found is None or found[1] == found[2] == "":
        return None
    if found[1] == "":
        first, last = max(0, size - int(found[2])), size - 1
    else:
        first, last = int(found[1]), min(int(found[2]) if found[2] else size - 1, size - 1)
        if found[2] and int(found[2]) < int(found[1]):
            return None
    if first > last:
        raise ProblemError(416, f"the file has {size} bytes", {"Content-Range": f"bytes */{size}"})
    return first, last + 1


class Originals:
    """Opens indexed files, and only if their content is what was indexed: its SHA-256 is the id of a video."""

    def __init__(self) -> None:
        self._checks: LruCache[Future[bool]] = LruCache(_REMEMBERED)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="prota-hash")
        self._ended = threading.Event()

    def open(self, record: VideoRecord) -> FileIO:
        """ProblemError 404 if the file is missing, 409 if it is another.

        A link, or a file of another date, is hashed before any byte of it is read by a client: somebody who may write
        in a folder can put a link to any file there. A large file is hashed meanwhile, if its path has no link, and its
        size and date are those that were indexed.
        """
        try:
            file, linked = open_without_links(record.path)
        except (OSError, ValueError):
            raise ProblemError(404, f"the file of this {record.kind} is missing; index its folder again") from None
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_size == record.size:
            check = self._check(record, status)
            doubtful = linked or status.st_mtime_ns != record.modified or status.st_size <= _QUICK
            with suppress(OSError):
                if (not doubtful and not check.done()) or check.result():
                    return file
        file.close()
        raise ProblemError(409, f"the file of this {record.kind} has changed; index its folder again")

    def close(self) -> None:
        self._ended.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, record: VideoRecord, status: os.stat_result) -> Future[bool]:
        """Whether this file has the content of a record; a file is hashed once, until it changes."""
        key = (record.video_id, _identity(status))
        with self._lock:
            check = self._checks.get(key)
            if check is None or (check.done() and check.exception() is not None):
                check = self._threads.submit(self._is_same, record, _identity(status))
                self._checks.put(key, check)
        return check

    def _is_same(self, record: VideoRecord, identity: tuple[int, ...]) -> bool:
        digest = hashlib.sha256()
        with FileIO(record.path, opener=open_nonblocking) as file:
            # Before and after reading: neither another file, nor one that is being written.
            same = _identity(os.fstat(file.fileno())) == identity
            while same and (data := file.read(_CHUNK)) and not self._ended.is_set():
                digest.update(data)
            same = same and _identity(os.fstat(file.fileno())) == identity
        return same and digest.hexdigest() == record.video_id


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """The time of the last change, unlike the date of a file, cannot be set."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def stream_video(
    file: FileIO, record: VideoRecord, method: str, *, wanted: str | None = None, if_range: str | None = None
) -> Response:
    """The response with the open file of a record, or a range of it."""
    # The tag changes with the file, so that a client never joins parts of two files of the same size.
    tag = f'"{record.video_id[:32]}-{os.fstat(file.fileno()).st_mtime_ns:x}"'
    try:
        span = parse_range(wanted if if_range in (None, tag) else None, record.size)
    except ProblemError:
        file.close()
        raise
    first, end = span or (0, record.size)
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Content-Length": str(end - first)}
    headers["Cache-Control"] = "private, max-age=0, must-revalidate"
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{record.size}"
    status = 200 if span is None else 206
    kind = (
        _MEDIA_TYPES.get(record.codec, "application/octet-stream")
        if record.kind == "picture"
        else _media_type(record.path)
    )
    if method == "HEAD":
        file.close()
        return Response(status_code=status, headers=headers, media_type=kind)
    return StreamingResponse(_chunks(file, first, end), status, headers=headers, media_type=kind)


def _chunks(file: FileIO, first: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        while first < end:
            data = file.read(min(_CHUNK, end - first))
            if not data:
                # The file was truncated: the client gets fewer bytes than announced.
                return
            first += len(data)
            yield data


def _media_type(path: str) -> str:
    """Always a video type: a file named x.html may be indexed, and must not be shown as a page."""
    guess = mimetypes.guess_type(Path(path).name)[0] or ""
    return guess if guess.startswith("video/") else "video/mp4"
