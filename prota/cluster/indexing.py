"""The work of an indexing run on a Ray cluster: a pipeline of Ray Data, whose results this process commits.

    files → hash and decode (tasks, each with a decoder process) → encode and write fragments (actors) → here: commit

Ray Data runs as many tasks as there is room for, keeps no more decoded frames than its share of the object store, runs
again what a dead worker or machine had begun, and shows it all on its dashboard. A task reads a few files, and what it
has read goes on in blocks of at most `BLOCK_BYTES`: small blocks, because they are what memory is counted in. Only what
came back is committed, so what is run again is never doubled, and fragments that nobody names are nobody's.

Only decoders count as users of a core. An encoder that held one could wait for frames that a machine took with it when
it died, while no core is left on which they could be decoded again.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import ray
import ray.data
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from prota.cluster.stages import Claims, EncodeOrder, Encoder, ReadOrder, Result, pack, read_files, unpack
from prota.errors import ClusterError, one_line
from prota.library.records import LibraryError, VideoRecord
from prota.library.storage.writer import Writer
from prota.library.working import Books, Finished, IndexOptions, Part
from prota.model.prota import ProTA
from prota.video.walk import FoundFile

__all__ = ["RayWork"]

# A task's files: enough of them that starting it costs little, few enough that little is lost with it.
TASK_FILES, TASK_BYTES = 8, 64 * 2**20
# Files of one pipeline: all its tasks are handed to Ray before the first begins, which takes minutes for a million.
WAVE_FILES = 20_000
# What is decoded and waits to be encoded travels in blocks; a part of a long video is 60 MB itself.
BLOCK_BYTES = 32 * 2**20
# Seconds between two looks at whether the run is to stop.
LOOK = 0.2
# Seconds in which what is stopped should have ended.
PATIENCE = 5.0
# Actors that die while they start, one after the other, before the run is given up: a machine may go at that moment.
DEATHS = 5
# Seconds without a result, after a machine was lost, before the run is given up: an encoder may wait for a GPU that
# went with it, and what was given to that encoder waits with it.
LOST = 600.0


class RayWork:
    """See `prota.library.working.Work`; the process is connected to a cluster."""

    def __init__(
        self,
        writer: Writer,
        model: ProTA,
        options: IndexOptions,
        *,
        device: str = "auto",
        decoders: int = 0,
        encoders: int = 0,
    ) -> None:
        """``decoders``: how many work at once at most; ``encoders``: how many there are; 0: what there is room for."""
        self.decoders, self.encoders = decoders, encoders
        resources = ray.cluster_resources()
        self.gpus = 0 if device == "cpu" else int(resources.get("GPU", 0))
        if device not in ("auto", "cpu") and not self.gpus:
            raise LibraryError(f"the cluster has no GPU for --device {device}: leave it out, or give cpu")
        # On a CPU they have one thread each.
        self.most = self.gpus or max(1, int(resources.get("CPU", 1)))
        encoder = model.config.encoder
        self.reading = ReadOrder(options.plan, encoder.image_size, encoder.picture, options.timeout)
        shared = ray.put(model.to("cpu"))
        self.encoding = EncodeOrder(writer.location.absolute(), writer.stamp, shared, "cuda" if self.gpus else "cpu")
        self._broken: set[str] = set()
        """Files of which nothing more is wanted."""

    def run(self, files: deque[FoundFile], books: Books) -> Iterator[Sequence[Part]]:
        """See `Work`."""
        waiting = deque(files)
        while waiting and not books.should_stop():
            some = [waiting.popleft() for _ in range(min(WAVE_FILES, len(waiting)))]
            later: list[tuple[FoundFile, str]] = []
            for results in self._results(some, books):
                yield self._parts(results, books, later)
            # Again, where a copy was waited for that turned out to be bad, or whose content has left meanwhile.
            waiting += [found for found, video_id in later if books.examine(found, video_id) != "done"]

    def save(
        self, writer: Writer, finished: Sequence[Finished], others: Sequence[VideoRecord], remove: Collection[str]
    ) -> None:
        """See `Work`."""
        fragments = [fragment for _, parts in finished for part in parts for fragment in part.fragments]
        records = [*(record for record, _ in finished), *others]
        writer.adopt(records, fragments, {record.video_id for record, _ in finished}, remove)

    def _parts(self, results: Sequence[Result], books: Books, later: list[tuple[FoundFile, str]]) -> list[Part]:
        parts = []
        for result in results:
            reading, path = result.reading, str(result.reading.found.path)
            if reading.missing and os.path.lexists(path):
                raise LibraryError(
                    f"machine {reading.missing} does not see {path}: "
                    "videos must lie where all machines of the cluster see them, under the same path"
                )
            if not reading.video_id:
                books.unreadable(reading.found, reading.error)
                continue
            if result.part is None and not reading.error:
                if books.examine(reading.found, reading.video_id) != "done":
                    later.append((reading.found, reading.video_id))
                continue
            if path in self._broken:
                continue
            if reading.error:
                self._broken.add(path)
                parts.append(Part(VideoRecord.of(reading.found, reading.video_id), error=reading.error))
            elif result.part is not None:
                parts.append(result.part)
        return parts

    def _results(self, files: Sequence[FoundFile], books: Books) -> Iterator[list[Result]]:
        """What the pipeline gives, as it comes, and nothing where nothing came for a while."""
        # Beside this process, without which all ends anyway: so it is not lost with another machine.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        claims: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(Claims)
        pulling = _Pulling(self._pipeline(files, claims.remote(list(books.contents()))))
        machines, heard = _machines(), time.monotonic()
        try:
            while not books.should_stop():
                rows = pulling.next(LOOK)
                if rows is None:
                    return
                if rows:
                    heard = time.monotonic()
                elif time.monotonic() - heard > LOST and _machines() < machines:
                    raise ClusterError(
                        "a machine of the cluster was lost, and nothing has come from the others since: "
                        "the same command goes on from there"
                    )
                yield rows
        finally:
            pulling.stop()

    def _pipeline(self, files: Sequence[FoundFile], claims: Any) -> ray.data.Dataset:
        dataset = ray.data.from_arrow([pack(some) for some in _tasks(files)])
        # How it goes is told by the caller's progress, and what goes wrong is raised.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        dataset.set_name("prota index")
        context = dataset.context
        context.target_max_block_size = BLOCK_BYTES
        context.enable_progress_bars = context.print_on_execution_start = False
        context.max_consecutive_actor_init_deaths = DEATHS
        # Ray gives up when nothing moves; a task may be busy with all its files as long as each of them may take.
        context.execution_no_progress_timeout_s = max(1800.0, (TASK_FILES + 1) * self.reading.timeout)
        read = dataset.map_batches(
            read_files, batch_size=None, batch_format="pyarrow", fn_args=(self.reading, claims),
            compute=ray.data.TaskPoolStrategy(self.decoders or None), num_cpus=1,
        )  # fmt: skip
        pool = {"size": self.encoders} if self.encoders else {"min_size": 1, "max_size": self.most}
        return read.map_batches(
            Encoder, batch_size=None, batch_format="pyarrow", fn_constructor_args=(self.encoding,),
            compute=ray.data.ActorPoolStrategy(**pool), num_cpus=0, num_gpus=1 if self.gpus else 0,
        )  # fmt: skip


def _machines() -> int:
    return sum(bool(node["Alive"]) for node in ray.nodes())


def _tasks(files: Sequence[FoundFile]) -> Iterator[list[FoundFile]]:
    """The files of one task each."""
    some: list[FoundFile] = []
    for found in files:
        if some and (len(some) == TASK_FILES or sum(each.size for each in some) + found.size > TASK_BYTES):
            yield some
            some = []
        some.append(found)
    if some:
        yield some


class _Pulling:
    """A pipeline's results, pulled by a thread, so that who waits for them can look around."""

    def __init__(self, dataset: ray.data.Dataset) -> None:
        self._box: queue.Queue[list[Result] | Exception | None] = queue.Queue(maxsize=16)
        self._stopped = threading.Event()
        self._dataset = dataset
        self._thread = threading.Thread(target=self._pull, daemon=True)
        self._thread.start()

    def next(self, seconds: float) -> list[Result] | None:
        """What came, or an empty list after so many seconds; None at the end."""
        try:
            what = self._box.get(timeout=seconds)
        except queue.Empty:
            return []
        if isinstance(what, Exception):
            raise _explained(what) from None
        return what

    def stop(self) -> None:
        """End what is still running."""
        self._stopped.set()
        # There is no public way to end a pipeline for which another thread waits. Without this one it ends with its
        # next result, or with the connection.
        executor = getattr(self._dataset, "_current_executor", None)
        if executor is not None:
            executor.shutdown(force=False)
        self._thread.join(PATIENCE)

    def _pull(self) -> None:
        end: Exception | None = None
        try:
            for rows in self._dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                if not all(self._put(results) for results in unpack(rows)):
                    return
        except Exception as error:
            end = error
        self._put(end)

    def _put(self, what: list[Result] | Exception | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._box.put(what, timeout=LOOK)
            except queue.Full:
                continue
            return True
        return False


def _explained(error: BaseException) -> Exception:
    """What went wrong in the cluster, in the words of who knew it first."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, LibraryError):
            return LibraryError(str(inner))
        innermost, inner = inner, getattr(inner, "cause", None) or inner.__cause__
    return RuntimeError(f"the cluster failed: {one_line(innermost)}; the same command goes on from there")
