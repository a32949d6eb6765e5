"""Bare dual encoders through the commands, as a user runs them: untrained, then tuned."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from pathlib import Path

import pytest
import torch

import prota
from tests.cli.test_commands import prota as command
from tests.cli.test_commands import succeeds
from tests.processes import python, wait_until
from tests.small_world import write_colour_clip
from tests.tiny_models import write_aligned

pytestmark = [pytest.mark.process, pytest.mark.train]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for colour in ("red", "green", "blue"):
        write_colour_clip(folder / f"{colour}.mp4", colour, "left")
    return folder


@pytest.fixture(scope="module")
def siglip2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    return write_aligned("siglip2", tmp_path_factory.mktemp("siglip2"))


@pytest.fixture(scope="module")
def videoprism(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    return write_aligned("videoprism", tmp_path_factory.mktemp("videoprism"))


@pytest.mark.parametrize("kind", ["siglip2", "videoprism"])
def test_a_library_of_a_bare_model(
    kind: str, clips: Path, tmp_path: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    """Scores are those of the model's own features; the library knows its model."""
    folder, library = request.getfixturevalue(kind), tmp_path / "library"
    succeeds("index", clips, "-l", library, "--model", folder, "--workers", 1, "--device", "cpu")
    found = json.loads(succeeds("search", "the red dog", "-l", library, "-k", 3, "--json", "--device", "cpu"))
    model = prota.load(folder, device="cpu")
    expected = model.similarity(model.encode_text("the red dog"), model.encode_video(sorted(clips.iterdir())))
    scores = {Path(hit["path"]).name: hit["score"] for hit in found["moments"]}
    # Tokens are stored in half precision, and frames that look alike are encoded once.
    assert [scores[path.name] for path in sorted(clips.iterdir())] == pytest.approx(expected[0].tolist(), abs=6e-3)
    like = json.loads(
        succeeds("search", "--like", clips / "red.mp4", "-l", library, "-k", 1, "--json", "--device", "cpu")
    )
    assert Path(like["moments"][0]["path"]).name in ("green.mp4", "blue.mp4")
    captions = tmp_path / "captions.txt"
    captions.write_text("the red dog\na cat\n")
    said = succeeds("match", clips / "red.mp4", captions, "--model", folder, "--json", "--device", "cpu")
    best = {row["caption"]: row["score"] for row in map(json.loads, said.splitlines())}
    assert best["the red dog"] == pytest.approx(scores["red.mp4"], abs=1e-5)
    assert "unchanged" in succeeds("index", clips, "-l", library, "--device", "cpu")
    assert "Loading" not in capfd.readouterr().err


def test_it_is_served(siglip2: Path, clips: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    succeeds("index", clips, "-l", library, "--model", siglip2, "--workers", 1, "--device", "cpu")
    with python("-m", "prota", "serve", "-l", library, "--port", 0, "--device", "cpu") as process:
        assert process.stdout is not None
        found = re.search(r"http://[^/\s]+", process.stdout.readline())
        assert found is not None

        def ready() -> bool:
            try:
                return bool(urllib.request.urlopen(f"{found[0]}/readyz").status == 200)
            except OSError:
                return False

        wait_until(ready, pause=0.1)
        with urllib.request.urlopen(f"{found[0]}/api/v1/search?q=the+red+dog&k=3") as answer:
            assert answer.status == 200
            assert "the red dog" in answer.read().decode()


def test_it_is_tuned_and_exported(siglip2: Path, world_config: Path, tmp_path: Path) -> None:
    """Two steps of ProTA's head on top; the run is calibrated, evaluated, exported and starts another."""
    config, run = tmp_path / "tuning.toml", tmp_path / "run"
    world = world_config.parent
    config.write_text(
        f"""
preset = "prota"
[encoder]
clip = "{siglip2}"
width = 24
image_size = 32
picture = "whole-bilinear"
text_length = 16
frames = 4
temporal_layers = 1
[data]
benchmark = "folder"
captions = "{world / "captions.csv"}"
videos = "{world / "clips"}"
cache = "{tmp_path / "cache"}"
cache_size = 32
[train]
epochs = 1
batch_size = 9
captions_per_video = 1
"""
    )
    succeeds("data", "prepare", config, "--workers", 1)
    assert "finished 2 steps" in succeeds("train", config, "-o", run, "--device", "cpu")
    succeeds("calibrate", run, "--device", "cpu")
    passport = tmp_path / "result.json"
    succeeds("evaluate", run, "--device", "cpu", "--json", passport)
    assert json.loads(passport.read_text())["queries"] == 14
    out = tmp_path / "model"
    succeeds("export", run, out, "--weights", "float16")
    assert prota.load(out, device="cpu").relevance is not None
    assert command("search", "a", "-l", tmp_path / "none", "--model", out).returncode == 1


def test_it_is_evaluated_untrained(siglip2: Path, world_config: Path, tmp_path: Path) -> None:
    cache = ("-s", f"data.cache={tmp_path / 'cache'}", "-s", "data.cache_size=32")
    pictures = ("-s", "encoder.frames=12", "-s", "encoder.picture=whole-bilinear")
    succeeds("data", "prepare", world_config, *cache, *pictures, "--workers", 1)
    passport = tmp_path / "result.json"
    succeeds("evaluate", siglip2, "--data", world_config, *cache, "--device", "cpu", "--json", passport, "--audit")
    assert json.loads(passport.read_text())["videos"] == 7
    copy = tmp_path / "copy"
    succeeds("export", siglip2, copy, "--weights", "int8")
    assert prota.load(copy, device="cpu").config == prota.load(siglip2, device="cpu").config


def test_a_library_is_calibrated_without_captions(siglip2: Path, world_config: Path, tmp_path: Path) -> None:
    """What is learned from everyday queries is stored in the library, and judges its results."""
    library = tmp_path / "library"
    succeeds(
        "index", world_config.parent / "clips", "-l", library, "--model", siglip2, "--workers", 1, "--device", "cpu"
    )
    search = ("search", "a cat", "-l", library, "-k", 2, "--json", "--device", "cpu")
    assert {hit["probability"] for hit in json.loads(succeeds(*search))["moments"]} == {None}
    said = json.loads(succeeds("calibrate", "--library", library, "--device", "cpu", "--json"))
    assert 0 < said["cutoff"] < 1
    assert all(0 <= hit["probability"] <= 1 for hit in json.loads(succeeds(*search))["moments"])
    few = tmp_path / "few"
    succeeds("index", world_config.parent / "clips" / "red-left.mp4", "-l", few, "--model", siglip2, "--device", "cpu")
    for arguments, code in ((("--library", few), 2), (("--library", tmp_path / "none"), 1), ((), 2)):
        assert command("calibrate", *arguments, "--device", "cpu").returncode == code
    assert not (few / "relevance.safetensors").exists()


@pytest.mark.parametrize("broken", ["hub", "kind", "half"])
def test_what_cannot_be_loaded_leaves_nothing_behind(
    broken: str, siglip2: Path, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, source = tmp_path / "library", str(shutil.copytree(siglip2, tmp_path / "model"))
    if broken == "hub":
        source = "nobody/such-model"
    elif broken == "kind":
        Path(source, "config.json").write_text(json.dumps({"model_type": "blip"}))
    else:
        Path(source, "model.safetensors").write_bytes(Path(source, "model.safetensors").read_bytes()[:1000])
    result = command("index", clips, "-l", library, "--model", source, "--device", "cpu")
    assert result.returncode == 1
    assert result.stderr.startswith("prota: ")
    assert result.stderr.count("\n") == 1
    assert not library.exists()
