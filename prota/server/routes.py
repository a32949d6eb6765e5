"""The routes of the API: they parse and check requests on the event loop; other threads answer them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path as FilePath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from prota.library.records import LibraryError, VideoRecord
from prota.library.search.queries import clean_query
from prota.server import browsing
from prota.server.answering import Explain, Filters, QueryWorker, Search, Timeline, timeline, title_of
from prota.server.browsing import Examples, Wanted, when
from prota.server.jobs import Job, Jobs
from prota.server.media import Originals, stream_video
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError, readable, sentence
from prota.server.queueing import BoundedPool
from prota.server.schemas import (
    JOB_EXAMPLE,
    VIDEO_EXAMPLE,
    AllowedFolders,
    Answer,
    Explained,
    FileList,
    FileOrder,
    FileState,
    FolderShown,
    Health,
    JobRecord,
    JobRequest,
    Kind,
    LibraryInfo,
    LikeRequest,
    MomentOrder,
    MomentShown,
    Removal,
    RemoveRequest,
    TimelineSegment,
    VideoDetails,
)
from prota.server.screening import WIDTHS, Screening
from prota.server.uploads import received, upload_query
from prota.server.view import Catalogue
from prota.video.showing import PART, SHIFT
from prota.video.walk import below

__all__ = ["Backend", "router"]

# Rows are 64-bit integers.
_LARGEST_ROW = 2**62
# Bytes; a `LikeRequest` is smaller.
_LARGEST_BODY = 4096
_MOST = 100
# Seconds to wait for another writer of the library.
_WAIT = 2.0
# Seconds between two checks of a job, and between two events, so that no proxy closes the connection.
_POLL, _SILENCE = 0.1, 15.0


@dataclass(frozen=True)
class Backend:
    """The parts of the server that the routes use; one per application."""

    options: ServerOptions
    catalogue: Catalogue
    worker: QueryWorker
    requests: BoundedPool
    """Limits the requests about the library; its threads read what needs no model."""
    decoding: BoundedPool
    """Decodes uploads, so that searches do not wait for them."""
    jobs: Jobs
    examples: Examples
    originals: Originals
    screening: Screening

    def close(self) -> None:
        self.jobs.close()
        self.catalogue.close()
        self.worker.close()
        self.requests.close()
        self.decoding.close()
        self.screening.close()
        self.originals.close()


def _backend(request: Request) -> Backend:
    backend = request.app.state.backend
    assert isinstance(backend, Backend)
    return backend


BackendDep = Annotated[Backend, Depends(_backend)]
Words = Annotated[
    str,
    Query(
        min_length=1,
        max_length=1000,
        description="description of the moment, in English",
        examples=["a dog jumps into water"],
    ),
]
Count = Annotated[int, Query(ge=1, le=_MOST, description="number of moments")]
SegmentRow = Annotated[int, Query(ge=0, le=_LARGEST_ROW, description="row of a segment", examples=[7])]
Version = Annotated[
    int | None, Query(ge=0, le=_LARGEST_ROW, description="version of the library that the row is from", examples=[3])
]
Seconds = Annotated[
    float | None, Query(ge=0, le=1e9, allow_inf_nan=False, description="seconds; pictures have no duration")
]
VideoId = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="id: SHA-256 of the content", examples=[VIDEO_EXAMPLE])
]
SegmentPath = Annotated[int, Path(ge=0, le=_LARGEST_ROW, description="row of a segment", examples=[7])]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="id of a job", examples=[JOB_EXAMPLE])]

router = APIRouter()
_search = APIRouter(prefix="/api/v1", tags=["search"])
_library = APIRouter(prefix="/api/v1", tags=["library"])
_jobs = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
_monitoring = APIRouter(tags=["monitoring"])


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _cleaned(text: str) -> str:
    """The words of a query; ProblemError 422 if it has none."""
    try:
        return clean_query(text)
    except LibraryError as error:
        raise ProblemError(422, f"q: {error}") from error


def _filters(
    *,
    min_duration: Seconds = None,
    max_duration: Seconds = None,
    folder: Annotated[str | None, Query(max_length=255, description="name of a folder, with its subfolders")] = None,
    after: Annotated[date | None, Query(description="modified on this day or later")] = None,
    before: Annotated[date | None, Query(description="modified on this day or earlier")] = None,
    kind: Annotated[Kind | None, Query(description="only videos or only pictures")] = None,
) -> Filters:
    return Filters(min_duration, max_duration, folder or None, after, before, kind)


def _wanted(
    *,
    find: Annotated[str, Query(max_length=255, description="part of the file name")] = "",
    state: Annotated[FileState | None, Query(description="only files in this state")] = None,
    folder: Annotated[str | None, Query(max_length=255, description="name of a folder, with its subfolders")] = None,
    kind: Annotated[Kind | None, Query(description="only videos or only pictures")] = None,
    order: Annotated[FileOrder, Query(description="by name, or the newest, longest or largest first")] = "name",
    offset: Annotated[int, Query(ge=0, le=_LARGEST_ROW, description="files to skip")] = 0,
    k: Annotated[int, Query(ge=1, le=_MOST, description="number of files")] = 50,
) -> Wanted:
    return Wanted(find, state, folder or None, kind, order, offset, k)


@_search.get("/search", response_model=Answer, summary="Search with text")
async def search(
    backend: BackendDep,
    q: Words,
    *,
    filters: Annotated[Filters, Depends(_filters)],
    k: Count = 24,
    all: Annotated[bool, Query(description="return weaker matches in moments, too")] = False,
) -> Response:
    """Search the library with a text query. Good matches are in moments, results below the threshold in weaker."""
    started = time.perf_counter()
    with backend.requests.slot():
        if backend.catalogue.current is None and backend.catalogue.state == "ready":
            # The library is empty, and no model is loaded.
            nothing = Answer(query=q, cut=False, no_good_match=True, version=0, took_ms=0.0, moments=[], weaker=[])
            return _json(nothing.model_dump_json())
        found = backend.catalogue.searchable()
        return _json(await backend.worker.ask(Search(found, _cleaned(q), k, started, filters, all)))


_LIKE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": LikeRequest.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary", "description": "clip or picture"}},
                    "required": ["file"],
                }
            },
        },
    }
}


@_search.post("/search/like", response_model=Answer, openapi_extra=_LIKE_BODY, summary="Search by example")
async def search_like(
    request: Request, backend: BackendDep, *, filters: Annotated[Filters, Depends(_filters)], k: Count = 24
) -> Response:
    """Search for moments similar to one of the library (JSON), or to an uploaded clip or picture (form)."""
    started = time.perf_counter()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        wanted = await _like_request(request)
        with backend.requests.slot():
            found = backend.catalogue.searchable()
            found.record(wanted.video)
            return _json(await backend.worker.ask(Search(found, wanted, k, started, filters)))
    if kind == "multipart/form-data":
        with backend.decoding.slot():
            found = backend.catalogue.searchable()
            async with received(request, backend.options.max_upload) as path:
                query = await backend.decoding.run(lambda: upload_query(found, path, backend.options))
            return _json(await backend.worker.ask(Search(found, query, k, started, filters)))
    raise ProblemError(415, "send application/json, or multipart/form-data with a file")


async def _like_request(request: Request) -> LikeRequest:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST_BODY:
            raise ProblemError(413, "the request is too large", {"Connection": "close"})
    try:
        return LikeRequest.model_validate_json(body)
    except ValidationError as error:
        raise ProblemError(422, "; ".join(sentence(entry) for entry in error.errors())) from None


@_search.get("/explain", response_model=Explained, summary="Explain a score")
async def explain(backend: BackendDep, q: Words, segment: SegmentRow, version: Version = None) -> Response:
    """Return the contributions of words and frames to the score of a segment."""
    with backend.requests.slot():
        found = backend.catalogue.searchable(version)
        words = _cleaned(q)
        found.check_row(segment)
        return _json(await backend.worker.ask(Explain(found, words, segment)))


def _roots(backend: Backend, request: Request) -> tuple[str, ...]:
    """The allowed folders. None for those who may only search: they cannot index, and need no absolute paths."""
    return backend.options.roots if request.scope["prota.right"] == "all" else ()


@_library.get("/library", summary="Describe the library")
async def library(backend: BackendDep, request: Request) -> LibraryInfo:
    """Return the size of the library, its folders, and whether the model is loaded."""
    catalogue, current = backend.catalogue, backend.catalogue.current
    return LibraryInfo(
        videos=current.videos if current else 0,
        pictures=current.pictures if current else 0,
        segments=current.segments if current else 0,
        hours=round(current.hours, 4) if current else 0.0,
        model=FilePath(catalogue.model_name).name,
        version=current.version if current else 0,
        state=catalogue.state,
        detail=readable(catalogue.reason),
        folders=current.folders.names if current else [],
        allow=[readable(folder) for folder in _roots(backend, request)],
    )


@_library.get("/files", summary="List files")
async def files(backend: BackendDep, request: Request, wanted: Annotated[Wanted, Depends(_wanted)]) -> FileList:
    """Return a page of all files of the library: searchable ones, bad ones with the reason, and missing ones."""
    if backend.catalogue.current is None and backend.catalogue.state == "ready":
        return FileList(version=0, total=0, states={"indexed": 0, "bad": 0, "gone": 0}, files=[])
    found = backend.catalogue.at()
    with backend.requests.slot():
        return await backend.requests.run(lambda: browsing.files(found, wanted, _roots(backend, request)))


@_library.post("/files/remove", summary="Remove files")
async def remove_files(backend: BackendDep, wanted: RemoveRequest) -> Removal:
    """Remove files below allowed folders from the library. On disk they stay, and can be indexed again."""
    roots, found = backend.jobs.roots(), backend.catalogue.at()
    with backend.requests.slot():
        return await backend.requests.run(lambda: _remove(backend, found.listing.files(wanted.files), roots))


def _remove(backend: Backend, records: Sequence[VideoRecord], roots: Sequence[str]) -> Removal:
    from prota.library.manage import remove

    if not all(below(record.path, roots) for record in records):
        raise ProblemError(403, "a file is not below a folder that --allow permits; use `prota library remove`")
    if backend.jobs.busy:
        raise ProblemError(409, "files are being indexed; remove these when that is done, or stop it")
    remove(backend.catalogue.folder, [record.path for record in records], wait=_WAIT)
    backend.catalogue.refresh_soon()
    return Removal(removed=len(records))


@_library.get("/folders", summary="List folders")
async def folders(backend: BackendDep, k: Count = 12) -> list[FolderShown]:
    """Return the folders of the library, those with the latest changes first."""
    if (found := backend.catalogue.current) is None:
        return []
    with backend.requests.slot():
        return await backend.requests.run(lambda: browsing.folders(found, k))


@_library.get("/moments", summary="List moments")
async def moments(
    backend: BackendDep,
    order: Annotated[MomentOrder, Query(description="of the latest files, or of any")] = "newest",
    k: Count = 12,
    seed: Annotated[int, Query(ge=0, le=_LARGEST_ROW, description="for random: another one gives others")] = 0,
) -> list[MomentShown]:
    """Return moments without a query, one of each video."""
    if (found := backend.catalogue.current) is None:
        return []
    with backend.requests.slot():
        return await backend.requests.run(lambda: browsing.moments(found, order, k, seed))


@_library.get("/examples", summary="List example queries")
async def examples(backend: BackendDep) -> list[str]:
    """Return everyday queries that this library has a match for, the most likely first."""
    if backend.catalogue.current is None and backend.catalogue.state == "ready":
        return []
    with backend.requests.slot():
        return await backend.examples.of(backend.catalogue.searchable())


@_library.get("/videos/{video}", summary="Describe a video")
async def video(backend: BackendDep, request: Request, video: VideoId) -> VideoDetails:
    """Return the properties of a video or a picture, and how it plays."""
    record = backend.catalogue.at().record(video)
    plays, offset = None, 0.0
    with suppress(ProblemError):
        # Without it if the file is missing, or too many requests are waiting.
        how = await backend.screening.playing(request, record)
        plays, offset = how.plays, round(how.offset, 6)
    return VideoDetails(
        video=record.video_id,
        kind=record.kind,
        title=title_of(record),
        folder=readable(FilePath(record.path).parent.name),
        duration=record.duration,
        width=record.width,
        height=record.height,
        fps=record.fps,
        codec=readable(record.codec),
        size=record.size,
        modified=when(record),
        segments=record.segments,
        plays=plays,
        stream=f"/api/v1/videos/{record.video_id}/stream",
        offset=offset,
        play=f"/api/v1/videos/{record.video_id}/play",
        part=PART,
        shift=SHIFT,
        frame=f"/api/v1/videos/{record.video_id}/frame",
    )


@_library.get("/videos/{video}/segments", response_model=list[TimelineSegment], summary="List segments")
async def segments(backend: BackendDep, video: VideoId, q: Words | None = None) -> Response:
    """Return all segments of a video, with their scores if q is given."""
    with backend.requests.slot():
        found = backend.catalogue.at() if q is None else backend.catalogue.searchable()
        found.record(video)
        if q is None:
            return _json(await backend.requests.run(lambda: timeline(found, video).model_dump_json()))
        return _json(await backend.worker.ask(Timeline(found, _cleaned(q), video)))


@_library.head("/videos/{video}/stream", include_in_schema=False, response_class=Response)
@_library.get(
    "/videos/{video}/stream",
    response_class=Response,
    summary="Stream a file",
    responses={200: {"content": {"video/*": {}}}, 206: {"description": "a range", "content": {"video/*": {}}}},
)
def stream(backend: BackendDep, request: Request, video: VideoId) -> Response:
    """Return the original file, or the range of bytes that the Range header asks for; HEAD is supported."""
    record = backend.catalogue.at().record(video)
    file = backend.originals.open(record)
    headers = request.headers
    return stream_video(file, record, request.method, wanted=headers.get("range"), if_range=headers.get("if-range"))


# Of content that an id names: it never changes.
_FOR_GOOD = {"Cache-Control": "private, max-age=86400, immutable"}


@_library.get(
    "/videos/{video}/play",
    response_class=Response,
    summary="Play a video",
    responses={200: {"content": {"video/mp4": {}}}, 204: {"description": "no key frame is in this part"}},
)
async def play(
    backend: BackendDep,
    request: Request,
    video: VideoId,
    start: Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False, description="seconds")] = 0.0,
) -> Response:
    """Return the few seconds of a video that contain a time, with their sound, as MP4 that every browser plays.

    Times in it are those of the whole video plus the `shift` of its details, so that Media Source Extensions play the
    parts at 0, `part`, 2 × `part`, … as one video. Packets are copied if possible. Then parts begin with key frames:
    one without any is empty (204), and the frames of a time may be in one of the next parts.
    """
    record = backend.catalogue.at().record(video)
    part = await backend.screening.part(request, record, start)
    if not part.data:
        return Response(status_code=204, headers=_FOR_GOOD)
    return Response(part.data, media_type=f'video/mp4; codecs="{part.codecs}"', headers=_FOR_GOOD)


@_library.get(
    "/videos/{video}/clip",
    response_class=Response,
    summary="Download a clip",
    responses={200: {"content": {"video/mp4": {}}}},
)
async def clip(
    backend: BackendDep,
    request: Request,
    video: VideoId,
    *,
    start: Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False, description="seconds")],
    end: Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False, description="seconds")],
    exact: Annotated[bool, Query(description="false: copy from the key frame before start")] = True,
) -> Response:
    """Return a moment as an MP4 file with its sound: encoded again for exact ends, or copied. At most 600 seconds."""
    record = backend.catalogue.at().record(video)
    made = await backend.screening.clip(request, record, start=start, end=end, exact=exact)
    name = f"{title_of(record)} {start:g}-{min(end, record.duration):g}.mp4"
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    return Response(made.content, media_type="video/mp4", headers=_FOR_GOOD | {"Content-Disposition": disposition})


@_library.get(
    "/videos/{video}/frame",
    response_class=Response,
    summary="Get a frame",
    responses={200: {"content": {"image/jpeg": {}}}},
)
async def frame(
    backend: BackendDep,
    request: Request,
    video: VideoId,
    *,
    t: Annotated[float, Query(ge=0, le=1e9, allow_inf_nan=False, description="seconds; 0 for a picture")] = 0.0,
    width: Annotated[int, Query(ge=1, le=WIDTHS[-1], description="least width in pixels")] = 640,
) -> Response:
    """Return the frame of a video that is shown at a time, or a picture, as JPEG. Small videos are not enlarged."""
    record = backend.catalogue.at().record(video)
    picture = await backend.screening.frame(request, record, t, width)
    return Response(picture, media_type="image/jpeg", headers=_FOR_GOOD)


@_library.get(
    "/segments/{segment}/thumbnail",
    response_class=Response,
    summary="Get a thumbnail",
    responses={200: {"content": {"image/jpeg": {}}}},
)
async def thumbnail(backend: BackendDep, request: Request, segment: SegmentPath, version: Version = None) -> Response:
    """Return a small JPEG of the middle frame of a segment."""
    found = backend.catalogue.at(version)
    found.check_row(segment)
    with backend.requests.slot():
        (picture,) = await backend.requests.run(lambda: found.snapshot.thumbnails([segment]))
    tag = f'"{hashlib.sha256(picture).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=300"}
    known = [name.strip().removeprefix("W/") for name in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(picture, media_type="image/jpeg", headers=headers)


@_jobs.get("", summary="List jobs")
async def jobs(backend: BackendDep) -> list[JobRecord]:
    """Return the jobs since the start of the server, latest first."""
    return [job.record() for job in backend.jobs.all()]


@_jobs.post("", status_code=202, summary="Start a job")
async def add_job(backend: BackendDep, wanted: JobRequest) -> JobRecord:
    """Index files or a folder below a folder that `prota serve --allow` permits. Jobs run one at a time."""
    backend.jobs.roots()
    paths = [wanted.path or ""]
    if wanted.files:
        paths = [record.path for record in backend.catalogue.at().listing.files(wanted.files)]
    return backend.jobs.add(paths, wanted.pictures, wanted.retry).record()


@_jobs.get("/folders", summary="List allowed folders")
async def allowed_folders(
    backend: BackendDep,
    path: Annotated[
        str | None, Query(min_length=1, max_length=4096, description="absolute path; without it all allowed folders")
    ] = None,
) -> AllowedFolders:
    """Return the folders in a folder that jobs may read, to choose one from."""
    with backend.requests.slot():
        return await backend.requests.run(lambda: backend.jobs.folders(path))


@_jobs.get("/{job}", summary="Get a job")
async def one_job(backend: BackendDep, job: JobId) -> JobRecord:
    """Return the progress of a job."""
    return backend.jobs.get(job).record()


@_jobs.delete("/{job}", summary="Cancel a job")
async def cancel_job(backend: BackendDep, job: JobId) -> JobRecord:
    """Cancel a job. Files that it has indexed stay in the library."""
    return backend.jobs.cancel(job).record()


@_jobs.get(
    "/{job}/events",
    response_class=StreamingResponse,
    summary="Follow a job",
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def follow_job(backend: BackendDep, job: JobId) -> StreamingResponse:
    """Send a server-sent event with the job record for each change, until the job ends."""
    return StreamingResponse(_events(backend.jobs.get(job)), media_type="text/event-stream")


async def _events(job: Job) -> AsyncIterator[str]:
    sent, spoke = -1, time.monotonic()
    while True:
        changes, ended = job.changes, job.ended
        if changes != sent:
            sent, spoke = changes, time.monotonic()
            yield f"id: {changes}\ndata: {job.record().model_dump_json()}\n\n"
        elif time.monotonic() - spoke > _SILENCE:
            spoke = time.monotonic()
            yield ": keep-alive\n\n"
        if ended:
            return
        await asyncio.sleep(_POLL)


@_monitoring.get("/healthz", summary="Check that the server runs")
async def healthz() -> Health:
    """Return 200 while the server runs. Needs no token."""
    return Health(status="ok")


@_monitoring.get("/readyz", summary="Check that the server can search")
async def readyz(backend: BackendDep) -> Health:
    """Return 200 if the server can search, else 503. Needs no token."""
    if backend.catalogue.state == "failed":
        # No token is needed here, and the reason contains paths.
        raise ProblemError(503, "cannot open the library; see the log", {"Retry-After": "10"})
    if backend.catalogue.state != "ready":
        raise backend.catalogue.not_ready()
    return Health(status="ready")


for part in (_search, _library, _jobs, _monitoring):
    router.include_router(part)
