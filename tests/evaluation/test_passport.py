"""The record of a result: whole, readable again, never half written, honest about what it does not know."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import prota
from prota.config.model import Config
from prota.evaluation import passport as module
from prota.evaluation.intervals import bootstrap
from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.passport import CheckpointRecord, Passport, PassportError, collect_environment
from prota.model.prota import ProTA
from prota.model.weights import WeightsError, fingerprint
from prota.ranking import rank_of_target


def example(**changes: Any) -> Passport:
    scores, pairs = torch.randn(20, 20), torch.arange(20)
    values: dict[str, Any] = {
        "metrics": asdict(retrieval_metrics(scores, pairs)),
        "intervals": {"text_to_video": bootstrap(rank_of_target(scores, pairs), pairs, 50)},
        "split": "msrvtt-9k test",
        "split_hash": "ab12",
        "queries": 20,
        "videos": 20,
        "missing": ("video7", "vidéo8"),
        "normalisation": None,
        "candidates": "captions",
        "checkpoint": CheckpointRecord(
            "runs/a", "best on validation at step 1200", 1200, "00ff", {"train": 3, "val": 0}
        ),
        "config": Config.build("prota", "toy").model_dump(),
        "seed": 3,
    }
    return Passport(**(values | changes))


def printed(passport: Passport) -> str:
    console = Console(width=80, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(passport.table())
    return console.export_text()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "result.json"
    for passport in (
        example(),
        example(checkpoint=None, seed=None, intervals={}, missing=(), normalisation="dual-softmax"),
    ):
        passport.write(path)
        assert Passport.read(path) == passport
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["format"], record["version"]) == ("prota-result", 1)
    assert record["normalisation"] == "dual-softmax"
    assert record["checkpoint"] is None
    assert {"metrics", "split_hash", "missing", "config", "environment"} <= set(record)


def test_a_record_from_before_missing_items_were_counted_is_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    example().write(path)
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["checkpoint"]["missing"]
    path.write_text(json.dumps(record), encoding="utf-8")
    checkpoint = Passport.read(path).checkpoint
    assert checkpoint is not None
    assert checkpoint.missing == {}


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    example().write(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PassportError, match=r"result.json cannot be written \(No space left on device\)"):
        example(seed=99).write(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("config", [{"path": Path("x")}, {"value": float("nan")}])
def test_what_json_cannot_hold_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(PassportError, match="cannot write the result as JSON"):
        example(config=config).write(tmp_path / "result.json")
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PassportError, match="cannot be written"):
        example().write(tmp_path / "file" / "result.json")


def damaged(text: str, **changes: Any) -> str:
    record = json.loads(text) | changes
    return json.dumps({key: value for key, value in record.items() if value != "REMOVE"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is not a result of prota"),
        ({"version": 2}, "format version 2, this prota reads version 1"),
        ({"split_hash": "REMOVE"}, "split_hash: .*required"),
        ({"queries": "many"}, "queries: .*valid integer"),
        ({"queries": "20"}, "queries: .*valid integer"),
        ({"surprise": 1}, "surprise: "),
        ({"metrics": {}}, "metrics must have text_to_video and video_to_text"),
        ({"intervals": {"sideways": {}}}, "must be of text_to_video, video_to_text"),
        ({"candidates": "frames"}, "candidates: .*'captions' or 'videos'"),
        ({"checkpoint": {"path": "x"}}, r"checkpoint\.rule: "),
    ],
)
def test_damaged_records_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "result.json"
    example().write(path)
    path.write_text(damaged(path.read_text(encoding="utf-8"), **changes), encoding="utf-8")
    with pytest.raises(PassportError, match=message) as caught:
        Passport.read(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with pytest.raises(PassportError, match="no such file"):
        Passport.read(path)
    with pytest.raises(PassportError, match="cannot be read"):
        Passport.read(tmp_path)
    for content in (b'{"format": ', b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(PassportError, match="is not valid JSON"):
            Passport.read(path)
    path.write_text("[]")
    with pytest.raises(PassportError, match="is not a result of prota"):
        Passport.read(path)


def test_the_environment_is_complete() -> None:
    found = collect_environment()
    assert set(found) == {"versions", "hardware", "commit", "dirty", "time", "command"}
    assert set(found["versions"]) == {"python", "prota", "torch", "transformers", "numpy"}
    assert found["versions"]["prota"] == prota.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["hardware"]["cpu"]
    assert found["hardware"]["cores"] >= 1
    assert (found["hardware"]["device"], found["hardware"]["gpu"]) == (None, None)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found["time"])).total_seconds()) < 60
    assert found["command"]
    assert found["commit"] is None or re.fullmatch(r"[0-9a-f]{40,64}", found["commit"])
    json.dumps(found)


@pytest.mark.parametrize(("device", "gpu"), [("cpu", None), ("cuda:0", "GPU 0"), ("cuda:1", "GPU 1")])
def test_the_device_that_was_used_is_named(device: str, gpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs: one that only stood by is not named."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    hardware = collect_environment(torch.device(device))["hardware"]
    assert (hardware["device"], hardware["gpu"]) == (device, gpu)


def test_a_library_that_is_not_there_has_no_version() -> None:
    assert module._version("no-such-library") is None


@pytest.fixture
def fake_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout, and a git that says what the test wrote down."""
    programs, root = tmp_path / "bin", tmp_path / "checkout"
    programs.mkdir()
    (root / ".git").mkdir(parents=True)
    git = programs / "git"
    git.write_text(
        f'#!/bin/sh\nif [ "$3" = rev-parse ]; then echo "c0ffee$GIT_DIR"; else cat "{tmp_path}/status"; fi\n'
    )
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return root


def test_the_commit_and_its_changes(fake_git: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    (tmp_path / "status").write_text("")
    assert module._git_state(fake_git) == ("c0ffee", False)
    (tmp_path / "status").write_text(" M prota/model/prota.py\n")
    assert module._git_state(fake_git) == ("c0ffee", True)
    (tmp_path / "status").unlink()
    assert module._git_state(fake_git) == ("c0ffee", None)


def test_no_checkout_and_no_git_are_no_trouble(fake_git: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._git_state(tmp_path) == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert module._git_state(fake_git) == (None, None)
    assert collect_environment()["commit"] is None


def test_the_fingerprint_is_that_of_the_weights(tmp_path: Path) -> None:
    ProTA.from_config(Config.build("prota", "toy")).save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    expected = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert fingerprint(tmp_path / "model") == fingerprint(weights) == expected
    with pytest.raises(WeightsError, match="give the folder of a saved model"):
        fingerprint(tmp_path)


def test_the_table_shows_both_directions() -> None:
    metrics = {
        direction: {"r1": 48.1, "r5": 75.4, "r10": 84.3, "median_rank": 2.0, "mean_rank": 12.5, "queries": 1000}
        for direction in ("text_to_video", "video_to_text")
    }
    passport = example(metrics=metrics, intervals={"text_to_video": {"r1": (45.0, 51.2)}}, queries=1000)
    text = printed(passport)
    for part in ("1,000 texts, 20 videos", "text → video", "video → text", "48.1", "45.0–51.2", "R@10", "mean rank"):
        assert part in text
    assert "2 items of the split are missing" in text
    assert "best on validation at step 1200" in text
    assert "trained without 3 train items that were missing" in text
    assert "normalised" not in text
    complete = CheckpointRecord("runs/a", "last", 1200, "00ff", {"train": 0, "val": 0})
    changes = {"normalisation": "query-bank", "candidates": "videos", "missing": (), "intervals": {}}
    special = printed(replace(passport, checkpoint=complete, **changes))
    assert "normalised: query-bank" in special
    assert "best caption" in special
    assert "missing" not in special
    assert "interval" not in special


@pytest.mark.parametrize(
    ("candidates", "rule"),
    [("captions", "a video's best caption among all captions"), ("videos", "ranks videos by their best caption")],
)
def test_several_captions_a_video_name_the_rule(candidates: str, rule: str) -> None:
    """Figures of papers are of one rule: nobody should have to guess which this is."""
    several = " ".join(printed(example(queries=40, candidates=candidates)).split())
    assert rule in several
    assert "among all captions" not in printed(example(candidates=candidates))


def test_names_are_not_taken_for_markup() -> None:
    assert "[bold]mine[/nothing]" in printed(example(split="[bold]mine[/nothing]"))


def test_metrics_of_another_shape_are_refused() -> None:
    with pytest.raises(PassportError, match="metrics must have text_to_video"):
        example(metrics={"text_to_video": {"r1": 1.0}, "video_to_text": {"r1": 1.0}})
