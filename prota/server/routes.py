"""The routes of the API: they parse and check requests on the event loop; other threads answer them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError

from prota.library.records import LibraryError
from prota.library.search.queries import clean_query
from prota.server.answering import Explain, Filters, QueryWorker, Search, Timeline, timeline, title_of
from prota.server.jobs import Job, Jobs
from prota.server.media import stream_video
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError, readable, sentence
from prota.server.queueing import BoundedPool
from prota.server.schemas import (
    JOB_EXAMPLE,
    VIDEO_EXAMPLE,
    Answer,
    Explained,
    Health,
    JobRecord,
    JobRequest,
    Kind,
    LibraryInfo,
    LikeRequest,
    TimelineSegment,
    VideoDetails,
)
from prota.server.uploads import received, upload_query
from prota.server.view import Catalogue

__all__ = ["Backend", "router"]

# Rows are 64-bit integers.
_LARGEST_ROW = 2**62
# Bytes; a `LikeRequest` is smaller.
_LARGEST_BODY = 4096
_MOST = 100
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

    def close(self) -> None:
        self.jobs.close()
        self.catalogue.close()
        self.worker.close()
        self.requests.close()
        self.decoding.close()


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
            nothing = Answer(query=q, cut=False, no_good_match=False, version=0, took_ms=0.0, moments=[], weaker=[])
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
async def search_like(request: Request, backend: BackendDep, k: Count = 24) -> Response:
    """Search for moments similar to one of the library (JSON), or to an uploaded clip or picture (form)."""
    started = time.perf_counter()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        wanted = await _like_request(request)
        with backend.requests.slot():
            found = backend.catalogue.searchable()
            found.record(wanted.video)
            return _json(await backend.worker.ask(Search(found, wanted, k, started)))
    if kind == "multipart/form-data":
        with backend.decoding.slot():
            found = backend.catalogue.searchable()
            async with received(request, backend.options.max_upload) as path:
                query = await backend.decoding.run(lambda: upload_query(found, path, backend.options))
            return _json(await backend.worker.ask(Search(found, query, k, started)))
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


@_library.get("/library", summary="Describe the library")
async def library(backend: BackendDep) -> LibraryInfo:
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
        allow=[readable(folder) for folder in backend.options.roots],
    )


@_library.get("/videos/{video}", summary="Describe a video")
async def video(backend: BackendDep, video: VideoId) -> VideoDetails:
    """Return the properties of a video or a picture."""
    record = backend.catalogue.at().record(video)
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
        modified=datetime.fromtimestamp(record.modified / 1e9, UTC).isoformat(timespec="seconds"),
        segments=record.segments,
        stream=f"/api/v1/videos/{record.video_id}/stream",
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
    return stream_video(record, request.method, request.headers.get("range"), request.headers.get("if-range"))


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
    """Index a file or folder below a folder that `prota serve --allow` permits. Jobs run one at a time."""
    return backend.jobs.add(wanted.path, wanted.pictures).record()


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
