"""One process or many: the same loss and the same gradients.

Every rank encodes its share of the batch, sees the others' tokens through `gather`, and computes the loss of its own
rows. The gradient of a gathered tensor is the *sum* of what all ranks found for it; averaging the parameters' gradients
over ranks then gives exactly the gradient of the mean loss, as one process with the whole batch would.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from prota.settings import ConfigError
from prota.types import PreparedTokens, pad_tokens

__all__ = ["ALONE", "OtherProcessError", "World", "average_gradients", "gather_prepared", "start_world"]

T = TypeVar("T")


class OtherProcessError(RuntimeError):
    """Another process failed and says why: this one has only to end."""


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

    def part(self, count: int) -> range:
        """Which of ``count`` items are this process's: consecutive ones, and none where processes are more than items.

        Unlike a batch's `share`, any number can be divided; each item is exactly one process's.
        """
        start, stop = (-(-rank * count // self.size) for rank in (self.rank, self.rank + 1))
        return range(start, stop)

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, where it succeeds in all processes; where it does not, all of them end and one says why.

        The first that failed raises its error, the others `OtherProcessError`: nobody waits for one that is gone.
        """
        if self.size == 1:
            return work()
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        failed = self.exchange(error is not None)
        if error is not None and failed.index(True) == self.rank:
            raise error
        if any(failed):
            # Until that one has said why and is gone: torchrun ends all processes as soon as one has ended.
            with suppress(RuntimeError):
                dist.barrier()
            raise OtherProcessError
        return result

    def exchange(self, value: T) -> list[T]:
        """What each process gave, in the order of ranks, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._connected():
            dist.all_gather_object(values, value)
        return values

    def collect(self, value: T) -> list[T]:
        """What each process gave, in the order of ranks, on the first; nothing on the others."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.first else None
        with self._connected():
            dist.gather_object(value, values)
        return values or []

    @contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if not self.first:
                raise OtherProcessError from error
            raise RuntimeError(
                "another process was killed or lost its connection: torchrun's report names it; start all of them again"
            ) from error

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


ALONE = World(0, 1, torch.device("cpu"))


def start_world(device: str = "auto", by_cpu: bool = False) -> World:
    """The world that torchrun's environment variables describe; one process without them.

    Devices talk to each other as training needs it, or with ``by_cpu`` the processes do, which is enough to exchange
    objects now and then, and lets all of them end together where one has no such device.
    """
    size, rank, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    if size > 1 and by_cpu:
        dist.init_process_group("gloo", rank=rank, world_size=size)
        chosen = World(rank, size, torch.device("cpu")).together(lambda: _take_device(device, local))
        return World(rank, size, chosen)
    chosen = _take_device(device, local)
    if size > 1:
        # The first validates and saves alone, while the others wait for it.
        kind = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(kind, rank=rank, world_size=size, timeout=timedelta(hours=2))
    return World(rank, size, chosen)


def _take_device(device: str, local: int) -> torch.device:
    """The device of the process that is the ``local``-th of its machine."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        device = f"cuda:{local}"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"--device {device} is not allowed; allowed: auto, cpu, cuda, cuda:1 …") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {device}: torch sees {torch.cuda.device_count()} GPUs; allowed here: cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen


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

    return items.without_source().map(gather)


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
