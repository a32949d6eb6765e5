"""Files with changed bytes: never a crash or a hang, and none that lost a tenth of its frames without a word.

PROTA_TEST_MUTANTS is how many are made of each kind, and PROTA_TEST_SEED which.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from prota.library.indexing.reading import ReadRequest, read_video
from prota.library.segments import SegmentPlan
from prota.video.pictures import is_picture
from prota.workers.process_pool import DecodePool
from tests.library.mutants import write_mutants, write_table_mutants
from tests.processes import LIMIT
from tests.video.clips import write_clip
from tests.workers.jobs import readable_frames

pytestmark = pytest.mark.process

COUNT, SEED = int(os.environ.get("PROTA_TEST_MUTANTS", "60")), int(os.environ.get("PROTA_TEST_SEED", "0"))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips in common containers, and pictures; the research material beside the checkout, where it is there."""
    folder = tmp_path_factory.mktemp("originals")
    for name, codec in (
        *(("a.mp4", "libx264"), ("b.mov", "libx265"), ("c.mkv", "libx264"), ("d.webm", "libvpx-vp9")),
        *(("e.avi", "mpeg4"), ("f.flv", "libx264"), ("g.ts", "mpeg2video"), ("h.wmv", "wmv2"), ("i.mp4", "mpeg4")),
    ):
        write_clip(folder / name, 30, codec, noise=True, options={})
    photograph = Image.effect_noise((64, 48), 64).convert("RGB")
    for extension in ("jpg", "png", "webp", "gif"):
        photograph.save(folder / f"photograph.{extension}")
    return folder


@pytest.mark.parametrize("write", [write_mutants, write_table_mutants])
def test_mutants_are_read_whole_or_named(
    write: Callable[[Path, Path, int, int], list[Path]], originals: Path, tmp_path: Path
) -> None:
    check(originals, write(originals, tmp_path, COUNT, SEED))


@pytest.mark.parametrize("write", [write_mutants, write_table_mutants])
def test_mutants_of_real_files_are_read_whole_or_named(
    write: Callable[[Path, Path, int, int], list[Path]], shared: Path, tmp_path: Path
) -> None:
    check(shared / "data" / "decode_tests", write(shared / "data" / "decode_tests", tmp_path, COUNT, SEED))


def check(originals: Path, mutants: list[Path]) -> None:
    sources = {path.name: path for path in originals.rglob("*")}
    # The limits of uploads, but for the time: machines differ.
    with DecodePool(2, LIMIT, 4 * 2**30) as pool:
        plan = SegmentPlan()
        found = dict(pool.run(read_video, [(path, ReadRequest(path, plan, 32, most_pixels=10**8)) for path in mutants]))
    taken = [path for path in mutants if found[path].error is None and not is_picture(path)]
    names = {path.name.split("-", 1)[1] for path in taken}
    # A confined worker cannot import the other job.
    with DecodePool(2, LIMIT) as pool:
        whole = dict(pool.run(readable_frames, [(name, sources[name]) for name in names]))
        left = dict(pool.run(readable_frames, [(path, path) for path in taken]))
    assert found.keys() == set(mutants)
    assert taken, "if all were bad, the test would show little"
    for path, outcome in found.items():
        reason = outcome.error or ""
        assert not outcome.bug, outcome.bug
        assert "\n" not in reason
        assert not reason.startswith(("the decoder crashed", "timed out")), f"{path.name}: {reason}"
    few = {}
    for path in taken:
        # Nothing in a GIF says how many pictures it has.
        if path.suffix == ".gif":
            continue
        before, after = whole[path.name.split("-", 1)[1]], left[path]
        assert before.error is None, before.error
        if after.error is not None or after.value < 0.9 * before.value - 1:
            few[path.name] = (after, before.value)
    assert not few, few
