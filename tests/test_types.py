"""Batches of items: checked when made, sliced, moved and joined."""

from __future__ import annotations

import pytest
import torch

from prota.types import PreparedTokens, TokenGaussians, Tokens, pad_tokens


def prepared(lengths: list[int], spread: bool = True) -> PreparedTokens:
    longest = max(lengths)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    direction = torch.randn(len(lengths), longest, 4) * mask[..., None]
    return PreparedTokens(direction, direction.abs() if spread else None, mask / mask.sum(1, keepdim=True), mask)


def test_shapes_and_masks_are_checked() -> None:
    with pytest.raises(ValueError, match=r"must be \[items, tokens, D\] with a mask"):
        Tokens(torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"must be bool .* got torch.int64"):
        Tokens(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="must have mean's shape"):
        TokenGaussians(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))


def test_items_are_chosen_by_slice_list_and_tensor() -> None:
    batch = prepared([3, 1, 2])
    for items in (slice(1, 3), [1, 2], torch.tensor([1, 2])):
        assert torch.equal(batch[items].direction, batch.direction[1:])
        assert torch.equal(batch[items].mask, batch.mask[1:])
    assert len(batch[:0]) == 0


def test_casting_leaves_masks_alone() -> None:
    batch = prepared([3, 1]).to(torch.float16)
    assert batch.direction.dtype == batch.spread.dtype == batch.weight.dtype == torch.float16
    assert batch.mask.dtype == torch.bool
    assert batch.to("cpu").direction.device.type == "cpu"


@pytest.mark.parametrize("lengths", [([3, 1], [5, 2]), ([5, 2], [3, 1])])
def test_batches_of_other_lengths_are_joined(lengths: tuple[list[int], list[int]]) -> None:
    parts = [prepared(some) for some in lengths]
    joined = PreparedTokens.cat(parts)
    assert joined.direction.shape == (4, 5, 4)
    for start, part in zip((0, 2), parts, strict=True):
        length = part.mask.shape[1]
        for name in ("direction", "spread", "weight", "mask"):
            ours = getattr(joined, name)[start : start + 2]
            assert torch.equal(ours[:, :length], getattr(part, name))
            assert not bool(ours[:, length:].any())


def test_sources_are_cut_with_a_batch_and_left_out_where_batches_are_joined() -> None:
    source = Tokens(torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    batch = PreparedTokens(source.embeddings, None, torch.ones(2, 3), source.mask, source)
    assert torch.equal(batch[1:].source.embeddings, source.embeddings[1:])
    assert PreparedTokens.cat([batch, batch]).source is None


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one batch"):
        PreparedTokens.cat([])
    with pytest.raises(ValueError, match="only some have spread: they are of different models"):
        PreparedTokens.cat([prepared([2]), prepared([2], spread=False)])


def test_padding_is_zero() -> None:
    assert pad_tokens(torch.ones(2, 3), 5).tolist() == [[1, 1, 1, 0, 0]] * 2
    assert pad_tokens(torch.ones(1, 1, 2), 2).tolist() == [[[1, 1], [0, 0]]]
    with pytest.raises(ValueError, match="3 tokens do not fit into 2"):
        pad_tokens(torch.ones(2, 3), 2)
