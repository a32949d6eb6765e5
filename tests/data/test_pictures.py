"""Cached frames as pictures: size, crop and mirror."""

from __future__ import annotations

import torch

from prota.data.pictures import Augmentation, to_pictures
from prota.experiment import TrainConfig


def frames() -> torch.Tensor:
    return torch.randint(0, 256, (2, 3, 16, 16, 3), dtype=torch.uint8)


def test_the_right_size_is_only_turned() -> None:
    given = frames()
    assert torch.equal(to_pictures(given, 16), given.permute(0, 1, 4, 2, 3))


def test_another_size_is_interpolated() -> None:
    smooth = torch.linspace(0, 255, 16).to(torch.uint8)[None, None, None, :, None].expand(1, 1, 16, 16, 3)
    smaller = to_pictures(smooth, 8)
    assert smaller.shape == (1, 1, 3, 8, 8)
    assert smaller.dtype == torch.uint8
    expected = smooth[0, 0, 0, :, 0].float().view(8, 2).mean(dim=1)
    assert (smaller[0, 0, 0, 0].float() - expected).abs().max() < 3


def test_mirrors_and_crops_are_what_was_drawn() -> None:
    given = frames()
    mirrored = to_pictures(given, 16, Augmentation(16, 0, 0, (True, False)))
    turned = given.permute(0, 1, 4, 2, 3)
    assert torch.equal(mirrored[0], turned[0].flip(-1))
    assert torch.equal(mirrored[1], turned[1])
    cropped = to_pictures(given, 8, Augmentation(8, 3, 5, (False, False)))
    assert torch.equal(cropped, turned[..., 3:11, 5:13])


def test_what_is_drawn_depends_on_the_step() -> None:
    config = TrainConfig(crop=0.5, flip=True)
    draws = [Augmentation.draw(config, 32, 8, step) for step in range(40)]
    assert len(set(draws)) == 40
    assert Augmentation.draw(config, 32, 8, 7) == draws[7]
    for draw in draws:
        assert 16 <= draw.side <= 32
        assert 0 <= draw.top <= 32 - draw.side
        assert 0 <= draw.left <= 32 - draw.side
    assert {value for draw in draws for value in draw.mirrored} == {True, False}
    plain = Augmentation.draw(TrainConfig(), 32, 4, 0)
    assert plain == Augmentation(32, 0, 0, (False,) * 4)
