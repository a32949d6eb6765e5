"""An index job as a process of its own: searches go on beside it, and it can be ended without harm.

Its progress goes to stdout as lines of JSON. It ends when it is told to, or when the server that started it dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prota.errors import one_line
from prota.platform import end_with, lower_priority

if TYPE_CHECKING:
    from prota.library.indexing import IndexReport

__all__ = ["IndexOrder", "command", "main"]

# Seconds between two lines, and for which another writer of the library is waited for.
_EVERY, _WAIT = 0.2, 60.0
# Searches and indexing share the machine; whoever waits for an answer comes first.
_NICENESS = 10
# Of bad files, to be shown at once; the library remembers all.
_REASONS = 20


@dataclass(frozen=True)
class IndexOrder:
    """What the process is to do."""

    path: str
    library: str
    model: str | None
    device: str
    within: tuple[str, ...]
    workers: int
    timeout: float
    pictures: bool = True


def command(order: IndexOrder) -> list[str]:
    """What starts the process: a fresh Python with this one's path."""
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from prota.server.indexing import main; main()"
    return [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(asdict(order)), str(os.getpid())]


def progress_of(report: IndexReport, root: str) -> dict[str, Any]:
    """A report as a line of progress, with the first bad files by their place below the folder."""
    share = report.bytes_done / report.bytes_new if report.bytes_new else float(report.finished)
    return {
        "found": report.found, "done": report.done, "indexed": report.indexed, "unchanged": report.unchanged,
        "bad": len(report.bad), "segments": report.segments, "pictures": report.pictures,
        "seconds": round(report.seconds, 3),
        "share": round(min(1.0, max(0.0, share)), 4), "finished": report.finished,
        "reasons": {os.path.relpath(path, root): reason for path, reason in islice(report.bad.items(), _REASONS)},
    }  # fmt: skip


class _Teller:
    """Writes progress, not more often than anyone looks."""

    def __init__(self, root: str) -> None:
        self.root, self.last = root, 0.0

    def __call__(self, report: IndexReport, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self.last >= _EVERY:
            self.last = now
            print(json.dumps(progress_of(report, self.root)), flush=True)


def main() -> None:
    """The life of the process."""
    order, parent = json.loads(sys.argv[2]), int(sys.argv[3])
    stop = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(True))
    lower_priority(_NICENESS)
    # What is committed is whole at any moment; a file that takes minutes to read is not finished for no one.
    end_with(parent)
    try:
        _index(IndexOrder(**order | {"within": tuple(order["within"])}), lambda: bool(stop))
    except BrokenPipeError:
        # Nobody listens any more.
        os._exit(1)
    except Exception as error:
        print(json.dumps({"error": one_line(error)}), flush=True)
        sys.exit(1)


def _index(order: IndexOrder, should_stop: Any) -> None:
    from prota.library.indexing import IndexOptions
    from prota.library.library import Library
    from prota.library.segments import SegmentPlan
    from prota.library.storage.location import Location
    from prota.runtime import start_world

    place = Location.of(order.library)
    library = Library.open(place, order.model, str(start_world(order.device).device))
    plan = SegmentPlan(library.model.config.encoder.frames)
    options = IndexOptions(plan, order.workers, order.timeout, within=order.within, pictures=order.pictures)
    tell = _Teller(order.path)
    report = library.index(Path(order.path), options, tell, should_stop, wait=_WAIT)
    tell(report, at_once=True)
