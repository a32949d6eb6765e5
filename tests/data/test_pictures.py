"""Cached frames as pictures: size, crop and mirror."""

from __future__ import annotations

import torch

from prota.config.experiment import TrainConfig
from prota.data.pictures import Augmentation, to_pictures


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


PLAIN = (1.0, 1.0, 1.0)


def test_mirrors_are_what_was_drawn() -> None:
    given = frames()
    mirrored = to_pictures(given, 16, Augmentation(((16, 0, 0),) * 2, (True, False), (PLAIN,) * 2))
    turned = given.permute(0, 1, 4, 2, 3)
    assert (mirrored[0].int() - turned[0].flip(-1).int()).abs().max() <= 1
    assert (mirrored[1].int() - turned[1].int()).abs().max() <= 1


def test_what_is_drawn_depends_on_the_step() -> None:
    config = TrainConfig(crop=0.5)
    draws = [Augmentation.draw(config, 32, 8, step) for step in range(40)]
    assert len(set(draws)) == 40
    assert Augmentation.draw(config, 32, 8, 7) == draws[7]
    for side, top, left in (box for draw in draws for box in draw.boxes):
        assert 16 <= side <= 32
        assert 0 <= top <= 32 - side
        assert 0 <= left <= 32 - side
    assert all(len(set(draw.boxes)) > 4 for draw in draws)
    assert {value for draw in draws for value in draw.mirrored} == {True, False}
    assert all(0.7 <= factor <= 1.3 for draw in draws for video in draw.colours for factor in video)
    assert all(len(set(draw.colours)) == 8 for draw in draws)
    assert draws[3].part(slice(2, 5)).boxes == draws[3].boxes[2:5]


def test_each_video_has_its_own_crop() -> None:
    given = frames()
    turned = given.permute(0, 1, 4, 2, 3)
    # At the size of the crops nothing is resampled: each pixel is one of the picture's.
    cropped = to_pictures(given, 8, Augmentation(((8, 3, 5), (8, 0, 8)), (False, True), (PLAIN,) * 2))
    assert (cropped[0].int() - turned[0, ..., 3:11, 5:13].int()).abs().max() <= 1
    assert (cropped[1].int() - turned[1, ..., 0:8, 8:16].flip(-1).int()).abs().max() <= 1
    # However few of them a process has.
    two = Augmentation.draw(TrainConfig(crop=0.5), given.shape[2], 2, 3)
    for place in range(2):
        alone = to_pictures(given[place : place + 1], 8, two.part(slice(place, place + 1)))
        assert torch.equal(alone[0], to_pictures(given, 8, two)[place])


def test_colours_change_by_their_factors() -> None:
    grey = torch.full((1, 1, 4, 4, 3), 100, dtype=torch.uint8)
    box, plain = ((4, 0, 0),), (False,)
    assert (to_pictures(grey, 4, Augmentation(box, plain, ((1.5, 1.0, 1.0),))) == 150).all()
    # One grey has neither contrast nor colour to lose.
    assert (to_pictures(grey, 4, Augmentation(box, plain, ((1.0, 0.2, 0.2),))) == 100).all()
    red = torch.zeros(1, 1, 4, 4, 3, dtype=torch.uint8)
    red[..., 0] = 200
    pale = to_pictures(red, 4, Augmentation(box, plain, ((1.0, 1.0, 0.0),)))
    assert (pale == 60).all()
    half = red.clone()
    half[:, :, :2] = 0
    flat = to_pictures(half, 4, Augmentation(box, plain, ((1.0, 0.0, 1.0),)))
    assert (flat == 30).all()
