"""The clips, their captions and sources agree; copies are complete, and the user's own files stay."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections import defaultdict
from pathlib import Path

import av
import numpy as np
import pytest

from prota.data.videos import find_videos
from prota.files import hold, write_atomically
from prota.samples import copying
from prota.samples.copying import CLIPS, Copied, SamplesError, copy_samples
from prota.video.decode import decode_chosen, read_timeline
from tests.processes import REPOSITORY

NAMES = sorted(path.name for path in CLIPS.glob("*.mp4"))


def rows(folder: Path) -> dict[str, dict[tuple[float, float], list[str]]]:
    """Captions of each moment of each clip."""
    found: dict[str, dict[tuple[float, float], list[str]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "samples.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["video"]][float(row["start"]), float(row["end"])].append(row["caption"])
    return found


def sources(folder: Path) -> dict[str, str]:
    lines = (folder / "sources.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if ".mp4: " in line)


def modified(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != ".lock"}


def test_the_table_covers_every_clip_from_start_to_end() -> None:
    table = rows(CLIPS)
    assert sorted(table) == NAMES
    assert find_videos(CLIPS, table).missing == []
    for name, moments in table.items():
        times = sorted(moments)
        assert times[0][0] == 0
        assert times[-1][1] == pytest.approx(read_timeline(CLIPS / name).duration, abs=0.01)
        assert all(first[1] == second[0] for first, second in itertools.pairwise(times))
        assert all(len(captions) == 2 for captions in moments.values())
    captions = [caption for moments in table.values() for found in moments.values() for caption in found]
    assert len(set(captions)) == len(captions)


def test_a_moment_starts_with_a_cut() -> None:
    """The last frame before it and its first differ more than any two neighbours within half a second after it."""
    tried = 0
    for name, moments in rows(CLIPS).items():
        fps = read_timeline(CLIPS / name).fps
        for start, _ in moments:
            if start > 0:
                first = round(start * fps)
                _, _, frames = decode_chosen(CLIPS / name, lambda _, first=first: tuple(range(first - 1, first + 5)))
                jumps = [
                    float(np.abs(one.astype(float) - two).mean())
                    for one, two in itertools.pairwise(np.asarray(frames))
                ]  # fmt: skip
                assert jumps[0] > 1.5 * max(jumps[1:]), (name, start, jumps)
                tried += 1
    assert tried == 6


def test_clips_are_small_h264_and_carry_mark_and_source() -> None:
    assert sum(path.stat().st_size for path in CLIPS.iterdir()) <= 3_000_000
    listed = sources(CLIPS)
    assert sorted(listed) == NAMES
    for name in NAMES:
        timeline = read_timeline(CLIPS / name)
        assert (timeline.width, timeline.codec) == (320, "h264")
        with av.open(str(CLIPS / name)) as file:
            assert file.metadata["comment"] == "prota samples"
            assert file.metadata["copyright"] == listed[name]


def test_the_page_lists_clips_and_licences() -> None:
    page = (REPOSITORY / "docs" / "samples.md").read_text(encoding="utf-8")
    for name, source in sources(CLIPS).items():
        author, licence, _ = source.split("; ")
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name.removesuffix('.mp4')}` |"))
        assert author in line
        assert licence.split(" (")[0] in line


def test_copies_are_the_same_bytes_and_a_second_run_touches_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert copy_samples(folder) == Copied(copied=NAMES, unchanged=[], removed=[])
    assert sorted(path.name for path in folder.iterdir()) == sorted([".lock", "samples.csv", "sources.txt", *NAMES])
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in CLIPS.iterdir())
    before = modified(folder)
    assert copy_samples(folder) == Copied(copied=[], unchanged=NAMES, removed=[])
    assert modified(folder) == before


def earlier(folder: Path) -> None:
    """A clip, table and sources as earlier versions made them."""
    folder.mkdir(exist_ok=True)
    with av.open(str(folder / "coins.mp4"), "w", format="mp4") as file:
        file.metadata["comment"] = "prota samples 0123456789abcdef"
        stream = file.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 48, 36, "yuv420p"
        file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((36, 48, 3), np.uint8), format="rgb24")))
        file.mux(stream.encode(None))
    shutil.copy(folder / "coins.mp4", folder / "cat.mp4")
    (folder / "samples.csv").write_text("video,caption,start,end\ncoins.mp4,rows of coins,0,1\ncat.mp4,a cat,0,1\n")
    (folder / "sources.txt").write_text("Made by `prota samples`: photographs\n")


def test_clips_of_an_earlier_version_are_replaced_or_removed(tmp_path: Path) -> None:
    earlier(tmp_path)
    (tmp_path / "mine.mp4").write_bytes(b"my holiday")
    # A copy under another name has the mark, but is in no table.
    shutil.copy(tmp_path / "coins.mp4", tmp_path / "copy.mp4")
    with (tmp_path / "samples.csv").open("a", encoding="utf-8") as file:
        file.write("mine.mp4,my holiday,0,1\nlost.mp4,gone long ago,0,1\n")
    assert copy_samples(tmp_path) == Copied(copied=NAMES, unchanged=[], removed=["coins.mp4"])
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == sorted([*NAMES, "copy.mp4", "mine.mp4"])
    assert sorted(rows(tmp_path)) == NAMES
    assert (tmp_path / "cat.mp4").read_bytes() == (CLIPS / "cat.mp4").read_bytes()


@pytest.mark.parametrize("name", ["telescope.mp4", "samples.csv", "sources.txt"])
def test_a_users_own_file_stops_the_run_before_it_changes_anything(tmp_path: Path, name: str) -> None:
    earlier(tmp_path)
    (tmp_path / name).write_bytes(b"my own")
    before = modified(tmp_path)
    with pytest.raises(SamplesError):
        copy_samples(tmp_path)
    assert (tmp_path / name).read_bytes() == b"my own"
    assert modified(tmp_path) == before


def test_a_second_process_does_not_wait(tmp_path: Path) -> None:
    with hold(tmp_path / ".lock"), pytest.raises(SamplesError):
        copy_samples(tmp_path)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_run_that_fails_leaves_complete_clips_and_the_next_copies_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    calls = itertools.count()

    def failing(path: Path, content: bytes) -> None:
        if next(calls) == 2:
            raise error
        write_atomically(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "write_atomically", failing)
        with pytest.raises(type(error)):
            copy_samples(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", *NAMES[:2]]
    # As a killed process leaves them.
    (tmp_path / f".{NAMES[2]}.123.tmp").write_bytes(b"half")
    (tmp_path / ".mine.mp4.tmp").write_bytes(b"my own")
    assert copy_samples(tmp_path) == Copied(copied=NAMES[2:], unchanged=NAMES[:2], removed=[])
    assert [path.name for path in tmp_path.glob(".*tmp")] == [".mine.mp4.tmp"]
