"""Every shape of texts and videos has a tile that the matrix units take."""

from __future__ import annotations

import pytest
import torch

from prota.kernels.tiles import MOST_FRAMES, MOST_WORDS, centre, choose_tiling, pad_words, power_of_two
from prota.types import PreparedTokens


@pytest.mark.parametrize("columns", [32, 64, 128])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_cover_all_tokens_and_fit_the_matrix_units(columns: int, itemsize: int) -> None:
    for words in (1, 2, 4, 8, 16, 32, 64, MOST_WORDS):
        for frames in range(1, MOST_FRAMES + 1):
            tiling = choose_tiling(words, frames, 512, itemsize, columns, warps=8, stages=3, group=8)
            assert tiling.words == words
            assert tiling.texts * tiling.words >= 16
            assert frames <= tiling.pieces * tiling.frames < frames + tiling.frames
            assert tiling.pieces <= 4
            # A video's frames of a piece lie within one warp's sixteen rows.
            assert tiling.frames <= 16
            assert tiling.frames * tiling.videos == 64


@pytest.mark.parametrize(("width", "itemsize", "depth"), [(512, 2, 64), (512, 4, 32), (96, 2, 32), (40, 4, 16)])
def test_the_depth_of_a_step_divides_the_width_where_it_can(width: int, itemsize: int, depth: int) -> None:
    assert choose_tiling(8, 8, width, itemsize, 64, warps=8, stages=3, group=8).depth == depth


def test_texts_are_padded_to_a_power_of_two_with_tokens_that_are_not_real() -> None:
    mask = torch.ones(2, 5, dtype=torch.bool)
    texts = PreparedTokens(torch.ones(2, 5, 4), torch.ones(2, 5, 4), torch.full((2, 5), 0.2), mask)
    padded = pad_words(texts)
    assert padded.direction.shape == padded.spread.shape == (2, 8, 4)
    assert padded.mask.sum(dim=1).tolist() == [5, 5]
    assert not padded.weight[:, 5:].any()
    assert pad_words(texts, 16).mask.shape == (2, 16)


def test_powers_of_two() -> None:
    assert [power_of_two(value) for value in (1, 2, 3, 4, 5, 33, 64)] == [1, 2, 4, 4, 8, 64, 64]


def test_the_mean_of_many_spreads_in_half_precision_is_finite() -> None:
    """Their sum is beyond fp16."""
    mask = torch.ones(60, 8, dtype=torch.bool)
    spread = torch.full((60, 8, 4), 400.0, dtype=torch.float16)
    common = centre(PreparedTokens(torch.ones(60, 8, 4), spread, torch.ones(60, 8), mask))
    assert torch.equal(common, torch.full((4,), 400.0))
