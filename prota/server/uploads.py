"""Uploaded files: of limited size and known kind, decoded in a confined process, then deleted.

This process compares the first bytes of a file, no more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from prota.errors import ProtaError
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError
from prota.server.view import LibraryVersion
from prota.video.timeline import TooLargeError

if TYPE_CHECKING:
    from prota.library.search.queries import Query

__all__ = ["kind_of", "received", "upload_query"]

# The bytes that identify the kind of an upload, and the size of the multipart headers.
_HEAD, _MARGIN = 64, 64 * 1024
_PICTURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"BM": "bmp"}
_VIDEOS = {
    b"\x1a\x45\xdf\xa3": "mkv", b"FLV\x01": "flv", b"OggS": "ogv", b"\x00\x00\x01\xba": "mpg",
    b"\x00\x00\x01\xb3": "mpg", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "wmv", b"GIF87a": "gif", b"GIF89a": "gif",
}  # fmt: skip
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


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
        form = await parser.parse()
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
    limits = options.decode_timeout, options.decode_memory
    try:
        query = clip_query(library.view.model, ClipRange(path), *limits, most_pixels=options.max_pixels)
    except ProtaError as error:
        reason = str(error).removeprefix(f"{path}: ").replace(str(path), "the file")
        status = 413 if isinstance(error, TooLargeError) else 422
        raise ProblemError(status, f"cannot decode the file: {reason}") from error
    return replace(query, text="like the uploaded file")
