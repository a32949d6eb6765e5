"""Errors as problem details (RFC 9457): one JSON object for every error."""

from __future__ import annotations

import http
import logging
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Scope

from prota.errors import ProtaError, UsageError, one_line

__all__ = [
    "Problem",
    "ProblemError",
    "add_problem_handlers",
    "problem_response",
    "readable",
    "sentence",
    "unexpected_response",
]

_log = logging.getLogger("prota.server")


class Problem(BaseModel):
    """An error, as application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(description="kind of error; does not change between releases")


class ProblemError(ProtaError):
    """A request that fails with an HTTP status. The code of a ProtaError that caused it is reported."""

    code = "request"

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


def readable(text: str) -> str:
    """Text as valid UTF-8: file names may contain other bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, code: str = ProblemError.code
) -> Response:
    problem = Problem(title=_title(status), status=status, detail=readable(detail), code=code)
    kind = "application/problem+json"
    return JSONResponse(problem.model_dump(), status, headers=dict(headers or {}), media_type=kind)


def unexpected_response(scope: Scope, error: Exception) -> Response:
    """The response to a bug, without details; the traceback is logged."""
    # Without the query string, which may be private.
    _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    return problem_response(500, "internal error; see the log of the server", code="bug")


def _title(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def add_problem_handlers(app: FastAPI, unavailable: Callable[[ProtaError], str]) -> None:
    """Report every error of an application as a problem.

    ``unavailable``: the detail for a ProtaError that the request did not cause, such as failing storage.
    """

    async def of_request(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        cause = error.__cause__ if isinstance(error.__cause__, ProtaError) else error
        return problem_response(error.status, error.detail, error.headers, cause.code)

    async def of_prota(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProtaError)
        if isinstance(error, UsageError):
            return problem_response(422, one_line(error), code=error.code)
        return problem_response(503, unavailable(error), {"Retry-After": "2"}, error.code)

    async def of_framework(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(error.status_code, str(error.detail), error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem_response(422, "; ".join(sentence(entry) for entry in error.errors()))

    app.add_exception_handler(ProblemError, of_request)
    app.add_exception_handler(ProtaError, of_prota)
    app.add_exception_handler(HTTPException, of_framework)
    app.add_exception_handler(RequestValidationError, invalid)


def sentence(entry: Mapping[str, Any]) -> str:
    """A validation error as field and message, without the value, which may be of any size."""
    parts = [str(part) for part in entry.get("loc", ())]
    # The first part is the part of the request; a field may have the same name.
    place = ".".join(parts[1:] if parts[:1] in (["query"], ["body"], ["path"]) else parts)
    return f"{place[:80]}: {entry.get('msg', 'is not allowed')}" if place else str(entry.get("msg", "invalid"))
