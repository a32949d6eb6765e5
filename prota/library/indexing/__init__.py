"""Index folders of videos: options and report. `pipeline` finds, reads, encodes and commits files."""

from __future__ import annotations

from dataclasses import dataclass, field

from prota.library.segments import SegmentPlan

__all__ = ["IndexOptions", "IndexReport"]


@dataclass(frozen=True)
class IndexOptions:
    """How videos are read."""

    plan: SegmentPlan = field(default_factory=SegmentPlan)
    workers: int = 1
    timeout: float = 300.0
    """Seconds to decode a part of a video."""
    prune: bool = False
    """Remove videos whose files are gone instead of marking them."""
    retry: bool = False
    """Retry bad files."""
    pictures: bool = True
    """Index pictures too; False removes none from the library."""
    within: tuple[str, ...] = ()
    """Real paths of folders: files elsewhere, reached by links, are skipped. Empty: no limit."""


@dataclass
class IndexReport:
    """Counts and errors of an indexing run.

    Example
    -------
    >>> import prota
    >>> report = prota.Library("lib").index("clips")
    >>> report.indexed, report.unchanged, report.bad
    (0, 13, {})
    """

    indexed: int = 0
    unchanged: int = 0
    still_bad: int = 0
    """Of `unchanged`: bad files that were not retried."""
    moved: int = 0
    duplicates: int = 0
    """Copies of content that is already in the library."""
    bad: dict[str, str] = field(default_factory=dict)
    """Path → reason."""
    gone: int = 0
    segments: int = 0
    pictures: int = 0
    """Of `indexed`."""
    seconds: float = 0.0
    """Seconds of encoded video."""
    found: int = 0
    """All files, readable or not."""
    bytes_new: int = 0
    """Size of the files that look new; their durations are known only once they are opened."""
    bytes_done: float = 0.0
    """Of `bytes_new`; a long video counts in proportion to its encoded segments."""
    finished: bool = False

    @property
    def done(self) -> int:
        return self.indexed + self.unchanged + self.moved + self.duplicates + len(self.bad)
