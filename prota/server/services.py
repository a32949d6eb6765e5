"""What the routes work with, made once for an application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends, Request

from prota.errors import one_line
from prota.library.records import LibraryError
from prota.server.engine import Engine
from prota.server.jobs import Jobs
from prota.server.metrics import Metrics
from prota.server.options import ServerOptions
from prota.server.problems import ProblemError
from prota.server.schemas import Answer
from prota.server.searching import Wanted
from prota.server.waiting import Batcher, Desk, Kept

if TYPE_CHECKING:
    from prota.library.search import BestSegments, Query

__all__ = ["Given", "Services"]

A = TypeVar("A")


@dataclass(frozen=True)
class Services:
    """The library, the jobs, and the desks at which requests wait."""

    options: ServerOptions
    engine: Engine
    jobs: Jobs
    desk: Desk
    """For searches."""
    decoding: Desk
    """For uploads, which take longer: searches do not wait behind them."""
    answers: Kept[Answer]
    scoring: Batcher[Wanted, BestSegments]
    """Where searches of many are scored in one pass over the library."""
    metrics: Metrics

    async def work(self, work: Callable[[], A], desk: Desk | None = None) -> A:
        """In a thread of a desk; what the library complains about is told to the client."""
        with self._telling():
            return await (desk or self.desk).run(work)

    async def score(self, wanted: Wanted) -> BestSegments:
        """The best segments of a query, scored together with those of others."""
        with self._telling():
            return await asyncio.wrap_future(self.scoring.submit(wanted))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except IndexError:
            raise ProblemError(404, "there is no such segment in the library") from None
        except LibraryError as error:
            # A writer may have cleaned up what this version reads: the next look finds the new one.
            self.engine.look()
            detail = one_line(error).replace(str(self.engine.folder), "the library")
            raise ProblemError(503, detail, {"Retry-After": "2"}) from None

    async def encode(self, text: str) -> Query:
        """Words as a query, encoded together with those that others ask for at the moment."""
        known = self.engine.known(text)
        return known if known is not None else await asyncio.wrap_future(self.engine.batcher.submit(text))


def _services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Given = Annotated[Services, Depends(_services)]
