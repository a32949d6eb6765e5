"""Routes of index jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from prota.server.jobs import Job
from prota.server.schemas import JobRecord, JobRequest
from prota.server.services import Given

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

# Seconds: how soon a change is told, and how long a silence may be before a proxy thinks nobody is there.
_LOOK, _SILENCE = 0.1, 15.0

JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$")]


@router.get("")
async def jobs(given: Given) -> list[JobRecord]:
    """All jobs since the server was started, the latest first."""
    return [job.record() for job in given.jobs.all()]


@router.post("", status_code=202)
async def add_job(given: Given, wanted: JobRequest) -> JobRecord:
    """Index a file or folder, below one of the folders that the server may read."""
    return given.jobs.add(wanted.path, wanted.pictures).record()


@router.get("/{job}")
async def one_job(given: Given, job: JobId) -> JobRecord:
    """How far a job is."""
    return given.jobs.get(job).record()


@router.delete("/{job}")
async def cancel_job(given: Given, job: JobId) -> JobRecord:
    """Have a job stop; what it finished stays in the library."""
    return given.jobs.cancel(job).record()


@router.get("/{job}/events", response_class=StreamingResponse)
async def follow_job(given: Given, job: JobId) -> StreamingResponse:
    """The job as server-sent events, whenever something of it is new, until it has ended."""
    return StreamingResponse(_events(given.jobs.get(job)), media_type="text/event-stream")


async def _events(job: Job) -> AsyncIterator[str]:
    told, spoke = -1, time.monotonic()
    while True:
        changes, ended = job.changes, job.ended
        if changes != told:
            told, spoke = changes, time.monotonic()
            yield f"id: {changes}\ndata: {job.record().model_dump_json()}\n\n"
        elif time.monotonic() - spoke > _SILENCE:
            spoke = time.monotonic()
            yield ": still here\n\n"
        if ended:
            return
        await asyncio.sleep(_LOOK)
