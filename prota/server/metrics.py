"""Counts and times in Prometheus's text format: the little of it that is needed here."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["CONTENT_TYPE", "Measured", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms of seconds, and values that are asked for when they are read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._times: dict[tuple[str, Labels], list[float]] = {}
        self._values: dict[str, Callable[[], float]] = {}
        self._help: dict[str, str] = {}

    def describe(self, texts: Mapping[str, str]) -> None:
        self._help.update(texts)

    def value(self, name: str, get: Callable[[], float]) -> None:
        self._values[name] = get

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += amount

    def time(self, name: str, seconds: float, **labels: str) -> None:
        with self._lock:
            # A place for each bucket, the sum and the number.
            places = self._times.setdefault((name, tuple(sorted(labels.items()))), [0.0] * (len(_BUCKETS) + 2))
            for place, limit in enumerate(_BUCKETS):
                places[place] += seconds <= limit
            places[-2] += seconds
            places[-1] += 1

    def text(self) -> str:
        """What is scraped."""
        with self._lock:
            counts, times = dict(self._counts), {key: list(places) for key, places in self._times.items()}
        lines: list[str] = []
        for name in sorted({name for name, _ in counts}):
            lines += self._head(name, "counter")
            lines += [
                f"{name}{_shown(labels)} {value:g}" for (own, labels), value in sorted(counts.items()) if own == name
            ]
        for name in sorted({name for name, _ in times}):
            lines += self._head(name, "histogram")
            for (own, labels), places in sorted(times.items()):
                if own == name:
                    lines += _histogram(name, labels, places)
        for name, get in sorted(self._values.items()):
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [*self._head(name, kind), f"{name} {get():g}"]
        return "\n".join(lines) + "\n"

    def _head(self, name: str, kind: str) -> list[str]:
        return [f"# HELP {name} {self._help.get(name, name)}", f"# TYPE {name} {kind}"]


def _histogram(name: str, labels: Labels, places: list[float]) -> list[str]:
    lines = [
        f"{name}_bucket{_shown((*labels, ('le', f'{limit:g}')))} {value:g}"
        for limit, value in zip(_BUCKETS, places, strict=False)
    ]
    total = f"{places[-1]:g}"
    lines.append(f"{name}_bucket{_shown((*labels, ('le', '+Inf')))} {total}")
    return [*lines, f"{name}_sum{_shown(labels)} {places[-2]:.6f}", f"{name}_count{_shown(labels)} {total}"]


def _shown(labels: Labels) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""


class Measured:
    """Counts and times the requests to an application, by route: paths as clients write them may be of any number."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        finally:
            route = str(getattr(scope.get("route"), "path", "none"))
            # A method may be any word, too.
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
            self.metrics.count("prota_requests_total", route=route, method=method, status=str(status))
            self.metrics.time("prota_request_seconds", time.perf_counter() - started, route=route)
