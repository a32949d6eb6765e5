"""Hand moments over to other programs: tables, playlists and time lines of editors.

A time line counts frames of each video at its own rate: from the frame on screen at a moment's start to the last one
that begins before its end, which is what `prota.video.cut` shows of it. OpenTimelineIO writes the formats.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prota.errors import ProtaError, UsageError
from prota.files import write_atomically
from prota.library.records import VideoRecord

if TYPE_CHECKING:
    from opentimelineio.schema import Timeline

__all__ = ["FORMATS", "ExportError", "Exported", "export", "frames_of", "rate_of"]

_COLUMNS = ("query", "path", "kind", "start", "end", "best", "first_frame", "frames", "fps", "probability", "score")
# Of an edit decision list whose first video has a rate that time codes do not know.
_USUAL_RATE = 25.0
_MISSING = "time lines need OpenTimelineIO and its adapters: pip install 'prota[edit]'"


class Exported(Protocol):
    """What is exported of a hit."""

    @property
    def video(self) -> VideoRecord: ...
    @property
    def path(self) -> Path: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    def to_dict(self) -> dict[str, Any]: ...


Found = Sequence[tuple[str, Exported]]


class ExportError(ProtaError):
    """Results that cannot be exported."""

    code = "export"


def export(moments: Found, path: str | Path) -> int:
    """Write moments, each with its query, to a file whose extension says how, see `FORMATS`; returns their number.

    Time lines (.edl, .fcpxml, .otio) leave pictures out, and need the extra ``edit``.
    """
    path = Path(path)
    write = FORMATS.get(path.suffix.lower())
    if write is None:
        raise UsageError(f"{path}: the name must end in {', '.join(FORMATS)}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: " + ("is a folder" if path.is_dir() else "its folder does not exist"))
    timeline = write in (_edl, _fcpxml, _otio)
    found = [(query, hit) for query, hit in moments if not (timeline and hit.video.kind == "picture")]
    if not found:
        raise ExportError("no good match to export")
    content = write(found)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from None
    return len(found)


def rate_of(fps: float) -> Fraction:
    """A frame rate as it is meant: 29.97 is 30000/1001."""
    near = Fraction(round(fps * 1.001)) / Fraction(1001, 1000)
    return near if abs(float(near) - fps) < 0.004 and round(fps) != fps else Fraction(fps or 25).limit_denominator(1000)


def frames_of(hit: Exported) -> tuple[int, int, Fraction]:
    """The first frame of a moment, the number of its frames, and their rate."""
    rate = rate_of(hit.video.fps)
    # Times in the library are rounded.
    first = max(0, math.floor(hit.start * rate + 0.01))
    return first, max(1, math.ceil(hit.end * rate - 0.01) - first), rate


def _row(query: str, hit: Exported) -> dict[str, Any]:
    first, count, _ = frames_of(hit) if hit.video.kind == "video" else (0, 0, Fraction(0))
    values = hit.to_dict() | {"query": query, "first_frame": first, "frames": count, "fps": hit.video.fps}
    return {name: values[name] for name in _COLUMNS}


def _csv(found: Found) -> str:
    text = io.StringIO()
    rows = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    rows.writeheader()
    rows.writerows(_row(*one) for one in found)
    return text.getvalue()


def _json(found: Found) -> str:
    return json.dumps([_row(*one) for one in found], indent=2, ensure_ascii=False) + "\n"


def _m3u(found: Found) -> str:
    lines = ["#EXTM3U"]
    for query, hit in found:
        if any(letter in hit.video.path for letter in "\n\r"):
            raise ExportError(f"{hit.video.path!r}: a playlist cannot name this file; rename it")
        seconds = round(hit.end - hit.start) if hit.video.kind == "video" else -1
        lines.append(f"#EXTINF:{seconds},{hit.path.stem}: {query}")
        if hit.video.kind == "video":
            # Read by VLC.
            lines += [f"#EXTVLCOPT:start-time={hit.start:.3f}", f"#EXTVLCOPT:stop-time={hit.end:.3f}"]
        lines.append(hit.video.path)
    return "\n".join(lines) + "\n"


def _timeline(found: Found, rate: float | None = None) -> Timeline:
    """``rate``: of all clips; None: each has its video's."""
    try:
        from opentimelineio import opentime, schema
    except ImportError:
        raise ExportError(_MISSING) from None

    def span(first: int, count: int, own: Fraction) -> opentime.TimeRange:
        times = [opentime.RationalTime(number, float(own)) for number in (first, first + count)]
        if rate is not None:
            times = [opentime.RationalTime(round(time.rescaled_to(rate).value), rate) for time in times]
        return opentime.TimeRange.range_from_start_end_time(*times)

    track = schema.Track("moments", kind=schema.TrackKind.Video)
    for query, hit in found:
        first, count, own = frames_of(hit)
        whole = span(0, max(first + count, round(hit.video.duration * own)), own)
        media = schema.ExternalReference(hit.path.as_uri(), whole)
        clip = schema.Clip(hit.path.name, media, span(first, count, own))
        clip.metadata["prota"] = _row(query, hit)
        track.append(clip)
    timeline = schema.Timeline(found[0][0])
    timeline.tracks.append(track)
    return timeline


def _adapter(name: str) -> Any:
    from opentimelineio import adapters, exceptions

    try:
        return adapters.from_name(name)
    except exceptions.NotSupportedError:
        raise ExportError(_MISSING) from None


def _written(timeline: Timeline, adapter: str, **options: Any) -> str:
    text: str = _adapter(adapter).write_to_string(timeline, **options)
    return text


def _otio(found: Found) -> str:
    return _written(_timeline(found), "otio_json")


def _edl(found: Found) -> str:
    """A list has one rate: that of the first video."""
    timeline = _timeline(found)
    from opentimelineio.opentime import RationalTime

    own = float(frames_of(found[0][1])[2])
    rate = own if RationalTime.is_smpte_timecode_rate(own) else _USUAL_RATE
    rates = {float(frames_of(hit)[2]) for _, hit in found}
    return _written(timeline if rates == {rate} else _timeline(found, rate), "cmx_3600", rate=rate)


def _fcpxml(found: Found) -> str:
    timeline = _timeline(found)
    known = _adapter("fcpx_xml").module().FRAMERATE_FRAMEDURATION
    for _, hit in found:
        # The adapter knows rates of two decimals only.
        rate = frames_of(hit)[2]
        known.setdefault(float(rate), f"{rate.denominator}/{rate.numerator}s")
    return _written(timeline, "fcpx_xml")


FORMATS: dict[str, Callable[[Found], str]] = {
    ".csv": _csv, ".json": _json, ".m3u": _m3u, ".edl": _edl, ".fcpxml": _fcpxml, ".otio": _otio,
}  # fmt: skip
