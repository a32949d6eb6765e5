"""Video and picture files over HTTP: originals, whole or a range of bytes.

Paths come from the library, never from the client.
"""

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


def stream_video(record: VideoRecord, method: str, wanted: str | None, if_range: str | None) -> Response:
    """The response with the file of a record, or a range of it."""
    file = _opened(record)
    # The tag changes with the file, so that a client never joins parts of two files of the same size.
    tag = f'"{record.video_id[:32]}-{os.fstat(file.fileno()).st_mtime_ns:x}"'
    span = parse_range(wanted if if_range in (None, tag) else None, record.size)
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


def _opened(record: VideoRecord) -> FileIO:
    """Open the file, and check that it is still the one that was indexed."""
    try:
        file = FileIO(record.path, opener=open_nonblocking)
    except (OSError, ValueError):
        raise ProblemError(404, f"the file of this {record.kind} is missing; index its folder again") from None
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size != record.size:
        file.close()
        raise ProblemError(409, f"the file of this {record.kind} has changed; index its folder again")
    return file


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
