"""Index jobs: one at a time, each in its own process, so that searches continue and jobs can be cancelled.

The process writes its progress to stdout as JSON lines. It exits on SIGTERM or when the server dies.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prota.errors import ProtaError, one_line
from prota.library.storage.location import Location, Where
from prota.platform import end_with, lower_priority
from prota.server.problems import ProblemError, readable
from prota.server.schemas import AllowedFolder, AllowedFolders, BadFile, JobRecord, JobState
from prota.video.pictures import PICTURE_EXTENSIONS
from prota.video.walk import VIDEO_EXTENSIONS, below, under

if TYPE_CHECKING:
    from prota.library.indexing import IndexReport

__all__ = ["IndexOrder", "Job", "Jobs", "main", "order_for"]

# Seconds for a job to stop after SIGTERM.
_GRACE = 10.0
# Limits of waiting and of finished jobs.
_MOST_WAITING, _REMEMBERED = 16, 100
# In the process: seconds between two lines of progress, and for waiting for another writer.
_EVERY, _WAIT = 0.2, 60.0
# Indexing yields the CPU to searches.
_NICENESS = 10
# Bad files in a record; the library records all. Folders that are listed of one.
_REASONS, _MOST_FOLDERS = 20, 1000
_COUNTS = ("found", "done", "indexed", "unchanged", "bad", "segments", "pictures", "seconds", "share")

_log = logging.getLogger("prota.server")


@dataclass(frozen=True)
class IndexOrder:
    """The work of the process."""

    paths: tuple[str, ...]
    library: str
    model: str | None
    device: str
    within: tuple[str, ...]
    workers: int
    timeout: float
    pictures: bool = True
    retry: bool = False


@dataclass
class Job:
    """Some paths to index."""

    id: str
    paths: Sequence[str]
    pictures: bool = True
    """Whether pictures are indexed."""
    retry: bool = False
    """Whether bad files are retried."""
    state: JobState = "waiting"
    detail: str = ""
    progress: dict[str, Any] = field(default_factory=dict)
    changes: int = 0
    """Number of changes so far."""
    process: subprocess.Popen[str] | None = None

    @property
    def ended(self) -> bool:
        return self.state not in ("waiting", "running")

    def record(self) -> JobRecord:
        counts = {name: self.progress.get(name, 0) for name in _COUNTS}
        bad = self.progress.get("reasons", {})
        reasons = [BadFile(file=readable(file), reason=readable(reason)) for file, reason in bad.items()]
        path = readable(self.paths[0]) if len(self.paths) == 1 else f"{len(self.paths)} files"
        detail = readable(self.detail)
        return JobRecord(id=self.id, path=path, state=self.state, detail=detail, reasons=reasons, **counts)


class Jobs:
    """All jobs of a server, and the thread that runs them."""

    def __init__(self, order: IndexOrder, on_progress: Callable[[], None]) -> None:
        self._order, self._on_progress = order, on_progress
        self._jobs: dict[str, Job] = {}
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prota-jobs", daemon=True)
        self._thread.start()

    def add(self, paths: Sequence[str], pictures: bool = True, retry: bool = False) -> Job:
        """Add a job; ProblemError if a path is forbidden or missing, or if too many jobs are waiting."""
        job = Job(secrets.token_hex(8), [self._allowed(path) for path in paths], pictures, retry)
        with self._lock:
            if sum(job.state == "waiting" for job in self._jobs.values()) >= _MOST_WAITING:
                raise ProblemError(503, "too many jobs are waiting; retry later", {"Retry-After": "30"})
            for old in [job for job in self._jobs.values() if job.ended][: max(0, len(self._jobs) - _REMEMBERED)]:
                del self._jobs[old.id]
            self._jobs[job.id] = job
        self._queue.put(job)
        return job

    @property
    def busy(self) -> bool:
        """Whether a job is writing the library."""
        return any(job.state == "running" for job in self.all())

    def folders(self, path: str | None) -> AllowedFolders:
        """The folders in an allowed folder, without hidden ones and links to elsewhere; None: all allowed folders."""
        roots = self.roots()
        if path is None:
            found = [AllowedFolder(name=readable(root), path=readable(root)) for root in roots]
            return AllowedFolders(path="", parent=None, files=0, folders=found)
        real = self._allowed(path)
        folders, count = [], 0
        try:
            with os.scandir(real) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir() and below(entry.path, roots):
                        folders.append(AllowedFolder(name=readable(entry.name), path=readable(entry.path)))
                    count += Path(entry.name).suffix[1:].lower() in VIDEO_EXTENSIONS.union(PICTURE_EXTENSIONS)
        except OSError as error:
            raise ProblemError(422, f"path: cannot read the folder ({error.strerror})") from None
        folders.sort(key=lambda folder: folder.name.casefold())
        parent = os.path.dirname(real)
        above = readable(parent) if below(parent, roots) else ""
        return AllowedFolders(path=readable(real), parent=above, files=count, folders=folders[:_MOST_FOLDERS])

    def roots(self) -> tuple[str, ...]:
        """The allowed folders; ProblemError if there are none."""
        if not self._order.within:
            raise ProblemError(403, "indexing is disabled; start the server with --allow FOLDER")
        return self._order.within

    def _allowed(self, path: str) -> str:
        """The real path. Errors do not reveal what exists outside the allowed folders."""
        roots = self.roots()
        if "\0" in path or not os.path.isabs(path):
            raise ProblemError(422, "path: must be an absolute path on the computer that runs the server")
        try:
            real = os.path.realpath(path)
            inside = below(real, roots)
        except (OSError, ValueError):
            raise ProblemError(422, "path: invalid") from None
        if not inside:
            raise ProblemError(403, "path: must be below a folder that --allow permits")
        if not os.path.exists(real):
            raise ProblemError(404, "no such file or folder")
        return real

    def all(self) -> list[Job]:
        """All jobs, latest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def get(self, job_id: str) -> Job:
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise ProblemError(404, "no such job")
        return job

    def cancel(self, job_id: str) -> Job:
        """Stop a job unless it has ended. Files that it has indexed stay in the library."""
        job = self.get(job_id)
        with self._lock:
            if job.ended:
                return job
            if job.state == "running":
                job.detail = "stopping"
            else:
                job.state = "cancelled"
            job.changes += 1
            process = job.process
        if process is not None:
            process.terminate()
            killer = threading.Timer(_GRACE, _kill, [process])
            killer.daemon = True
            killer.start()
        return job

    def close(self) -> None:
        """Cancel all jobs and accept no more."""
        self._closed = True
        self._queue.put(None)
        for job in self.all():
            self.cancel(job.id)
        self._thread.join(_GRACE)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._closed:
            try:
                self._do(job)
            except Exception as error:
                self._set(job, "failed", f"cannot run the job: {one_line(error)}")

    def _do(self, job: Job) -> None:
        order = replace(self._order, paths=tuple(job.paths), pictures=job.pictures, retry=job.retry)
        with self._lock:
            if job.state != "waiting":
                return
            # With the lock held, so that `cancel` always finds the process.
            job.process = subprocess.Popen(
                command(order),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            job.state, job.changes = "running", job.changes + 1
        error = ""
        with job.process as process:
            assert process.stdout is not None
            for line in process.stdout:
                error = self._read(job, line) or error
        self._on_progress()
        cancelled = job.detail == "stopping"
        if cancelled or (job.process.returncode == 0 and not job.progress.get("finished")):
            self._set(job, "cancelled", "")
        elif job.process.returncode == 0:
            self._set(job, "done", "")
        else:
            self._set(job, "failed", error or "the process ended unexpectedly")

    def _read(self, job: Job, line: str) -> str:
        """Read a line of progress; returns the error in it, or an empty string."""
        try:
            progress = json.loads(line)
        except ValueError:
            # The output of some package.
            return ""
        if "error" in progress:
            if progress["traceback"]:
                _log.error("index job %s failed\n%s", job.id, progress["traceback"])
            return str(progress["error"])
        grown = progress.get("segments", 0) != job.progress.get("segments", 0)
        job.progress = progress
        job.changes += 1
        if grown:
            self._on_progress()
        return ""

    def _set(self, job: Job, state: JobState, detail: str) -> None:
        with self._lock:
            job.state, job.detail, job.process = state, detail, None
            job.changes += 1


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()


def order_for(library: Where, model: str | None, *, device: str, within: tuple[str, ...], timeout: float) -> IndexOrder:
    """The settings of all jobs of a server. Half of the cores decode; the others serve searches."""
    workers = max(1, (os.cpu_count() or 1) // 2)
    return IndexOrder((), str(Location.of(library).absolute()), model, device, within, workers, timeout)


def command(order: IndexOrder) -> list[str]:
    """The command that starts the process: a new Python with this one's path."""
    code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from prota.server.jobs import main; main()"
    return [sys.executable, "-c", code, json.dumps(sys.path), json.dumps(asdict(order)), str(os.getpid())]


def progress_of(report: IndexReport, root: str) -> dict[str, Any]:
    """A report as a line of progress, with the first bad files by their relative path."""
    share = report.bytes_done / report.bytes_new if report.bytes_new else float(report.finished)
    return {
        "found": report.found, "done": report.done, "indexed": report.indexed, "unchanged": report.unchanged,
        "bad": len(report.bad), "segments": report.segments, "pictures": report.pictures,
        "seconds": round(report.seconds, 3),
        "share": round(min(1.0, max(0.0, share)), 4), "finished": report.finished,
        "reasons": {
            os.path.relpath(path, root) if under(path, [root]) else os.path.basename(path): reason
            for path, reason in islice(report.bad.items(), _REASONS)
        },
    }  # fmt: skip


class _ProgressWriter:
    """Writes progress at most every `_EVERY` seconds."""

    def __init__(self, root: str) -> None:
        self.root, self.last = root, 0.0

    def __call__(self, report: IndexReport, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self.last >= _EVERY:
            self.last = now
            print(json.dumps(progress_of(report, self.root)), flush=True)


def main() -> None:
    """The main function of the process."""
    order, parent = json.loads(sys.argv[2]), int(sys.argv[3])
    stop = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(True))
    lower_priority(_NICENESS)
    # Commits are atomic, so the process may exit with the server at any time.
    end_with(parent)
    try:
        _index(IndexOrder(**order), lambda: bool(stop))
    except BrokenPipeError:
        # The server has exited.
        os._exit(1)
    except Exception as error:
        bug = not isinstance(error, ProtaError | OSError)
        print(json.dumps({"error": one_line(error), "traceback": traceback.format_exc() if bug else ""}), flush=True)
        sys.exit(1)


def _index(order: IndexOrder, should_stop: Any) -> None:
    from prota.library.library import Library

    library = Library(order.library, order.model, device=order.device)
    first = order.paths[0]
    write = _ProgressWriter(first if os.path.isdir(first) else os.path.dirname(first))
    report = library.index(
        order.paths, pictures=order.pictures, retry=order.retry, within=order.within, workers=order.workers,
        timeout=order.timeout, wait=_WAIT, report=write, should_stop=should_stop,
    )  # fmt: skip
    write(report, at_once=True)
