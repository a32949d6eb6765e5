"""Whose the segments are that copies of a file share."""

from __future__ import annotations

from prota.library.storage.schema import Catalogue
from tests.library.small_library import content, video


def test_a_copy_that_is_there_owns_the_segments_before_one_that_is_gone() -> None:
    """Filters and results go by the owner's path: where a copy is left, it is not to be one of no file."""
    gone, first, second = (
        video("a", 2, path, state=state)
        for path, state in (("/1.mp4", "gone"), ("/2.mp4", "indexed"), ("/3.mp4", "indexed"))
    )
    catalogue = Catalogue([second, gone, first])
    assert catalogue.owner(content("a")) == first
    assert catalogue.owner(content("a"), without=["/2.mp4"]) == second
    assert catalogue.owner(content("a"), without=["/2.mp4", "/3.mp4"]) == gone


def test_a_copy_that_goes_takes_no_segments_along() -> None:
    there, copy = video("a", 2, "/1.mp4"), video("a", 2, "/2.mp4")
    change = Catalogue([there, copy]).change([video("a", 2, "/1.mp4", state="gone")], (), ())
    assert change is not None
    assert change.dropped == set()
