"""Routes that show what the library holds."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath

from prota.library.records import VideoRecord
from prota.server.problems import readable
from prota.server.schemas import LibraryInfo, TimelineSegment, VideoDetails
from prota.server.search_routes import Version, Words, cleaned
from prota.server.searching import timeline, title_of
from prota.server.services import Given
from prota.server.streaming import stream_video

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["library"])

VideoId = Annotated[str, InPath(pattern="^[0-9a-f]{64}$", description="SHA-256 of its content")]
Row = Annotated[int, InPath(ge=0, le=2**62)]


@router.get("/library")
async def library(given: Given) -> LibraryInfo:
    """What can be searched, and whether the model is there yet."""
    engine, view = given.engine, given.engine.view
    return LibraryInfo(
        videos=len(view.videos) - view.pictures if view else 0,
        pictures=view.pictures if view else 0,
        segments=view.store.count() if view else 0,
        hours=round(view.hours, 4) if view else 0.0,
        model=Path(engine.model_name).name,
        version=view.version if view else 0,
        state=engine.state,
        detail=readable(engine.reason),
        folders=view.folders.names if view else [],
        allow=[readable(folder) for folder in given.options.roots],
    )


@router.get("/videos/{video}")
async def video(given: Given, video: VideoId) -> VideoDetails:
    """A video or a picture of the library."""
    return _details(given.engine.record(video))


def _details(record: VideoRecord) -> VideoDetails:
    return VideoDetails(
        video=record.video_id,
        kind=record.kind,
        title=title_of(record),
        folder=readable(Path(record.path).parent.name),
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


@router.get("/videos/{video}/segments")
async def segments(given: Given, video: VideoId, q: Words | None = None) -> list[TimelineSegment]:
    """All segments of a video, with their scores where words are given."""
    with given.desk.place():
        given.engine.record(video)
        view = given.engine.at(None)
        query = None
        if q is not None:
            given.engine.searcher()
            query = await given.encode(cleaned(q))
        return await given.work(lambda: timeline(view, video, query))


# Described once: HEAD is GET without the content.
@router.head("/videos/{video}/stream", include_in_schema=False, response_class=Response)
@router.get("/videos/{video}/stream", response_class=Response)
def stream(given: Given, request: Request, video: VideoId) -> Response:
    """The original file, whole or a range of its bytes."""
    record = given.engine.record(video)
    return stream_video(record, request.method, request.headers.get("range"), request.headers.get("if-range"))


@router.get("/segments/{segment}/thumbnail", response_class=Response)
async def thumbnail(given: Given, request: Request, segment: Row, version: Version = None) -> Response:
    """A small JPEG of the frame in the middle of a segment."""
    store = given.engine.at(version).store
    with given.desk.place():
        (picture,) = await given.work(lambda: store.thumbnails([segment]))
    tag = f'"{hashlib.sha256(picture).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=300"}
    known = [name.strip().removeprefix("W/") for name in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return Response(picture, media_type="image/jpeg", headers=headers)
