"""What an hour of video costs before any model sees it: CPU time of reading its frames, and bytes of its thumbnails.

    python benchmarks/decoding.py FOLDER [--clips 40] [--height 720]

Frames and thumbnails are read as `prota index` does by default, a frame a second, by one process and one thread. With
--height the clips are first enlarged and encoded anew (H.264, a keyframe every 2 s), which larger videos come near to,
though a real one has finer details and so costs more. CPU time counts: other work on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import av

from prota.library.indexing.reading import PART, ReadRequest, VideoContent, read_video
from prota.library.segments import SegmentPlan
from prota.video.walk import FoundFile, walk

SIZE = 196


def enlarged(path: Path, height: int, folder: Path) -> Path:
    made = folder / f"{path.stem}.mp4"
    with av.open(str(path)) as source, av.open(str(made), "w") as target:
        old = source.streams.video[0]
        assert old.average_rate is not None
        rate = round(old.average_rate)
        new = target.add_stream("libx264", rate=rate, options={"preset": "veryfast", "g": str(2 * rate)})
        new.height, new.width, new.pix_fmt = height, round(height * old.width / old.height / 2) * 2, "yuv420p"
        for frame in source.decode(old):
            target.mux(new.encode(frame.reformat(new.width, new.height, "yuv420p")))
        target.mux(new.encode(None))
    return made


def read(path: Path) -> list[VideoContent]:
    parts = [read_video(ReadRequest(path, SegmentPlan(), SIZE))]
    while parts[-1].first + PART < parts[-1].total:
        parts.append(read_video(ReadRequest(path, SegmentPlan(), SIZE, first=parts[-1].first + PART)))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--height", type=int, default=0, help="enlarge to this height first; 0: as they are")
    options = parser.parse_args()
    files = [found.path for found in walk([options.folder]) if isinstance(found, FoundFile)][: options.clips]
    with tempfile.TemporaryDirectory() as folder:
        if options.height:
            files = [enlarged(path, options.height, Path(folder)) for path in files]
        read(files[0])
        before = time.process_time()
        contents = [part for path in files for part in read(path)]
        taken = time.process_time() - before
    hours = sum(part.duration for part in contents if part.first == 0) / 3600
    pictures = [len(picture) for part in contents for picture in part.thumbnails]
    sizes = sorted({(part.width, part.height) for part in contents})
    print(
        f"{platform.machine()}: {len(files)} clips, {60 * hours:.1f} minutes, {len(pictures)} segments, {sizes[0]} to "
        f"{sizes[-1]}: {taken / hours:.0f} s of CPU an hour of video, thumbnails of "
        f"{sum(pictures) / len(pictures):.0f} bytes"
    )


if __name__ == "__main__":
    main()
