"""Whether a file has the frames that its container announces, so that a damaged one is not taken for a short one.

Compared are the packets with the number of frames and the length in the header, the decoded frames with the packets,
and the time stamps with what cameras can record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prota.video.timeline import DecodeError, Times

__all__ = ["COMPLETE_SHARE", "Packets", "check_frames", "check_packets", "check_times"]

# A file with less than this share of what its header announces is damaged; headers may be wrong by a few frames.
COMPLETE_SHARE = 0.9
# Seconds by which a length in a header may be wrong.
SLACK = 0.5
# Times its length by which a video of few, long frames may end later, when they are not shown in the order of the file.
REORDERED = 10
# Containers whose headers have a length; that of others is estimated by FFmpeg.
MOVIE, TIMED = "mov,mp4,m4a,3gp,3g2,mj2", ("matroska,webm", "asf", "flv", "live_flv", "nut", "mxf", "wtv")
# Containers without an index of all packets, and the most bytes of their headers.
HEADER, GROUPED = 8192, ("matroska,webm", "flv", "live_flv")
# Frames a second; files of faster cameras are made to be shown slowly.
FASTEST = 1000
# In more than an hour of video, frames are shown for at least this share of the time.
HOUR, LEAST_SHOWN = 3600, 0.01


@dataclass
class Packets:
    """The packets of a file."""

    stamps: list[Any] = field(default_factory=list)
    """Presentation time stamps of the frames that are shown, in the order of the file."""
    keyframes: list[int] = field(default_factory=list)
    """Those at which decoding can start."""
    count: int = 0
    """Of the video stream, also of frames that an edit list hides."""
    hidden: int = 0
    """Frames that an edit list hides, but for those before the first that it shows."""
    lead: int = 0
    """Frames before the first keyframe, if no header counts frames: a recording may start anywhere."""
    slots: list[Any] = field(default_factory=list)
    """Decoding time stamps, as `stamps`."""
    ends: dict[int, int] = field(default_factory=dict)
    """The end of the last packet of each stream, in its time base."""

    position: int = 0
    """Where the last packet ends in the file."""
    hole: int = 0
    """The most bytes between two packets, or before the first."""

    def add(self, packet: Any, video: int) -> None:
        if packet.pos is not None and packet.pos >= 0:
            self.hole = max(self.hole, packet.pos - self.position)
            self.position = max(self.position, packet.pos + packet.size)
        if packet.pts is not None and not packet.is_discard:
            end = packet.pts + (packet.duration or 0)
            self.ends[packet.stream_index] = max(self.ends.get(packet.stream_index, end), end)
        if packet.stream_index != video or not packet.size:
            return
        self.count += 1
        if packet.is_discard:
            self.hidden += bool(self.stamps)
            return
        if packet.is_keyframe and not self.keyframes:
            self.lead = len(self.stamps)
        self.stamps.append(packet.pts)
        self.slots.append(packet.dts)
        if packet.is_keyframe and packet.pts is not None:
            self.keyframes.append(packet.pts)


def check_packets(path: Path, container: Any, stream: Any, packets: Packets) -> None:
    """A DecodeError if packets are missing, or end much before or after the length in the header."""
    slots = [slot for slot in packets.slots if slot is not None]
    # In AVI a frame may be empty, and the last one is shown in its place.
    count = max(packets.count, *slots, 0) if container.format.name == "avi" else packets.count
    if missing(count, stream.frames):
        raise DecodeError(f"{path}: damaged: only {count} of its {stream.frames} frames are there")
    if stream.frames:
        packets.lead = 0
    # Programs that cut without encoding hide frames before the first that is shown, but leave out those after the last.
    if missing(len(packets.stamps), len(packets.stamps) + packets.hidden):
        raise DecodeError(f"{path}: damaged: its edit list shows only {len(packets.stamps)} of {packets.count} frames")
    # Readers skip a damaged group of packets, and go on with the next.
    attached = any(other.type == "attachment" for other in container.streams)
    lost = max(packets.hole, container.size - packets.position)
    most = HEADER + (1 - COMPLETE_SHARE) * container.size
    if container.format.name in GROUPED and not attached and lost > most:
        raise DecodeError(f"{path}: damaged: {lost} of its {container.size} bytes cannot be read")
    announced = _announced(container, stream, packets)
    if not announced:
        return
    bases = {other.index: float(other.time_base) for other in container.streams}
    # In a movie each stream has its length.
    counted = {stream.index} & packets.ends.keys() if container.format.name == MOVIE else packets.ends.keys()
    end = max((packets.ends[index] * bases[index] for index in counted), default=0.0)
    origin, base = float((stream.start_time or 0) * stream.time_base), bases[stream.index]
    # Lengths count from zero or from the first frame.
    if max(end, end - origin) < COMPLETE_SHARE * announced - SLACK:
        raise DecodeError(f"{path}: truncated: {end:.1f} of {announced:.1f} s")
    # The last frame is shown later than it is decoded, by as long as frames between it and others last.
    decoded = (max(slots) - max(0, min(slots))) * base if slots else 0.0
    if decoded > announced / COMPLETE_SHARE + SLACK or end - max(0.0, origin) > REORDERED * (announced + SLACK):
        raise DecodeError(f"{path}: damaged: its frames end at {end:.1f} s, its header says {announced:.1f} s")


def _announced(container: Any, stream: Any, packets: Packets) -> float:
    """The length in the header in seconds; 0: none."""
    if container.format.name in TIMED:
        return (container.duration or 0) / 1e6
    # A movie in fragments has frames that its header does not count.
    if container.format.name == MOVIE and stream.duration and packets.count <= stream.frames:
        return float(stream.duration * stream.time_base)
    return 0.0


def check_frames(path: Path, shown: int, packets: Packets, *, halved: bool) -> None:
    """A DecodeError if much fewer frames can be decoded than packets announce.

    ``halved``: up to half of the packets give no frame of their own, because they are fields or only referred to.
    """
    expected = len(packets.stamps) - packets.lead
    expected = expected // 2 if halved else expected
    if missing(shown, expected):
        raise DecodeError(f"{path}: damaged: only {shown} of {expected} frames can be decoded")


def check_times(path: Path, times: Times, duration: float) -> None:
    """A DecodeError if frames are absurdly close, or alone in hours."""
    count = len(times)
    if count > FASTEST * duration + 1:
        raise DecodeError(f"{path}: damaged: {count} frames in {duration:.4f} s")
    shown = count * float(np.median(np.diff(times))) if count > 1 else 0.0
    if duration > HOUR and shown < LEAST_SHOWN * duration:
        raise DecodeError(f"{path}: damaged: {count} frames for {shown:.1f} s in {duration / HOUR:.1f} h")


def missing(found: int, announced: int) -> bool:
    """Whether more than a tenth is missing; a single frame never counts."""
    return announced - found > 1 and found < COMPLETE_SHARE * announced
