"""Where a program runs: its device, its precision, and the processes it shares work with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from prota.config.base import ConfigError
from prota.errors import ProtaError

__all__ = ["ALONE", "OtherProcessError", "World", "autocast_for", "choose_device", "start_world"]

T = TypeVar("T")


class OtherProcessError(ProtaError, RuntimeError):
    """Another process failed and says why: this one has only to end."""

    code = "other-process"


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
            raise OtherProcessError("another process failed and says why")
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
                raise OtherProcessError("another process was lost") from error
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
        chosen = World(rank, size, torch.device("cpu")).together(lambda: choose_device(device, local))
        return World(rank, size, chosen)
    chosen = choose_device(device, local)
    if size > 1:
        # The first validates and saves alone, while the others wait for it.
        kind = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(kind, rank=rank, world_size=size, timeout=timedelta(hours=2))
    return World(rank, size, chosen)


def choose_device(name: str = "auto", local: int = 0) -> torch.device:
    """A device by name; ``auto`` is a GPU where torch sees one, else the CPU.

    ``local``: which of the machine's processes asks; without a number, ``cuda`` is that process's own GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local}"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name} is not allowed; allowed: auto, cpu, cuda, cuda:1, mps, …") from None
    if chosen.type == "cuda":
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"--device {name}: torch sees {torch.cuda.device_count()} GPUs; allowed here: cpu")
        torch.cuda.set_device(chosen)
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"--device {name}: torch sees no Apple GPU; allowed here: cpu")
    return chosen


def autocast_for(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """How encoders run: in bf16 on a CUDA GPU, in fp32 elsewhere. Scores are always fp32."""
    if device.type == "cuda":
        return lambda: torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext


_VARIABLES = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))
