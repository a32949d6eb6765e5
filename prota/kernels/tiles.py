"""How a score matrix is cut into tiles, and how one side's tokens enter a fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prota.types import PreparedTokens, pad_tokens

__all__ = [
    "MOST_FRAMES",
    "MOST_WORDS",
    "Operand",
    "Tiling",
    "centre",
    "choose_tiling",
    "operand",
    "pad_words",
    "power_of_two",
]

# The rows of a matrix instruction, and of one of the four warps that share it.
_PIECE, _WARP = 64, 16
# What a step of the products takes of a token: a cache line.
_DEPTH_BYTES = 128
MOST_FRAMES, MOST_WORDS = 64, 128


@dataclass(frozen=True)
class Tiling:
    """One tile: every token of some videos with every token of ``texts`` texts.

    Rows are video tokens, in ``pieces`` of 64: each has ``frames`` frames of every video of the tile. Columns are text
    tokens, text by text, each with ``words`` of them, a power of two.
    """

    frames: int
    pieces: int
    texts: int
    words: int
    depth: int
    """Of the D dimensions, how many a step of the product takes."""
    warps: int
    stages: int
    group: int
    """Text tiles that are worked on side by side, so that they find video tokens in the cache."""

    @property
    def videos(self) -> int:
        return _PIECE // self.frames


def power_of_two(value: int) -> int:
    """The least power of two that is not below a value."""
    return 1 << (value - 1).bit_length()


def choose_tiling(words: int, frames: int, width: int, itemsize: int, columns: int, **launch: int) -> Tiling:
    """A tile of about ``columns`` text tokens, of ``itemsize`` bytes each number.

    For texts of ``words`` tokens, a power of two, and videos of ``frames``, of any width.
    """
    of_piece = min(_WARP, power_of_two(-(-frames // 4)))
    pieces = -(-frames // of_piece)
    if pieces == 4:
        columns = min(columns, _PIECE)
    columns = max(columns, _WARP)
    depth = next((size for size in (64, 32) if size <= _DEPTH_BYTES // itemsize and width % size == 0), 16)
    return Tiling(of_piece, pieces, max(1, columns // words), words, depth, **launch)


@dataclass(frozen=True)
class Operand:
    """One side of the products, contiguous, as the kernels take it."""

    direction: Tensor
    """[A, N, D] fp32, fp16 or bf16."""
    spread: Tensor | None
    """[A, N, D] of the same dtype, centred; None where tokens are points."""
    half_norm: Tensor
    """[A, N] fp32, half the squared length of the spread as it was rounded; 0 where tokens are points."""
    weight: Tensor
    """[A, N] fp32."""
    mask: Tensor
    """[A, N] uint8, 1 = a real token."""

    @property
    def shape(self) -> tuple[int, int, int]:
        items, tokens, width = self.direction.shape
        return items, tokens, width

    @property
    def tensors(self) -> list[Tensor]:
        """All there are."""
        return [tensor for tensor in vars(self).values() if tensor is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> Operand:
        """The same with ``change`` applied to every tensor."""
        spread = None if self.spread is None else change(self.spread)
        return Operand(change(self.direction), spread, change(self.half_norm), change(self.weight), change(self.mask))


def pad_words(texts: PreparedTokens, least: int = 1) -> PreparedTokens:
    """Texts with a power of two of tokens: a tile's columns, and few enough different ones to compile kernels for."""
    length = max(least, power_of_two(texts.mask.shape[1]))
    return texts.without_source().map(lambda tensor: pad_tokens(tensor, length))


def centre(videos: PreparedTokens) -> Tensor | None:
    """What the spreads of all video tokens have in common, [D]: only differences count, and rounding small ones costs
    less."""
    if videos.spread is None:
        return None
    return videos.spread.detach().sum(dim=(0, 1), dtype=torch.float32) / videos.mask.sum()


def operand(items: PreparedTokens, common: Tensor | None, dtype: torch.dtype | None = None) -> Operand:
    """Differentiable: gradients of an operand's tensors flow back to the prepared tokens."""
    dtype = dtype or items.direction.dtype
    spread, half_norm = None, items.weight.new_zeros(items.mask.shape, dtype=torch.float32)
    if items.spread is not None and common is not None:
        spread = (items.spread.float() - common).to(dtype).contiguous()
        half_norm = 0.5 * spread.float().square().sum(dim=-1)
    return Operand(
        items.direction.to(dtype).contiguous(),
        spread,
        half_norm.contiguous(),
        items.weight.float().contiguous(),
        items.mask.to(torch.uint8).contiguous(),
    )
