"""Aligned dual encoders: vectors and pictures are those of transformers, by its own documented calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

import prota
from prota import ConfigError, ModelFolderError, ProTA
from prota.encoders.aligned import KINDS, picture_format
from prota.encoders.video import JointTower
from prota.video.transforms import to_square
from tests.tiny_models import ALIGNED, write_aligned

TEXTS = ["a cat", "the red dog runs, the cat runs!", "dog", " ".join(["red"] * 15)]
# Sides with an even difference after resizing: processors of the family round the half pixel of odd ones differently.
SIZES = [(32, 32), (48, 64), (90, 40), (36, 64), (200, 100)]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(1)
    return {kind: write_aligned(kind, tmp_path_factory.mktemp(kind)) for kind in ALIGNED}


@pytest.fixture(params=ALIGNED)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, generator = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(len(SIZES))]
    for path, (width, height) in zip(paths, SIZES, strict=True):
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return paths


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def their_texts(kind: str, folder: Path, texts: Sequence[str]) -> Tensor:
    """Unit vectors, as the documentation of transformers computes them."""
    model: Any = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
    # SigLIP 2 learned from lower-case texts.
    texts = [text.lower() for text in texts] if kind == "siglip2" else list(texts)
    padded = kind in ("siglip", "siglip2", "videoprism")
    options = {"padding": "max_length" if padded else True, "max_length": 16, "truncation": True}
    batch = tokenizer(texts, return_tensors="pt", **options)
    if kind in ("siglip", "siglip2"):
        # Its own tokenizers give no mask.
        batch.pop("attention_mask")
    with torch.inference_mode():
        return F.normalize(model.get_text_features(**batch).pooler_output, dim=-1)


def their_pictures(kind: str, folder: Path, paths: Sequence[Path]) -> Tensor:
    model: Any = AutoModel.from_pretrained(folder).eval()
    opened = [Image.open(path).convert("RGB") for path in paths]
    with torch.inference_mode():
        if kind == "videoprism":
            # Its processor needs torchvision: by hand what its settings say, one frame a video.
            squares = [np.asarray(picture.resize((36, 36), Image.Resampling.BICUBIC)) for picture in opened]
            pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)[:, None] / 255
            vectors = model.get_video_features(pixels, interpolate_pos_encoding=True).pooler_output[:, 0]
        else:
            batch = AutoImageProcessor.from_pretrained(folder, backend="pil")(opened, return_tensors="pt")
            vectors = model.get_image_features(**batch).pooler_output
    return F.normalize(vectors, dim=-1)


def frames_of(model: ProTA, paths: Sequence[Path]) -> Tensor:
    """Pictures as the model takes them, each a video of one frame, uint8."""
    encoder = model.config.encoder
    arrays = [to_square(np.array(Image.open(path)), encoder.image_size, encoder.picture) for path in paths]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)[:, None]


def sentence(model: ProTA, texts: Sequence[str]) -> Tensor:
    tokens = model.encode_text(texts)
    return torch.einsum("an,and->ad", tokens.weight, tokens.direction)


def test_texts_are_those_of_transformers(kind: str, checkpoints: dict[str, Path]) -> None:
    """Short and long, alone and in a batch."""
    model = prota.load(checkpoints[kind], device="cpu")
    texts = [*TEXTS, "A Red DOG"] if kind == "siglip2" else TEXTS
    expected = their_texts(kind, checkpoints[kind], texts)
    with torch.inference_mode():
        close(sentence(model, texts), expected)
        for number, text in enumerate(texts):
            close(sentence(model, [text]), expected[number : number + 1])


def test_pictures_are_those_of_transformers(kind: str, checkpoints: dict[str, Path], pictures: list[Path]) -> None:
    model = prota.load(checkpoints[kind], device="cpu")
    expected = their_pictures(kind, checkpoints[kind], pictures)
    with torch.inference_mode():
        videos = model.encode_video(frames_of(model, pictures))
        close(videos.direction[:, 0], expected)
        scores = model.similarity(model.encode_text(TEXTS), videos)
    close(scores, their_texts(kind, checkpoints[kind], TEXTS) @ expected.T)


def test_every_pixel_is_that_of_the_image_processor(
    kind: str, checkpoints: dict[str, Path], pictures: list[Path]
) -> None:
    if kind == "videoprism":
        pytest.skip("its processor needs torchvision")
    folder = checkpoints[kind]
    model = prota.load(folder, device="cpu")
    tower = model.video_encoder.tower
    process = AutoImageProcessor.from_pretrained(folder, backend="pil")
    for path in pictures:
        theirs = process(Image.open(path), return_tensors="pt")["pixel_values"][0]
        close((frames_of(model, [path])[0, 0] / 255 - tower.mean) / tower.deviation, theirs)


def test_frames_are_averaged(kind: str, checkpoints: dict[str, Path]) -> None:
    """Of encoders of pictures the mean of the frames' unit vectors; others see the frames together."""
    model = prota.load(checkpoints[kind], device="cpu")
    size = model.config.encoder.image_size
    frames = torch.randint(0, 256, (3, 4, 3, size, size), dtype=torch.uint8)
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [True] * 4])
    theirs: Any = AutoModel.from_pretrained(checkpoints[kind]).eval()
    tower = model.video_encoder.tower
    pixels = (frames / 255 - tower.mean) / tower.deviation
    vectors = []
    with torch.inference_mode():
        for video, real in zip(pixels, mask, strict=True):
            if isinstance(tower, JointTower):
                own = bool(real.all())
                found = theirs.get_video_features(video[real][None], interpolate_pos_encoding=not own)
                vectors.append(found.pooler_output[0, 0])
            else:
                each = theirs.get_image_features(pixel_values=video[real]).pooler_output
                vectors.append(F.normalize(each, dim=-1).mean(dim=0))
        expected = F.normalize(torch.stack(vectors), dim=-1)
        texts = model.encode_text(TEXTS)
        close(model.similarity(texts, model.encode_video(frames, mask)), sentence(model, TEXTS) @ expected.T)


def test_every_word_has_a_vector_of_the_text_head(kind: str, checkpoints: dict[str, Path]) -> None:
    """The sentence's own token stands last; before it are the words, named."""
    model = prota.load(checkpoints[kind], device="cpu")
    theirs: Any = AutoModel.from_pretrained(checkpoints[kind]).eval()
    batch = model.text_encoder.tokenize(TEXTS)
    with torch.inference_mode():
        tokens = model.text_encoder(TEXTS)
        hidden = theirs.text_model(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
        projection = getattr(theirs, "text_projection", None) or getattr(theirs.text_model, "head", None)
        projected = hidden if projection is None else projection(hidden)
    for row, text in enumerate(TEXTS):
        places = torch.arange(int(tokens.mask[row].sum())) if batch.scored is None else batch.scored[row]
        places = places[places >= 0]
        close(tokens.embeddings[row, : len(places)], projected[row, places])
        assert len(model.text_encoder.pieces(text)) == len(places)
        words = model.text_encoder.words(text)
        assert all(place < len(places) for word in words for place in word.tokens)
    assert [word.text.strip() for word in model.text_encoder.words("dog")] == ["dog"]


def test_settings_come_from_the_checkpoint(checkpoints: dict[str, Path]) -> None:
    found = {kind: prota.load(folder, device="cpu").config.encoder for kind, folder in checkpoints.items()}
    assert {kind: encoder.picture for kind, encoder in found.items()} == {
        "clip": "centre", "siglip": "whole", "siglip2": "whole-bilinear", "metaclip_2": "centre-bilinear",
        "altclip": "centre", "chinese_clip": "whole", "videoprism": "whole",
    }  # fmt: skip
    assert all(encoder.text_length == 16 for encoder in found.values())
    assert {encoder.temporal_layers for encoder in found.values()} == {0}
    assert (found["videoprism"].frames, found["videoprism"].tokens) == (4, 1)


def test_a_bare_model_is_known_wherever_it_lies(kind: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    moved = shutil.copytree(checkpoints[kind], tmp_path / "elsewhere")
    assert prota.load(moved, device="cpu").identity() == prota.load(checkpoints[kind], device="cpu").identity()


def test_a_saved_one_scores_the_same(
    kind: str, checkpoints: dict[str, Path], pictures: list[Path], tmp_path: Path
) -> None:
    model = prota.load(checkpoints[kind], device="cpu")
    texts, frames = [*TEXTS, "RED"], frames_of(model, pictures)
    expected = model.similarity(model.encode_text(texts), model.encode_video(frames))
    model.save_pretrained(tmp_path / "saved")
    for again in (ProTA.from_pretrained(tmp_path / "saved"), ProTA.for_texts(tmp_path / "saved")):
        close(again.similarity(again.encode_text(texts), again.encode_video(frames)), expected)
    assert ProTA.from_pretrained(tmp_path / "saved").identity() == model.identity()


def test_other_models_are_refused_with_the_list(tmp_path: Path, bert_folder: Path) -> None:
    for model_type in ("blip", "siglip2", "nothing", None):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        with pytest.raises(ModelFolderError, match=", ".join(KINDS)) as caught:
            prota.load(tmp_path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelFolderError):
        prota.load(bert_folder)


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer.json", "half"])
def test_half_a_download_is_one_clear_line(lost: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints["siglip"], tmp_path / "half")
    if lost == "half":
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    else:
        (folder / lost).unlink()
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ModelFolderError) as caught:
        prota.load(folder)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_not_made_up(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(checkpoints["clip"], tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    del weights["text_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFolderError, match=r"text_projection\.weight"):
        prota.load(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"resample": 1},
        {"size": {"height": 32, "width": 48}},
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
        {"size": {"shortest_edge": 32}, "do_center_crop": False},
    ],
)
def test_pictures_that_prota_cannot_make_are_refused(values: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError):
        picture_format(tmp_path, KINDS["clip"], 32)


def test_pictures_of_another_size_than_the_encoders_are_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints["siglip"], tmp_path / "siglip")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 64, "width": 64}}))
    with pytest.raises(ModelFolderError, match="64 pixels"):
        prota.load(folder)
