"""Splits: no doubles, a hash that depends on contents alone, validation videos chosen by their id alone."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from prota.config.experiment import DataConfig
from prota.data.benchmarks import LSMDC_FILES, SIZES, load_benchmark
from prota.data.splits import Benchmark, DataError, Item, Split, examples, hold_back


def make(name: str, *ids: str) -> Split:
    return Split(name, tuple(Item(video, (f"about {video}",)) for video in ids))  # type: ignore[arg-type]


def test_a_split_lists_its_videos_and_pairs_in_order() -> None:
    split = Split("train", (Item("b", ("two", "three")), Item("a", ("one",)), Item("c", ())))
    assert len(split) == 3
    assert split.video_ids == ["b", "a", "c"]
    assert split.pairs == [("b", "two"), ("b", "three"), ("a", "one")]
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.name = "test"  # type: ignore[misc]


def test_doubles_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"train split lists 2 videos more than once \(a, b\)"):
        make("train", "a", "b", "a", "c", "b")
    with pytest.raises(DataError, match="must be one of train, val, test, got 'dev'"):
        make("dev", "a")


def test_the_hash_is_fixed_and_depends_on_contents_alone() -> None:
    split = Split("test", (Item("b", ("naïve “quotes”", "x")), Item("a", ())))
    # Written out by hand, so that no library's change goes unnoticed.
    canonical = b'[["a",[]],["b",["na\\u00efve \\u201cquotes\\u201d","x"]]]'
    assert split.hash == hashlib.sha256(canonical).hexdigest()
    assert Split("val", split.items[::-1]).hash == split.hash
    assert Split("test", (Item("b", ("x", "naïve “quotes”")), Item("a", ()))).hash != split.hash
    assert Split("test", (Item("b", ("naïve “quotes” x",)), Item("a", ()))).hash != split.hash
    assert Split("test", split.items[:1]).hash != split.hash


def test_a_benchmark_gives_the_splits_it_has() -> None:
    benchmark = Benchmark("mine", make("train", "a"), None, make("test", "b"))
    assert benchmark.split("test").video_ids == ["b"]
    assert [split.name for split in benchmark.splits] == ["train", "test"]
    with pytest.raises(DataError, match="mine has no val split; splits: train, test"):
        benchmark.split("val")
    with pytest.raises(DataError, match="splits: none"):
        Benchmark("mine", None, None, None).split("train")
    with pytest.raises(DataError, match="expected a train split, got test"):
        Benchmark("mine", make("test", "a"), None, None)


def test_held_back_videos_are_the_smallest_by_hash() -> None:
    ids = [f"video{i}" for i in range(50)]
    train, val = hold_back(make("train", *ids), 7)
    assert (train.name, val.name) == ("train", "val")
    expected = set(sorted(ids, key=lambda video: hashlib.sha256(video.encode()).hexdigest())[:7])
    assert val.video_ids == [video for video in ids if video in expected]
    assert train.video_ids == [video for video in ids if video not in expected]


def test_held_back_videos_do_not_depend_on_the_order_and_hardly_on_the_others() -> None:
    ids = [f"video{i}" for i in range(50)]
    chosen = set(hold_back(make("train", *ids), 7)[1].video_ids)
    assert set(hold_back(make("train", *ids[::-1]), 7)[1].video_ids) == chosen
    assert len(chosen - set(hold_back(make("train", *ids, "one more"), 7)[1].video_ids)) <= 1


@pytest.mark.parametrize("count", [0, -1, 3, 4])
def test_holding_back_nothing_or_everything_is_refused(count: int) -> None:
    with pytest.raises(DataError, match=rf"data.validation={count} must be 1 to 2"):
        hold_back(make("train", "a", "b", "c"), count)


def test_examples_are_few() -> None:
    assert examples(["a", "b", "c"]) == "a, b, c"
    assert examples(iter("abcd")) == "a, b, c, …"


def test_splits_of_benchmarks_have_the_published_sizes() -> None:
    """As papers have them: a test list of another length gives figures that can be compared with nobody's."""
    assert {
        name: {split: " or ".join(map(str, sizes)) for split, sizes in splits.items()} for name, splits in SIZES.items()
    } == {
        "msrvtt-9k": {"train": "9000", "test": "1000"},
        "msrvtt-7k": {"train": "7010", "test": "1000"},
        "msrvtt-full": {"train": "6513", "val": "497", "test": "2990"},
        "msvd": {"train": "1200", "val": "100", "test": "670"},
        "lsmdc": {"train": "101079", "val": "7408", "test": "1000"},
        "didemo": {"train": "8392 or 8395", "val": "1065", "test": "1004"},
    }


@pytest.mark.parametrize("columns", [5, 7])
def test_a_line_of_lsmdc_with_another_number_of_columns_is_named(columns: int, tmp_path: Path) -> None:
    """With a tab in it, a sentence would lose its beginning in silence."""
    line = "\t".join(["m_00.1-00.2", *("0" for _ in range(columns - 2)), "SOMEONE sits."])
    (tmp_path / LSMDC_FILES["test"]).write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"line 1: {columns} tab-separated columns; LSMDC has 6"):
        load_benchmark(DataConfig(benchmark="lsmdc", captions=str(tmp_path)))
