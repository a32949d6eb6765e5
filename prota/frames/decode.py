"""Frames of a video file: the right ones, upright, or one clear error.

PyAV decodes; OpenCV stands in where PyAV is not installed. Both are imported when first needed, and a process uses one
decoder at a time. A file that may be hostile or broken belongs in a worker with a time limit: see `prota.frames.pool`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = ["Backend", "DecodeError", "Timeline", "available_backend", "decode_chosen", "decode_frames", "read_timeline"]

Backend = Literal["auto", "pyav", "opencv"]
Picture = np.ndarray[Any, np.dtype[np.uint8]]
Times = np.ndarray[Any, np.dtype[np.float64]]
Transform = Callable[[Picture], Picture]

# A file that holds less than this share of what its header announces is cut short; headers are off by a frame or two.
COMPLETE_SHARE = 0.9


class DecodeError(ValueError):
    """A file that does not give the frames asked for; the message is one line."""


class _NotShownError(DecodeError):
    """The packets announce a frame that the decoder never shows: the timeline must come from decoding."""


@dataclass(frozen=True)
class Timeline:
    """When each frame of a video is shown."""

    times: Times
    """Seconds from the first frame, ascending, one per displayable frame in presentation order."""
    duration: float
    """Seconds until the end of the last frame, taken to last as long as frames usually do."""
    width: int
    height: int
    """Both of the upright picture."""
    fps: float
    codec: str
    rotation: int
    """Degrees clockwise (0, 90, 180, 270) by which stored pictures were turned to be upright."""
    backend: str


@dataclass(frozen=True)
class _Index:
    """What PyAV needs to find frames again."""

    timeline: Timeline
    pts: np.ndarray[Any, np.dtype[np.int64]] | None
    """Presentation stamps, strictly ascending; None: frames are known by counting from the start."""
    keyframes: np.ndarray[Any, np.dtype[np.int64]]
    """Numbers of the frames at which decoding can start."""


def available_backend(backend: Backend = "auto") -> str:
    """The decoder that will be used, pyav or opencv; `auto` takes PyAV where it is installed."""
    modules = {"pyav": ("av", "av"), "opencv": ("cv2", "opencv-python-headless")}
    if backend != "auto" and backend not in modules:
        raise ValueError(f"backend {backend!r} is not known; known: auto, {', '.join(modules)}")
    for name in modules if backend == "auto" else [backend]:
        if importlib.util.find_spec(modules[name][0]) is not None:
            return name
    package = "av (or opencv-python-headless)" if backend == "auto" else modules[backend][1]
    raise DecodeError(f"no video decoder is installed: pip install {package}")


def read_timeline(path: str | Path, backend: Backend = "auto") -> Timeline:
    """When each frame is shown. With PyAV the packets tell, and only the first frame is decoded, to see that it can be.

    Where packets cannot tell (no time stamps, AVI, VP8), and with OpenCV, the whole file is decoded once.
    """
    path, backend = _checked(path, backend)
    return _pyav_index(path).timeline if backend == "pyav" else _opencv_timeline(path)


def decode_frames(
    path: str | Path, indices: Sequence[int], transform: Transform | None = None, backend: Backend = "auto"
) -> tuple[Timeline, list[Picture]]:
    """The frames at `indices` (ascending, into `Timeline.times`): RGB uint8 [height, width, 3], upright."""
    path, backend = _checked(path, backend)
    timeline, read = _source(path, backend, threads=0)
    return timeline, read(_checked_indices(path, indices, timeline), transform)


def decode_chosen(
    path: str | Path,
    choose: Callable[[Timeline], Sequence[int]],
    transform: Transform | None = None,
    backend: Backend = "auto",
    threads: int = 0,
) -> tuple[Timeline, list[int], list[Picture]]:
    """As `decode_frames`, with the indices chosen by a function of the timeline, so that the file is indexed only once.

    Where the decoder turns out to show fewer frames than the packets announce, the timeline is taken from decoding and
    the choice made again. `threads` = 0 leaves their number to the decoder.
    """
    path, backend = _checked(path, backend)
    timeline, read = _source(path, backend, threads)
    chosen = _checked_indices(path, choose(timeline), timeline)
    try:
        return timeline, chosen, read(chosen, transform)
    except _NotShownError:
        index = _decoded_index(path)
        chosen = _checked_indices(path, choose(index.timeline), index.timeline)
        return index.timeline, chosen, _pyav_frames(path, index, chosen, transform, threads)


def _source(path: Path, backend: str, threads: int) -> tuple[Timeline, Callable[..., list[Picture]]]:
    if backend == "opencv":
        timeline = _opencv_timeline(path)
        return timeline, lambda wanted, transform: _opencv_frames(path, wanted, transform)
    index = _pyav_index(path)
    return index.timeline, lambda wanted, transform: _pyav_frames(path, index, wanted, transform, threads)


def _checked(path: str | Path, backend: Backend) -> tuple[Path, Any]:
    """The absolute path, because FFmpeg reads `a:b.mp4` as a protocol, and the backend by name."""
    path = Path(path)
    if not path.exists():
        raise DecodeError(f"{path}: the file is not there")
    if not path.is_file():
        raise DecodeError(f"{path}: not a file")
    if path.stat().st_size == 0:
        raise DecodeError(f"{path}: empty file")
    return path.absolute(), available_backend(backend)


def _checked_indices(path: Path, indices: Sequence[int], timeline: Timeline) -> list[int]:
    wanted = [int(index) for index in indices]
    if wanted != sorted(wanted) or (wanted and wanted[0] < 0):
        raise ValueError("frame indices must be ascending and not negative")
    if wanted and wanted[-1] >= len(timeline.times):
        raise DecodeError(f"{path}: frame {wanted[-1]} was asked for, but there are only {len(timeline.times)} frames")
    return wanted


def _end(times: Times, fps: float) -> float:
    """The same rule for both decoders, because OpenCV does not tell how long the last frame lasts."""
    return float(times[-1] + (np.median(np.diff(times)) if len(times) > 1 else 1 / fps))


def _av() -> Any:
    return importlib.import_module("av")


@contextmanager
def _opened(path: Path, threads: int = 0) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; what FFmpeg raises inside becomes a DecodeError."""
    av = _av()
    doing = "opened"
    try:
        with av.open(str(path), metadata_errors="replace") as container:
            cover = av.stream.Disposition.attached_pic
            stream = next((stream for stream in container.streams.video if not stream.disposition & cover), None)
            if stream is None:
                raise DecodeError(f"{path}: no video stream")
            stream.thread_type = "AUTO"
            stream.codec_context.thread_count = threads
            # A damaged picture is an error; without this the decoder paints over the damage in silence.
            stream.codec_context.options = {"err_detect": "explode"}
            doing = "read"
            yield container, stream
    except (av.FFmpegError, OSError) as error:
        raise DecodeError(f"{path}: cannot be {doing}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """FFmpeg's words alone, without number, path or function."""
    return str(getattr(error, "strerror", None) or error)


def _pictures(path: Path, container: Any, stream: Any) -> Iterator[Any]:
    """Decoded frames from where the container stands, not yet converted.

    Errors before the first picture are passed over: a recording may start in the middle of a group of pictures.
    """
    count, reason = 0, ""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except _av().FFmpegError as error:
            reason = _reason(error)
            if count:
                total = f" of {stream.frames}" if stream.frames else ""
                raise DecodeError(f"{path}: only {count}{total} frames could be read: {reason}") from error
            continue
        for frame in frames:
            count += 1
            yield frame
    if not count:
        raise DecodeError(f"{path}: no frame could be decoded" + (f": {reason}" if reason else ""))


def _pyav_index(path: Path) -> _Index:
    """The timeline from the packets where they can be trusted, else from decoding everything."""
    with _opened(path) as (container, stream):
        stamps, keyframes = _packets(path, container, stream)
        # AVI stores no presentation times; VP8 has packets that are never shown.
        trusted = container.format.name != "avi" and stream.codec_context.name not in ("vp8", "libvpx")
    if not stamps:
        raise DecodeError(f"{path}: no frame could be decoded: the file holds no video data")
    if not trusted or None in stamps or len(set(stamps)) < len(stamps):
        return _decoded_index(path)
    pts = np.array(sorted(stamps), dtype=np.int64)
    with _opened(path) as (container, stream):
        frame = next(_pictures(path, container, stream))
        if frame.pts != pts[0]:
            return _decoded_index(path)
        timeline = _timeline(stream, frame, (pts - pts[0]) * float(stream.time_base))
    return _Index(timeline, pts, np.searchsorted(pts, np.array(sorted(keyframes), dtype=np.int64)))


def _packets(path: Path, container: Any, stream: Any) -> tuple[list[Any], list[int]]:
    """Presentation stamps of all packets that are to be shown, and those of the keyframes; refuses a file cut short."""
    stamps, keyframes, last = list[Any](), list[int](), 0.0
    size = path.stat().st_size
    # An index that points past the end of the file, or a packet of which only a part is there.
    cut = any(entry.pos + entry.size > size for entry in stream.index_entries)
    for packet in container.demux([stream, *container.streams.audio]):
        if packet.pts is not None:
            last = max(last, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream_index != stream.index or not packet.size:
            continue
        cut = cut or packet.is_corrupt
        if not packet.is_discard:
            stamps.append(packet.pts)
            if packet.is_keyframe and packet.pts is not None:
                keyframes.append(packet.pts)
    announced = (container.duration or 0) / 1e6
    if "matroska" in container.format.name and last < COMPLETE_SHARE * announced - 0.5:
        raise DecodeError(f"{path}: cut short: {announced:.1f} s announced, {last:.1f} s there")
    if cut or (container.format.name == "avi" and len(stamps) < COMPLETE_SHARE * stream.frames - 1):
        raise DecodeError(f"{path}: cut short: not all of its {stream.frames or 'announced'} frames are in the file")
    return stamps, keyframes


def _decoded_index(path: Path) -> _Index:
    """The timeline by decoding everything once, without converting a picture."""
    stamps, first = list[Any](), None
    with _opened(path) as (container, stream):
        for frame in _pictures(path, container, stream):
            first = first or frame
            stamps.append(frame.pts)
        if container.format.name == "avi" or None in stamps or stamps != sorted(set(stamps)):
            times = np.arange(len(stamps)) / _rate(stream)
        else:
            times = (np.array(stamps, dtype=np.int64) - stamps[0]) * float(stream.time_base)
        return _Index(_timeline(stream, first, times), None, np.zeros(0, dtype=np.int64))


def _rate(stream: Any) -> float:
    return float(stream.average_rate or stream.guessed_rate or 25)


def _timeline(stream: Any, frame: Any, times: Times) -> Timeline:
    rotation = round(-frame.rotation / 90) * 90 % 360
    width, height = (frame.height, frame.width) if rotation % 180 else (frame.width, frame.height)
    rate = _rate(stream)
    return Timeline(times, _end(times, rate), width, height, rate, stream.codec_context.name, rotation, "pyav")


def _pyav_frames(
    path: Path, index: _Index, wanted: list[int], transform: Transform | None, threads: int
) -> list[Picture]:
    def keep(frame: Any) -> Picture:
        if frame.is_corrupt:
            raise DecodeError(f"{path}: a frame that was asked for is damaged")
        return _kept(np.rot90(frame.to_ndarray(format="rgb24"), k=-index.timeline.rotation // 90), transform)

    if index.pts is not None and len(index.keyframes) > 1:
        try:
            return _walk(path, index, wanted, keep, threads, seek=True)
        except DecodeError:
            # A seek gone wrong, or a broken stretch: from the start the answer, or the error, is exact.
            pass
    return _walk(path, index, wanted, keep, threads, seek=False)


def _walk(
    path: Path, index: _Index, wanted: list[int], keep: Callable[[Any], Picture], threads: int, seek: bool
) -> list[Picture]:
    """Decode forward through the wanted frames, each recognised by its stamp; jump where a keyframe lies between."""
    kept, position = list[Picture](), -1
    with _opened(path, threads) as (container, stream):
        pictures = _pictures(path, container, stream)
        for number in wanted:
            if kept and number == position:
                kept.append(kept[-1])
                continue
            before = index.keyframes[: np.searchsorted(index.keyframes, number, side="right")]
            if seek and index.pts is not None and len(before) and before[-1] > position + 1:
                container.seek(int(index.pts[before[-1]]), stream=stream)
                pictures = _pictures(path, container, stream)
            for frame in pictures:
                position = _position(path, index, frame, position)
                if position >= number:
                    break
            else:
                total = len(index.timeline.times)
                raise _NotShownError(f"{path}: only {position + 1} of {total} announced frames could be read")
            if position != number:
                seconds = index.timeline.times[number]
                raise _NotShownError(f"{path}: the frame at {seconds:.3f} s is announced but never shown")
            kept.append(keep(frame))
    return kept


def _position(path: Path, index: _Index, frame: Any, previous: int) -> int:
    """The number of a decoded frame in the timeline."""
    if index.pts is None:
        return previous + 1
    place = -1 if frame.pts is None else int(np.searchsorted(index.pts, frame.pts))
    if not 0 <= place < len(index.pts) or index.pts[place] != frame.pts:
        raise _NotShownError(f"{path}: the decoder shows frames at times that the packets do not name")
    return place


def _kept(picture: Picture, transform: Transform | None) -> Picture:
    picture = np.ascontiguousarray(picture)
    return picture if transform is None else transform(picture)


@contextmanager
def _capture(path: Path) -> Iterator[tuple[Any, Any]]:
    """OpenCV and an open capture; FFmpeg's chatter goes unheard, errors are ours to word."""
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    cv2: Any = importlib.import_module("cv2")
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise DecodeError(f"{path}: cannot be opened: no video stream, or not a video that OpenCV knows")
        capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
        yield cv2, capture
    finally:
        capture.release()


def _opencv_timeline(path: Path) -> Timeline:
    with _capture(path) as (cv2, capture):
        stamps: list[float] = []
        shape: tuple[int, ...] = ()
        while capture.grab():
            stamps.append(capture.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            if not shape:
                good, picture = capture.retrieve()
                shape = picture.shape if good else ()
        if not shape:
            raise DecodeError(f"{path}: no frame could be decoded")
        announced = capture.get(cv2.CAP_PROP_FRAME_COUNT)
        if _counts_frames(path) and len(stamps) < COMPLETE_SHARE * announced - 1:
            raise DecodeError(f"{path}: only {len(stamps)} of {announced:.0f} announced frames could be read")
        fps = capture.get(cv2.CAP_PROP_FPS) or 25.0
        code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("ascii", "replace").strip("\0 ")
        rotation = int(capture.get(cv2.CAP_PROP_ORIENTATION_META)) % 360
    if len(stamps) > 2 and stamps[-1] == 0:
        # OpenCV forgets the stamp of a frame that comes out after the last packet.
        stamps[-1] = stamps[-2] + float(np.median(np.diff(stamps[:-1])))
    times = np.array(stamps) - stamps[0]
    if len(times) > 1 and np.diff(times).min() <= 0:
        times = np.arange(len(stamps)) / fps
    return Timeline(times, _end(times, fps), shape[1], shape[0], fps, code.lower(), rotation, "opencv")


def _counts_frames(path: Path) -> bool:
    """Whether the container (MP4, MOV, AVI) counts its frames; for others OpenCV guesses from the duration."""
    with path.open("rb") as file:
        head = file.read(8)
    return head[:4] == b"RIFF" or head[4:] in (b"ftyp", b"moov", b"mdat", b"wide", b"free")


def _opencv_frames(path: Path, wanted: list[int], transform: Transform | None) -> list[Picture]:
    """Grab through the file, because OpenCV's seek lands on wrong frames; only kept frames are converted."""
    kept, position = list[Picture](), -1
    with _capture(path) as (_, capture):
        for number in wanted:
            if kept and number == position:
                kept.append(kept[-1])
                continue
            while position < number and capture.grab():
                position += 1
            good, picture = (False, None) if position < number else capture.retrieve()
            if not good or picture is None:
                raise DecodeError(f"{path}: only {position + 1} frames could be read")
            kept.append(_kept(picture[..., ::-1], transform))
    return kept
