"""Making the clips: each is whole or not there, made once, and the same for everyone with the same packages."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.codec.codec import UnknownCodecError

from prota.files import hold, publish, write_atomically
from prota.platform import sync
from prota.samples.camera import between, look
from prota.samples.scenes import CLIPS, SCENES, Clip
from prota.samples.sources import SOURCES, SamplesError, open_picture, picture_path

__all__ = ["Look", "Made", "make_samples", "moments"]

# Browsers play only the first; the second is in every build of FFmpeg. x264's macroblock tree looks at memory that it
# did not fill: with it, a clip's bytes are now and then others.
ENCODERS: dict[str, dict[str, str]] = {
    "libx264": {"crf": "20", "preset": "veryfast", "x264-params": "mbtree=0"},
    "mpeg4": {"b": "800000"},
}
MARK = "prota samples "
CSV_NAME, CREDITS_NAME = "samples.csv", "sources.txt"
TABLE_HEAD = "video,caption,start,end\n"
CREDITS_HEAD = "Made by `prota samples`: photographs, cropped, scaled and turned into moving pictures."


@dataclass(frozen=True)
class Look:
    """Frames of all clips."""

    width: int = 320
    height: int = 240
    fps: int = 12


@dataclass(frozen=True)
class Made:
    """What a run did, by names of clips."""

    made: list[str]
    kept: list[str]
    dropped: list[str]
    """Clips that the folder's table listed and that are asked for no longer."""


def make_samples(
    folder: Path,
    style: Look | None = None,
    clips: Sequence[Clip] = CLIPS,
    show: Callable[[int, int, str], None] = lambda done, total, name: None,
) -> Made:
    """Make the clips that are not yet in `folder`, then the CSV of captions and moments and the list of sources.

    Clips that the folder's table lists and that are none of `clips` are removed: no caption tells of them any more.
    """
    style = style or Look()
    encoder = _encoder()
    marks = {clip.name: _mark(clip, style, encoder) for clip in clips}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = hold(folder / ".lock")
    except BlockingIOError:
        raise SamplesError(f"another process is making samples in {folder}: wait for it") from None
    with lock:
        # With the lock held, these are of runs that were killed.
        for left in folder.glob(".*.mp4.tmp"):
            left.unlink()
        _refuse_strangers(folder)
        kept = [clip.name for clip in clips if _existing(folder / f"{clip.name}.mp4") == MARK + marks[clip.name]]
        result = Made([], kept, _drop_former(folder, clips))
        for done, clip in enumerate(clips):
            show(done, len(clips), clip.name)
            if clip.name not in kept:
                _make(folder / f"{clip.name}.mp4", clip, style, encoder, marks[clip.name])
                result.made.append(clip.name)
        _keep_text(folder / CSV_NAME, _table(clips, style))
        _keep_text(folder / CREDITS_NAME, _credits(clips))
        show(len(clips), len(clips), "")
    return result


def moments(clip: Clip, style: Look) -> Iterator[tuple[str, float, float]]:
    """The scenes of a clip with their start and end in seconds, on the frames' own clock."""
    first = 0
    for name, seconds in clip.cuts:
        last = first + _frames(seconds, style)
        yield name, first / style.fps, last / style.fps
        first = last


def _frames(seconds: float, style: Look) -> int:
    return max(1, round(seconds * style.fps))


def _encoder() -> str:
    for name in ENCODERS:
        try:
            av.codec.Codec(name, "w")
        except UnknownCodecError:
            continue
        return name
    raise SamplesError(f"PyAV was built with none of the encoders {', '.join(ENCODERS)}: pip install av")


def _pictures(clip: Clip) -> list[str]:
    return list(dict.fromkeys(SCENES[scene].picture for scene, _ in clip.cuts))


def _mark(clip: Clip, style: Look, encoder: str) -> str:
    """All that decides what a clip looks like, in short: a clip that carries it need not be made again."""
    plan = [asdict(clip), [asdict(SCENES[scene]) for scene, _ in clip.cuts], asdict(style), encoder, ENCODERS[encoder]]
    digest = hashlib.sha256(json.dumps(plan).encode())
    for name in _pictures(clip):
        digest.update(picture_path(name).read_bytes())
    return digest.hexdigest()[:16]


def _existing(path: Path) -> str | None:
    """The mark in a clip that is there. A file that carries none is somebody's own and is not written over."""
    if not path.exists():
        return None
    comment = _comment(path)
    if not comment.startswith(MARK):
        raise SamplesError(f"{path} is not a clip of `prota samples`: move it away, or choose another folder")
    return comment


def _comment(path: Path) -> str:
    try:
        with av.open(str(path.absolute()), metadata_errors="replace") as file:
            return str(file.metadata.get("comment", ""))
    except (OSError, ValueError):
        return ""


def _drop_former(folder: Path, clips: Sequence[Clip]) -> list[str]:
    """Remove what the folder's table lists and carries our mark, but is none of the clips."""
    table = folder / CSV_NAME
    if not table.exists():
        return []
    with table.open(newline="", encoding="utf-8", errors="replace") as file:
        listed = {Path(row["video"]).stem for row in csv.DictReader(file)}
    former = sorted(listed - {clip.name for clip in clips})
    ours = [name for name in former if _comment(folder / f"{name}.mp4").startswith(MARK)]
    for name in ours:
        (folder / f"{name}.mp4").unlink()
    return ours


def _make(path: Path, clip: Clip, style: Look, encoder: str, mark: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        _encode(temporary, clip, style, encoder, mark)
        sync(temporary)
        publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _encode(path: Path, clip: Clip, style: Look, encoder: str, mark: str) -> None:
    # Without "bitexact" the file names the version of FFmpeg; "faststart" lets a browser play before it has read all.
    options = {"movflags": "faststart", "fflags": "+bitexact"}
    with av.open(str(path.absolute()), "w", format="mp4", options=options) as file:
        file.metadata.update({"comment": MARK + mark, "copyright": _credit(clip)})
        stream: Any = file.add_stream(encoder, rate=style.fps, options=ENCODERS[encoder])
        stream.width, stream.height, stream.pix_fmt = style.width, style.height, "yuv420p"
        stream.time_base = Fraction(1, style.fps)
        # More threads would make other bytes on other machines.
        stream.codec_context.thread_count = 1
        for name, seconds in clip.cuts:
            scene, count = SCENES[name], _frames(seconds, style)
            picture = open_picture(scene.picture)
            for number in range(count):
                view = between(scene.start, scene.end, number / max(1, count - 1))
                seen = np.asarray(look(picture, view, (style.width, style.height)))
                file.mux(stream.encode(av.VideoFrame.from_ndarray(seen, format="rgb24")))
        file.mux(stream.encode(None))


def _table(clips: Sequence[Clip], style: Look) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    text.write(TABLE_HEAD)
    for clip in clips:
        for scene, start, end in moments(clip, style):
            for caption in SCENES[scene].captions:
                rows.writerow([f"{clip.name}.mp4", caption, f"{start:.3f}", f"{end:.3f}"])
    return text.getvalue()


def _credit(clip: Clip) -> str:
    sources = (SOURCES[name] for name in _pictures(clip))
    return "; ".join(f"{one.author}, {one.licence}, from {one.distribution}'s {one.file}" for one in sources)


def _credits(clips: Sequence[Clip]) -> str:
    """What licences ask for: who made the photographs, under which terms, and that they were changed."""
    return "\n".join([CREDITS_HEAD, "", *(f"{clip.name}.mp4: {_credit(clip)}" for clip in clips)]) + "\n"


def _refuse_strangers(folder: Path) -> None:
    """A table or a list of the same name that we did not write is not written over."""
    for name, head in ((CSV_NAME, TABLE_HEAD), (CREDITS_NAME, CREDITS_HEAD)):
        path = folder / name
        if path.exists() and not path.read_bytes().startswith(head.encode()):
            raise SamplesError(f"{path} is not of `prota samples`: move it away, or choose another folder")


def _keep_text(path: Path, text: str) -> None:
    """A file that is right already keeps its time."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)
