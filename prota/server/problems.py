"""Errors as RFC 9457 has them: one JSON shape for everything that can go wrong."""

from __future__ import annotations

import http
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import Scope

from prota.errors import ProtaError

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
    """What went wrong, as application/problem+json."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str


class ProblemError(ProtaError):
    """A request that cannot be answered, with its HTTP status."""

    code = "request"

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})


def readable(text: str) -> str:
    """Text that can be sent: file names may hold bytes that are no UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def problem_response(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    problem = Problem(title=_title(status), status=status, detail=readable(detail))
    kind = "application/problem+json"
    return JSONResponse(problem.model_dump(), status, headers=dict(headers or {}), media_type=kind)


def unexpected_response(scope: Scope, error: Exception) -> Response:
    """What is told of an error that nobody thought of; the log gets all of it."""
    # Where it happened, without the query: that is nobody else's business.
    _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    return problem_response(500, "something went wrong in the server; its log says what")


def _title(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def add_problem_handlers(app: FastAPI) -> None:
    """Have every error of an application told in that shape."""

    async def told(_: Request, error: Exception) -> Response:
        assert isinstance(error, ProblemError)
        return problem_response(error.status, error.detail, error.headers)

    async def by_the_framework(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem_response(error.status_code, str(error.detail), error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem_response(422, "; ".join(sentence(entry) for entry in error.errors()))

    app.add_exception_handler(ProblemError, told)
    app.add_exception_handler(HTTPException, by_the_framework)
    app.add_exception_handler(RequestValidationError, invalid)


def sentence(entry: Mapping[str, Any]) -> str:
    """Where and what, without the value itself: it may be anything, and of any size."""
    parts = [str(part) for part in entry.get("loc", ())]
    # The first says where in the request; a field may be called by the same name.
    place = ".".join(parts[1:] if parts[:1] in (["query"], ["body"], ["path"]) else parts)
    return f"{place[:80]}: {entry.get('msg', 'is not allowed')}" if place else str(entry.get("msg", "is not allowed"))
