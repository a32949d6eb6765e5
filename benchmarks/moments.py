"""How well moments fit the parts of a film that captions describe.

    python benchmarks/moments.py CLIPS CAPTIONS.csv --library FOLDER [--per-film 6] [--captions 3] [--shots] [--within]

Clips (in the order of CAPTIONS.csv, with its columns ``video`` or ``file`` and ``caption``) are joined to films, at one
picture a second as they are indexed, so that the parts are known to the second. Each caption is searched in its own
film (``--within``) or in all; its first moment is compared with the part. FOLDER keeps films and library for other
versions of the code.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

import prota

SIZE = (256, 192)


def pictures(path: Path) -> Iterator[av.VideoFrame]:
    """One picture a second."""
    with av.open(str(path)) as file:
        wanted = 0.0
        for frame in file.decode(video=0):
            at = float(frame.time or 0.0)
            while at + 0.001 >= wanted:
                wanted += 1.0
                yield frame.reformat(*SIZE, format="yuv420p")


def write_film(path: Path, clips: list[Path]) -> list[tuple[str, float, float]]:
    """Join clips; returns the name, start and end of each part."""
    parts, number = [], 0
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=1, options={"crf": "20", "g": "8"})
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for clip in clips:
            start = number
            for frame in pictures(clip):
                frame.pts, frame.time_base, number = number, Fraction(1), number + 1
                frame.pict_type = av.video.frame.PictureType.NONE
                film.mux(stream.encode(frame))
            parts.append((clip.name, float(start), float(number)))
        film.mux(stream.encode(None))
    return parts


def make(folder: Path, clips: list[Path], per_film: int, shots: bool) -> dict[str, tuple[str, float, float]]:
    """Films and their library; returns film, start and end of each clip."""
    films, index = folder / "films", folder / "parts.json"
    if not index.exists():
        films.mkdir(parents=True, exist_ok=True)
        found = {}
        for first in range(0, len(clips), per_film):
            name = f"film{first // per_film:03d}.mp4"
            for clip, start, end in write_film(films / name, clips[first : first + per_film]):
                found[clip] = (name, start, end)
        index.write_text(json.dumps(found))
    place = folder / ("shots" if shots else "plain")
    prota.Library(place).index(films, shots=shots)
    return {clip: tuple(part) for clip, part in json.loads(index.read_text()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--per-film", type=int, default=6)
    parser.add_argument("--most", type=int, default=60, help="clips to use")
    parser.add_argument("--captions-each", type=int, default=3)
    parser.add_argument("--shots", action="store_true")
    parser.add_argument("--within", action="store_true")
    given = parser.parse_args()
    captions: dict[str, list[str]] = {}
    with given.captions.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            captions.setdefault(row.get("video") or row["file"], []).append(row["caption"])
    clips = [given.clips / name for name in list(captions)[: given.most]]
    parts = make(given.library, clips, given.per_film, given.shots)
    captions = {Path(name).name: texts for name, texts in captions.items()}
    library = prota.Library(given.library / ("shots" if given.shots else "plain"))
    overlaps, inside, right, lengths = [], [], [], []
    for clip, (film, start, end) in parts.items():
        where = f"path like '%{film}'" if given.within else None
        for text in captions[clip][: given.captions_each]:
            hit = library.search(text, 1, where=where).hits[0]
            own = hit.path.name == film
            shared = max(0.0, min(hit.end, end) - max(hit.start, start)) if own else 0.0
            overlaps.append(shared / (max(hit.end, end) - min(hit.start, start)) if own else 0.0)
            inside.append(own and start <= hit.best < end)
            right.append(own and shared > 0)
            lengths.append(hit.end - hit.start)
    for name, values in (
        ("mean IoU", overlaps), ("IoU >= 0.5", [value >= 0.5 for value in overlaps]),
        ("IoU >= 0.7", [value >= 0.7 for value in overlaps]), ("best second inside the part", inside),
        ("moment touches the part", right),
    ):  # fmt: skip
        print(f"{name}: {100 * float(np.mean(values)):.1f} %")
    print(f"{len(overlaps)} captions, {len(parts)} parts; mean length of a moment {np.mean(lengths):.1f} s")


if __name__ == "__main__":
    main()
