"""What is done to small libraries while faults are injected."""

from __future__ import annotations

import os
from pathlib import Path

from prota.library import manage
from prota.library.indexing import pipeline
from prota.library.library import Library
from prota.library.storage.location import Where
from prota.library.storage.writer import Writer, write_segments
from tests.library.small_library import STAMP, content, segments, video
from tests.library.worlds import toy_model

NEW = [video("x", 2, path="/films/a.mp4"), video("c", 4)]
BEFORE = {"/films/a.mp4": 3, "/films/b.mp4": 3}
AFTER = {"/films/a.mp4": 2, "/films/c.mp4": 4}


def create(folder: Path) -> None:
    Writer.create(folder, STAMP).close()


def commit(folder: Where) -> None:
    """Replace a video, remove one and add one."""
    with Writer.open(folder) as writer:
        writer.commit(NEW, [segments("x", 2), segments("c", 4)], remove=["/films/b.mp4"])


def adopt(folder: Where) -> None:
    """The same with segments that a worker wrote, who also wrote some that are not wanted."""
    given = [(NEW[0], segments("x", 2)), (NEW[1], segments("c", 4)), (video("d", 1), segments("d", 1))]
    with Writer.open(folder) as writer:
        fragments = write_segments(folder, STAMP, given)
        writer.adopt(NEW, fragments, {content("x"), content("c")}, remove=["/films/b.mp4"])


def compact(folder: Where) -> None:
    with Writer.open(folder) as writer:
        writer.compact(grace=0)


def remove(folder: Path) -> None:
    manage.remove(folder, ["/films/b.mp4"])


def merge(folder: Path) -> None:
    """Add a library with new and known contents."""
    manage.merge(folder, [os.environ["PROTA_TEST_OTHER"]])


def repair(folder: Path) -> None:
    manage.repair(folder)


def index(folder: Path) -> None:
    """Index some videos, with a commit for each."""
    pipeline.COMMIT_VIDEOS = 1
    Library(folder, toy_model()).index(os.environ["PROTA_TEST_VIDEOS"], workers=1)


def upgrade(folder: Where) -> None:
    """Of a library of an older schema."""
    Writer.open(folder).close()
