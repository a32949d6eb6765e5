"""The whole model: saving and loading, learning, and what it says about folders that are not models."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import CLIPModel

from prota import Config, ModelFolderError, ProTA
from prota.config.presets import PRESETS
from prota.evaluation.metrics import retrieval_metrics
from prota.losses import prota_loss
from prota.model.relevance import RELEVANCE_FILE, Fit, Relevance
from tests.tiny_models import clip_config, pair_config

TEXTS = ["a red square", "the blue circle moves to the left", ""]


def toy(preset: str = "prota", *overrides: str) -> ProTA:
    return ProTA.from_config(Config.build(preset, "toy", overrides))


def random_frames(size: int = 32) -> tuple[Tensor, Tensor]:
    mask = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    return torch.randint(0, 256, (3, 3, 3, size, size), dtype=torch.uint8), mask


@torch.no_grad()
def scores(model: ProTA, frames: Tensor, mask: Tensor) -> Tensor:
    return model.score(model.encode_text(TEXTS), model.encode_video(frames, mask))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_model_scores_the_same(preset: str, tmp_path: Path) -> None:
    model = toy(preset).eval()
    frames, mask = random_frames()
    expected = scores(model, frames, mask)
    assert expected.shape == (3, 3)
    model.save_pretrained(tmp_path / "model")
    loaded = ProTA.from_pretrained(tmp_path / "model")
    assert loaded.config == model.config
    assert not loaded.training
    assert torch.equal(scores(loaded, frames, mask), expected)


def test_relevance_is_saved_and_loaded_with_the_model(tmp_path: Path) -> None:
    model, folder = toy().eval(), tmp_path / "model"
    model.save_pretrained(folder)
    assert ProTA.from_pretrained(folder).relevance is None
    background = model.encode_video(*random_frames()).without_source().map(Tensor.detach)
    model.relevance = Relevance(Fit((0.1, -2.0, 3.5, 1e-3, -1.0, 0.5), 0.4, 64), background)
    model.save_pretrained(folder)
    loaded = ProTA.from_pretrained(folder)
    assert loaded.relevance is not None
    assert loaded.relevance.fit == model.relevance.fit
    loaded.save_pretrained(tmp_path / "again")
    again = ProTA.from_pretrained(tmp_path / "again").relevance
    assert again is not None
    assert again.fit == loaded.relevance.fit
    assert torch.equal(again.background.direction, loaded.relevance.background.direction)
    (folder / RELEVANCE_FILE).write_bytes(b"{}")
    with pytest.raises(ModelFolderError):
        ProTA.from_pretrained(folder)
    loaded.relevance = None
    loaded.save_pretrained(folder)
    assert ProTA.from_pretrained(folder).relevance is None


@pytest.mark.parametrize("kind", ["clip", "pair"])
def test_a_saved_model_needs_nothing_it_came_from(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The towers' folders are gone when the model is loaded: architecture, tokenizer and weights are all in its own."""
    names = ["clip_folder"] if kind == "clip" else ["dinov2_folder", "bert_folder"]
    folders = [shutil.copytree(request.getfixturevalue(name), tmp_path / name) for name in names]
    config = clip_config(*folders) if kind == "clip" else pair_config(*folders)
    model = ProTA.from_config(config).eval()
    frames, mask = random_frames(config.encoder.image_size)
    expected = scores(model, frames, mask)
    model.save_pretrained(tmp_path / "model")
    for folder in folders:
        shutil.rmtree(folder)
    loaded = ProTA.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(scores(loaded, frames, mask), expected, rtol=0, atol=1e-6)
    assert loaded.video_encoder.tower.image == model.video_encoder.tower.image
    assert loaded.text_encoder.pieces("a cat") == ["<start>", "a", "cat", "<end>"]


def test_a_setting_that_was_removed_is_read_past_where_it_has_its_old_default(tmp_path: Path) -> None:
    """Models of earlier versions name ``score.bandwidth``."""
    model = toy("prota")
    model.save_pretrained(tmp_path)
    saved = model.config.model_dump()
    _edit(tmp_path, config=saved | {"score": saved["score"] | {"bandwidth": "fixed"}})
    assert ProTA.from_pretrained(tmp_path).config == model.config
    _edit(tmp_path, config=saved | {"score": saved["score"] | {"bandwidth": "learned"}})
    with pytest.raises(ModelFolderError) as caught:
        ProTA.from_pretrained(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has settings that this version cannot read: score.bandwidth was removed: must be 'fixed', "
        "got 'learned'"
    )


def test_saving_over_a_model_replaces_it_and_keeps_other_files(tmp_path: Path) -> None:
    toy("dpa").save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("a model card")
    toy("prota").save_pretrained(tmp_path)
    assert ProTA.from_pretrained(tmp_path).config.score.similarity == "squared"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _other_weights(folder: Path) -> None:
    toy("dpa").save_pretrained(folder / "dpa")
    shutil.copy(folder / "dpa" / "model.safetensors", folder / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda folder: (folder / "config.json").unlink(),
            "has no config.json: not a ProTA model, or incompletely saved",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"), r"config\.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "is not a ProTA model"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "t5"}'), "is a 't5' model"),
        (lambda folder: _edit(folder, version=99), "format version 99, this prota reads versions up to 2: upgrade"),
        (
            lambda folder: _edit(folder, config={"score": {"xi": 0}}),
            r"version cannot read: score\.xi must be",
        ),
        (lambda folder: _edit(folder, config=None), "has settings that this version cannot read"),
        (lambda folder: _edit(folder, towers={}, config={}), "has a model that this version cannot build"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors is missing: .* incomplete"),
        (_truncate, r"model\.safetensors is corrupt or truncated"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "is corrupt or truncated"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x80" * 99), "is corrupt or truncated"),
        (_other_weights, r"does not match its config\.json: .* is missing \(and \d+ more\)"),
    ],
)
def test_a_damaged_or_foreign_folder_gets_one_clear_line(damage: object, sentence: str, tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(ModelFolderError, match=sentence) as caught:
        ProTA.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:50]),
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),
        lambda folder: _edit(folder, towers={"clip": {"text_config": {"num_attention_heads": 5}}, "image": {}}),
        lambda folder: _edit(folder, towers={"clip": 3, "image": {"size": 1}}),
    ],
)
def test_damage_around_the_weights_gets_one_clear_line(damage: object, clip_folder: Path, tmp_path: Path) -> None:
    ProTA.from_config(clip_config(clip_folder)).save_pretrained(tmp_path)
    damage(tmp_path)  # type: ignore[operator]
    with pytest.raises(ModelFolderError, match="has a model that this version cannot build") as caught:
        ProTA.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_interrupted_overwrite_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old settings never stand beside new weights: whatever moment the saving ends, the folder says it is not whole."""
    toy("dpa").save_pretrained(tmp_path)
    replaced = []

    def replace(source: Path, target: Path) -> None:
        if source.name == "config.json":
            raise KeyboardInterrupt
        replaced.append(source.name)
        os.rename(source, target)

    monkeypatch.setattr("prota.model.prota.os.replace", replace)
    with pytest.raises(KeyboardInterrupt):
        toy("dpa").save_pretrained(tmp_path)
    assert replaced == ["model.safetensors"]
    with pytest.raises(ModelFolderError, match="incompletely saved"):
        ProTA.from_pretrained(tmp_path)


def test_saved_files_are_readable_by_others(tmp_path: Path) -> None:
    toy("dpa").save_pretrained(tmp_path)
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {(tmp_path / "config.json").stat().st_mode & 0o777}


def test_sources_that_are_no_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"no such folder, not a shipped model .* not a hub id"):
        ProTA.from_pretrained(tmp_path / "nothing")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ModelFolderError, match="is a file: give the folder that save_pretrained wrote"):
        ProTA.from_pretrained(file)
    with pytest.raises(ModelFolderError, match="is a file: give a folder to save the model in"):
        toy().save_pretrained(file)
    with pytest.raises(ModelFolderError, match="such-model: no such folder, and not available from the hub"):
        ProTA.from_pretrained("nobody/such-model")


def test_a_hub_id_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy("dpa").save_pretrained(tmp_path)
    asked = []

    def snapshot_download(repo_id: str, **_: object) -> str:
        asked.append(repo_id)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert ProTA.from_pretrained("someone/prota-model").config.score.similarity == "cosine"
    assert asked == ["someone/prota-model"]


@pytest.mark.parametrize("preset", ["global-pooling", "mean-max"])
def test_an_untrained_clip_scores_as_clip_does(preset: str, clip_folder: Path) -> None:
    """Zero-shot: cosines of CLIP's own features, straight from transformers; nothing of ours comes between."""
    config = clip_config(clip_folder).encoder.replace(temporal_layers=0)
    model = ProTA.from_config(Config.build(preset, values={"encoder": config.model_dump()})).eval()
    texts = ["a cat runs", "the red dog", "a"]
    frames, mask = random_frames(32)
    clip, tower = CLIPModel.from_pretrained(clip_folder).eval(), model.video_encoder.tower
    pictures = (frames / 255 - tower.mean) / tower.deviation
    batch = model.text_encoder.tokenize(texts)
    with torch.no_grad():
        found = model.score(model.encode_text(texts), model.encode_video(frames, mask))
        words = clip.text_model(input_ids=batch.ids, attention_mask=batch.mask.long())
        sentences = F.normalize(clip.text_projection(words.pooler_output), dim=-1)
        tokens = F.normalize(clip.text_projection(words.last_hidden_state), dim=-1)
        seen = [
            F.normalize(clip.visual_projection(clip.vision_model(pixel_values=video[real]).pooler_output), dim=-1)
            for video, real in zip(pictures, mask, strict=True)
        ]
    if preset == "global-pooling":
        expected = sentences @ torch.stack([F.normalize(video.mean(dim=0), dim=0) for video in seen]).T
    else:
        pairs = [[text[real] @ video.T for video in seen] for text, real in zip(tokens, batch.mask, strict=True)]
        expected = torch.tensor([[(c.amax(1).mean() + c.amax(0).mean()) / 2 for c in row] for row in pairs])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_explanations_name_their_words() -> None:
    model = toy().eval()
    frames, mask = random_frames()
    text, video = model.encode_text("a red square")[:1], model.encode_video(frames, mask)[:1]
    explanation = model.explain(text, video)
    assert len(model.text_encoder.pieces("a red square")) == len(explanation.text_low) == 5
    assert explanation.similarities.shape == (5, 3)
    assert explanation.score == pytest.approx(model.score(text, video).item(), abs=1e-6)
    words = explanation.by_word(model.text_encoder.words("a red square"))
    assert [word.text for word in words if not word.rest] == ["a", "red", "square"]
    assert sum(word.contribution for word in words) == pytest.approx(
        float(explanation.text_contributions.sum()), abs=1e-6
    )


def test_gaussians_start_where_the_backbone_is() -> None:
    """Fresh from its backbone, the probabilistic model ranks by the same means as the deterministic one."""
    torch.manual_seed(1)
    model = toy()
    tokens = model.text_encoder(TEXTS)
    source = model.encode_text(TEXTS).source
    expected = tokens.embeddings.masked_fill(~tokens.mask[..., None], 0)
    torch.testing.assert_close(source.mean, expected)


@pytest.mark.parametrize("preset", ["global-pooling", "dpa", "prota"])
def test_the_toy_model_learns_eight_pairs_by_heart(preset: str) -> None:
    model = toy(preset)
    colours = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]
    texts = [f"a {colour} thing number {index}" for index, colour in enumerate(colours)]
    frames = torch.randint(0, 256, (8, 4, 3, 32, 32), dtype=torch.uint8)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = last = 0.0
    # Long after all is learned, the KL term alone would go on widening the Gaussians.
    for step in range(30):
        encoded = model.encode_text(texts), model.encode_video(frames)
        terms = prota_loss(model.score(*encoded), *encoded, logit_scale=model.logit_scale, config=model.config.loss)
        optimiser.zero_grad()
        terms.total.backward()
        # As in training: with λ = 100 single gradients are large, and the rates here are higher than any recipe's.
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        first, last = first if step else terms.total.item(), terms.total.item()
    with torch.no_grad():
        matrix = model.eval().score(model.encode_text(texts), model.encode_video(frames))
    metrics = retrieval_metrics(matrix, torch.arange(8))
    assert metrics.text_to_video.r1 == metrics.video_to_text.r1 == 100.0
    assert last < 0.5 * first
