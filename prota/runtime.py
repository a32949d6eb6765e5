"""Device, precision, and the processes of a distributed run."""

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
    """Another process failed and reports the error; this one ends silently."""

    code = "other-process"


@dataclass(frozen=True)
class World:
    """This process among all processes of a run."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """The slice of a batch of ``count`` items that belongs to this process."""
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def part(self, count: int) -> range:
        """The consecutive items out of ``count`` that belong to this process; may be empty.

        Unlike `share`, ``count`` need not be a multiple of the number of processes.
        """
        start, stop = (-(-rank * count // self.size) for rank in (self.rank, self.rank + 1))
        return range(start, stop)

    def together(self, work: Callable[[], T]) -> T:
        """The result of ``work`` if it succeeds in all processes; otherwise all of them raise.

        The first process that failed raises its error, the others `OtherProcessError`, so that no process waits for
        another that has ended.
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
            # Wait until that process has reported its error: torchrun ends all processes when one ends.
            with suppress(RuntimeError):
                dist.barrier()
            raise OtherProcessError("another process failed; see its error message")
        return result

    def exchange(self, value: T) -> list[T]:
        """The values of all processes in the order of ranks, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._connected():
            dist.all_gather_object(values, value)
        return values

    def collect(self, value: T) -> list[T]:
        """The values of all processes in the order of ranks, on the first one; empty on the others."""
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
                "another process was killed or disconnected; see the report of torchrun and start all processes again"
            ) from error

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """The mean over ranks, on every rank."""
        if self.size > 1:
            value = value.detach().clone()
            dist.all_reduce(value)
            value /= self.size
        return value

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
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
    """The processes that the environment variables of torchrun describe; a single one without them.

    Devices communicate directly, as training needs it. With ``by_cpu`` the CPUs do: enough to exchange objects, and all
    processes end together if one of them lacks the device.
    """
    size, rank, local = (int(os.environ.get(name, default)) for name, default in _VARIABLES)
    if size > 1 and by_cpu:
        dist.init_process_group("gloo", rank=rank, world_size=size)
        chosen = World(rank, size, torch.device("cpu")).together(lambda: choose_device(device, local))
        return World(rank, size, chosen)
    chosen = choose_device(device, local)
    if size > 1:
        # The others wait while the first process validates and saves.
        kind = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(kind, rank=rank, world_size=size, timeout=timedelta(hours=2))
    return World(rank, size, chosen)


def choose_device(name: str = "auto", local: int = 0) -> torch.device:
    """A device by name; ``auto``: a GPU if torch sees one, of NVIDIA or Apple, else the CPU.

    ``local``: index of this process on its machine, which is the index of the GPU for ``cuda`` without a number.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{local}"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name}: unknown device; allowed: auto, cpu, cuda, cuda:1, mps, …") from None
    if chosen.type == "cuda":
        if (chosen.index or 0) >= torch.cuda.device_count():
            raise ConfigError(f"--device {name}: torch sees {torch.cuda.device_count()} GPUs; use auto or cpu")
        torch.cuda.set_device(chosen)
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"--device {name}: torch sees no Apple GPU; use auto or cpu")
    return chosen


def autocast_for(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """The context in which encoders run: bf16 on a CUDA GPU, fp32 elsewhere. Scores are always fp32."""
    if device.type == "cuda":
        return lambda: torch.autocast("cuda", dtype=torch.bfloat16)
    return nullcontext


_VARIABLES = (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))
