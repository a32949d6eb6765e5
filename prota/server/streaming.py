"""Original videos and pictures, whole or in part: HTTP ranges of a file that the library names, never the client."""

from __future__ import annotations

import mimetypes
import os
import re
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from starlette.responses import Response, StreamingResponse

from prota.library.records import VideoRecord
from prota.platform import open_nonblocking
from prota.server.problems import ProblemError

__all__ = ["parse_range", "stream_video"]

_CHUNK = 256 * 1024
# By the format that was decoded: x.jpg may contain a PNG. MPO is a JPEG with further pictures, from some cameras.
_PICTURES = {kind: f"image/{kind}" for kind in ("jpeg", "png", "webp", "gif", "bmp")} | {"mpo": "image/jpeg"}
_UNKNOWN = "application/octet-stream"


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last; None: the whole file. ProblemError 416 where nothing of it is there.

    What is no range of bytes, and several ranges at once, are ignored, as RFC 9110 allows: no player needs them, and
    thousands of overlapping ones are a known way to keep a server busy.
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


def stream_video(record: VideoRecord, method: str, wanted: str | None, if_range: str | None) -> Response:
    """The file of a record, or the range of it that was asked for."""
    file = _opened(record)
    # A file of the same size may have been put in its place, and parts of two are no video.
    tag = f'"{record.video_id[:32]}-{os.fstat(file.fileno()).st_mtime_ns:x}"'
    span = parse_range(wanted if if_range in (None, tag) else None, record.size)
    first, end = span or (0, record.size)
    headers = {"Accept-Ranges": "bytes", "ETag": tag, "Content-Length": str(end - first)}
    headers["Cache-Control"] = "private, max-age=0, must-revalidate"
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{record.size}"
    status = 200 if span is None else 206
    kind = _PICTURES.get(record.codec, _UNKNOWN) if record.kind == "picture" else _media_type(record.path)
    if method == "HEAD":
        file.close()
        return Response(status_code=status, headers=headers, media_type=kind)
    return StreamingResponse(_chunks(file, first, end), status, headers=headers, media_type=kind)


def _opened(record: VideoRecord) -> FileIO:
    """The file as it was indexed: what lies there now may be another."""
    try:
        file = FileIO(record.path, opener=open_nonblocking)
    except (OSError, ValueError):
        raise ProblemError(
            404, f"the file of this {record.kind} is not there any more: index its folder again"
        ) from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size != record.size:
        file.close()
        raise ProblemError(409, f"the file of this {record.kind} has changed: index its folder again")
    return file


def _chunks(file: FileIO, first: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(first)
        while first < end:
            data = file.read(min(_CHUNK, end - first))
            if not data:
                # It became shorter meanwhile: the client sees that less came than was announced.
                return
            first += len(data)
            yield data


def _media_type(path: str) -> str:
    """Only ever a video: a file called x.html may have been indexed, and must not become a page."""
    guess = mimetypes.guess_type(Path(path).name)[0] or ""
    return guess if guess.startswith("video/") else "video/mp4"
