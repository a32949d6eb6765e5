"""The options of an indexing run, and its report."""

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
    """Seconds that a part of a video may take to decode."""
    prune: bool = False
    """Remove videos whose files are gone, instead of marking them."""
    retry: bool = False
    """Try bad files again."""
    pictures: bool = True
    """Index pictures, too. False removes none from the library."""
    within: tuple[str, ...] = ()
    """Real paths of folders; files that links lead to from elsewhere are skipped. Empty: all are taken."""


@dataclass
class IndexReport:
    """What an indexing run did."""

    indexed: int = 0
    unchanged: int = 0
    still_bad: int = 0
    """Of these, the ones that were bad before and are not tried again."""
    moved: int = 0
    duplicates: int = 0
    """Files whose content is in the library already, at another path."""
    bad: dict[str, str] = field(default_factory=dict)
    """Path → reason."""
    gone: int = 0
    segments: int = 0
    pictures: int = 0
    """Of `indexed`."""
    seconds: float = 0.0
    """Of video that was encoded."""
    found: int = 0
    """Files that were found, readable or not."""
    bytes_new: int = 0
    """Of files that look new and are to be read: how long a video is shows only when it is opened."""
    bytes_done: float = 0.0
    """Of those, the ones that were dealt with; of a long video, the share of its segments that are encoded."""
    finished: bool = False

    @property
    def done(self) -> int:
        return self.indexed + self.unchanged + self.moved + self.duplicates + len(self.bad)
