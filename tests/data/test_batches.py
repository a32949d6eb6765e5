"""Which pairs meet in a batch, which frames stand for a video, and reading ahead."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prota.config.experiment import Experiment
from prota.data.batches import ClipReader, count_batches, epoch_batches, open_cache, read_ahead
from prota.data.frame_cache import CachePlan
from prota.data.splits import DataError, Item, Split, SplitName


def split(*captions: int) -> Split:
    items = [Item(f"v{n}", tuple(f"caption {k} of {n}" for k in range(count))) for n, count in enumerate(captions)]
    return Split("train", tuple(items))


@pytest.mark.parametrize("counts", [(3,) * 10, (1, 7, 2, 4, 1, 9, 3), (5,) * 4])
def test_every_batch_has_distinct_videos_and_no_caption_twice(counts: tuple[int, ...]) -> None:
    data = split(*counts)
    for epoch in range(3):
        batches = epoch_batches(data, 4, per_video=0, seed=0, epoch=epoch)
        pairs = [pair for batch in batches for pair in batch]
        assert all(len({pair.video_id for pair in batch}) == 4 for batch in batches)
        assert max(Counter(pairs).values()) == 1
        assert set(pairs) <= {type(pairs[0])(video, (caption,)) for video, caption in data.pairs}
    if len(set(counts)) == 1:
        # Equal numbers of captions: only what fills no batch is left over.
        assert sum(counts) - len(pairs) < 4


def test_one_caption_a_video_drawn_anew() -> None:
    data = split(*(20,) * 8)
    seen = set()
    for epoch in range(5):
        (first, second) = epoch_batches(data, 4, per_video=1, seed=0, epoch=epoch)
        assert {pair.video_id for pair in first + second} == set(data.video_ids)
        seen |= set(first + second)
    assert len(seen) > 20


def test_several_captions_of_a_video_are_distinct_until_it_has_no_more() -> None:
    data = split(20, 20, 2, 20)
    (batch,) = epoch_batches(data, 4, per_video=4, seed=0, epoch=3)
    for pair in batch:
        assert len(pair.captions) == 4
        assert len(set(pair.captions)) == (2 if pair.video_id == "v2" else 4)
        assert all(caption.endswith(pair.video_id[1:]) for caption in pair.captions)
    assert [pair.captions[:1] for pair in batch] == [
        pair.captions for pair in epoch_batches(data, 4, per_video=1, seed=0, epoch=3)[0]
    ]


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    data = split(*(3,) * 9)
    drawn = partial(epoch_batches, data, 4, per_video=0)
    assert drawn(seed=1, epoch=2) == drawn(seed=1, epoch=2)
    assert drawn(seed=1, epoch=2) != drawn(seed=1, epoch=3)
    assert drawn(seed=1, epoch=2) != drawn(seed=2, epoch=2)


@given(
    counts=st.lists(st.integers(0, 7), min_size=3, max_size=12).filter(any),
    size=st.integers(2, 6),
    per_video=st.sampled_from([0, 1]),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_batches_are_counted_without_being_made(
    counts: list[int], size: int, per_video: int, seed: int, epoch: int
) -> None:
    data, size = split(*counts), min(size, len(counts))
    batches = epoch_batches(data, size, per_video=per_video, seed=seed, epoch=epoch)
    assert count_batches(data, size, per_video=per_video, seed=seed, epoch=epoch) == len(batches)
    # As the plain rule has it: each batch takes the first of those who wait, no video twice.
    assert [[(pair.video_id, *pair.captions) for pair in batch] for batch in batches] == plain_batches(
        data, size, per_video, seed, epoch
    )


def plain_batches(data: Split, size: int, per_video: int, seed: int, epoch: int) -> list[list[tuple[str, str]]]:
    generator = np.random.default_rng([seed, epoch])
    orders = [generator.permutation(len(item.captions)) for item in data.items]
    batches, waiting = [], list[tuple[str, str]]()
    for turn in range(1 if per_video else max(map(len, orders))):
        for place in generator.permutation(len(data)):
            item = data.items[place]
            if turn < len(item.captions):
                waiting.append((item.video_id, item.captions[orders[place][turn]]))
        while True:
            batch: dict[str, tuple[str, str]] = {}
            for pair in waiting:
                if len(batch) < size:
                    batch.setdefault(pair[0], pair)
            if len(batch) < size:
                break
            batches.append(list(batch.values()))
            waiting = [pair for pair in waiting if pair not in batch.values()]
    return batches


def test_a_batch_larger_than_the_data_is_refused() -> None:
    for make in (epoch_batches, count_batches):
        with pytest.raises(DataError, match=r"train\.batch_size=5 exceeds the 3 training videos"):
            make(split(9, 9, 9), 5, per_video=0, seed=0, epoch=0)


class Numbers:
    """Clips whose frames are their own numbers: video v3 has frames 300, 301 …"""

    def __init__(self, plan: CachePlan, lengths: dict[str, int]) -> None:
        self.plan, self.lengths = plan, lengths

    def __contains__(self, video_id: object) -> bool:
        return video_id in self.lengths

    def frames(self, video_id: str) -> np.ndarray:
        return (100 * int(video_id[1:]) + np.arange(self.lengths[video_id]))[:, None].astype(np.int64)


def reader(lengths: dict[str, int], *overrides: str, split: SplitName = "train") -> ClipReader:
    settings = ["encoder.frames=4", *overrides]
    experiment = Experiment.build("prota", "toy", settings)
    items = Split(split, tuple(Item(name, ("x",)) for name in lengths))
    return ClipReader(Numbers(CachePlan(4, 8), lengths), experiment, items)


def rows(source: ClipReader, ids: list[str], epoch: int | None = None) -> list[list[int]]:
    batch = source.read(ids, epoch)
    return [frames[mask, 0].tolist() for frames, mask in zip(batch.frames, batch.mask, strict=True)]


def test_tests_see_uniform_frames_and_short_clips_are_masked() -> None:
    assert rows(reader({"v1": 4, "v2": 2}), ["v1", "v2"]) == [[100, 101, 102, 103], [200, 201]]


def test_training_sees_what_tests_see() -> None:
    source = reader({"v1": 4})
    assert [rows(source, ["v1"], epoch) for epoch in range(5)] == [rows(source, ["v1"])] * 5


def test_training_may_draw_fewer_frames() -> None:
    source = reader({"v1": 4, "v2": 1}, "train.frames=2")
    drawn = [rows(source, ["v1"], epoch)[0] for epoch in range(30)]
    assert all(len(frames) == 2 and frames == sorted(frames) for frames in drawn)
    assert len({tuple(frames) for frames in drawn}) == 6
    assert rows(source, ["v1", "v2"]) == [[100, 101, 102, 103], [200]]


def test_dilution_mixes_in_unrelated_videos_evenly() -> None:
    lengths = {f"v{n}": 4 for n in range(1, 9)}
    source = reader(lengths, "data.dilution=1")
    for name in lengths:
        (frames,) = rows(source, [name])
        owners = Counter(frame // 100 for frame in frames)
        assert len(frames) == 4
        assert owners[int(name[1:])] == 2
        assert len(owners) == 2
        assert rows(source, [name]) == [frames]
    with pytest.raises(DataError, match=r"data\.dilution=3 needs more videos than the 3"):
        reader({"v1": 4, "v2": 4, "v3": 4}, "data.dilution=3")


def test_mixing_adds_frames_of_another_video_now_and_then() -> None:
    lengths = {f"v{n}": 4 for n in range(1, 9)}
    source = reader(lengths, "train.mixing=0.5")
    owners = [Counter(frame // 100 for frame in rows(source, ["v1"], epoch)[0]) for epoch in range(60)]
    mixed = [count for count in owners if len(count) > 1]
    assert 15 < len(mixed) < 45
    # Three of the four frames that a video may have, and half as many of a stranger.
    assert all(count[1] == 3 and sum(count.values()) == 4 for count in mixed)
    assert len({video for count in mixed for video in count}) > 4
    assert rows(source, ["v1"], 5) == rows(source, ["v1"], 5)
    assert rows(source, ["v1"]) == [[100, 101, 102, 103]]
    # Never more than the model takes: that many are gathered from each process.
    for most, longest in ((1, 1), (2, 2), (3, 3)):
        batch = reader(lengths, "train.mixing=1", f"encoder.frames={most}").read(list(lengths), 0)
        assert batch.mask.shape[1] == longest
    with pytest.raises(DataError, match=r"train\.mixing=0\.5 needs more videos than the 1"):
        reader({"v1": 4}, "train.mixing=0.5")
    # Nobody mixes there.
    assert rows(reader({"v1": 4}, "train.mixing=0.5", split="val"), ["v1"]) == [[100, 101, 102, 103]]


def test_no_video_is_a_stranger_to_itself() -> None:
    lengths = {f"v{n}": 4 for n in range(1, 4)}
    diluted = reader(lengths, "data.dilution=2")
    mixing = reader({"v1": 4, "v2": 4}, "train.mixing=1")
    for name in lengths:
        assert {frame // 100 for frame in rows(diluted, [name])[0]} == {1, 2, 3}
    for epoch in range(20):
        assert {frame // 100 for frame in rows(mixing, ["v1"], epoch)[0]} == {1, 2}


def test_fewer_frames_of_a_video_are_those_in_the_middle_of_its_stretches() -> None:
    (frames,) = rows(reader({"v1": 4, "v2": 4}, "data.dilution=1"), ["v1"])
    assert sorted(frame % 100 for frame in frames if frame // 100 == 1) == [1, 3]
    (frames,) = rows(reader({"v1": 4, "v2": 4, "v3": 4, "v4": 4}, "data.dilution=3"), ["v1"])
    assert [frame % 100 for frame in frames] == [2, 2, 2, 2]


def test_a_cache_of_other_settings_is_refused(world_config: Path) -> None:
    assert open_cache(Experiment.load(world_config)).plan == CachePlan(4, 32)
    with pytest.raises(DataError, match=r"data\.cache_size=64, but the frame cache .* was filled with 32; allowed: 32"):
        open_cache(Experiment.load(world_config, ["data.cache_size=64"]))
    with pytest.raises(DataError, match=r"max_seconds=30\.0, but the frame cache .* was filled with 0\.0"):
        open_cache(Experiment.load(world_config, ["data.benchmark=didemo"]))
    with pytest.raises(DataError, match=r"encoder\.picture=whole, but the frame cache .* was filled with centre"):
        open_cache(Experiment.load(world_config, ["encoder.picture=whole"]))


def test_reading_ahead_keeps_order_and_passes_errors_on() -> None:
    assert list(read_ahead(lambda n: n * n, 2, 6)) == [4, 9, 16, 25]

    def fail(number: int) -> int:
        if number == 2:
            raise ValueError("number two")
        return number

    ahead = read_ahead(fail, 0, 5)
    seen = []
    with pytest.raises(ValueError, match="number two"):
        seen.extend(ahead)
    ahead.close()


def test_closing_stops_reading() -> None:
    before = threading.active_count()
    ahead = read_ahead(lambda n: n, 0, 10_000)
    assert next(iter(ahead)) == 0
    ahead.close()
    assert threading.active_count() == before
