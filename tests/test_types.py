"""Batches of items: checked when made, sliced, moved and joined."""

from __future__ import annotations

import pytest
import torch

from prota.types import REST, Explanation, PreparedTokens, TokenGaussians, Tokens, Word, pad_tokens


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
    with pytest.raises(ValueError, match="give at least one"):
        PreparedTokens.cat([])
    with pytest.raises(ValueError, match="batches of different models: only some have spread"):
        PreparedTokens.cat([prepared([2]), prepared([2], spread=False)])


def test_padding_is_zero() -> None:
    assert pad_tokens(torch.ones(2, 3), 5).tolist() == [[1, 1, 1, 0, 0]] * 2
    assert pad_tokens(torch.ones(1, 1, 2), 2).tolist() == [[[1, 1], [0, 0]]]
    with pytest.raises(ValueError, match="3 tokens do not fit into 2"):
        pad_tokens(torch.ones(2, 3), 2)


def explanation(tokens: int, frames: int = 3, gaussians: bool = True) -> Explanation:
    """Random numbers, some of them negative."""
    words, video = torch.randn(5, tokens), torch.randn(4, frames)
    return Explanation(
        similarities=torch.randn(tokens, frames),
        text_low=words[0],
        video_low=video[0],
        text_intra=words[1],
        video_intra=video[1],
        text_inter=words[2] if gaussians else None,
        video_inter=video[2] if gaussians else None,
        text_weight=words[3],
        video_weight=video[3],
        text_uncertainty=words[4] if gaussians else None,
        video_uncertainty=video[0] if gaussians else None,
    )


def test_pieces_of_a_word_are_one_word_and_the_rest_is_one_entry() -> None:
    found = explanation(6)
    cup, saucer, rest = found.by_word([Word("cup", (1,)), Word("saucer", (2, 3, 4))])
    assert [(word.text, word.rest) for word in (cup, saucer, rest)] == [("cup", False), ("saucer", False), (REST, True)]
    adds = found.text_contributions
    for word, tokens in ((cup, [1]), (saucer, [2, 3, 4]), (rest, [0, 5])):
        assert word.contribution == pytest.approx(float(adds[tokens].sum()), abs=1e-6)
        assert word.weight == pytest.approx(float(found.text_weight[tokens].sum()), abs=1e-6)
        assert word.intra == pytest.approx(float(found.text_intra[tokens].sum()), abs=1e-6)
        assert word.inter == pytest.approx(float(found.text_inter[tokens].sum()), abs=1e-6)
        assert word.uncertainty == pytest.approx(float(found.text_uncertainty[tokens].mean()), abs=1e-6)
        assert word.similarities == pytest.approx(found.similarities[tokens].mean(dim=0).tolist(), abs=1e-6)
    total = sum(word.contribution for word in (cup, saucer, rest)) + float(found.video_contributions.sum())
    assert total == pytest.approx(found.score, abs=1e-6)


def test_where_every_token_is_a_words_there_is_no_rest() -> None:
    found = explanation(3, gaussians=False).by_word([Word("red", (0, 1)), Word("dog", (2,))])
    assert [(word.text, word.inter, word.uncertainty) for word in found] == [("red", None, None), ("dog", None, None)]
    assert [word.text for word in explanation(2).by_word([])] == [REST]
