"""A model that is loaded for texts: the vision tower comes on demand, and its identity is known without it."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prota import Config, ModelFolderError, ProTA
from prota.library.tokens import stamp_of
from prota.model.folder import WeightsKind
from prota.model.relevance import Fit, Relevance


def toy(*overrides: str) -> ProTA:
    return ProTA.from_config(Config.build("prota", "toy", overrides)).eval()


def frames(model: ProTA) -> torch.Tensor:
    size = model.config.encoder.image_size
    return torch.arange(2 * 3 * 3 * size * size).remainder(251).to(torch.uint8).view(2, 3, 3, size, size)


@torch.inference_mode()
def scores(model: ProTA) -> torch.Tensor:
    return model.score(model.encode_text(["red", "a blue circle"]), model.encode_video(frames(model)))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def change_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["logit_scale"] = weights["logit_scale"] + 1
    save_file(weights, folder / "model.safetensors")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Models that are loaded as a whole."""
    found, load = [], ProTA.from_pretrained

    def counted(source: str | Path) -> ProTA:
        found.append(source)
        return load(source)

    monkeypatch.setattr(ProTA, "from_pretrained", counted)
    return found


def test_the_vision_tower_is_loaded_with_the_first_video(tmp_path: Path, loads: list[object]) -> None:
    whole = toy()
    whole.save_pretrained(tmp_path)
    model = ProTA.for_texts(tmp_path)
    assert not any(name.startswith("video_encoder") for name, _ in model.named_parameters())
    with torch.inference_mode():
        model.encode_text("red")
    assert not loads
    assert torch.equal(scores(model), scores(whole))
    assert any(name.startswith("video_encoder") for name, _ in model.named_parameters())
    assert not loads
    assert not any(part.training for part in model.modules())


def test_a_copy_is_whole(tmp_path: Path) -> None:
    whole = toy()
    background = whole.encode_text("red").map(torch.detach)
    whole.relevance = Relevance(Fit((0.1, -2.0, 3.5, 1e-3, -1.0, 0.5), 0.4, 64), background)
    whole.save_pretrained(tmp_path / "model", "float16")
    model = ProTA.for_texts(tmp_path / "model")
    model.save_pretrained(tmp_path / "again")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), ProTA.from_pretrained(tmp_path / "again")):
        assert type(other) is ProTA
        assert other.identity() == model.identity()
        assert other.relevance is not None
        assert model.state_dict().keys() == other.state_dict().keys()


@pytest.mark.parametrize("weights", ["float32", "float16", "int8"])
def test_its_identity_is_saved_with_it(weights: WeightsKind, tmp_path: Path, loads: list[object]) -> None:
    toy().save_pretrained(tmp_path, weights)
    saved = ProTA.for_texts(tmp_path).identity()
    assert not loads
    assert saved == ProTA.from_pretrained(tmp_path).identity()


def test_a_saved_identity_counts_only_for_its_own_weights_and_settings(tmp_path: Path, loads: list[object]) -> None:
    toy().save_pretrained(tmp_path)
    saved = ProTA.for_texts(tmp_path).identity()
    change_weights(tmp_path)
    changed = ProTA.for_texts(tmp_path).identity()
    assert changed == ProTA.from_pretrained(tmp_path).identity() != saved
    settings = toy("score.xi=7").config.model_dump()
    edit(tmp_path, config=settings)
    other = ProTA.for_texts(tmp_path).identity()
    assert other == ProTA.from_pretrained(tmp_path).identity()
    assert other not in (saved, changed)


def test_an_identity_that_was_saved_under_other_names_is_found_again(tmp_path: Path) -> None:
    """Versions of transformers name weights differently; a library may have been made by another one."""
    whole = toy()
    whole.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["identity"]
    edit(tmp_path, identity=saved | {"model": "of other names"})
    model, made_by = ProTA.for_texts(tmp_path), stamp_of(whole, "toy")
    assert model.identity() == "of other names"
    assert stamp_of(model, "toy", made_by) == made_by
    assert stamp_of(toy("score.xi=7"), "toy", made_by) != made_by


@pytest.mark.parametrize("identity", [None, {}, {"model": "made up", "files": "old"}, "text"])
def test_models_without_a_saved_identity_are_hashed(identity: object, tmp_path: Path) -> None:
    whole = toy()
    whole.save_pretrained(tmp_path)
    edit(tmp_path, identity=identity)
    assert ProTA.for_texts(tmp_path).identity() == whole.identity()


def test_a_folder_that_changed_is_not_mixed_in(tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    model = ProTA.for_texts(tmp_path)
    change_weights(tmp_path)
    with pytest.raises(ModelFolderError, match="has changed"):
        model.encode_video(frames(model))


@pytest.mark.parametrize("damage", ["missing", "more", "shape", "cut"])
def test_damage_is_told_as_of_a_whole_model(damage: str, tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    path, name = tmp_path / "model.safetensors", "text_encoder.tower.projection.weight"
    weights = load_file(path)
    if damage == "missing":
        del weights[name]
    elif damage == "shape":
        weights[name] = weights[name][:-1].clone()
    elif damage == "more":
        weights["text_encoder.more"] = weights[name].clone()
    save_file(weights, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    told = []
    for load in (ProTA.for_texts, ProTA.from_pretrained):
        with pytest.raises(ModelFolderError) as caught:
            load(tmp_path)
        told.append(str(caught.value))
    assert told[0] == told[1]
