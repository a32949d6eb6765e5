"""Frames by PyAV: located by the packets and identified by their time stamps."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.completeness import Packets, check_frames, check_packets, check_times
from prota.video.opening import opened
from prota.video.timeline import DecodeError, Picture, Timeline, Times, Transform, end_of, finished

__all__ = ["Index", "NotShownError", "counted_index", "frame_index", "frame_rate", "load_av", "open_video"]
__all__ += ["orientation", "read_frames", "upright", "walk_frames"]


# Containers that hold their frames themselves. FFmpeg also opens playlists (hls, dash, concat, imf) and numbered
# pictures, which make it read other files; and formats of devices, scripts and old games.
_CONTAINERS = (
    *("mov", "matroska", "avi", "mpeg", "mpegts", "mpegvideo", "m4v", "asf", "flv", "live_flv", "ogg", "mxf", "rm"),
    *("mjpeg", "gif", "apng", "yuv4mpegpipe", "ivf", "h261", "h263", "h264", "hevc", "vvc", "av1", "obu", "vc1"),
    *("vc1test", "dirac", "cavsvideo", "nut", "nuv", "gxf", "dv", "wtv", "swf", "mjpeg_2000", "kux"),
    *("jpeg_pipe", "png_pipe", "bmp_pipe", "webp_pipe"),
)
_ALONE = {"format_whitelist": ",".join(_CONTAINERS), "protocol_whitelist": "none"}


_VP8 = ("vp8", "libvpx")


class NotShownError(DecodeError):
    """The packets announce a frame that the decoder never shows; decode the file for its timeline."""


@dataclass(frozen=True)
class Index:
    """The positions of frames in a file."""

    timeline: Timeline
    pts: np.ndarray[Any, np.dtype[np.int64]] | None
    """Presentation time stamps, strictly ascending; None: frames are counted from the start."""
    keyframes: np.ndarray[Any, np.dtype[np.int64]]
    """Indices of the frames at which decoding can start."""


# The index of the last file only, by path, size, date and method. A long video is read in parts, and scanning all
# packets for each part would take longer than decoding its frames.
_last: dict[tuple[tuple[Path, int, int], str], Index] = {}


def frame_index(path: Path) -> Index:
    """The index from the packets if they are reliable, else from decoding the file; the last one is cached."""
    return _kept(path, _scanned_index)


def counted_index(path: Path) -> Index:
    """The index from decoding the file, for packets that announce frames that are never shown."""
    return _kept(path, _counted_index)


def _kept(path: Path, make: Callable[[Path], Index]) -> Index:
    # Before reading: the index of a file that changes meanwhile is not reused.
    identity = _identity(path)
    key = (identity, make.__name__)
    index = _last.get(key)
    if index is None:
        index = make(path)
        # Callers share the arrays.
        index.timeline.times.setflags(write=False)
        for other in [known for known in _last if known[0] != identity]:
            del _last[other]
        _last[key] = index
    return index


def _identity(path: Path) -> tuple[Path, int, int]:
    with opened(path) as file:
        status = os.fstat(file.fileno())
    return path, status.st_size, status.st_mtime_ns


def load_av() -> Any:
    return importlib.import_module("av")


@contextmanager
def open_video(path: Path, threads: int = 0) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; errors of FFmpeg inside become DecodeErrors."""
    av = load_av()
    doing = "open"
    try:
        with opened(path) as file, av.open(file, metadata_errors="replace", options=_ALONE) as container:
            cover = av.stream.Disposition.attached_pic
            stream = next((stream for stream in container.streams.video if not stream.disposition & cover), None)
            if stream is None:
                raise DecodeError(f"{path}: no video stream")
            if stream.codec_context is None:
                raise DecodeError(f"{path}: FFmpeg cannot decode this codec")
            stream.thread_type = "AUTO"
            stream.codec_context.thread_count = threads
            # Corrupt frames are errors; by default the decoder conceals them.
            stream.codec_context.options = {"err_detect": "explode"}
            doing = "read"
            yield container, stream
    except av.ArgumentError as error:
        reason = "not a supported container; playlists are not followed" if doing == "open" else _reason(error)
        raise DecodeError(f"{path}: cannot {doing}: {reason}") from error
    except (av.FFmpegError, OSError) as error:
        raise DecodeError(f"{path}: cannot {doing}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The message of FFmpeg without number, path and function."""
    return str(getattr(error, "strerror", None) or error)


def _pictures(path: Path, container: Any, stream: Any, since: int | None = None) -> Iterator[Any]:
    """Decoded frames from the current position, not yet converted.

    Errors before the first frame are ignored: a recording may start in the middle of a group of pictures. After a seek
    to the keyframe at ``since``, only errors of frames shown before it are, which depend on skipped frames.
    """
    count, reason = 0, ""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except load_av().FFmpegError as error:
            reason = _reason(error)
            if count or (since is not None and (packet.pts is None or packet.pts >= since)):
                total = f" of {stream.frames}" if stream.frames else ""
                raise DecodeError(f"{path}: only {count}{total} frames are readable: {reason}") from error
            continue
        for frame in frames:
            count += 1
            yield frame
    if not count:
        raise DecodeError(f"{path}: cannot decode any frame" + (f": {reason}" if reason else ""))


def _scanned_index(path: Path) -> Index:
    with open_video(path) as (container, stream):
        packets = _packets(path, container, stream)
        # AVI has no presentation times; VP8 has packets that are never shown.
        trusted = container.format.name != "avi" and stream.codec_context.name not in _VP8
    stamps = packets.stamps
    if not trusted or None in stamps or len(set(stamps)) < len(stamps):
        return _decoded_index(path, packets)
    pts = np.array(sorted(stamps), dtype=np.int64)
    with open_video(path) as (container, stream):
        frame = next(_pictures(path, container, stream))
        if frame.pts != pts[0]:
            return _decoded_index(path, packets)
        timeline = _timeline(path, stream, frame, (pts - pts[0]) * float(stream.time_base))
    return Index(timeline, pts, np.searchsorted(pts, np.array(sorted(packets.keyframes), dtype=np.int64)))


def _packets(path: Path, container: Any, stream: Any) -> Packets:
    """The packets of a file; DecodeError if some are missing."""
    packets = Packets()
    # The index of the file points past its end, or the last packet is incomplete.
    cut = any(entry.pos + entry.size > container.size for entry in stream.index_entries)
    for packet in container.demux([stream, *container.streams.audio]):
        packets.add(packet, stream.index)
        cut = cut or (packet.stream_index == stream.index and packet.is_corrupt)
    if cut:
        raise DecodeError(f"{path}: truncated: some of its {stream.frames or 'announced'} frames are missing")
    check_packets(path, container, stream, packets)
    if not packets.stamps:
        raise DecodeError(f"{path}: cannot decode any frame: no video data")
    return packets


def _decoded_index(path: Path, packets: Packets) -> Index:
    """The index from decoding the file, without converting frames."""
    stamps, first = list[Any](), None
    with open_video(path) as (container, stream):
        for frame in _pictures(path, container, stream):
            first = first or frame
            stamps.append(frame.pts)
        halved = first is not None and (first.interlaced_frame or stream.codec_context.name in _VP8)
        check_frames(path, len(stamps), packets, halved=halved)
        if container.format.name == "avi":
            # Numbers of frames: 0, 1, 2, … if none is empty.
            numbered = len(packets.slots) == len(stamps) and None not in packets.slots
            slots = np.array(sorted(packets.slots) if numbered else range(len(stamps)), dtype=np.int64)
            times = (slots - slots[0]) / frame_rate(stream)
        elif None in stamps or stamps != sorted(set(stamps)):
            times = np.arange(len(stamps)) / frame_rate(stream)
        else:
            times = (np.array(stamps, dtype=np.int64) - stamps[0]) * float(stream.time_base)
        return Index(_timeline(path, stream, first, times), None, np.zeros(0, dtype=np.int64))


def _counted_index(path: Path) -> Index:
    with open_video(path) as (container, stream):
        packets = _packets(path, container, stream)
    index = _decoded_index(path, packets)
    return replace(index, timeline=replace(index.timeline, counted=True))


def frame_rate(stream: Any) -> float:
    return float(stream.average_rate or stream.guessed_rate or 25)


def _timeline(path: Path, stream: Any, frame: Any, times: Times) -> Timeline:
    rotation, mirrored = orientation(path, frame)
    width, height = (frame.height, frame.width) if rotation % 180 else (frame.width, frame.height)
    rate = frame_rate(stream)
    codec = stream.codec_context.name
    duration = end_of(times, rate)
    check_times(path, times, duration)
    return Timeline(times, duration, width, height, rate, codec, rotation, mirrored)


# By EXIF orientation: the mirrored ones, with their rotation.
_MIRRORED = {2: 0, 4: 180, 5: 270, 7: 90}


def orientation(path: Path, frame: Any) -> tuple[int, bool]:
    """Degrees clockwise to rotate a frame by, and whether to mirror it first."""
    turned = round(-frame.rotation / 90) * 90 % 360
    try:
        matrix = next((data for data in frame.side_data if data.type.name == "DISPLAYMATRIX"), None)
    except ValueError:
        # PyAV does not support the side data of photographs.
        exif = _exif_orientation(path)
        return _MIRRORED.get(exif, turned), exif in _MIRRORED
    if matrix is None:
        return turned, False
    a, b, _, c, d, *_ = (int(value) for value in np.frombuffer(bytes(matrix), dtype="<i4"))
    if a * d >= b * c:
        return turned, False
    # The rotation after mirroring.
    return round(math.degrees(math.atan2(-b, -a)) / 90) * 90 % 360, True


def _exif_orientation(path: Path) -> int:
    from PIL import Image

    try:
        with opened(path) as file, Image.open(file, formats=("JPEG", "PNG", "WEBP")) as picture:
            return int(picture.getexif().get(0x112, 1))
    except Exception:
        # Pillow may fail on files that FFmpeg reads.
        return 1


def read_frames(path: Path, index: Index, wanted: list[int], transform: Transform | None, *, threads: int) -> list[Any]:
    def keep(frame: Any) -> Any:
        return finished(upright(frame, index.timeline.rotation, index.timeline.mirrored), transform)

    return walk_frames(path, index, wanted, lambda: keep, threads=threads)


def upright(frame: Any, rotation: int, mirrored: bool) -> Picture:
    """A decoded frame as RGB, mirrored and rotated as its file says, see `orientation`."""
    picture = frame.to_ndarray(format="rgb24")
    picture = picture[:, ::-1] if mirrored else picture
    return np.rot90(picture, k=-rotation // 90)


def walk_frames(
    path: Path, index: Index, wanted: list[int], begin: Callable[[], Callable[[Any], Any]], *, threads: int = 0
) -> list[Any]:
    """Decode the wanted frames in order; each goes to what ``begin`` returns, which is called again for a new start."""
    if index.pts is not None and len(index.keyframes) > 1:
        try:
            return _walk(path, index, wanted, begin(), threads=threads, seek=True)
        except DecodeError:
            # A wrong seek or a corrupt part: decoding from the start is exact.
            pass
    return _walk(path, index, wanted, begin(), threads=threads, seek=False)


def _walk(
    path: Path, index: Index, wanted: list[int], keep: Callable[[Any], Any], *, threads: int, seek: bool
) -> list[Any]:
    """Decode the wanted frames in order, identified by time stamp; ``seek``: skip to keyframes between them."""
    kept, position, damaged = list[Any](), -1, False
    with open_video(path, threads) as (container, stream):
        pictures = _pictures(path, container, stream)
        for number in wanted:
            if kept and number == position:
                kept.append(kept[-1])
                continue
            before = index.keyframes[: np.searchsorted(index.keyframes, number, side="right")]
            if seek and index.pts is not None and len(before) and before[-1] > position + 1:
                start, damaged = int(index.pts[before[-1]]), False
                container.seek(start, stream=stream)
                pictures = _pictures(path, container, stream, start)
            for frame in pictures:
                position = _position(path, index, frame, position)
                # Frames after a corrupt one depend on it, up to the next keyframe.
                damaged = frame.is_corrupt or (damaged and not frame.key_frame)
                if position >= number:
                    break
            else:
                total = len(index.timeline.times)
                raise NotShownError(f"{path}: only {position + 1} of {total} frames are readable")
            if position != number:
                seconds = index.timeline.times[number]
                raise NotShownError(f"{path}: the frame at {seconds:.3f} s is never shown")
            if damaged:
                raise DecodeError(f"{path}: corrupt frame at {index.timeline.times[number]:.3f} s")
            kept.append(keep(frame))
    return kept


def _position(path: Path, index: Index, frame: Any, previous: int) -> int:
    """The index of a decoded frame in the timeline."""
    if index.pts is None:
        return previous + 1
    place = -1 if frame.pts is None else int(np.searchsorted(index.pts, frame.pts))
    if not 0 <= place < len(index.pts) or index.pts[place] != frame.pts:
        raise NotShownError(f"{path}: frame times differ between packets and decoder")
    return place
