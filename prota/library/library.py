"""A library in six lines: open, index, search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import torch

from prota.library.indexing.options import IndexOptions, IndexReport
from prota.library.indexing.pipeline import ExecutorMaker, Pipeline
from prota.library.records import LibraryError
from prota.library.search import Hit, Searcher
from prota.library.storage.location import Location, Where
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stamp_of
from prota.model.prota import ProTA
from prota.models import shipped

__all__ = ["Library"]


class Library:
    """A place of indexed videos with the model that made it."""

    def __init__(self, folder: Location, model: ProTA, name: str) -> None:
        self.folder, self.model, self.name = folder, model.eval(), name
        self._searcher: Searcher | None = None

    @classmethod
    def open(cls, folder: Where, model: str | Path | ProTA | None = None, device: str = "cpu") -> Self:
        """A library that is there, or is to be, in a folder or at s3://, gs:// or az://: the first `index` makes it.

        ``model``: default, the library's own, and for a new library the one that comes with prota.
        """
        place = Location.of(folder)
        name = ""
        if place.exists("library.json"):
            name = Snapshot.open(place).stamp.name
        if isinstance(model, ProTA):
            return cls(place, model.to(torch.device(device)), name or "given in Python")
        chosen = str(model) if model is not None else name or shipped.DEFAULT
        if Path(chosen).is_dir():
            # Remembered by its whole path: the library is opened from other folders, too.
            chosen = str(Path(chosen).absolute())
        return cls(place, ProTA.from_pretrained(chosen).to(torch.device(device)), chosen)

    def index(
        self,
        paths: str | Path | Sequence[str | Path],
        options: IndexOptions | None = None,
        *,
        report: Callable[[IndexReport], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        wait: float = 0.0,
        executor: ExecutorMaker | None = None,
    ) -> IndexReport:
        """Bring the library up to date with files and folders; ``executor``: where, by default on this machine."""
        stamp = stamp_of(self.model, self.name)
        given = [paths] if isinstance(paths, str | Path) else list(paths)
        missing = [str(path) for path in given if not Path(path).exists()]
        if missing:
            raise LibraryError(f"{', '.join(missing)}: no such file or folder")
        there = self.folder.exists("library.json")
        waiting = (wait, should_stop)
        opened = Writer.open(self.folder, *waiting) if there else Writer.create(self.folder, stamp, *waiting)
        with opened as writer:
            writer.snapshot.check_model(stamp)
            self._searcher = None
            pipeline = Pipeline(writer, self.model, options, report=report, should_stop=should_stop, executor=executor)
            return pipeline.run([Path(path).absolute() for path in given])

    @property
    def searcher(self) -> Searcher:
        """Opened at the library's present version; another process's later commits need a new `Library`."""
        if self._searcher is None:
            store = Snapshot.open(self.folder)
            store.check_model(stamp_of(self.model, self.name))
            self._searcher = Searcher(store, self.model)
        return self._searcher

    def search(
        self, text: str, k: int = 10, *, where: str | None = None, exact: bool = False, everything: bool = False
    ) -> list[Hit]:
        """The k best moments for some words, best first; without ``everything`` only those that are good matches."""
        hits = self.searcher.search(text, k, where, exact)
        return hits if everything else self.searcher.good(hits)
