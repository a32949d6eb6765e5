"""What a library holds: its files and folders, moments of some videos, and queries that find something.

The first three are read from a snapshot, before the model is loaded; example queries are scored by the query worker.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from prota.library.records import VideoRecord
from prota.library.storage.schema import one_of
from prota.server.answering import QueryWorker, Task, thumbnail_of, title_of
from prota.server.problems import readable
from prota.server.schemas import (
    FileList,
    FileOrder,
    FileState,
    FolderShown,
    Kind,
    ListedFile,
    MomentOrder,
    MomentShown,
)
from prota.server.view import LibraryVersion, ancestors, file_id
from prota.video.walk import below

if TYPE_CHECKING:
    from prota.library.search.hits import Results
    from prota.library.search.queries import Query
    from prota.types import PreparedTokens

__all__ = ["QUERIES", "Examples", "Wanted", "files", "folders", "moments", "when"]

# What people film; those that a library has a match for are shown as examples.
QUERIES = (
    *("a cat", "a dog", "a dog runs on grass", "a bird in a tree", "a horse runs in a field", "cows on a meadow"),
    *("fish under water", "a butterfly on a flower", "a wild animal in the forest", "a cheetah in the savannah"),
    *("a flower in close-up", "a garden in summer", "a tree in autumn colours", "a forest path", "snow falls"),
    *("mountains with snow", "a lake in the mountains", "a waterfall", "a river between rocks", "waves on a beach"),
    *("sunset over the sea", "the sky with clouds", "stars in the night sky", "the moon", "a galaxy in space"),
    *("an astronaut", "a rocket starts", "a telescope", "a storm with lightning", "rain on a window", "fire burns"),
    *("a city at night", "a busy street with cars", "a tall building", "an old church", "a temple in Asia"),
    *("a bridge over a river", "a market with many people", "a train arrives at a station", "an aeroplane takes off"),
    *("a boat on the water", "a car drives on a road", "a motorcycle race", "someone rides a bicycle", "a tractor"),
    *("a baby laughs", "a child plays with toys", "children play in the park", "a family at the table"),
    *("a birthday cake with candles", "a wedding", "people dance at a party", "a couple kisses", "friends laugh"),
    *("a man talks to the camera", "a woman smiles", "an old man", "a girl sings", "a boy reads a book"),
    *("a person takes a photograph", "a person walks in the snow", "someone writes on a blackboard", "a teacher"),
    *("a person works at a computer", "a meeting in an office", "a speech on a stage", "news in a studio"),
    *("an interview", "a concert with a band", "someone plays the guitar", "someone plays the piano", "a drummer"),
    *("an orchestra", "a fashion show", "someone puts on make-up", "a haircut", "a person paints a picture"),
    *("a person cooks in a kitchen", "someone cuts vegetables", "meat in a pan", "a cup of coffee", "a cake"),
    *("a table with food", "a glass of wine", "someone eats", "fruit on a plate", "bread from the oven"),
    *("a football match", "a basketball game", "tennis players", "people swim in a pool", "surfing on a wave"),
    *("someone skis down a slope", "a snowboarder jumps", "skateboarding tricks", "gymnastics", "a boxing match"),
    *("people run a race", "someone does yoga", "a person lifts weights", "rock climbing", "juggling"),
    *("a golf player", "ice skating", "a horse race", "martial arts", "a person throws a ball", "a video game"),
    *("a cartoon", "an animated character", "a rabbit", "a dragon", "a robot", "a spaceship", "a sword fight"),
    *("soldiers", "a police car", "a scientist in a laboratory", "a doctor with a patient", "a machine at work"),
    *("someone repairs a car", "someone builds with wood", "hands fold paper", "a person knits", "a phone in a hand"),
    *("a map", "a diagram on a slide", "text on the screen", "a view from above", "a view through a car window"),
)
# Example queries that are shown; the least probability of their match; segments that are looked at, and texts that the
# worker gets at a time, so that a search waits for no more than these.
_SHOWN, _LIKELY, _SAMPLE, _AT_ONCE = 6, 0.5, 512, 16


@dataclass(frozen=True)
class Wanted:
    """A page of the files of a library."""

    find: str = ""
    state: FileState | None = None
    folder: str | None = None
    kind: Kind | None = None
    order: FileOrder = "name"
    offset: int = 0
    k: int = 50


def files(found: LibraryVersion, wanted: Wanted, allowed: Sequence[str]) -> FileList:
    """Files of the library; ``allowed``: the real paths of folders whose files the page may manage."""
    passing = found.listing.find(wanted.find, wanted.folder, wanted.kind, wanted.order)
    records = passing if wanted.state is None else [record for record in passing if record.state == wanted.state]
    page = records[wanted.offset : wanted.offset + wanted.k]
    shown = {moment.video: moment for moment in _moments(found, [record for record in page if record.whole])}
    listed = [
        ListedFile(
            file=file_id(record),
            video=record.video_id if record.video_id in shown else None,
            kind=record.kind,
            name=readable(os.path.basename(record.path)),
            folder=readable(os.path.basename(os.path.dirname(record.path))),
            state=record.state,
            reason=readable(record.reason),
            duration=record.duration,
            size=record.size,
            modified=when(record),
            thumbnail=shown[record.video_id].thumbnail if record.video_id in shown else None,
            managed=bool(allowed) and below(record.path, allowed),
        )
        for record in page
    ]
    count = Counter(record.state for record in passing)
    states: dict[FileState, int] = {state: count[state] for state in ("indexed", "bad", "gone")}
    return FileList(version=found.version, total=len(records), states=states, files=listed)


def folders(found: LibraryVersion, k: int) -> list[FolderShown]:
    """The folders that contain files, those with the latest changes first."""
    # A file counts for each folder above it that a search can be limited to.
    names, above = set(found.folders.names), dict[str, list[str]]()
    latest: dict[str, VideoRecord] = {}
    count: Counter[str] = Counter()
    for record in found.listing.records:
        if record.state != "indexed":
            continue
        parent = os.path.dirname(record.path)
        if parent not in above:
            above[parent] = sorted({readable(os.path.basename(folder)) for folder in ancestors(parent)} & names)
        for name in above[parent]:
            count[name] += 1
            if name not in latest or record.modified > latest[name].modified:
                latest[name] = record
    chosen = heapq.nsmallest(k, latest, key=lambda name: (-latest[name].modified, name))
    thumbnails = {moment.video: moment.thumbnail for moment in _moments(found, [latest[name] for name in chosen])}
    return [
        FolderShown(
            name=name, files=count[name], modified=when(latest[name]), thumbnail=thumbnails[latest[name].video_id]
        )
        for name in chosen
    ]


def moments(found: LibraryVersion, order: MomentOrder, k: int, seed: int) -> list[MomentShown]:
    """A moment each of k videos or pictures: the middle ones of those that changed last, or any of any."""
    shown = found.snapshot.shown
    if order == "newest":
        return _moments(found, heapq.nsmallest(k, shown.values(), key=lambda record: (-record.modified, record.path)))
    chance = random.Random(seed)
    chosen = chance.sample(sorted(shown), min(k, len(shown)))
    return _moments(found, [shown[video] for video in chosen], chance.choice)


def _moments(
    found: LibraryVersion, records: Sequence[VideoRecord], choose: Callable[[Sequence[int]], int] | None = None
) -> list[MomentShown]:
    """One segment of each record, by default its middle one."""
    if not records:
        return []
    columns = ["video_id", "start", "end", "times"]
    table = found.snapshot.segments(columns, one_of("video_id", {record.video_id for record in records}))
    starts = table.column("start").to_pylist()
    places: dict[str, list[int]] = {}
    for place, video in enumerate(table.column("video_id").to_pylist()):
        places.setdefault(video, []).append(place)
    shown = []
    for record in records:
        own = sorted(places[record.video_id], key=starts.__getitem__)
        (segment,) = table.take([choose(own) if choose else own[len(own) // 2]]).to_pylist()
        times = [time for time in segment["times"] if time is not None and time == time]
        shown.append(
            MomentShown(
                segment=segment["row"],
                video=record.video_id,
                kind=record.kind,
                title=title_of(record),
                folder=readable(Path(record.path).parent.name),
                start=round(segment["start"], 3),
                end=round(segment["end"], 3),
                best=round(times[len(times) // 2], 3),
                duration=record.duration,
                thumbnail=thumbnail_of(segment["row"], found.version),
            )
        )
    return shown


def when(record: VideoRecord) -> str:
    """Date and time of the last change of a file, UTC."""
    return datetime.fromtimestamp(record.modified / 1e9, UTC).isoformat(timespec="seconds")


class Likely(BaseModel):
    """The best match of a text in a sample of the library."""

    probability: float
    video: str


class _Sample:
    """Some segments of a version of the library."""

    def __init__(self, found: LibraryVersion) -> None:
        self._found, every = found, range(found.segments)
        self._rows = sorted(random.Random(found.segments).sample(every, min(_SAMPLE, len(every))))

    @cached_property
    def videos(self) -> list[str]:
        table = self._found.snapshot.segments(["video_id"], rows=self._rows)
        return list(table.column("video_id").to_pylist())

    @cached_property
    def tokens(self) -> PreparedTokens:
        assert self._found.view is not None
        return self._found.view.finder.tokens(self._rows)


@dataclass(frozen=True)
class _Likelihood(Task):
    """How likely it is that the library has a match for a text; without calibration 0."""

    sample: _Sample

    def answer(self, query: Query, results: Results | None) -> Likely:
        scores = self.view.model.score(query.tokens, self.sample.tokens)[0].tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        (probability,) = self.view.relevance(query, [scores[best]], self.library.segments)
        return Likely(probability=probability or 0.0, video=self.sample.videos[best])


class Examples:
    """Queries that find something in the library: chosen once for a version, when they are first asked for."""

    def __init__(self, worker: QueryWorker) -> None:
        self._worker = worker
        self._chosen: tuple[int, asyncio.Task[list[str]]] | None = None

    async def of(self, found: LibraryVersion) -> list[str]:
        """The most likely of `QUERIES`, no two of which find the same video best."""
        if self._chosen is None or self._chosen[0] != found.number:
            self._chosen = (found.number, asyncio.create_task(self._choose(found)))
        # A client that disconnects must not cancel it for others.
        return await asyncio.shield(self._chosen[1])

    async def _choose(self, found: LibraryVersion) -> list[str]:
        if not found.segments:
            return []
        sample, judged = _Sample(found), list[tuple[Likely, str]]()
        for first in range(0, len(QUERIES), _AT_ONCE):
            texts = QUERIES[first : first + _AT_ONCE]
            answers = await asyncio.gather(*(self._worker.ask(_Likelihood(found, text, sample)) for text in texts))
            judged += zip(map(Likely.model_validate_json, answers), texts, strict=True)
        best: dict[str, str] = {}
        for likely, text in sorted(judged, key=lambda pair: -pair[0].probability):
            if likely.probability >= _LIKELY:
                best.setdefault(likely.video, text)
        return list(best.values())[:_SHOWN]
