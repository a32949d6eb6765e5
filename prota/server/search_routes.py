"""Routes that search and explain."""

from __future__ import annotations

import time
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError

from prota.library.records import LibraryError
from prota.server.problems import ProblemError, sentence
from prota.server.schemas import Answer, Explained, Kind, LikeRequest
from prota.server.searching import Filters, Wanted, answer, condition, explained, like_stored
from prota.server.services import Given, Services
from prota.server.uploads import received, upload_query

__all__ = ["Words", "cleaned", "router"]

router = APIRouter(prefix="/api/v1", tags=["search"])

# A row is a 64-bit number in the store.
_LARGEST_ROW = 2**62
# A stretch of a video takes no more than this as JSON.
_LARGEST_BODY = 4096
_MOST = 100

Words = Annotated[str, Query(min_length=1, max_length=1000, description="what the moment shows, in words")]
Row = Annotated[int, Query(ge=0, le=_LARGEST_ROW, description="row of a segment")]
Version = Annotated[int | None, Query(ge=0, le=_LARGEST_ROW, description="of the library that the row is of")]
Seconds = Annotated[
    float | None, Query(ge=0, le=1e9, allow_inf_nan=False, description="of the video; pictures have no length")
]


def cleaned(text: str) -> str:
    """The words of a query; ProblemError 422 where there are none."""
    from prota.library.search import clean_query

    try:
        return clean_query(text)
    except LibraryError as error:
        raise ProblemError(422, f"q: {error}") from None


def _filters(
    min_duration: Seconds = None,
    max_duration: Seconds = None,
    folder: Annotated[str | None, Query(max_length=255, description="name of a folder; those below it count")] = None,
    after: Annotated[date | None, Query(description="changed on that day or later")] = None,
    before: Annotated[date | None, Query(description="changed on that day or earlier")] = None,
    kind: Annotated[Kind | None, Query(description="videos alone, or pictures")] = None,
) -> Filters:
    return Filters(min_duration, max_duration, folder or None, after, before, kind)


@router.get("/search")
async def search(
    given: Given,
    q: Words,
    filters: Annotated[Filters, Depends(_filters)],
    k: Annotated[int, Query(ge=1, le=_MOST, description="moments to find")] = 24,
    all: Annotated[bool, Query(description="do not set weaker matches apart")] = False,
) -> Answer:
    """The moments that some words mean."""
    started = time.perf_counter()
    with given.desk.place():
        if given.engine.view is None and given.engine.state == "ready":
            return _nothing(q)
        view = given.engine.at(None)
        searcher = given.engine.searcher_of(view)
        text = cleaned(q)
        key = (view.number, text, k, filters, all)
        found = given.answers.get(key)
        given.metrics.count("prota_answers_total", kept="no" if found is None else "yes")
        if found is None:
            where = await given.work(lambda: condition(filters, view))
            query = await given.encode(text)
            best = await given.score(Wanted(searcher, query, k, where))
            found = await given.work(lambda: answer(searcher, query, k, all, best))
            if found.partial:
                # The next who asks may get all of it.
                given.metrics.count("prota_partial_answers_total")
            else:
                given.answers.put(key, found)
    return _timed(found, started)


def _nothing(text: str) -> Answer:
    """What an empty library answers, without a model to encode the words."""
    return Answer(query=text, cut=False, no_good_match=False, version=0, took_ms=0.0, moments=[], weaker=[])


def _timed(found: Answer, started: float) -> Answer:
    return found.model_copy(update={"took_ms": round(1000 * (time.perf_counter() - started), 2)})


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


@router.post("/search/like", openapi_extra=_LIKE_BODY)
async def search_like(
    request: Request, given: Given, k: Annotated[int, Query(ge=1, le=_MOST, description="moments to find")] = 24
) -> Answer:
    """The moments that look like a stretch of a video of the library, or like an uploaded clip or picture."""
    started = time.perf_counter()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _timed(await _like_moment(given, await _like_request(request), k), started)
    if kind == "multipart/form-data":
        return _timed(await _like_upload(given, request, k), started)
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


async def _like_moment(given: Services, wanted: LikeRequest, k: int) -> Answer:
    with given.desk.place():
        given.engine.record(wanted.video)
        view = given.engine.at(None)
        searcher = given.engine.searcher_of(view)

        def work() -> Answer:
            query = like_stored(view, wanted.video, wanted.start, wanted.end)
            return answer(searcher, query, k, False)

        return await given.work(work)


async def _like_upload(given: Services, request: Request, k: int) -> Answer:
    options = given.options
    with given.decoding.place():
        searcher = given.engine.searcher()
        async with received(request, options.max_upload) as path:

            def work() -> Answer:
                query = upload_query(searcher.model, path, options)
                return answer(searcher, query, k, False)

            return await given.work(work, given.decoding)


@router.get("/explain")
async def explain(given: Given, q: Words, segment: Row, version: Version = None) -> Explained:
    """What the score of a segment is made of."""
    with given.desk.place():
        searcher = given.engine.searcher(version)
        query = await given.encode(cleaned(q))
        return await given.work(lambda: explained(searcher, query, segment))
