"""What a search returns: moments, and why they match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, overload

from prota.errors import UsageError
from prota.library.records import LibraryError, VideoRecord, clock
from prota.library.search.explain import MomentExplanation
from prota.library.search.queries import Query
from prota.library.search.rows import Coverage

__all__ = ["Hit", "Results"]

# Seconds to decode a frame.
_PICTURE_LIMIT = 60.0


class Origin(Protocol):
    """The version of a library that was searched: a `View`."""

    def explain(self, query: Query, row: int) -> MomentExplanation: ...

    def thumbnail(self, row: int) -> bytes: ...


@dataclass(frozen=True)
class Hit:
    """One result of a search: a moment of a video.

    Example
    -------
    >>> import prota
    >>> hit = prota.Library("lib").search("a cup of coffee")[0]
    >>> hit
    Hit(coffee.mp4, 0:00.0 – 0:08.0, probability 0...)
    >>> hit.thumbnail[:2] == b"\\xff\\xd8"
    True
    >>> hit.explain().sentence
    '“cup” and “coffee” match 0:00–0:08'
    """

    video: VideoRecord
    start: float
    """Seconds."""
    end: float
    score: float
    best: float
    """Seconds at which the frame that matches best is shown."""
    row: int
    """Of its best segment, in the version that was searched."""
    probability: float | None = None
    """Calibrated probability of being relevant; None if the model is not calibrated or the query is a clip."""
    origin: tuple[Origin, Query] | None = field(default=None, repr=False, compare=False)
    """The version that was searched, and for what."""

    def __repr__(self) -> str:
        moment = "picture" if self.video.kind == "picture" else f"{clock(self.start)} – {clock(self.end)}"
        judged = f"score {self.score:.3f}" if self.probability is None else f"probability {self.probability:.2f}"
        return f"Hit({self.path.name}, {moment}, {judged})"

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.video.path)

    @property
    def thumbnail(self) -> bytes:
        """A small JPEG of the moment."""
        return self._origin[0].thumbnail(self.row)

    def explain(self) -> MomentExplanation:
        """Why it matches: a sentence, the heat of words and frames, and their contributions to the score."""
        view, query = self._origin
        if query.like is not None:
            raise UsageError("only matches of a text query can be explained: a clip has no words")
        return view.explain(query, self.row)

    def picture(self, width: int = 640) -> bytes:
        """The frame that matches best, as a JPEG.

        Parameters
        ----------
        width
            The most pixels; smaller videos are not enlarged.

        Example
        -------
        >>> import prota
        >>> prota.Library("lib").search("a cup of coffee")[0].picture(width=320)[:2] == b"\\xff\\xd8"
        True
        """
        from prota.video.showing import FrameRequest, frame_jpeg
        from prota.workers.process_pool import DecodePool

        with DecodePool(1, _PICTURE_LIMIT) as pool:
            ((_, outcome),) = pool.run(frame_jpeg, [(None, FrameRequest(self.path, self.best, width))])
        if outcome.error is not None:
            raise LibraryError(outcome.error)
        picture: bytes = outcome.value
        return picture

    def save_clip(self, out: str | Path, *, exact: bool = True) -> Path:
        """Cut the moment out of its video, with its sound, and write it to a file.

        Parameters
        ----------
        out
            The file: .mp4, .mov or .mkv.
        exact
            Encode again, for exact ends; else copy the streams, from the keyframe before the start.

        Example
        -------
        >>> import prota
        >>> prota.Library("lib").search("a cup of coffee")[0].save_clip("cup.mp4").name
        'cup.mp4'
        """
        from prota.workers.cutting import save_clip

        save_clip(self.path, self.start, self.end, out, exact=exact)
        return Path(out)

    @property
    def _origin(self) -> tuple[Origin, Query]:
        if self.origin is None:
            raise ValueError("this hit does not come from a search")
        return self.origin

    def to_dict(self) -> dict[str, Any]:
        """Its fields as plain values, for JSON or a table."""
        return {"path": self.video.path, "video_id": self.video.video_id, **self.fields()}

    def fields(self) -> dict[str, Any]:
        """`to_dict` without the file, whose path a server must not show."""
        times = {"start": round(self.start, 3), "end": round(self.end, 3), "best": round(self.best, 3)}
        return {"kind": self.video.kind, **times, "score": self.score, "probability": self.probability}


@dataclass(frozen=True, eq=False)
class Results(Sequence[Hit]):
    """Good matches for one query, best first; `hits` also has the weaker ones.

    Example
    -------
    >>> import prota
    >>> results = prota.Library("lib").search("a cup of coffee")
    >>> results[0].path.name
    'coffee.mp4'
    >>> import pandas  # doctest: +SKIP
    >>> pandas.DataFrame(results.to_dict()["moments"])  # doctest: +SKIP
    """

    query: Query
    hits: list[Hit]
    """Best first, with those that are no good matches."""
    cutoff: float
    """The least probability of a good match."""
    coverage: Coverage
    damaged: int = 0
    """Segments that were left out because they differ from their checksums; `prota library repair` mends them."""
    least: float = -math.inf
    """The least score of a good match where the probability is not known: for a clip, of what looks like it."""

    def __len__(self) -> int:
        return len(self.good)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        return self.good[place]

    def __repr__(self) -> str:
        return f"Results({self.query.text!r}, {len(self.good)} good matches, {len(self.hits)} in all)"

    @property
    def good(self) -> list[Hit]:
        """Hits that are likely a match, or look like the query clip; all if the model is not calibrated."""
        return [hit for hit in self.hits if self._is_good(hit)]

    def _is_good(self, hit: Hit) -> bool:
        return hit.score >= self.least if hit.probability is None else hit.probability >= self.cutoff

    @property
    def no_good_match(self) -> bool:
        """Whether no result is a good match."""
        return not self.good

    @property
    def hint(self) -> str | None:
        """What about the query may be the reason for poor results."""
        if self.query.unread:
            return f"the model cannot read {', '.join(self.query.unread)}: describe the moment in English words"
        if self.query.foreign and self.no_good_match:
            return "the model reads English: describe the moment in English"
        return None

    def save_reel(self, out: str | Path) -> Path:
        """Join the good matches to one video, in the size of the first, and write it to a .mp4, .mov or .mkv file.

        Example
        -------
        >>> import prota
        >>> prota.Library("lib").search("a cup of coffee").save_reel("reel.mp4").name
        'reel.mp4'
        """
        from prota.workers.cutting import Span, save_reel

        save_reel([Span(hit.path, hit.start, hit.end) for hit in self if hit.video.kind == "video"], out)
        return Path(out)

    def export(self, out: str | Path) -> Path:
        """Write the good matches to a table (.csv, .json), a playlist (.m3u) or a time line (.edl, .fcpxml, .otio).

        Time lines need the extra ``edit``.

        Example
        -------
        >>> import prota
        >>> prota.Library("lib").search("a cup of coffee").export("cups.csv").read_text().splitlines()[0][:16]
        'query,path,kind,'
        """
        from prota.library.search.export import export

        export([(self.query.text, hit) for hit in self], out)
        return Path(out)

    def to_dict(self) -> dict[str, Any]:
        """The query and all hits as plain values, for JSON or a table; ``weaker`` marks those below the cutoff."""
        good = self.good
        moments = [{**hit.to_dict(), "weaker": hit not in good} for hit in self.hits]
        return {
            "query": self.query.text, "cut": self.query.cut, "moments": moments, "no_good_match": self.no_good_match,
            "damaged": self.damaged,
            "hint": self.hint,
        }  # fmt: skip
