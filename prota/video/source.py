"""Read a video from any time, for people: by seeking, and past what is corrupt.

`prota.video.decode` reads the frames for a model instead: exactly those of its timeline, or an error.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.pyav import frame_rate, load_av, open_video, orientation, upright
from prota.video.timeline import Picture

__all__ = ["CLOSE", "THREADS", "Source", "codec_of"]

# Seconds. The API rounds times to milliseconds.
CLOSE = 1e-3
# Seconds to seek back for a key frame; after these, everything from the start is read.
BACK = (0.0, 2.0, 10.0, 60.0)
# Threads of a decoder or an encoder: several videos are watched at a time.
THREADS = 2
# Packets among which the first frame to be shown is.
REORDERED = 40
# Bytes of a key frame: AVI has smaller packets where a frame is repeated.
KEY_FRAME = 16
# Seconds between key frames up to which packets are copied, because a part begins and ends with one.
LONGEST_GROUP = 12.0


def codec_of(stream: Any) -> str:
    """The name of the format, of which FFmpeg may have several decoders; empty without a stream."""
    if stream is None:
        return ""
    return str(stream.codec.canonical_name) if stream.codec_context is not None else "unknown"


class Source:
    """An open video; times are seconds from its first frame."""

    def __init__(self, path: Path, container: Any, stream: Any) -> None:
        self.path, self.container, self.stream = path, container, stream
        self.sound = next((sound for sound in container.streams.audio if sound.codec_context is not None), None)
        self.rate = frame_rate(stream)
        packets = [packet for packet in islice(self._packets(), REORDERED) if not packet.is_discard]
        stamps = [packet.pts for packet in packets]
        # Frames of AVI and of raw streams have no times; AVI numbers its packets.
        self.counted = None in stamps or not stamps or container.format.name == "avi"
        self._first = 0 if self.counted else min(stamps)
        self._first_key = next((packet.pts for packet in packets if packet.is_keyframe), None)
        # Old x264 says in the first packet alone how its 4:4:4 is decoded.
        self._whole = codec_of(stream) == "h264" and "444" in str(stream.codec_context.pix_fmt)
        self.offset = float(self._first * stream.time_base)
        """Seconds from the start of the file to the first frame."""

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[Source]:
        """DecodeError if the file cannot be read."""
        with open_video(path, THREADS) as (container, stream):
            # Corrupt frames are shown as well as possible.
            stream.codec_context.options = {}
            yield cls(path, container, stream)
        # Containers and their streams refer to each other, and keep their threads.
        gc.collect()

    def time(self, stamp: int, stream: Any = None) -> float:
        return float(stamp * (stream or self.stream).time_base) - self.offset

    def frames(self, since: float) -> Iterator[tuple[float, Any]]:
        """Frames and their times, from one that is shown at a time or before it."""
        for start in self._starts(0.0 if self._whole else since):
            frames = self._decoded(begun=start)
            first = next(frames, None)
            if first is not None and (start or first[0] <= since + CLOSE):
                yield first
                yield from frames
                return

    def upright(self, frame: Any) -> Picture:
        """A frame as RGB, as people see it."""
        return np.ascontiguousarray(upright(frame, *orientation(self.path, frame)))

    def is_turned(self, frame: Any) -> bool:
        return orientation(self.path, frame) != (0, False)

    def has_key_frames(self) -> bool:
        """Whether packets have times, and key frames are near each other, as far as the beginning tells."""
        if self.counted or self._first_key is None:
            return False
        self._rewind()
        for number, packet in enumerate(self._packets()):
            if packet.pts is None or self.time(packet.pts) > LONGEST_GROUP:
                return False
            if number and packet.is_keyframe:
                break
        return True

    def key_frame(self, time: float) -> int:
        """The time stamp of the last key frame at a time or before it, or that of the first one."""
        assert self._first_key is not None
        found = self._first_key
        for _ in self._starts(time):
            for packet in self._packets():
                stamp, decoded = packet.pts, packet.pts if packet.dts is None else packet.dts
                if packet.is_keyframe and stamp is not None and self.time(stamp) <= time + CLOSE:
                    found = max(found, stamp)
                if decoded is not None and self.time(decoded) > time + CLOSE:
                    break
            if found > self._first_key:
                break
        return int(found)

    def group(self, first: int, after: int | None) -> Iterator[Any]:
        """Packets from one key frame to another, which is the last one, in the order of decoding."""
        for _ in self._starts(self.time(first)):
            packets = self._packets()
            found = next((packet for packet in packets if packet.is_keyframe and (packet.pts or 0) >= first), None)
            if found is not None and found.pts == first:
                yield found
                for packet in packets:
                    yield packet
                    if packet.is_keyframe and packet.pts == after:
                        break
                return

    def heard(self, since: float, until: float) -> list[Any]:
        """Packets of the sound, from those that are heard at a time or before it."""
        packets: list[Any] = []
        # Sound may be stored far from the frames of its time.
        for start in self._starts(since - BACK[1]):
            packets = self._heard(until)
            if start or (packets and self.time(packets[0].pts, self.sound) <= since):
                break
        return packets

    def _heard(self, until: float) -> list[Any]:
        packets = []
        for packet in self.container.demux(self.sound):
            if packet.size and packet.pts is not None:
                if self.time(packet.pts, self.sound) >= until:
                    break
                packets.append(packet)
        return packets

    def _packets(self) -> Iterator[Any]:
        """Of the video from the current position, without the last one, which is empty."""
        return (packet for packet in self.container.demux(self.stream) if packet.size)

    def _decoded(self, *, begun: bool) -> Iterator[tuple[float, Any]]:
        """From the current position, or from the next key frame."""
        number = 0 if begun else None
        for packet in self.container.demux(self.stream):
            begun = begun or (packet.is_keyframe and packet.size > KEY_FRAME)
            if not begun:
                continue
            if number is None:
                number = packet.dts or 0
            try:
                frames = packet.decode()
            except load_av().FFmpegError:
                continue
            for frame in frames:
                if self.counted:
                    yield number / self.rate, frame
                    number += 1
                elif frame.pts is not None:
                    yield self.time(frame.pts), frame

    def _starts(self, time: float) -> Iterator[bool]:
        """Go to a time, then further and further before it, and at last to the start, which is True.

        Not all containers have an index: a seek may lead to a later key frame.
        """
        for back in BACK:
            if time <= back or not self._seek(time - back):
                break
            yield False
        self._rewind()
        yield True

    def _seek(self, time: float) -> bool:
        try:
            self.container.seek(round((time + self.offset) / self.stream.time_base), stream=self.stream)
        except OSError:
            return False
        return True

    def _rewind(self) -> None:
        # Frames may be decoded before the first one is shown; but AVI has no times below 0, and raw streams have none.
        if not self._seek(-1.0) and not self._seek(0.0):
            self.container.seek(0, unsupported_byte_offset=True)
