"""One process or many: the same loss and the same gradients.

Every rank encodes its share of the batch, sees the others' tokens through `gather`, and computes the loss of its own
rows. The gradient of a gathered tensor is the *sum* of what all ranks found for it; averaging the parameters' gradients
over ranks then gives exactly the gradient of the mean loss, as one process with the whole batch would.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from prota.types import PreparedTokens, TokenGaussians, Tokens, pad_tokens

__all__ = ["World", "average_gradients", "gather_prepared", "start_world"]


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and talks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The part of ``count`` items of a batch that is this process's."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """Mean over ranks, on every rank."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value)
            value /= self.size
        return value

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        if self.size == 1:
            return flag
        value = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return bool(value.item())

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def start_world(device: str = "auto") -> World:
    """The world that torchrun's environment variables describe; one process without them."""
    size, rank, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{local}"
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {device}: torch sees {torch.cuda.device_count()} GPUs; allowed here: cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size > 1:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=size)
    return World(rank, size, chosen)


_VARIABLES = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))


class _Gather(torch.autograd.Function):
    """Concatenate equal shares of all ranks; backward sums over ranks, so that no rank's gradient is lost."""

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

    # The source is gathered only where a score needs it, that is where a token's weight depends on the pair.
    source: Tokens | TokenGaussians | None = items.source if items.weight is None else None
    return PreparedTokens(items.direction, items.spread, items.weight, items.mask, source).map(gather)


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter], world: World) -> None:
    """Replace every gradient by its mean over ranks, in one exchange."""
    if world.size == 1:
        return
    gradients = []
    for parameter in parameters:
        if parameter.requires_grad:
            # A rank on which a parameter took no part still joins the exchange.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world.size
    for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
