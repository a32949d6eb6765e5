"""Distributed gradients that equal those of one process.

Every rank encodes its share of the batch, sees the others' tokens through `gather_prepared`, and computes the loss of
its own rows. The gradient of a gathered tensor is the *sum* of what all ranks found for it; averaging the parameters'
gradients over ranks then gives exactly the gradient of the mean loss, as one process with the whole batch would.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from prota.runtime import World
from prota.types import PreparedTokens, pad_tokens

__all__ = ["average_gradients", "gather_prepared"]


class _Gather(torch.autograd.Function):
    """Concatenate the equal shares of all ranks; backward sums the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, world: World) -> Tensor:
        ctx.world, ctx.count = world, len(value)
        parts = [torch.empty_like(value) for _ in range(world.size)]
        dist.all_gather(parts, value.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        start = ctx.world.rank * ctx.count
        return total[start : start + ctx.count], None


def gather_prepared(items: PreparedTokens, world: World, length: int) -> PreparedTokens:
    """The whole batch's prepared tokens on every rank, padded to ``length`` tokens, with gradients."""
    if world.size == 1:
        return items

    def gather(value: Tensor) -> Tensor:
        value = pad_tokens(value, length)
        carried = value.to(torch.uint8) if value.dtype == torch.bool else value
        gathered: Tensor = _Gather.apply(carried, world)  # type: ignore[no-untyped-call]
        return gathered.to(value.dtype)

    return items.without_source().map(gather)


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace every gradient by its mean over ranks, in one exchange."""
    if world.size == 1:
        return
    gradients = []
    for parameter in parameters:
        if parameter.requires_grad:
            # A parameter may be unused on some ranks.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world.size
    for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
