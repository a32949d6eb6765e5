"""The order in which the pipeline gives work away, and what it makes of events in any order."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest

from prota.library import manage
from prota.library.indexing import IndexReport, pipeline
from prota.library.indexing.executor import Event, Failed, Part, Read, Task, fingerprint, part_of
from prota.library.indexing.reading import read_video
from prota.library.library import Library
from prota.library.storage.reader import Snapshot
from prota.library.tokens import encode_video
from prota.model.prota import ProTA
from prota.video.walk import FoundFile
from prota.workers.process_pool import Outcome
from tests.library.worlds import toy_model, write_clips
from tests.small_world import write_colour_clip

OPTIONS = {"frames": 4, "fps": 4.0}


@pytest.fixture(scope="module")
def model() -> ProTA:
    return toy_model()


class InOrder:
    """One task after the other, in this process; a function may change the events of a read."""

    def __init__(self, model: ProTA, change: Callable[[Read, Event], list[Event]]) -> None:
        self.model, self.change = model, change

    def run(self, tasks: deque[Task]) -> Generator[list[Event], None, None]:
        while tasks:
            task = tasks.popleft()
            if isinstance(task, FoundFile):
                yield [fingerprint(task)]
            else:
                content = read_video(task.request)
                part = part_of(task, Outcome(content, None, 0.0))
                assert isinstance(part, Part)
                segments = encode_video(self.model, task.record.video_id, content)
                yield self.change(task, replace(part, segments=segments))


def index(folder: Path, model: ProTA, change: Callable[[Read, Event], list[Event]]) -> IndexReport:
    library = Library(folder / "lib", model)
    return library.index(folder / "v", **OPTIONS, executor=lambda _writer, model, _options: InOrder(model, change))


def test_all_parts_of_a_film_are_given_away_when_the_first_is_known_before_other_files(
    tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that they are read at the same time, by workers that know where its frames are."""
    monkeypatch.setattr(pipeline, "PART", 7)
    write_clips(tmp_path / "v", "red-left", "blue-top")
    write_colour_clip(tmp_path / "v" / "film.mp4", "white", "top", frames=60)
    order: list[tuple[str, int]] = []

    def noted(task: Read, event: Event) -> list[Event]:
        assert isinstance(event, Part)
        assert (len(event.rest) > 0) == (task.request.first == 0 and event.count < event.record.segments)
        order.append((Path(task.record.path).stem, task.request.first))
        return [event]

    assert index(tmp_path, model, noted).indexed == 3
    assert order == [("blue-top", 0), *(("film", first) for first in range(0, 23, 7)), ("red-left", 0)]
    assert manage.verify(tmp_path / "lib") == []


def test_a_bad_first_copy_lets_the_next_one_be_read_whatever_comes_late(
    tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PART", 7)
    (tmp_path / "v").mkdir()
    write_colour_clip(tmp_path / "v" / "a.mp4", "white", "top", frames=60)
    for name in ("b.mp4", "c.mp4"):
        shutil.copy(tmp_path / "v" / "a.mp4", tmp_path / "v" / name)
    read: list[tuple[str, int]] = []
    late: list[Event] = []

    def broken(task: Read, event: Event) -> list[Event]:
        name = Path(task.record.path).name
        read.append((name, task.request.first))
        if name == "a.mp4" and task.request.first == 7:
            late.append(event)
            return [Failed(task.record, f"{task.record.path}: a disk\n  that fails")]
        # What was under way when the first copy was given up.
        return [event, *late] if name == "b.mp4" and task.request.first == 7 else [event]

    report = index(tmp_path, model, broken)
    assert report.bad == {str(tmp_path / "v" / "a.mp4"): "a disk that fails"}
    assert (report.indexed, report.duplicates, report.done) == (1, 1, 3)
    assert report.bytes_done == pytest.approx(report.bytes_new)
    assert [first for name, first in read if name == "a.mp4"] == [0, 7], "its other parts are not read"
    assert {name for name, _ in read} == {"a.mp4", "b.mp4"}
    found = {Path(video.path).name: video for video in Snapshot.open(tmp_path / "lib").videos()}
    assert {name: video.state for name, video in found.items()} == {
        "a.mp4": "bad", "b.mp4": "indexed", "c.mp4": "indexed"
    }  # fmt: skip
    assert Snapshot.open(tmp_path / "lib").count() == found["b.mp4"].segments == found["c.mp4"].segments
    assert manage.verify(tmp_path / "lib") == []


def test_commits_are_batched(tmp_path: Path, model: ProTA, monkeypatch: pytest.MonkeyPatch) -> None:
    write_clips(tmp_path / "v", *(f"{colour}-left" for colour in ("red", "green", "blue", "white", "black")))
    monkeypatch.setattr(pipeline, "COMMIT_VIDEOS", 2)
    monkeypatch.setattr(pipeline, "COMMIT_SECONDS", 1e6)
    seen: list[int] = []

    def counted(_: Read, event: Event) -> list[Event]:
        seen.append(len(Snapshot.open(tmp_path / "lib").videos()))
        return [event]

    assert index(tmp_path, model, counted).indexed == 5
    assert seen == [0, 0, 2, 2, 4]
    assert len(Snapshot.open(tmp_path / "lib").videos()) == 5
