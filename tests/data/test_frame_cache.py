"""A frame cache that is filled once, survives every kill, and is never wrong in silence."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prota.data import shards
from prota.data.frame_cache import CacheError, CachePlan, FrameCache, Progress, fill_cache
from prota.files import hold
from prota.video.sampling import uniform_indices
from prota.video.transforms import to_square
from tests.processes import REPOSITORY
from tests.video.clips import decode_frames, write_clip

pytestmark = pytest.mark.process

PLAN = CachePlan(frames=4, size=16)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Nine clips of different lengths, two of them shorter than the plan, and two files that are none."""
    folder = tmp_path_factory.mktemp("videos")
    found = {f"v{count}": write_clip(folder / f"v{count}.mp4", count) for count in (2, 4, 5, 12, 20, 22, 24, 28, 30)}
    (folder / "empty.mp4").touch()
    (folder / "text.mp4").write_text("no video", encoding="utf-8")
    return found | {"empty": folder / "empty.mp4", "text": folder / "text.mp4"}


def good(videos: dict[str, Path]) -> dict[str, Path]:
    return {id: path for id, path in videos.items() if id.startswith("v")}


def shard_times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("shard-*")}


def check(folder: Path, videos: dict[str, Path]) -> None:
    """Every video once, each frame the right one, nothing left over."""
    cache = FrameCache.open(folder)
    assert cache.ids == sorted(good(videos))
    assert cache.verify() == []
    stored = [video["id"] for path in folder.glob("shard-*.json") for video in json.loads(path.read_text())["videos"]]
    assert sorted(stored) == cache.ids
    assert not list(folder.glob("*.tmp"))
    for id in cache.ids:
        count = int(id[1:])
        chosen = uniform_indices(np.arange(count) / 25, count / 25, PLAN.frames)
        timeline, expected = decode_frames(videos[id], chosen.tolist(), lambda frame: to_square(frame, 16))
        # One grey level for another decoder's rounding; neighbours are eight apart.
        np.testing.assert_allclose(cache.frames(id).astype(int), np.stack(expected), atol=1)
        np.testing.assert_allclose(cache.entry(id).times, timeline.times[chosen])
        assert cache.entry(id).duration == pytest.approx(count / 25)


def test_a_cache_holds_the_right_frames(videos: dict[str, Path], tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = fill_cache(tmp_path / "cache", videos, PLAN, workers=2, on_progress=seen.append)
    assert (report.decoded, report.kept) == (9, 0)
    assert report.quarantined.keys() == {"empty", "text"}
    assert "empty file" in report.quarantined["empty"]
    assert [progress.done for progress in seen] == list(range(1, 12))
    assert (seen[-1].total, seen[-1].failed) == (11, 2)
    check(tmp_path / "cache", videos)
    cache = FrameCache.open(tmp_path / "cache")
    assert cache.plan == PLAN
    assert cache.quarantined == report.quarantined
    assert "v2" in cache
    assert "empty" not in cache
    assert len(cache) == 9
    frames = cache.frames("v30")
    assert not frames.flags.writeable
    assert isinstance(frames, np.memmap)
    assert frames.shape == cache.frames("v4").shape == (4, 16, 16, 3)
    # A pickled cache carries no pictures.
    copy = pickle.dumps(cache)
    assert len(copy) < 10_000
    np.testing.assert_array_equal(pickle.loads(copy).frames("v30"), frames)
    with pytest.raises(KeyError, match="empty file"):
        cache.frames("empty")
    # A second call has nothing to do, and rewrites nothing.
    before = shard_times(tmp_path / "cache")
    again = fill_cache(tmp_path / "cache", videos, PLAN, workers=2)
    assert (again.decoded, again.kept, again.quarantined) == (0, 9, report.quarantined)
    assert shard_times(tmp_path / "cache") == before


WRITER = """
import json, os, signal, sys
from pathlib import Path
from prota import files
from prota.data import frame_cache as cache, shards

folder, videos, moment, when = sys.argv[1:]
shards.SHARD_VIDEOS = 2
publish, calls = files.publish, 0

def killed(temporary, path):
    global calls
    calls += 1
    if calls == int(moment) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    publish(temporary, path)
    if calls == int(moment):
        os.kill(os.getpid(), signal.SIGKILL)

files.publish = shards.publish = killed
paths = {id: Path(path) for id, path in json.loads(videos).items()}
cache.fill_cache(folder, paths, cache.CachePlan(4, 16), workers=2)
"""


def test_a_killed_writer_is_continued(videos: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    listing = json.dumps({id: str(path) for id, path in good(videos).items()})
    kept: dict[str, int] = {}
    # Renames, in order: the plan (the first time), the quarantine, then frames and index of each shard. So: frames
    # without index; an index that is not yet in place; the same again after one shard is complete.
    for moment, when in ((3, "after"), (3, "before"), (5, "before")):
        command = [sys.executable, "-c", WRITER, str(folder), listing, str(moment), when]
        assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == -signal.SIGKILL
        now = shard_times(folder)
        assert kept.items() <= now.items(), "a complete shard was written again"
        kept = {name: at for name, at in now.items() if Path(name).with_suffix(".json").name in now}
        assert len(now) > len(kept), "the kill came at a quiet moment"
    assert kept.keys() == {"shard-00000.npy", "shard-00000.json"}
    report = fill_cache(folder, videos, PLAN, workers=2)
    assert (report.decoded, report.kept) == (7, 2)
    assert kept.items() <= shard_times(folder).items()
    check(folder, videos)


def test_only_the_first_seconds_are_cached(videos: dict[str, Path], tmp_path: Path) -> None:
    """The frames of a clip that ends there; shorter clips are as without a limit."""
    # 0.8 s at 25 frames a second: of v20 everything, of v22 and longer clips the first 20 frames.
    plan = CachePlan(4, 16, max_seconds=0.8)
    fill_cache(tmp_path / "cache", good(videos), plan, workers=1)
    cache = FrameCache.open(tmp_path / "cache")
    assert cache.plan == plan
    for id in cache.ids:
        count = int(id[1:])
        seen = min(count, 20)
        chosen = uniform_indices(np.arange(seen) / 25, seen / 25, 4)
        _, expected = decode_frames(videos[id], chosen.tolist(), lambda frame: to_square(frame, 16))
        np.testing.assert_allclose(cache.frames(id).astype(int), np.stack(expected), atol=1)
        np.testing.assert_allclose(cache.entry(id).times, chosen / 25)
        assert cache.entry(id).duration == pytest.approx(count / 25)
    with pytest.raises(CacheError, match=r"max_seconds = 0\.8, not 0\.0: use another folder"):
        fill_cache(tmp_path / "cache", good(videos), PLAN, workers=1)


def test_a_cache_from_before_the_limit_holds_whole_videos(videos: dict[str, Path], tmp_path: Path) -> None:
    fill_cache(tmp_path, {"v30": videos["v30"]}, PLAN, workers=1)
    record = json.loads((tmp_path / "cache.json").read_text(encoding="utf-8"))
    del record["plan"]["max_seconds"]
    (tmp_path / "cache.json").write_text(json.dumps(record), encoding="utf-8")
    assert FrameCache.open(tmp_path).plan == PLAN
    assert fill_cache(tmp_path, {"v30": videos["v30"]}, PLAN, workers=1).kept == 1


def test_ctrl_c_keeps_what_was_decoded(videos: dict[str, Path], tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_cache(tmp_path, good(videos), PLAN, workers=1, on_progress=stop)
    assert len(FrameCache.open(tmp_path)) == 3
    assert fill_cache(tmp_path, videos, PLAN, workers=1).kept == 3
    check(tmp_path, videos)


def test_changed_files_are_decoded_again(tmp_path: Path) -> None:
    folder, path = tmp_path / "cache", tmp_path / "a.mp4"
    videos = {"a": path}
    write_clip(path, 10)
    assert fill_cache(folder, videos, PLAN, workers=1).decoded == 1
    write_clip(path, 20)
    assert fill_cache(folder, videos, PLAN, workers=1).decoded == 1
    # The newest wins.
    assert FrameCache.open(folder).entry("a").duration == pytest.approx(0.8)
    # Where the new file is bad, the frames of the old one are not passed off as its own.
    path.write_text("no video", encoding="utf-8")
    assert fill_cache(folder, videos, PLAN, workers=1).quarantined.keys() == {"a"}
    with pytest.raises(CacheError, match="has no videos"):
        FrameCache.open(folder)
    # Not tried again while it is the same file, unless asked.
    seen: list[Progress] = []
    fill_cache(folder, videos, PLAN, workers=1, on_progress=seen.append)
    assert seen == []
    fill_cache(folder, videos, PLAN, workers=1, on_progress=seen.append, retry=True)
    assert len(seen) == 1
    write_clip(path, 25)
    assert fill_cache(folder, videos, PLAN, workers=1).quarantined == {}
    cache = FrameCache.open(folder)
    assert cache.entry("a").duration == pytest.approx(1.0)
    assert cache.verify() == []
    # A file that has gone keeps its frames.
    path.unlink()
    assert fill_cache(folder, videos, PLAN, workers=1).kept == 1


def test_another_plan_a_second_writer_and_foreign_folders_are_refused(videos: dict[str, Path], tmp_path: Path) -> None:
    one = {"v2": videos["v2"]}
    fill_cache(tmp_path / "cache", one, PLAN, workers=1)
    with pytest.raises(CacheError, match=r"frames = 4, not 3; size = 16, not 32: use another folder"):
        fill_cache(tmp_path / "cache", one, CachePlan(3, 32), workers=1)
    with hold(tmp_path / "cache" / "lock"), pytest.raises(CacheError, match="another process is filling"):
        fill_cache(tmp_path / "cache", one, PLAN, workers=1)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").touch()
    with pytest.raises(CacheError, match="neither empty nor a frame cache"):
        fill_cache(tmp_path / "letters", one, PLAN, workers=1)
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]


def test_caches_that_cannot_be_opened_say_so(videos: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="there is no frame cache"):
        FrameCache.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CacheError, match="there is no frame cache"):
        FrameCache.open(tmp_path / "empty")
    (tmp_path / "empty" / "dear.txt").touch()
    with pytest.raises(CacheError, match="is not a frame cache"):
        FrameCache.open(tmp_path / "empty")
    folder = tmp_path / "cache"
    fill_cache(folder, {"v2": videos["v2"]}, PLAN, workers=1)
    for name in ("shard-00000.json", "quarantine.json", "cache.json"):
        content = (folder / name).read_text(encoding="utf-8")
        for wrong in (content[: len(content) // 2], "[]", '{"format": 9, "videos": 3}'):
            (folder / name).write_text(wrong, encoding="utf-8")
            with pytest.raises(CacheError) as caught:
                FrameCache.open(folder)
            assert "\n" not in str(caught.value)
        (folder / name).write_text(content, encoding="utf-8")
    assert FrameCache.open(folder).verify() == []


def test_damage_is_found_and_mended(videos: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_VIDEOS", 3)
    fill_cache(tmp_path, videos, PLAN, workers=2)
    with (tmp_path / "shard-00000.npy").open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(bytes([7, 7, 7, 7, 7]))
    os.truncate(tmp_path / "shard-00001.npy", 1000)
    (tmp_path / "shard-00002.npy").unlink()
    cache = FrameCache.open(tmp_path)
    problems = cache.verify()
    assert len(problems) == 3
    assert any("shard-00001.npy is corrupt or truncated" in problem for problem in problems)
    assert any("shard-00002.npy is missing" in problem for problem in problems)
    assert any("delete shard-00000.json" in problem for problem in problems)
    lost = json.loads((tmp_path / "shard-00002.json").read_text())["videos"][0]["id"]
    with pytest.raises(CacheError, match="is missing"):
        cache.frames(lost)
    (tmp_path / "shard-00000.json").unlink()
    assert fill_cache(tmp_path, videos, PLAN, workers=2).decoded == 9
    check(tmp_path, videos)


@pytest.mark.parametrize("plan", [(0, 8), (4, 0), (4, 8, -1.0), (4, 8, float("nan")), (4, 8, 0.0, "all")])
def test_bad_plans_are_refused(plan: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be "):
        CachePlan(*plan)
