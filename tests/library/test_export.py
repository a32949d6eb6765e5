"""Exported moments are read back and compared."""

from __future__ import annotations

import csv
import io
import json
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import opentimelineio as otio
import pytest

from prota.errors import UsageError
from prota.library.records import VideoRecord
from prota.library.search.export import FORMATS, ExportError, export, frames_of, rate_of
from prota.library.search.hits import Hit, Results
from prota.library.search.rows import Coverage


def hit(name: str, start: float, end: float, *, fps: float = 25.0, kind: Any = "video", good: bool = True) -> Hit:
    video = VideoRecord(
        "0" * 64, f"/v/{name}", 1, 0, "indexed", duration=20.0 if kind == "video" else 0.0, fps=fps, segments=1
    )
    return Hit(video, start, end, 0.3, (start + end) / 2, 0, 0.8 if good else 0.1)


def results(*hits: Hit, text: str = "a dog") -> list[tuple[str, Hit]]:
    query: Any = SimpleNamespace(text=text, cut=False, like=None)
    return [(text, hit) for hit in Results(query, list(hits), 0.5, Coverage())]


HITS = (
    hit("a, b.mp4", 1.04, 2.6), hit("ä b.mov", 10.0, 12.48), hit("weak.mp4", 0, 1, good=False),
    hit("p.jpg", 0, 0, kind="picture"),
)  # fmt: skip
FRAMES = [(26, 39), (250, 62)]


def read(path: Path, rate: float = 25.0) -> list[tuple[str, float, float, float]]:
    """Name, first frame, number of frames and rate of each clip of a time line."""
    options = {"rate": rate} if path.suffix == ".edl" else {}
    timeline = otio.adapters.read_from_file(str(path), **options)
    spans = [(clip.name, clip.source_range) for clip in timeline.find_clips()]
    return [(name, span.start_time.value, span.duration.value, span.start_time.rate) for name, span in spans]


@pytest.mark.parametrize("suffix", [".otio", ".edl", ".fcpxml"])
def test_time_lines_come_back_frame_by_frame(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    assert export(results(*HITS), path) == 2
    found = read(path)
    assert [(first, count) for _, first, count, _ in found] == FRAMES
    assert {rate for *_, rate in found} == {25.0}
    assert [name for name, *_ in found] == ["a, b.mp4", "ä b.mov"]


def test_every_video_keeps_its_rate(tmp_path: Path) -> None:
    hits = (hit("a.mp4", 1.0, 2.0, fps=24), hit("b.mp4", 1.001, 2.002, fps=30000 / 1001))
    export(results(*hits), tmp_path / "x.otio")
    assert read(tmp_path / "x.otio") == [
        ("a.mp4", 24, 24, 24.0),
        ("b.mp4", 30, 30, pytest.approx(30000 / 1001)),
    ]
    export(results(*hits), tmp_path / "x.edl")
    assert [(first, count) for _, first, count, _ in read(tmp_path / "x.edl", 24)] == [(24, 24), (24, 24)]
    export(results(*reversed(hits)), tmp_path / "y.edl")
    assert read(tmp_path / "y.edl", 30000 / 1001)[0][1:3] == (30, 30)
    export(results(*hits), tmp_path / "x.fcpxml")
    text = (tmp_path / "x.fcpxml").read_text(encoding="utf-8")
    assert 'frameDuration=""' not in text
    assert 'frameDuration="1001/30000s"' in text
    starts = [Fraction(start) for start in re.findall(r'<clip [^>]*start="([\d/]+)s"', text)]
    assert starts == [1, Fraction(30 * 1001, 30000)]


def test_a_list_of_videos_with_a_strange_rate_has_a_usual_one(tmp_path: Path) -> None:
    export(results(hit("a.mp4", 3.0, 5.0, fps=1.0)), tmp_path / "x.edl")
    assert [(first, count) for _, first, count, _ in read(tmp_path / "x.edl")] == [(75, 50)]


def test_tables_have_all_good_matches(tmp_path: Path) -> None:
    assert export(results(*HITS) + results(HITS[0], text="two, three"), tmp_path / "x.csv") == 4
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text(encoding="utf-8"))))
    assert [row["query"] for row in rows] == ["a dog"] * 3 + ["two, three"]
    assert (rows[0]["path"], float(rows[0]["start"]), int(rows[0]["first_frame"])) == ("/v/a, b.mp4", 1.04, 26)
    assert export(results(*HITS), tmp_path / "x.json") == 3
    found = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert [(row["first_frame"], row["frames"], row["kind"]) for row in found] == [
        (26, 39, "video"), (250, 62, "video"), (0, 0, "picture")
    ]  # fmt: skip


def test_a_playlist_names_files_and_seconds(tmp_path: Path) -> None:
    export(results(*HITS), tmp_path / "x.m3u")
    lines = (tmp_path / "x.m3u").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["/v/a, b.mp4", "/v/ä b.mov", "/v/p.jpg"]
    assert lines[0] == "#EXTM3U"
    assert "#EXTVLCOPT:start-time=1.040" in lines
    with pytest.raises(ExportError):
        export(results(hit("a\nb.mp4", 0, 1)), tmp_path / "y.m3u")


@pytest.mark.parametrize("suffix", FORMATS)
def test_nothing_is_written_where_there_is_nothing(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        export(results(HITS[2]), tmp_path / f"x{suffix}")
    with pytest.raises(UsageError):
        export(results(*HITS), tmp_path / "x.txt")
    with pytest.raises(UsageError):
        export(results(*HITS), tmp_path / "no" / f"x{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fps", "rate"),
    [
        (25, Fraction(25)), (30, Fraction(30)), (29.97, Fraction(30000, 1001)), (23.976, Fraction(24000, 1001)),
        (59.94005994, Fraction(60000, 1001)), (12.5, Fraction(25, 2)), (1.0, Fraction(1)), (0.0, Fraction(25)),
    ],
)  # fmt: skip
def test_rates_are_meant_exactly(fps: float, rate: Fraction) -> None:
    assert rate_of(fps) == rate
    first, count, _ = frames_of(hit("a.mp4", 2.0, 2.0, fps=fps))
    assert count == 1
    assert first == pytest.approx(2 * rate, abs=1)
