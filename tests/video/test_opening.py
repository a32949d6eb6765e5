"""Files are read alone: a video never makes the decoder open another file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import av
import pytest

from prota.video.decode import DecodeError, read_timeline
from prota.video.opening import given, opened
from tests.video.clips import decode_frames, write_clip

# {0}: the absolute path of a video elsewhere.
PLAYLISTS = {
    "concat.mp4": "ffconcat version 1.0\nfile {0}\n",
    "concat.ffconcat": "ffconcat version 1.0\nfile {0}\n",
    "relative.mp4": "ffconcat version 1.0\nfile clip.mp4\n",
    "hls.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{0}\n#EXT-X-ENDLIST\n",
    "hls.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfile://{0}\n#EXT-X-ENDLIST\n",
    "dash.mpd": (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
        '<Representation id="0" mimeType="video/mp4" bandwidth="1"><BaseURL>{0}</BaseURL></Representation>'
        "</AdaptationSet></Period></MPD>"
    ),
    "session.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    "%03d.jpg.mp4": "no picture",
}


@pytest.mark.parametrize("name", PLAYLISTS)
def test_playlists_are_rejected(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    clip = write_clip(secret / "clip.mp4", 5)
    path = tmp_path / name
    if name == "relative.mp4":
        write_clip(tmp_path / "clip.mp4", 5)
    path.write_text(PLAYLISTS[name].format(clip))
    with pytest.raises(DecodeError, match="cannot open") as caught:
        read_timeline(path)
    assert str(clip) not in str(caught.value)


def test_a_movie_with_its_frames_in_another_file_is_rejected(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", 5)
    path = tmp_path / "outside.mov"
    path.write_bytes(with_reference(clip.read_bytes(), bytes(clip)))
    # Where FFmpeg is asked to, it reads the other file.
    with av.open(str(path), options={"enable_drefs": "1", "use_absolute_path": "1"}) as container:
        assert sum(bool(packet.size) for packet in container.demux(video=0)) == 5
    with pytest.raises(DecodeError):
        read_timeline(path)


def with_reference(movie: bytes, other: bytes) -> bytes:
    """A movie whose frames lie in another file: an alias (QuickTime's data reference) with an absolute path."""
    record = struct.pack(">HH", 2, len(other)) + other + bytes(len(other) % 2) + struct.pack(">HH", 0xFFFF, 0)
    alias = bytes(4 + 150) + record
    alias = struct.pack(">I4s", 8 + len(alias), b"alis") + alias
    place = movie.index(b"url ", movie.index(b"dref")) - 4
    longer = len(alias) - 12
    data = bytearray(movie[:place] + alias + movie[place + 12 :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"):
        start = data.index(box) - 4
        data[start : start + 4] = struct.pack(">I", struct.unpack(">I", data[start : start + 4])[0] + longer)
    return bytes(data)


def test_a_given_file_is_read_wherever_its_name_points(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", 5)
    descriptor = os.open(path, os.O_RDONLY)
    path.rename(tmp_path / "elsewhere.mp4")
    with given(path, descriptor):
        timeline, frames = decode_frames(path, range(5))
        assert (len(timeline.times), len(frames)) == (5, 5)
        with opened(path) as file:
            assert file.tell() == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(DecodeError, match="no such file"):
        read_timeline(path)
