"""Progress bars on stderr, and durations of video."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["duration", "progress", "progress_bar"]


def progress_bar(*, times: bool = True, visible: bool = True) -> Progress:
    """A bar whose tasks have a ``note``; ``times``: also show the elapsed time and the ETA."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    columns.append(TextColumn("{task.fields[note]}"))
    columns += [TimeElapsedColumn(), TimeRemainingColumn()] if times else []
    return Progress(*columns, console=Console(stderr=True), disable=not visible)


@contextmanager
def progress(label: str) -> Iterator[Callable[..., None]]:
    """A bar with one task; yields a function that updates it by done, total and note."""
    with progress_bar() as bar:
        task = bar.add_task(label, total=None, note="")

        def update(done: int, total: int, note: str = "") -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield update


def duration(seconds: float) -> str:
    """A length of video in hours, or in minutes below an hour."""
    return f"{seconds / 3600:,.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"
