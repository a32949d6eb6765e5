"""Towers that compute in int8: close to float32, and the same model to everyone who asks for its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prota import ProTA
from prota.encoders.int8 import Int8Linear, use_int8
from prota.library.tokens import stamp_of
from tests.library.worlds import toy_model
from tests.tiny_models import clip_config, pair_config


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 48), (1, 48), (2, 3, 48), (0, 48), (48,)])
def test_a_layer_gives_nearly_the_same(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(48, 24, bias)
    values = torch.randn(*shape) * 10 ** torch.randn(*shape[:-1], 1)
    with torch.no_grad():
        expected, found = layer(values), Int8Linear(layer)(values)
        offset = layer.bias if bias else torch.zeros(24)
        likeness = F.cosine_similarity(found - offset, expected - offset, dim=-1)
    assert found.shape == expected.shape
    # Both sides are rounded to within half of 1/127 of their largest.
    assert (likeness > 0.999).all()


def test_tokens_of_nothing_are_nothing() -> None:
    layer = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        assert Int8Linear(layer)(torch.zeros(3, 16)).abs().max() == 0


def test_each_token_has_its_own_scale() -> None:
    """A large token in the batch takes nothing from the precision of a small one."""
    layer = Int8Linear(nn.Linear(32, 16))
    small, large = torch.randn(1, 32), 1e4 * torch.randn(1, 32)
    with torch.no_grad():
        assert torch.equal(layer(torch.cat([small, large]))[:1], layer(small))


def test_elsewhere_than_on_a_cpu_it_is_an_ordinary_layer() -> None:
    layer = Int8Linear(nn.Linear(16, 8)).to("meta")
    assert layer(torch.zeros(3, 16, device="meta")).shape == (3, 8)


def test_a_model_stored_as_int8_stays_the_same_model(tmp_path: Path) -> None:
    """Its library's stamp and its file do not tell how it computes."""
    toy_model().save_pretrained(tmp_path / "one", weights="int8")
    plain, rounded = ProTA.from_pretrained(tmp_path / "one"), ProTA.from_pretrained(tmp_path / "one").use_int8()
    assert sum(isinstance(part, Int8Linear) for part in rounded.modules()) > 20
    assert stamp_of(plain, "name") == stamp_of(rounded, "name")
    rounded.save_pretrained(tmp_path / "two", weights="int8")
    first, second = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("kind", ["clip", "pair"])
def test_tokens_stay_close(kind: str, request: pytest.FixtureRequest) -> None:
    names = ["clip_folder"] if kind == "clip" else ["dinov2_folder", "bert_folder"]
    folders = [request.getfixturevalue(name) for name in names]
    torch.manual_seed(0)
    model = ProTA.from_config(clip_config(*folders) if kind == "clip" else pair_config(*folders)).eval()
    size = model.config.encoder.image_size
    frames, texts = torch.randint(0, 256, (2, 3, 3, size, size), dtype=torch.uint8), ["a cat runs", "the red dog"]
    with torch.no_grad():
        before = [model.video_encoder(frames), model.text_encoder(texts)]
        after = [model.use_int8().video_encoder(frames), model.text_encoder(texts)]
    for one, other in zip(before, after, strict=True):
        likeness = F.cosine_similarity(one.embeddings, other.embeddings, dim=-1)
        assert float(likeness[one.mask].min()) > 0.99


def test_layers_that_are_more_than_linear_are_left_alone() -> None:
    attention = nn.Sequential(nn.MultiheadAttention(16, 2), nn.Linear(4, 4))
    use_int8(attention)
    assert not any(isinstance(part, Int8Linear) for part in attention[0].modules())
    assert isinstance(attention[1], Int8Linear)
