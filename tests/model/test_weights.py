"""Weights as files: what each kind rounds, what it weighs, and what is said of files that are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model

from prota import Config, ModelFolderError, ProTA
from prota.encoders.int8 import round_rows
from prota.model.weights import KINDS, WeightsError, WeightsKind, read_weights, rounding_error, write_weights
from tests.tiny_models import WORDS, pair_config, write_tokenizer, write_vision

TEXTS = ["a cat runs", "the red dog", "a dog"]


def toy(*overrides: str) -> ProTA:
    return ProTA.from_config(Config.build("prota", "toy", overrides)).eval()


@torch.no_grad()
def scores(model: ProTA, size: int) -> Tensor:
    frames = torch.randint(0, 256, (5, 3, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    return model.score(model.encode_text(TEXTS), model.encode_video(frames))


@pytest.mark.parametrize("size", [1e-30, 1e-6, 0.02, 1.0, 3e4, 1e30])
def test_no_weight_moves_by_more_than_half_its_scale(size: float) -> None:
    rows = size * torch.randn(50, 30) * torch.logspace(-4, 0, 50)[:, None]
    whole, scale = round_rows(rows)
    assert whole.dtype == torch.int8
    assert whole.abs().amax(dim=1).eq(127).all()
    moved = (whole.double() * scale.double()[:, None] - rows.double()).abs()
    assert (moved <= 0.5 * (1 + 1e-5) * scale.double()[:, None]).all()
    # The largest of a row decides its scale, to 16 bits.
    torch.testing.assert_close(scale * 127, rows.abs().amax(dim=1), rtol=2**-16, atol=0)


def test_rows_of_zeros_and_of_nearly_nothing_are_zeros() -> None:
    whole, scale = round_rows(torch.tensor([[0.0, 0.0], [1e-43, -1e-44], [1.0, -1.0]]))
    assert whole.tolist() == [[0, 0], [0, 0], [127, -127]]
    assert (scale > 0).all()


def test_a_vector_in_disguise_is_left_alone_and_positions_have_rows(tmp_path: Path) -> None:
    given = {
        "class": torch.randn(1, 1, 8), "bias": torch.randn(8), "scale": torch.tensor(4.6),
        "positions": torch.randn(1, 5, 8), "convolution": torch.randn(4, 3, 2, 2), "count": torch.tensor([1, 2]),
    }  # fmt: skip
    write_weights(tmp_path / "w", given, "int8")
    stored = load_file(tmp_path / "w")
    assert {name for name, value in stored.items() if value.dtype == torch.int8} == {"positions", "convolution"}
    assert stored["positions:scale"].shape == (5,)
    assert stored["convolution:scale"].shape == (4,)
    found = read_weights(tmp_path / "w")
    assert {name: value.shape for name, value in found.items()} == {name: value.shape for name, value in given.items()}
    for name in ("class", "bias", "scale", "count"):
        assert torch.equal(found[name], given[name])


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_twice_is_rounding_once(kind: WeightsKind, tmp_path: Path) -> None:
    """A model that was loaded from a file gives that file again, byte for byte."""
    model = toy()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(torch.rand(()) * 3)
    model.save_pretrained(tmp_path / "first", weights=kind)
    loaded = ProTA.from_pretrained(tmp_path / "first")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    loaded.save_pretrained(tmp_path / "second", weights=kind)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert json.loads((tmp_path / "first" / "config.json").read_text())["weights"] == kind


@pytest.mark.parametrize(("kind", "difference"), [("float32", 0.0), ("float16", 1e-3), ("int8", 2e-2)])
def test_scores_hardly_move_and_rankings_stay(kind: WeightsKind, difference: float, tmp_path: Path) -> None:
    model = toy()
    model.save_pretrained(tmp_path, weights=kind)
    before, after = scores(model, 32), scores(ProTA.from_pretrained(tmp_path), 32)
    torch.testing.assert_close(after, before, rtol=0, atol=difference)
    order = before.argsort(dim=1, descending=True)
    gaps = before.gather(1, order).diff(dim=1).abs()
    # What lies closer together than rounding moves may change places, nothing else.
    assert ((after.gather(1, order).diff(dim=1) <= 0) | (gaps <= 2 * (before - after).abs().max())).all()


def test_a_model_of_half_precision_is_stored_in_full(tmp_path: Path) -> None:
    model = toy()
    model.half().save_pretrained(tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float32}


def write_pair(folder: Path, width: int) -> ProTA:
    """Towers wide enough for their rows to outweigh what each carries beside them."""
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {"vocab_size": len(WORDS), "max_position_embeddings": 20, "intermediate_size": 4 * width}
    vision = Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes))
    text = BertModel(BertConfig(**words, **sizes))
    write_vision(vision, folder / "vision")
    text.save_pretrained(folder / "text")
    write_tokenizer(folder / "text")
    return ProTA.from_config(pair_config(folder / "vision", folder / "text", f"encoder.width={width}")).eval()


def test_a_pair_of_towers_takes_a_quarter(tmp_path: Path) -> None:
    model = write_pair(tmp_path, 256)
    for kind in KINDS:
        model.save_pretrained(tmp_path / kind, weights=kind)  # type: ignore[arg-type]
    size = {kind: (tmp_path / kind / "model.safetensors").stat().st_size for kind in KINDS}
    assert size["int8"] < 0.27 * size["float32"]
    assert size["float16"] < 0.51 * size["float32"]
    loaded = ProTA.from_pretrained(tmp_path / "int8")
    assert loaded.text_encoder.pieces("a cat") == ["<start>", "a", "cat", "<end>"]
    assert loaded.video_encoder.tower.image == model.video_encoder.tower.image
    with torch.no_grad():
        tokens, rounded = model.text_encoder(TEXTS), loaded.text_encoder(TEXTS)
    likeness = F.cosine_similarity(tokens.embeddings, rounded.embeddings, dim=-1)
    assert float(likeness[tokens.mask].min()) > 0.999


def test_the_largest_error_of_a_row_is_found() -> None:
    weights = {"a": torch.tensor([[1.0, 1.0], [127.0, 3.1]]), "b": torch.tensor([[1.0, 0.25], [0.0, 0.0]])}
    name, error = rounding_error(weights, "int8")
    assert name == "b"
    assert error == pytest.approx(abs(32 / 127 - 0.25) / (1 + 0.25**2) ** 0.5, rel=1e-3)
    assert rounding_error(weights, "float32") == ("", 0.0)
    assert rounding_error({"a": torch.randn(5, 5)}, "float16")[1] < 2**-10


def test_what_cannot_be_rounded_is_refused(tmp_path: Path) -> None:
    broken = {"a": torch.tensor([[1.0, torch.nan], [0.0, 1.0]])}
    for kind in ("int8", "float16"):
        with pytest.raises(WeightsError, match="a contains NaN or infinity"):
            write_weights(tmp_path / "w", broken, kind)  # type: ignore[arg-type]
    write_weights(tmp_path / "w", broken, "float32")
    with pytest.raises(WeightsError, match="weights must be one of float32, float16, int8; got 'int4'"):
        toy().save_pretrained(tmp_path / "model", weights="int4")  # type: ignore[arg-type]
    # Beyond float16: kept as it is.
    write_weights(tmp_path / "w", {"a": torch.tensor([[1e6, 1.0], [0.0, 1.0]])}, "float16")
    assert read_weights(tmp_path / "w")["a"][0, 0] == 1e6


def _change(change: Callable[[dict[str, Tensor], str], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        stored = load_file(path)
        change(stored, next(name for name in stored if stored[name].dtype == torch.int8))
        save_file(stored, path)

    return damage


def _record(**changes: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def _put(stored: dict[str, Tensor], name: str, value: float) -> None:
    stored[f"{name}:scale"][0] = value


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_change(lambda stored, name: stored.pop(f"{name}:scale")), "is int8 and has no scales; copy or save"),
        (_change(lambda stored, name: _put(stored, name, float("nan"))), "scales of .* must be positive numbers"),
        (_change(lambda stored, name: _put(stored, name, -1.0)), "scales of .* must be positive numbers"),
        (_change(lambda stored, name: _put(stored, name, 0.0)), "scales of .* must be positive numbers"),
        (
            _change(lambda stored, name: stored.update({f"{name}:scale": torch.ones(2)})),
            r"scales of .* are float32 \[2\], not float32 \[\d+\]",
        ),
        (
            _change(lambda stored, name: stored.update({f"{name}:scale": stored[f"{name}:scale"].half()})),
            "scales of .* are float16",
        ),
        (
            _change(lambda stored, name: stored.update({"ghost:scale": torch.ones(2)})),
            "ghost:scale has no matching tensor",
        ),
        (
            _change(lambda stored, name: (stored.pop(name), stored.pop(f"{name}:scale"))),
            r"does not match its config\.json",
        ),
        (_record(weights="int4"), "'int4' weights; this version reads float32, float16, int8: upgrade prota"),
        (_record(weights=["int8"]), r"\['int8'\] weights; this version reads"),
        (_record(version=3), "format version 3, this prota reads versions up to 2: upgrade prota"),
    ],
)
def test_damage_gets_one_clear_line(damage: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    toy().save_pretrained(tmp_path, weights="int8")
    damage(tmp_path)
    with pytest.raises(ModelFolderError, match=sentence) as caught:
        ProTA.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_older_readers_read_what_they_can(tmp_path: Path) -> None:
    """The version is that of the first reader: only int8 needs a new one, and folders without a kind still load."""
    for kind, version in (("float32", 1), ("float16", 1), ("int8", 2)):
        toy().save_pretrained(tmp_path, weights=kind)  # type: ignore[arg-type]
        assert json.loads((tmp_path / "config.json").read_text())["version"] == version
    toy().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    del record["weights"]
    path.write_text(json.dumps(record))
    assert ProTA.from_pretrained(tmp_path).config.encoder.kind == "toy"
