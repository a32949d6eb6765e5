"""Model folders outlive the names that one version of transformers gives to its modules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from prota import ProTA
from prota.encoders.weight_names import names_in_files, names_in_memory
from prota.model.folder import ModelFolderError
from tests.tiny_models import clip_config, pair_config

VISION = "video_encoder.tower.model."


@pytest.fixture
def model(dinov2_folder: Path, bert_folder: Path) -> ProTA:
    return ProTA.from_config(pair_config(dinov2_folder, bert_folder)).eval()


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_files_have_the_names_of_the_hub(model: ProTA, dinov2_folder: Path, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    names = {name.removeprefix(VISION) for name in load_file(tmp_path / "model.safetensors") if name.startswith(VISION)}
    AutoModel.from_pretrained(dinov2_folder).save_pretrained(tmp_path / "theirs")
    assert names <= load_file(tmp_path / "theirs" / "model.safetensors").keys()
    assert any("attention.attention.query" in name for name in names)
    assert_equal(ProTA.from_pretrained(tmp_path).state_dict(), model.state_dict())


def test_weights_under_the_names_of_memory_are_read_too(model: ProTA, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert_equal(ProTA.from_pretrained(tmp_path).state_dict(), model.state_dict())


def test_there_and_back(model: ProTA, clip_folder: Path) -> None:
    for each in (model, ProTA.from_config(clip_config(clip_folder))):
        weights = each.state_dict()
        assert_equal(names_in_memory(each, names_in_files(each, weights)), dict(weights))


def test_what_is_missing_is_not_made_up(model: ProTA, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(name for name in weights if "attention.attention.query.weight" in name)
    strange = weights | {VISION + "strange": torch.zeros(2)}
    del weights[lost]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelFolderError, match=r"does not match its config\.json: video_encoder\S+ is missing"):
        ProTA.from_pretrained(tmp_path)
    save_file(strange, tmp_path / "model.safetensors")
    with pytest.raises(ModelFolderError, match=r"strange is not part of the model"):
        ProTA.from_pretrained(tmp_path)


def test_reading_shows_no_bar(model: ProTA, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model.save_pretrained(tmp_path)
    capfd.readouterr()
    ProTA.from_pretrained(tmp_path)
    assert "Loading" not in capfd.readouterr().err
    assert json.loads((tmp_path / "config.json").read_text())["format"] == "prota"
