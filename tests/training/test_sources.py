"""Runs that learn from several sources: which batch comes when, resumed and shared by ranks, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from prota.cli import app
from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.data.batches import epoch_batches
from prota.data.splits import DataError, Item, Split
from prota.training.checkpoint import RunFolder
from prota.training.sources import Schedule, Source
from prota.training.trainer import TrainingLoop
from tests.processes import REPOSITORY
from tests.small_world import COLOURS
from tests.training.runs import ALONE, curve, log, train

pytestmark = pytest.mark.train

SOURCE = "sources.pictures"


def write_pictures(folder: Path) -> list[str]:
    """Plain pictures, four of each colour, with tagged captions; the settings that make them a source."""
    (folder / "photos").mkdir(parents=True)
    rows = []
    for number, (colour, value) in enumerate((c, v) for c, v in COLOURS.items() for _ in range(4)):
        kind = ("png", "jpg", "webp", "jpeg")[number % 4]
        array = np.full((40, 60, 3), value, dtype=np.uint8)
        array[:, : 10 + number] = 128
        Image.fromarray(array).save(folder / "photos" / f"p{number}.{kind}")
        tagged = [["human:a", f"a {colour} wall"], ["machine", f"{colour} {colour}"]]
        rows.append({"id": f"p{number}", "captions": tagged})
    (folder / "pictures.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return [
        f"{SOURCE}.captions={folder / 'pictures.jsonl'}",
        f"{SOURCE}.videos={folder / 'photos'}",
        f"{SOURCE}.cache={folder / 'cache'}",
        f"{SOURCE}.cache_size=40",
        f"{SOURCE}.batch_size=8",
        f"{SOURCE}.share=0.5",
        f"{SOURCE}.crop=0.6",
        f"{SOURCE}.weight=0.5",
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, world_config: Path) -> list[str]:
    settings = write_pictures(tmp_path_factory.mktemp("pictures") / "data")
    flags = [part for setting in settings for part in ("-s", setting)]
    result = CliRunner().invoke(app, ["data", "prepare", str(world_config), *flags])
    assert result.exit_code == 0, result.output
    return settings


@pytest.fixture(scope="module")
def uninterrupted(world_config: Path, pictures: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sources") / "run"
    train(world_config, run, *pictures)
    return run


class NoClips:
    """Frames are of no interest here."""

    plan = None

    def __contains__(self, video_id: object) -> bool:
        return True


def source(name: str, videos: int, batch: int, share: float) -> Source:
    items = tuple(Item(f"{name}{number}", (f"caption {number}",)) for number in range(videos))
    experiment = Experiment.build(backbone="toy", overrides=[f"train.batch_size={batch}", "train.captions_per_video=1"])
    return Source(name, experiment, Split("train", items), "", 0, NoClips(), share)  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.2, 0.8), (0.0, 1.0), (0.5, 0.3, 0.2)])
def test_every_batch_of_every_source_comes_in_its_turn(shares: tuple[float, ...]) -> None:
    sources = [
        source(name, 10 + 7 * k, 2 + k, share) for k, (name, share) in enumerate(zip("abc", shares, strict=False))
    ]
    schedule, epochs = Schedule(sources, 4), 4
    places = [schedule.place(step) for step in range(schedule.steps)]
    leading = max(range(len(shares)), key=lambda number: shares[number])
    for number, one in enumerate(sources):
        seen = [(place.epoch, place.batch) for place in places if place.source == number]
        whole = [(epoch, batch) for epoch in range(100) for batch in range(one.count(0))]
        assert seen == whole[: len(seen)]
        # Evenly mixed: never a whole step away from its share.
        for steps in range(1, len(places) + 1):
            had = sum(place.source == number for place in places[:steps])
            assert abs(had - shares[number] * steps) < len(shares)
        if number == leading:
            assert len(seen) == epochs * one.count(0)
            last = one.count(0) - 1
            assert schedule.ends == [
                step + 1 for step, place in enumerate(places) if place.source == number and place.batch == last
            ]
    assert sum(schedule.per_source()) == schedule.steps == schedule.ends[-1]


def test_a_run_learns_from_all_its_sources(uninterrupted: Path, world_config: Path, pictures: list[str]) -> None:
    records = [record for record in log(uninterrupted) if "total" in record]
    assert Counter(record["source"] for record in records) == {"data": 18, "pictures": 17}
    assert len([record for record in log(uninterrupted) if "validation" in record]) == 3
    # Eight batches of eight show both captions of 32 pictures; the seventeenth begins a third epoch of theirs.
    trainer = TrainingLoop(Experiment.load(world_config, pictures), RunFolder(uninterrupted), ALONE)
    shown = Counter[str]()
    for step in range(trainer.steps):
        place = trainer.schedule.place(step)
        batch = trainer.sources[place.source].batches(place.epoch)[place.batch]
        assert len(batch) == (6, 8)[place.source]
        shown.update(pair.video_id for pair in batch)
    assert {shown[f"p{number}"] for number in range(32)} == {4, 5}


@pytest.mark.parametrize("stop_after", [1, 5, 8])
def test_a_stopped_run_goes_on_exactly(
    uninterrupted: Path, world_config: Path, pictures: list[str], stop_after: int, tmp_path: Path
) -> None:
    train(world_config, tmp_path / "run", *pictures, stop_after=stop_after)
    assert len(curve(tmp_path / "run")) == stop_after
    train(world_config, tmp_path / "run", *pictures)
    assert curve(tmp_path / "run") == curve(uninterrupted)


@pytest.mark.process
def test_two_ranks_give_the_same_curve(world_config: Path, pictures: list[str], tmp_path: Path) -> None:
    """Replaced words too: which ones does not depend on who replaces them."""
    local = ["encoder.text_tokens=content", "loss.locality=0.5", "loss.soft_targets=0.2", "train.epochs=1"]
    train(world_config, tmp_path / "alone", *pictures, *local)
    flags = [part for setting in (*pictures, *local) for part in ("-s", setting)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, "-m", "prota", "train", str(world_config), "-o", str(tmp_path / "two"), *flags]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY, env=env)
    assert all(record["locality"] > 0 for record in log(tmp_path / "alone") if "total" in record)
    for ours, theirs in zip(curve(tmp_path / "alone"), curve(tmp_path / "two"), strict=True):
        # fp32 sums in another order; the curve is the same to its rounding.
        assert theirs == pytest.approx(ours, rel=2e-3, abs=1e-6)


def test_tags_choose_captions_and_pictures(world_config: Path, pictures: list[str], tmp_path: Path) -> None:
    settings = [*pictures, f'{SOURCE}.tags=["human"]']
    trainer = TrainingLoop(Experiment.load(world_config, settings), RunFolder(tmp_path), ALONE)
    assert {item.captions for item in trainer.sources[1].split.items} == {(f"a {colour} wall",) for colour in COLOURS}
    with pytest.raises(DataError, match=r"tag cat; tags: human:a, machine"):
        TrainingLoop(Experiment.load(world_config, [*pictures, f'{SOURCE}.tags=["cat"]']), RunFolder(tmp_path), ALONE)


def test_a_sources_weight_scales_its_gradients(world_config: Path, pictures: list[str], tmp_path: Path) -> None:
    """A first step with another weight has the same loss and proportional gradients."""
    norms = []
    for weight in (1.0, 0.25):
        # [data] has no share: every step is one of pictures.
        settings = [*pictures, f"{SOURCE}.share=1.0", f"{SOURCE}.weight={weight}", "train.epochs=1"]
        train(world_config, tmp_path / str(weight), *settings, stop_after=1)
        (record,) = (line for line in log(tmp_path / str(weight)) if "total" in line)
        assert record["source"] == "pictures"
        norms.append((record["total"], record["gradient_norm"]))
    assert norms[1][0] == pytest.approx(norms[0][0], rel=1e-6)
    assert norms[1][1] == pytest.approx(0.25 * norms[0][1], rel=1e-4)


def test_frozen_towers_features_are_computed_for_every_source(
    world_config: Path, pictures: list[str], tmp_path: Path
) -> None:
    settings = [*pictures, f"{SOURCE}.crop=1.0", "train.lr_vision=0", "train.epochs=1"]
    trainer = train(world_config, tmp_path / "run", *settings)
    (frames,) = {trainer.sources[1].reader.read([f"p{n}"]).frames.shape for n in range(4)}
    assert frames[:2] == (1, 1)
    assert len(frames) == 3


def test_sources_that_cannot_be_learned_from(world_config: Path, pictures: list[str], tmp_path: Path) -> None:
    def refused(error: type[Exception], message: str, *settings: str) -> None:
        with pytest.raises(error, match=message):
            TrainingLoop(Experiment.load(world_config, [*pictures, *settings]), RunFolder(tmp_path / "run"), ALONE)

    refused(ConfigError, r"shares of sources pictures, more add up to 1\.1", f"{SOURCE}.share=0.9", *more())
    refused(DataError, r"sources\.pictures: .*nowhere\.jsonl does not exist", f"{SOURCE}.captions=nowhere.jsonl")
    refused(DataError, r"sources\.pictures: there is no frame cache", f"{SOURCE}.cache={tmp_path / 'empty'}")
    refused(ConfigError, r"sources\.pictures\.captions", f"{SOURCE}.captions=3")
    # Without a folder of its own a source's videos are those of [data].
    videos = Experiment.load(world_config).data.videos
    (tmp_path / "own.csv").write_text("video,caption\nred-left,seen before\nred-right,red\n", encoding="utf-8")
    cache = Experiment.load(world_config).data.cache
    refused(
        DataError,
        r"1 of its videos are test or validation videos \(red-left\)",
        *(f"{SOURCE}.captions={tmp_path / 'own.csv'}", f"{SOURCE}.videos={videos}", f"{SOURCE}.cache={cache}"),
        *(f"{SOURCE}.cache_size=32", f"{SOURCE}.batch_size=2"),
    )


def more() -> list[str]:
    """A second source that takes what the first one leaves, and more."""
    return ["sources.more.share=0.2", "sources.more.captions=more.csv", "sources.more.cache=more"]


def test_a_picture_that_cannot_be_read_is_named(world_config: Path, tmp_path: Path) -> None:
    settings = write_pictures(tmp_path / "data")
    (tmp_path / "data" / "photos" / "p4.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (tmp_path / "data" / "photos" / "p5.jpg").unlink()
    flags = [part for setting in settings for part in ("-s", setting)]
    result = CliRunner().invoke(app, ["data", "prepare", str(world_config), *flags])
    assert result.exit_code == 0
    assert "quarantined p4: " in result.output
    assert "31 of 32 videos found" in result.output
    with pytest.raises(DataError, match=r"sources\.pictures: of 32 train videos 2 are missing"):
        train(world_config, tmp_path / "run", *settings)
    train(world_config, tmp_path / "run", *settings, "train.epochs=1", allow_missing=2)


def test_without_sources_a_run_is_what_it_was(world_config: Path) -> None:
    experiment = Experiment.load(world_config)
    assert (experiment.sources, experiment.share) == ({}, 1.0)
    one = source("a", 11, 3, 1.0)
    assert one.batches(2) == epoch_batches(one.split, 3, per_video=1, seed=0, epoch=2)
    assert Schedule([one], 5).ends == [3, 6, 9, 12, 15]
    assert torch.equal(
        torch.tensor([Schedule([one], 5).place(step).epoch for step in range(15)]), torch.arange(15) // 3
    )
