"""What people see and hear of a video: single frames, and parts of it as MP4 that every browser plays.

Worker processes import this module, so it does not import torch.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from prota.video.pictures import is_picture, read_picture
from prota.video.pyav import load_av
from prota.video.source import CLOSE, THREADS, Source, codec_of
from prota.video.timeline import DecodeError, Picture

__all__ = [
    "PART",
    "SHIFT",
    "FrameRequest",
    "Part",
    "PartRequest",
    "Playing",
    "Plays",
    "frame_jpeg",
    "playing",
    "video_part",
]

Plays = Literal["original", "remuxed", "transcoded"]
Floats = np.ndarray[Any, np.dtype[np.float32]]

# Seconds of a part: a player shows something when its first part is complete.
PART = 6.0
# Bytes of packets in a part, above which they are encoded at a lower rate.
LARGEST = 48 * 2**20
# Of encoded video: the longer side in pixels, frames and bits a second.
SIDE, FASTEST, RATE = 1280, 30.0, 4_000_000
# Of encoded sound: bits and samples a second, samples of a packet, and packets before a part, which only the encoder
# hears: what a packet sounds like depends on the one before.
SOUND_RATE, SAMPLES, PACKET, RUN_IN = 160_000, 48_000, 1024, 3
# Seconds between frames of sound that are due to rounding.
ROUNDING = 0.02
# Seconds that are added to all times in parts: decoding times are below those of frames, and cannot be negative.
SHIFT = 10.0
# One fragment, without the edit list that would change its times.
_MP4 = {
    "movflags": "frag_custom+delay_moov+default_base_moof+frag_discont",
    "use_editlist": "0",
    "avoid_negative_ts": "disabled",
}
_TICKS = 90_000
_CLOCK = Fraction(1, _TICKS)
_X264 = {"preset": "superfast", "crf": "23", "maxrate": str(RATE), "bufsize": str(2 * RATE), "bf": "0", "g": "600"}
_X264["threads"] = str(THREADS)
JPEG_QUALITY = 85
# Numbers of colour spaces, and the height from which video has those of high definition.
_RGB, _BT709, _UNKNOWN_COLOURS, _BT601, _HD = 0, 1, 2, 6, 720

# Formats of sampling that all browsers decode. In MP4 and WebM, by their names in FFmpeg: the video and the sound that
# they play; and the video that they also play if it is copied from another container, with its name in a media type.
_SAMPLING = ("yuv420p", "yuvj420p")
_PLAYED = {
    "mp4": ({"h264", "vp9", "av1"}, {"", "aac", "mp3", "opus", "flac"}),
    "webm": ({"vp8", "vp9", "av1"}, {"", "opus", "vorbis"}),
}
_COPIED = {"h264": "avc1.640028", "vp9": "vp09.00.41.08", "av1": "av01.0.09M.08"}


@dataclass(frozen=True)
class Playing:
    """How browsers play a video."""

    plays: Plays
    """original: the file; remuxed: parts with its packets; transcoded: parts that are encoded."""
    offset: float
    """Seconds from the start of the file to the first frame."""


@dataclass(frozen=True)
class PartRequest:
    """A part of a video: `PART` seconds of it; if packets are copied, from key frame to key frame."""

    path: Path
    number: int
    plays: Plays
    duration: float
    """Of the video."""


@dataclass(frozen=True)
class Part:
    """A part of a video as fragmented MP4; the times in it are `SHIFT` seconds later."""

    data: bytes
    """Empty if no group of frames begins in the part: another part has its frames."""
    codecs: str
    """As in a media type."""


@dataclass(frozen=True)
class FrameRequest:
    """The frame of a video that is shown at a time, or a picture."""

    path: Path
    time: float
    width: int
    """Of the JPEG in pixels; smaller frames are not enlarged."""


def frame_jpeg(request: FrameRequest) -> bytes:
    """A frame as JPEG, upright; the last one for times beyond the end."""
    from PIL import Image

    picture = read_picture(request.path)[1] if is_picture(request.path) else _frame(request.path, request.time)
    image = Image.fromarray(picture)
    if image.width > request.width:
        size = request.width, max(1, round(image.height * request.width / image.width))
        image = image.resize(size, Image.Resampling.LANCZOS, reducing_gap=2.0)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _frame(path: Path, time: float) -> Picture:
    with Source.opened(path) as source:
        shown = None
        for seconds, frame in source.frames(time):
            if shown is not None and seconds > time + CLOSE:
                break
            shown = frame
        if shown is None:
            raise DecodeError(f"{path}: cannot decode any frame")
        return source.upright(shown)


def playing(path: Path) -> Playing:
    """How browsers play a video."""
    with Source.opened(path) as source:
        video, sound = codec_of(source.stream), codec_of(source.sound)
        names = source.container.format.name.split(",")
        # A WebM file is a Matroska file with certain codecs.
        container = "mp4" if "mp4" in names else "webm" if "webm" in names else ""
        plain = source.stream.codec_context.pix_fmt in _SAMPLING
        videos, sounds = _PLAYED.get(container, (set[str](), set[str]()))
        if plain and video in videos and sound in sounds:
            return Playing("original", source.offset)
        copied = plain and video in _COPIED and source.has_key_frames()
        return Playing("remuxed" if copied else "transcoded", source.offset)


def video_part(request: PartRequest) -> Part:
    """A part of a video with its sound. It can be played alone, and beside the other parts in any order."""
    with Source.opened(request.path) as source:
        start, end = request.number * PART, (request.number + 1) * PART
        last = end >= request.duration
        end = request.duration if last else end
        if request.plays != "remuxed":
            return _written(source, start, end)
        first, after = source.key_frame(start), None if last else source.key_frame(end)
        if first == after:
            return Part(b"", "")
        start, end = max(0.0, source.time(first)), end if after is None else source.time(after)
        return _written(source, start, end, (first, after))


def _written(source: Source, start: float, end: float, copied: tuple[int, int | None] | None = None) -> Part:
    """The part from a time to another; ``copied``: by the key frames at which its packets begin and end."""
    group = None if copied is None else _group(source, *copied)
    file = io.BytesIO()
    with load_av().open(file, "w", format="mp4", options=_MP4) as target:
        if copied is None or group is None:
            packets = _encoded(source, target, start, end)
        else:
            packets = _copied(source, target, group, after=copied[1], end=end)
        sound = list[Any]()
        if source.sound is not None:
            whole = None if group is None else _copied_sound(source, target, start, end)
            sound = _encoded_sound(source, target, start, end) if whole is None else whole
        for packet in sorted(packets + sound, key=lambda packet: packet.dts * packet.time_base):
            target.mux(packet)
    data = file.getvalue()
    found = re.search(rb"avcC\x01(...)", data, re.DOTALL)
    codecs = f"avc1.{found[1].hex()}" if found else _COPIED[codec_of(source.stream)]
    return Part(data, codecs + (", mp4a.40.2" if sound else ""))


def _group(source: Source, first: int, after: int | None) -> list[Any] | None:
    """The packets from a key frame to another, with that one; None if they cannot be copied."""
    packets, size = list[Any](), 0
    for packet in source.group(first, after):
        packets.append(packet)
        size += packet.size
        if size > LARGEST or packet.pts is None:
            return None
    return packets or None


def _copied(source: Source, target: Any, group: list[Any], *, after: int | None, end: float) -> list[Any]:
    stream = target.add_stream_from_template(source.stream)
    shown = [source.time(packet.pts) for packet in group]
    # Not all containers have times of decoding: the earliest that are in order.
    ordered = sorted(shown)
    delay = max(place - time for place, time in zip(ordered, shown, strict=True))
    if after is None:
        # The last frame is shown to the end, if it is the last packet.
        length = max(float((group[-1].duration or 0) * source.stream.time_base), CLOSE)
        ordered.append(max(ordered[-1] + length, end if shown[-1] == ordered[-1] else 0.0))
    packets = []
    for packet, time, (decoded, following) in zip(group, shown, pairwise(ordered), strict=False):
        packet.stream = stream
        packet.pts, packet.dts = _ticks(time + SHIFT), _ticks(decoded - delay + SHIFT)
        packet.duration, packet.time_base = _ticks(following) - _ticks(decoded), _CLOCK
        packets.append(packet)
    return packets


def _encoded(source: Source, target: Any, start: float, end: float) -> list[Any]:
    stream, times, packets = None, list[float](), list[Any]()
    for time, frame in _chosen(source, start, end):
        if stream is None:
            stream = _video_stream(source, target, frame)
        turned = source.is_turned(frame)
        upright = load_av().VideoFrame.from_ndarray(source.upright(frame), format="rgb24") if turned else frame
        picture = upright.reformat(
            stream.codec_context.width,
            stream.codec_context.height,
            "yuv420p",
            # Pictures of 0 to 255 become those of 16 to 235, as players expect.
            src_color_range=frame.color_range or None,
            dst_color_range=1,
        )
        picture.pts, picture.time_base = _ticks(time + SHIFT), _CLOCK
        # The encoder would take over the type of a decoded frame.
        picture.pict_type = load_av().video.frame.PictureType.NONE
        times.append(time)
        packets += stream.encode(picture)
    if stream is None:
        raise DecodeError(f"{source.path}: cannot decode any frame from {start:g} s to {end:g} s")
    packets += stream.encode(None)
    for packet, following in zip(packets, [*times[1:], end], strict=True):
        packet.duration = max(1, _ticks(following + SHIFT) - packet.pts)
    return packets


def _chosen(source: Source, start: float, end: float) -> Iterator[tuple[float, Any]]:
    """The frames of a part, not too many a second; the first one is that which is seen at its start."""
    frames = source.frames(start)
    seen, rest = next(frames, None), list[tuple[float, Any]]()
    for later in frames:
        if later[0] > start + CLOSE:
            rest = [later]
            break
        seen = later
    if seen is None:
        return
    yield start, seen[1]
    last = start
    for time, frame in chain(rest, frames):
        if time >= end - CLOSE:
            return
        if time - last > 0.9 / FASTEST:
            yield time, frame
            last = time


def _video_stream(source: Source, target: Any, frame: Any) -> Any:
    """An H.264 stream for frames like this one, upright and with square pixels."""
    width, height = frame.width * float(source.stream.sample_aspect_ratio or 1), frame.height
    if source.is_turned(frame):
        picture = source.upright(frame)
        width, height = picture.shape[1], picture.shape[0]
    scale = min(1.0, SIDE / max(width, height))
    stream = target.add_stream("libx264", rate=Fraction(source.rate).limit_denominator(1001), options=_X264)
    stream.width, stream.height = (max(2, 2 * round(side * scale / 2)) for side in (width, height))
    stream.pix_fmt, stream.codec_context.time_base = "yuv420p", _CLOCK
    # Unless the file names its colours, players guess by its size, which may be another here.
    known = frame.colorspace not in (_UNKNOWN_COLOURS, _RGB)
    stream.codec_context.colorspace = frame.colorspace if known else _BT709 if frame.height >= _HD else _BT601
    return stream


def _copied_sound(source: Source, target: Any, start: float, end: float) -> list[Any] | None:
    """The packets of the sound in a part, if browsers play them and they are whole."""
    if source.sound is None or codec_of(source.sound) != "aac":
        return None
    base = source.sound.time_base
    packets = [packet for packet in source.heard(start, end) if source.time(packet.pts, source.sound) >= start - CLOSE]
    begins = [*(source.time(packet.pts, source.sound) for packet in packets), end]
    ends = [start, *(source.time(packet.pts + (packet.duration or 0), source.sound) for packet in packets)]
    longest = max((float((packet.duration or 0) * base) for packet in packets), default=0.0)
    if any(begin - before > longest + CLOSE for before, begin in zip(ends, begins, strict=True)):
        return None
    stream = target.add_stream_from_template(source.sound)
    # In transport streams each packet says how it is decoded.
    to_mp4 = load_av().BitStreamFilterContext("aac_adtstoasc", source.sound)
    copied = []
    for packet, time in zip(packets, begins, strict=False):
        length = _ticks(float((packet.duration or 0) * base))
        for one in to_mp4.filter(packet):
            one.stream = stream
            one.pts = one.dts = _ticks(time + SHIFT)
            one.duration, one.time_base = length, _CLOCK
            copied.append(one)
    return copied


def _encoded_sound(source: Source, target: Any, start: float, end: float) -> list[Any]:
    """The sound of a part as AAC, with silence where there is none."""
    stream = target.add_stream("aac", rate=SAMPLES, layout="stereo")
    stream.bit_rate = SOUND_RATE
    # Packets of all parts are on one grid, so that they join without a gap.
    first, after = (math.ceil((time + SHIFT) * SAMPLES / PACKET) for time in (start, end))
    begin = first - RUN_IN
    samples = _heard(source, begin * PACKET / SAMPLES - SHIFT, (after - begin + 1) * PACKET)
    packets = []
    for number in range(after - begin + 1):
        block = np.ascontiguousarray(samples[:, number * PACKET : (number + 1) * PACKET])
        frame = load_av().AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
        frame.sample_rate, frame.time_base = SAMPLES, Fraction(1, SAMPLES)
        frame.pts = (begin + number) * PACKET
        packets += stream.encode(frame)
    packets += stream.encode(None)
    return [packet for packet in packets if first * PACKET <= packet.pts < after * PACKET]


def _heard(source: Source, start: float, count: int) -> Floats:
    """Stereo samples from a time on, [2, count]."""
    samples, place = np.zeros((2, count), dtype=np.float32), None
    to_stereo = load_av().AudioResampler(format="fltp", layout="stereo", rate=SAMPLES)
    for packet in source.heard(start, start + count / SAMPLES):
        try:
            frames = packet.decode()
        except load_av().FFmpegError:
            continue
        for frame in frames:
            if frame.pts is None:
                continue
            due = round((source.time(frame.pts, source.sound) - start) * SAMPLES)
            # Rounded times would tear neighbouring frames apart.
            place = due if place is None or abs(due - place) > ROUNDING * SAMPLES else place
            for piece in to_stereo.resample(frame):
                place = _put(samples, piece.to_ndarray(), place)
    return samples


def _put(samples: Floats, piece: Floats, place: int) -> int:
    """Write a piece to its place, as far as it is inside; returns its end."""
    end: int = place + piece.shape[1]
    inside = slice(max(0, place), max(0, min(end, samples.shape[1])))
    samples[:, inside] = piece[:, inside.start - place : inside.stop - place] if inside.stop > inside.start else 0
    return end


def _ticks(seconds: float) -> int:
    """Times of the clock that packets are written with."""
    return round(float(seconds) * _TICKS)
