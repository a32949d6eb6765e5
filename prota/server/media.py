"""Video and picture files over HTTP.

Downloads: original files, whole or a range of bytes; paths come from the library, never from the client. Uploads: of
limited size and known kind, decoded in a process that can be killed, then deleted.
"""

from __future__ import annotations

import asyncio
import mimetypes
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from prota.errors import ProtaError
from prota.library.records import VideoRecord
from prota.platform import open_nonblocking
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError
from prota.server.view import LibraryVersion

if TYPE_CHECKING:
    from prota.library.search.queries import Query

__all__ = ["kind_of", "parse_range", "received", "stream_video", "upload_query"]

_CHUNK = 256 * 1024
# By the decoded format: x.jpg may contain a PNG. MPO is a JPEG with several pictures, written by some cameras.
_MEDIA_TYPES = {kind: f"image/{kind}" for kind in ("jpeg", "png", "webp", "gif", "bmp")} | {"mpo": "image/jpeg"}

# Of an upload: the bytes that identify its kind, the time limit in seconds (slow senders would block others), and the
# size of the multipart headers.
_HEAD, _RECEIVING, _MARGIN = 64, 120.0, 64 * 1024
_PICTURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"BM": "bmp"}
_VIDEOS = {
    b"\x1a\x45\xdf\xa3": "mkv", b"FLV\x01": "flv", b"OggS": "ogv", b"\x00\x00\x01\xba": "mpg",
    b"\x00\x00\x01\xb3": "mpg", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "wmv", b"GIF87a": "gif", b"GIF89a": "gif",
}  # fmt: skip
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


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


def kind_of(head: bytes) -> tuple[str, bool] | None:
    """The kind of a file by its first bytes: extension and whether it is a picture; None: unknown."""
    if head[:4] == b"RIFF":
        return {b"AVI ": ("avi", False), b"WEBP": ("webp", True)}.get(head[8:12])
    if head[4:8] in _BOXES:
        picture = head[8:12] in (b"avif", b"heic", b"mif1")
        return ("avif", True) if picture else ("mp4", False)
    for signs, picture in ((_PICTURES, True), (_VIDEOS, False)):
        for sign, extension in signs.items():
            if head.startswith(sign):
                return extension, picture
    # MPEG transport streams have only a sync byte, every 188 bytes.
    return ("ts", False) if head[:1] == b"\x47" else None


@asynccontextmanager
async def received(request: Request, limit: int) -> AsyncIterator[Path]:
    """The uploaded file in a temporary folder, which is deleted at the end; ProblemError if it is rejected."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit + _MARGIN:
        raise _too_large(limit)
    parser = MultiPartParser(request.headers, _counted(request, limit), max_files=1, max_fields=0)
    try:
        async with asyncio.timeout(_RECEIVING):
            form = await parser.parse()
    except TimeoutError:
        raise ProblemError(408, "the upload timed out", {"Connection": "close"}) from None
    except MultiPartException as error:
        raise ProblemError(400, f"invalid upload: {error.message}") from None
    except (ClientDisconnect, KeyError, ValueError, UnicodeError):
        raise ProblemError(400, "invalid upload: not multipart/form-data, or truncated") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ProblemError(422, "file: missing")
        if (file.size or 0) > limit:
            raise _too_large(limit)
        kind = kind_of(await file.read(_HEAD))
        if kind is None:
            raise ProblemError(415, "unknown file type: neither a video nor a picture")
        await file.seek(0)
        with tempfile.TemporaryDirectory(prefix="prota-upload-") as folder:
            path = Path(folder) / f"upload.{kind[0]}"
            with path.open("wb") as target:
                shutil.copyfileobj(file.file, target)
            yield path
    finally:
        await form.close()


async def _counted(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body up to the limit; Content-Length may be missing or wrong."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit + _MARGIN:
            raise _too_large(limit)
        yield chunk


def _too_large(limit: int) -> ProblemError:
    # The rest of the body is not read, so the connection is closed.
    return ProblemError(413, f"the file is too large; the limit is {limit / 2**20:.0f} MB", {"Connection": "close"})


def upload_query(library: LibraryVersion, path: Path, options: ServerOptions) -> Query:
    """The file as a query; ProblemError if decoding fails or times out."""
    from prota.library.search.clips import clip_query
    from prota.library.search.queries import ClipRange

    assert library.view is not None
    _check_size(path, options.max_pixels)
    try:
        query = clip_query(library.view.model, ClipRange(path), options.decode_timeout, options.decode_memory)
    except ProtaError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(str(path), "the file")
        raise ProblemError(422, f"cannot decode the file: {reason}") from error
    return replace(query, text="like the uploaded file")


def _check_size(path: Path, max_pixels: int) -> None:
    """Reject a picture that is huge when decoded; reads only its header."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixels = picture.width * picture.height
    except Image.DecompressionBombError:
        pixels = max_pixels + 1
    except Exception:
        # Not a picture for Pillow: the decoder reports errors.
        return
    if pixels > max_pixels:
        raise ProblemError(413, f"the picture is too large; the limit is {max_pixels / 1e6:.0f} megapixels")
