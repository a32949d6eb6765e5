"""A clip or a picture from a client: of bounded size, of a known kind, decoded where it can be killed, then gone."""

from __future__ import annotations

import asyncio
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

from prota.library.records import LibraryError
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError

if TYPE_CHECKING:
    from prota.library.search import Query
    from prota.model import ProTA

__all__ = ["kind_of", "received", "upload_query"]

_HEAD = 64
# Seconds for a file to arrive: who sends it byte by byte keeps others waiting.
_RECEIVING = 120.0
# Room for what multipart puts around a file.
_MARGIN = 64 * 1024
_PICTURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"BM": "bmp"}
_VIDEOS = {
    b"\x1a\x45\xdf\xa3": "mkv", b"FLV\x01": "flv", b"OggS": "ogv", b"\x00\x00\x01\xba": "mpg",
    b"\x00\x00\x01\xb3": "mpg", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "wmv", b"GIF87a": "gif", b"GIF89a": "gif",
}  # fmt: skip
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


def kind_of(head: bytes) -> tuple[str, bool] | None:
    """What the first bytes of a file say it is: an extension, and whether it is a picture; None: nothing known."""
    if head[:4] == b"RIFF":
        return {b"AVI ": ("avi", False), b"WEBP": ("webp", True)}.get(head[8:12])
    if head[4:8] in _BOXES:
        picture = head[8:12] in (b"avif", b"heic", b"mif1")
        return ("avif", True) if picture else ("mp4", False)
    for signs, picture in ((_PICTURES, True), (_VIDEOS, False)):
        for sign, extension in signs.items():
            if head.startswith(sign):
                return extension, picture
    # MPEG transport streams have a sign every 188 bytes, and nothing else to tell them by.
    return ("ts", False) if head[:1] == b"\x47" else None


@asynccontextmanager
async def received(request: Request, limit: int) -> AsyncIterator[Path]:
    """The uploaded file under a name of ours, until the context ends; ProblemError where it is refused."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit + _MARGIN:
        raise _too_large(limit)
    parser = MultiPartParser(request.headers, _counted(request, limit), max_files=1, max_fields=0)
    try:
        async with asyncio.timeout(_RECEIVING):
            form = await parser.parse()
    except TimeoutError:
        raise ProblemError(408, "the upload took too long to arrive", {"Connection": "close"}) from None
    except MultiPartException as error:
        raise ProblemError(400, f"the upload cannot be read: {error.message}") from None
    except (ClientDisconnect, KeyError, ValueError, UnicodeError):
        raise ProblemError(400, "the upload cannot be read: it is not multipart/form-data, or cut short") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ProblemError(422, "file: is missing")
        if (file.size or 0) > limit:
            raise _too_large(limit)
        kind = kind_of(await file.read(_HEAD))
        if kind is None:
            raise ProblemError(415, "the file is neither a video nor a picture of a known kind")
        await file.seek(0)
        with tempfile.TemporaryDirectory(prefix="prota-upload-") as folder:
            path = Path(folder) / f"upload.{kind[0]}"
            with path.open("wb") as target:
                shutil.copyfileobj(file.file, target)
            yield path
    finally:
        await form.close()


async def _counted(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body, as far as it is allowed: a client need not say how long it is, nor the truth."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit + _MARGIN:
            raise _too_large(limit)
        yield chunk


def _too_large(limit: int) -> ProblemError:
    # What is still to come of the body is of no use; the connection ends with it.
    return ProblemError(413, f"the file is too large; allowed: {limit / 2**20:.0f} MB", {"Connection": "close"})


def upload_query(model: ProTA, path: Path, options: ServerOptions) -> Query:
    """The file as a query; ProblemError where it cannot be decoded, or not in time."""
    from prota.library.clips import ClipRange, like_query

    _check_size(path, options.max_pixels)
    try:
        query = like_query(model, ClipRange(path), options.decode_timeout, options.decode_memory)
    except (LibraryError, ValueError) as error:
        reason = str(error).removeprefix(f"{path}: ").replace(str(path), "the file")
        raise ProblemError(422, f"the file cannot be decoded: {reason}") from None
    return replace(query, text="like the uploaded file")


def _check_size(path: Path, max_pixels: int) -> None:
    """Refuse a picture that is small as a file and huge in memory; only its header is read."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            pixels = picture.width * picture.height
    except Image.DecompressionBombError:
        pixels = max_pixels + 1
    except Exception:
        # No picture that Pillow knows: the decoder will say what it is, or that it is nothing.
        return
    if pixels > max_pixels:
        raise ProblemError(413, f"the picture is too large; allowed: {max_pixels / 1e6:.0f} million pixels")
