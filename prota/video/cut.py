"""Cut moments out of videos: encoded again for exact ends, or copied from the keyframe before; several as one reel.

A clip shows what a search shows of a moment: from the frame that is on screen at its start to the last one that begins
before its end. `prota.workers.cutting` runs this in a worker and writes the file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from prota.errors import ProtaError
from prota.video.pyav import Index, NotShownError, counted_index, frame_index, open_video, upright, walk_frames
from prota.video.sampling import SAME_TIME
from prota.video.timeline import DecodeError, Timeline

__all__ = ["Clip", "CutError", "CutRequest", "Reel", "cut_clip", "join_clips"]

_TICKS, _RATE, _LAYOUT = 90_000, 48_000, "stereo"
# Without B-frames no player has to reorder frames, and clips of one size can be joined.
_QUALITY = {"crf": "18", "preset": "veryfast", "bf": "0"}
# Of the frames of a reel, whatever their rate: the headers of its clips must be equal.
_REEL_RATE = 30
# Seconds that are decoded before the start of the sound, and samples that are encoded at once.
_LEAD, _CHUNK = 1.0, 48_000


class CutError(ProtaError, ValueError):
    """A clip that cannot be cut or written."""

    code = "cut"


@dataclass(frozen=True)
class CutRequest:
    """A clip to cut."""

    path: Path
    start: float
    end: float
    exact: bool = True
    """Encode again, for exact ends; else copy from the keyframe before."""
    container: str = "mp4"
    reel: bool = False
    """Whether it will be joined to others: it has sound, be it silence, and ``size``."""
    size: tuple[int, int] | None = None
    """Width and height, with black borders; None: its own."""


@dataclass(frozen=True)
class Clip:
    """A finished file."""

    content: bytes
    start: float
    """Seconds of the source from its first frame; of a copy, of the keyframe."""
    end: float
    frames: int
    size: tuple[int, int]
    sound: bool


@dataclass(frozen=True)
class Reel:
    """Clips to join."""

    container: str
    clips: tuple[Clip, ...]


def cut_clip(request: CutRequest) -> Clip:
    """The job of a worker."""
    try:
        return _cut(request, frame_index(request.path))
    except NotShownError:
        return _cut(request, counted_index(request.path))


def _cut(request: CutRequest, index: Index) -> Clip:
    times, duration = index.timeline.times, index.timeline.duration
    if request.start >= duration:
        raise CutError(f"{request.path} lasts {duration:.2f} s: nothing to cut from {request.start:g} s on")
    first = max(0, int(np.searchsorted(times, request.start + SAME_TIME, side="right")) - 1)
    last = max(first + 1, int(np.searchsorted(times, request.end - SAME_TIME)))
    return (_encoded if request.exact else _copied)(request, index, range(first, last))


def _end(index: Index, frames: range) -> float:
    times = index.timeline.times
    return float(times[frames.stop]) if frames.stop < len(times) else index.timeline.duration


def _encoded(request: CutRequest, index: Index, frames: range) -> Clip:
    start, end = float(index.timeline.times[frames.start]), _end(index, frames)
    # A moment that is shorter than a frame, or begins within one, has the sound of its seconds.
    sound = _sound(request, index, max(start, request.start), min(end, request.end))
    silent = not request.reel and not sound.shape[1]
    writers: list[_Writer] = []

    def begin() -> Callable[[Any], None]:
        writers.append(_Writer(request, index.timeline, frames, None if silent else sound))
        return writers[-1].add

    walk_frames(request.path, index, list(frames), begin)
    writer = writers[-1]
    return Clip(writer.finish(end - start), start, end, len(frames), writer.size, not silent)


class _Writer:
    """Encodes frames and sound into a file in memory."""

    def __init__(self, request: CutRequest, timeline: Timeline, frames: range, sound: np.ndarray | None) -> None:
        import av

        self._buffer, self._timeline = io.BytesIO(), timeline
        self._times = [float(timeline.times[number]) for number in frames]
        self._done, self._fits = 0, request.size is not None
        width, height = request.size or (timeline.width, timeline.height)
        # H.264 in 4:2:0 has even sizes.
        self.size = (max(2, width - width % 2), max(2, height - height % 2))
        self._file: Any = av.open(self._buffer, "w", format=request.container)
        rate = Fraction(_REEL_RATE) if request.reel else Fraction(timeline.fps).limit_denominator(100_000)
        self._video = self._file.add_stream("libx264", rate=rate, options=_QUALITY)
        self._video.width, self._video.height, self._video.pix_fmt = *self.size, "yuv420p"
        self._video.codec_context.time_base = Fraction(1, _TICKS)
        self._packets: list[Any] = []
        self._audio = None if sound is None else self._file.add_stream("aac", rate=_RATE, layout=_LAYOUT)
        if sound is not None:
            self._packets = list(_encoded_sound(self._audio, sound))

    def add(self, frame: Any) -> None:
        """Encode the next frame."""
        import av

        picture = self._picture(frame)
        picture.pts = round((self._times[self._done] - self._times[0]) * _TICKS)
        picture.time_base, picture.pict_type = Fraction(1, _TICKS), av.video.frame.PictureType.NONE
        self._done += 1
        self._mux(self._video.encode(picture))

    def _picture(self, frame: Any) -> Any:
        import av

        timeline, (width, height) = self._timeline, self.size
        if timeline.rotation or timeline.mirrored:
            turned = upright(frame, timeline.rotation, timeline.mirrored)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(turned), format="rgb24")
        if not self._fits:
            return frame.reformat(width, height, "yuv420p")
        scale = min(width / frame.width, height / frame.height)
        inner = (max(2, round(frame.width * scale)), max(2, round(frame.height * scale)))
        small = frame.reformat(*inner, "rgb24").to_ndarray()
        whole = np.zeros((height, width, 3), dtype=np.uint8)
        top, left = (height - inner[1]) // 2, (width - inner[0]) // 2
        whole[top : top + inner[1], left : left + inner[0]] = small
        return av.VideoFrame.from_ndarray(whole, format="rgb24").reformat(format="yuv420p")

    def _mux(self, packets: Sequence[Any]) -> None:
        for packet in packets:
            while self._packets and packet.pts is not None and _seconds(self._packets[0]) <= _seconds(packet):
                self._file.mux(self._packets.pop(0))
            self._file.mux(packet)

    def finish(self, seconds: float) -> bytes:
        """The content of the file."""
        rest = list(self._video.encode(None))
        if rest and rest[-1].pts is not None:
            rest[-1].duration = round(seconds / rest[-1].time_base) - rest[-1].pts
        self._mux(rest)
        self._file.mux(self._packets)
        self._file.close()
        return self._buffer.getvalue()


def _seconds(packet: Any) -> float:
    return float((packet.pts or 0) * packet.time_base)


def _encoded_sound(stream: Any, sound: np.ndarray) -> Iterator[Any]:
    import av

    for place in range(0, sound.shape[1], _CHUNK):
        samples = np.ascontiguousarray(sound[:, place : place + _CHUNK])
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=_LAYOUT)
        frame.sample_rate, frame.pts, frame.time_base = _RATE, place, Fraction(1, _RATE)
        yield from stream.encode(frame)
    yield from stream.encode(None)


def _sound(request: CutRequest, index: Index, start: float, end: float) -> np.ndarray:
    """Samples [2, n] of these seconds, silent where the file has none; no samples if it has no sound at all."""
    wanted, parts, at = round((end - start) * _RATE), list[np.ndarray](), 0
    with open_video(request.path) as (container, stream):
        audio = next((track for track in container.streams.audio if track.codec_context is not None), None)
        if audio is None:
            return np.zeros((2, wanted if request.reel else 0), dtype=np.float32)
        zero = _zero(stream, index)
        if index.pts is not None and start > _LEAD:
            container.seek(round((zero + start - _LEAD) * 1e6))
        for time, samples in _samples(container, audio):
            # Of the clip; negative: before it.
            place = round((time - zero - start) * _RATE)
            if place >= wanted:
                break
            inside, place = samples[:, max(0, -place) : max(0, wanted - place)], max(0, place)
            # What is missing is silence; what overlaps is skipped.
            parts.append(np.zeros((2, max(0, place - at)), dtype=np.float32))
            parts.append(inside[:, max(0, at - place) :])
            at = max(at, place + inside.shape[1])
    parts.append(np.zeros((2, max(0, wanted - at)), dtype=np.float32))
    return np.concatenate(parts, axis=1)


def _samples(container: Any, audio: Any) -> Iterator[tuple[float, np.ndarray]]:
    """Decoded sound with its time; unreadable packets are left out."""
    import av

    # FFmpeg makes a single channel quieter when it makes two of it.
    layout = "mono" if audio.codec_context.channels == 1 else _LAYOUT
    resampler, first, count = av.AudioResampler(format="fltp", layout=layout, rate=_RATE), None, 0
    for packet in container.demux(audio):
        try:
            frames = packet.decode()
        except av.FFmpegError:
            continue
        for frame in frames:
            if first is None:
                first = float((frame.pts or 0) * frame.time_base)
            frame.pts = None
            for piece in resampler.resample(frame):
                samples = np.broadcast_to(piece.to_ndarray(), (2, piece.samples))
                yield first + count / _RATE, samples
                count += samples.shape[1]


def _zero(stream: Any, index: Index) -> float:
    """When the first frame is shown, by the clock of the file."""
    ticks = stream.start_time if index.pts is None else int(index.pts[0])
    return float((ticks or 0) * stream.time_base)


def _copied(request: CutRequest, index: Index, frames: range) -> Clip:
    """Copy packets from the keyframe before the first frame on, until all frames before the end are there."""
    import av

    if index.pts is None or not len(index.keyframes):
        raise CutError(f"{request.path}: its time stamps do not allow copying; cut it exactly")
    key = int(index.keyframes[max(0, int(np.searchsorted(index.keyframes, frames.start, side="right")) - 1)])
    begin = int(index.pts[key])
    end = int(index.pts[frames.stop]) if frames.stop < len(index.pts) else None
    buffer = io.BytesIO()
    try:
        with (
            open_video(request.path) as (container, stream),
            av.open(buffer, "w", format=request.container) as out,
        ):
            tracks = [stream, *container.streams.audio[:1]]
            targets = {track.index: out.add_stream_from_template(track) for track in tracks}
            zero = begin * stream.time_base
            span = (zero, None if end is None else end * stream.time_base)
            packets = _packets(container, tracks, span, frames.stop - key)
            _order([packet for packet in packets if packet.stream.index == stream.index])
            for packet in packets:
                shift = round(zero / packet.time_base)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = targets[packet.stream.index]
                out.mux(packet)
    except (av.FFmpegError, ValueError) as error:
        if isinstance(error, DecodeError):
            raise
        raise CutError(f"{request.path}: cannot be copied into {request.container}; cut it exactly") from None
    size = index.timeline.width, index.timeline.height
    start, count = float(index.timeline.times[key]), frames.stop - key
    return Clip(buffer.getvalue(), start, _end(index, frames), count, size, len(tracks) > 1)


def _packets(container: Any, tracks: Sequence[Any], span: tuple[Fraction, Fraction | None], count: int) -> list[Any]:
    """Packets from the keyframe at which the span begins; some containers cannot be sought exactly."""
    begin = round(span[0] / tracks[0].time_base)
    for place in (begin, int(tracks[0].start_time or 0)):
        container.seek(place, stream=tracks[0])
        packets = list(_until(container, tracks, span, count))
        if any(packet.stream.index == tracks[0].index and packet.pts == begin for packet in packets):
            break
    return packets


def _order(packets: Sequence[Any]) -> None:
    """Decoding times of frames, which some containers do not have: in order, and none after a frame is shown."""
    shown = sorted(packet.pts for packet in packets)
    delay = max((time - packet.pts for time, packet in zip(shown, packets, strict=True)), default=0)
    for time, packet in zip(shown, packets, strict=True):
        packet.dts = time - delay


def _until(container: Any, tracks: Sequence[Any], span: tuple[Fraction, Fraction | None], count: int) -> Iterator[Any]:
    """Packets of some seconds: until ``count`` frames of the video are there, and of the sound to the same end.

    In the order of decoding, frames may come before one that is shown earlier: those beyond the end that come before
    the last one are copied, too.
    """
    begin, end = span
    ended: set[int] = set()
    for packet in container.demux(list(tracks)):
        if not packet.size or packet.pts is None or packet.stream.index in ended:
            continue
        time = packet.pts * packet.time_base
        inside = begin <= time and (end is None or time < end)
        is_video = packet.stream.index == tracks[0].index
        count -= is_video and inside
        if inside or (is_video and time >= begin):
            yield packet
        if count <= 0 if is_video else end is not None and time >= end:
            ended.add(packet.stream.index)
        if len(ended) == len(tracks):
            return


def join_clips(reel: Reel) -> bytes:
    """The job of a worker: clips that were cut for a reel, one after the other."""
    import av

    buffer, begins, last = io.BytesIO(), 0.0, dict[str, int]()
    with av.open(buffer, "w", format=reel.container) as out:
        targets: dict[str, Any] = {}
        for clip in reel.clips:
            with av.open(io.BytesIO(clip.content), "r") as part:
                tracks = [part.streams.video[0], part.streams.audio[0]]
                targets = targets or {track.type: out.add_stream_from_template(track) for track in tracks}
                for packet in part.demux(tracks):
                    kind = packet.stream.type
                    if not packet.size or packet.dts is None or packet.pts is None:
                        continue
                    shift = round(begins / packet.time_base)
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    # The sound of a clip may begin before its first frame, where that of another has ended.
                    if packet.dts > last.get(kind, -1):
                        last[kind] = packet.dts
                        packet.stream = targets[kind]
                        out.mux(packet)
            begins += clip.end - clip.start
    return buffer.getvalue()
