"""The routes of the API: requests are parsed and checked here, on the event loop, and rendered elsewhere."""

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
from prota.server.media import received, stream_video, upload_query
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError, readable, sentence
from prota.server.queueing import BoundedPool
from prota.server.schemas import (
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
from prota.server.view import Catalogue

__all__ = ["Backend", "router"]

# A row is a 64-bit number in the store.
_LARGEST_ROW = 2**62
# A stretch of a video takes no more than this as JSON.
_LARGEST_BODY = 4096
_MOST = 100
# Seconds between two looks at a job, and of silence after which a proxy may close the connection.
_POLL, _SILENCE = 0.1, 15.0


@dataclass(frozen=True)
class Backend:
    """What the routes work with; one for each application."""

    options: ServerOptions
    catalogue: Catalogue
    worker: QueryWorker
    requests: BoundedPool
    """Limits the requests about the library; its threads read what needs no model."""
    decoding: BoundedPool
    """For uploads, which take longer: searches do not wait behind them."""
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
Words = Annotated[str, Query(min_length=1, max_length=1000, description="what the moment shows, in words")]
Count = Annotated[int, Query(ge=1, le=_MOST, description="moments to find")]
SegmentRow = Annotated[int, Query(ge=0, le=_LARGEST_ROW, description="row of a segment")]
Version = Annotated[int | None, Query(ge=0, le=_LARGEST_ROW, description="of the library that the row is of")]
Seconds = Annotated[
    float | None, Query(ge=0, le=1e9, allow_inf_nan=False, description="of the video; pictures have no length")
]
VideoId = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of its content")]
SegmentPath = Annotated[int, Path(ge=0, le=_LARGEST_ROW)]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]

router = APIRouter()
_search = APIRouter(prefix="/api/v1", tags=["search"])
_library = APIRouter(prefix="/api/v1", tags=["library"])
_jobs = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])
_watch = APIRouter(tags=["watch"])


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")


def _cleaned(text: str) -> str:
    """The words of a query; ProblemError 422 if there are none."""
    try:
        return clean_query(text)
    except LibraryError as error:
        raise ProblemError(422, f"q: {error}") from error


def _filters(
    *,
    min_duration: Seconds = None,
    max_duration: Seconds = None,
    folder: Annotated[str | None, Query(max_length=255, description="name of a folder; those below it count")] = None,
    after: Annotated[date | None, Query(description="changed on that day or later")] = None,
    before: Annotated[date | None, Query(description="changed on that day or earlier")] = None,
    kind: Annotated[Kind | None, Query(description="videos alone, or pictures")] = None,
) -> Filters:
    return Filters(min_duration, max_duration, folder or None, after, before, kind)


@_search.get("/search", response_model=Answer)
async def search(
    backend: BackendDep,
    q: Words,
    *,
    filters: Annotated[Filters, Depends(_filters)],
    k: Count = 24,
    all: Annotated[bool, Query(description="do not set weaker matches apart")] = False,
) -> Response:
    """Search the library with a text query."""
    started = time.perf_counter()
    with backend.requests.slot():
        if backend.catalogue.current is None and backend.catalogue.state == "ready":
            # An empty library, without a model to encode the words.
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
                    "properties": {"file": {"type": "string", "format": "binary"}},
                    "required": ["file"],
                }
            },
        },
    }
}


@_search.post("/search/like", response_model=Answer, openapi_extra=_LIKE_BODY)
async def search_like(request: Request, backend: BackendDep, k: Count = 24) -> Response:
    """Find moments that look like a stretch of a video of the library, or like an uploaded clip or picture."""
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


@_search.get("/explain", response_model=Explained)
async def explain(backend: BackendDep, q: Words, segment: SegmentRow, version: Version = None) -> Response:
    """Explain the score of a segment by words and frames."""
    with backend.requests.slot():
        found = backend.catalogue.searchable(version)
        words = _cleaned(q)
        found.check_row(segment)
        return _json(await backend.worker.ask(Explain(found, words, segment)))


@_library.get("/library")
async def library(backend: BackendDep) -> LibraryInfo:
    """Describe the library, and whether the model is loaded."""
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


@_library.get("/videos/{video}")
async def video(backend: BackendDep, video: VideoId) -> VideoDetails:
    """Describe a video or a picture of the library."""
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


@_library.get("/videos/{video}/segments", response_model=list[TimelineSegment])
async def segments(backend: BackendDep, video: VideoId, q: Words | None = None) -> Response:
    """List all segments of a video, with their scores for a text query if one is given."""
    with backend.requests.slot():
        found = backend.catalogue.at() if q is None else backend.catalogue.searchable()
        found.record(video)
        if q is None:
            return _json(await backend.requests.run(lambda: timeline(found, video).model_dump_json()))
        return _json(await backend.worker.ask(Timeline(found, _cleaned(q), video)))


# Described once: HEAD is GET without the content.
@_library.head("/videos/{video}/stream", include_in_schema=False, response_class=Response)
@_library.get("/videos/{video}/stream", response_class=Response)
def stream(backend: BackendDep, request: Request, video: VideoId) -> Response:
    """Stream the original file, whole or a range of its bytes."""
    record = backend.catalogue.at().record(video)
    return stream_video(record, request.method, request.headers.get("range"), request.headers.get("if-range"))


@_library.get("/segments/{segment}/thumbnail", response_class=Response)
async def thumbnail(backend: BackendDep, request: Request, segment: SegmentPath, version: Version = None) -> Response:
    """Get a small JPEG of the frame in the middle of a segment."""
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


@_jobs.get("")
async def jobs(backend: BackendDep) -> list[JobRecord]:
    """List the jobs since the server was started, the latest first."""
    return [job.record() for job in backend.jobs.all()]


@_jobs.post("", status_code=202)
async def add_job(backend: BackendDep, wanted: JobRequest) -> JobRecord:
    """Index a file or folder below one of the folders that the server may read."""
    return backend.jobs.add(wanted.path, wanted.pictures).record()


@_jobs.get("/{job}")
async def one_job(backend: BackendDep, job: JobId) -> JobRecord:
    """Report the progress of a job."""
    return backend.jobs.get(job).record()


@_jobs.delete("/{job}")
async def cancel_job(backend: BackendDep, job: JobId) -> JobRecord:
    """Cancel a job; what it has indexed stays in the library."""
    return backend.jobs.cancel(job).record()


@_jobs.get("/{job}/events", response_class=StreamingResponse)
async def follow_job(backend: BackendDep, job: JobId) -> StreamingResponse:
    """Follow a job by server-sent events, one for each change, until it ends."""
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
            yield ": still here\n\n"
        if ended:
            return
        await asyncio.sleep(_POLL)


@_watch.get("/healthz")
async def healthz() -> Health:
    """Report that the server is running."""
    return Health(status="ok")


@_watch.get("/readyz")
async def readyz(backend: BackendDep) -> Health:
    """Report whether the server can search."""
    if backend.catalogue.state == "failed":
        # Open to everyone, and the reason names files.
        raise ProblemError(503, "the library cannot be opened; the log and the page say why", {"Retry-After": "10"})
    if backend.catalogue.state != "ready":
        raise backend.catalogue.not_ready()
    return Health(status="ready")


for part in (_search, _library, _jobs, _watch):
    router.include_router(part)
