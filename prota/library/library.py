"""A library in six lines: open, index, search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import torch

from prota.library.indexing.options import IndexOptions, IndexReport
from prota.library.indexing.pipeline import ExecutorMaker, Pipeline
from prota.library.records import LibraryError
from prota.library.search.hits import Hit
from prota.library.search.view import View
from prota.library.storage.location import Location, Where
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stamp_of
from prota.model.prota import ProTA
from prota.models import shipped

__all__ = ["Library", "load_model"]


def load_model(source: str | Path, device: str = "cpu") -> tuple[ProTA, str]:
    """A model on a device, and the name by which a library remembers it."""
    # A folder by its whole path: the library is opened from other folders, too.
    name = str(Path(source).absolute()) if Path(source).is_dir() else str(source)
    return ProTA.for_texts(name).to(torch.device(device)), name


class Library:
    """A place of indexed videos with the model that made it."""

    def __init__(self, folder: Location, model: ProTA, name: str, snapshot: Snapshot | None = None) -> None:
        self.folder, self.model, self.name = folder, model.eval(), name
        self._snapshot = snapshot
        self._view: View | None = None

    @classmethod
    def open(
        cls, folder: Where, model: str | Path | ProTA | None = None, device: str = "cpu", *, existing: bool = False
    ) -> Self:
        """A library in a folder or at s3://, gs:// or az://; the first `index` makes it.

        ``model``: by default the library's own, for a new library the one that comes with prota. ``existing``: raise a
        LibraryError if there is no library, before the model is read.
        """
        place = Location.of(folder)
        snapshot = Snapshot.open(place) if existing or place.exists("library.json") else None
        name = "" if snapshot is None else snapshot.stamp.name
        if isinstance(model, ProTA):
            return cls(place, model.to(torch.device(device)), name or "given in Python", snapshot)
        return cls(place, *load_model(model if model is not None else name or shipped.DEFAULT, device), snapshot)

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
        stamp = stamp_of(self.model, self.name, None if self._snapshot is None else self._snapshot.stamp)
        given = [paths] if isinstance(paths, str | Path) else list(paths)
        missing = [str(path) for path in given if not Path(path).exists()]
        if missing:
            raise LibraryError(f"{', '.join(missing)}: no such file or folder")
        there = self.folder.exists("library.json")
        waiting = (wait, should_stop)
        opened = Writer.open(self.folder, *waiting) if there else Writer.create(self.folder, stamp, *waiting)
        with opened as writer:
            writer.snapshot.check_model(stamp)
            self._snapshot = self._view = None
            pipeline = Pipeline(writer, self.model, options, report=report, should_stop=should_stop, executor=executor)
            return pipeline.run([Path(path).absolute() for path in given])

    @property
    def view(self) -> View:
        """The version at opening, or after the last `index`; commits of other processes need a new `Library`."""
        if self._view is None:
            snapshot = self._snapshot or Snapshot.open(self.folder)
            snapshot.check_model(stamp_of(self.model, self.name, snapshot.stamp))
            self._view = View(snapshot, self.model)
        return self._view

    def search(
        self, text: str, k: int = 10, *, where: str | None = None, exact: bool = False, everything: bool = False
    ) -> list[Hit]:
        """The k best moments for a text, best first; without ``everything`` only good matches."""
        (results,) = self.view.search(self.view.encode([text]), k, where, exact=exact)
        return results.hits if everything else results.good
