"""`prota plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from prota.cli.options import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from prota.planning.estimate import Plan, Wanted

__all__ = ["plan"]


def plan(
    hours: Annotated[float, typer.Option(help="hours of video, such as 1e6", show_default=False)],
    queries_per_second: Annotated[float, typer.Option(help="searches a second")] = 10.0,
    device: Annotated[Literal["gpu", "cpu"], typer.Option(help="what searches and indexes")] = "gpu",
    target_ms: Annotated[float, typer.Option(help="milliseconds that a typical answer may take")] = 200.0,
    replicas: Annotated[int, typer.Option(help="copies of every shard")] = 1,
    tokens: Annotated[Literal["fp16", "int8", "pq"], typer.Option(help="how tokens are kept; fp16 is built")] = "fp16",
    frames: Annotated[int, typer.Option(help="frames of a segment")] = 12,
    fps: Annotated[float, typer.Option(help="frames looked at in a second of video")] = 1.0,
    overlap: Annotated[float, typer.Option(help="share of a segment that the next one shows again")] = 0.5,
    width: Annotated[int, typer.Option(help="numbers of a token: encoder.width of the model")] = 384,
    points: Annotated[bool, typer.Option("--points", help="tokens are points, as without Gaussians")] = False,
    lines: Annotated[Literal["240", "720"], typer.Option(help="size of the videos: what decoding costs")] = "720",
    busy: Annotated[float, typer.Option(help="share of the time that machines may work")] = 0.6,
    gpu_memory: Annotated[float, typer.Option(help="GiB of a GPU")] = 139.0,
    host_memory: Annotated[float, typer.Option(help="GiB of a machine without a GPU")] = 64.0,
    index_gpus: Annotated[
        int | None, typer.Option(help="GPUs that index; default: as many as search", show_default=False)
    ] = None,
    index_cores: Annotated[
        int | None,
        typer.Option(help="cores that index; default: 16 for each GPU, or those that search", show_default=False),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="the plan as JSON, with every constant and its source")
    ] = False,
) -> None:
    """What a library will need: storage, memory, machines, times; and where the design must change."""
    from prota.planning.advice import advice
    from prota.planning.estimate import Wanted, estimate

    wanted = Wanted(
        hours=hours, queries_per_second=queries_per_second, device=device, target_ms=target_ms, replicas=replicas,
        tokens=tokens, frames=frames, fps=fps, overlap=overlap, width=width, points=points, lines=int(lines), busy=busy,
        gpu_memory=gpu_memory, host_memory=host_memory, index_gpus=index_gpus, index_cores=index_cores,
    )  # fmt: skip
    found = estimate(wanted)
    notes = advice(wanted, found)
    if as_json:
        print_json(_record(wanted, found, notes), indent=2)
        return
    from rich.console import Console

    console = Console()
    console.print(_table(wanted, found))
    for note in notes:
        console.print(f"• {note}", highlight=False, markup=False)
    console.print("Times are estimates from measured constants; --json lists each with its source.", highlight=False)


def _record(wanted: Wanted, found: Plan, notes: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    from prota.planning.constants import ALL

    constants = {name: asdict(constant) | {"measured": constant.measured} for name, constant in ALL.items()}
    return {"wanted": wanted.model_dump(), "plan": asdict(found), "notes": notes, "constants": constants}


def _table(wanted: Wanted, found: Plan) -> Table:
    from rich.table import Table

    table = Table(
        "", "", title=f"{wanted.hours:,.10g} hours, {wanted.queries_per_second:g} queries a second", show_header=False
    )
    table.add_row("segments", f"{found.segments:,}")
    table.add_row("a segment on disk", f"{found.segment_bytes / 1e3:.1f} kB")
    table.add_row("storage", _size(found.storage))
    copies = f", {wanted.replicas} copies" if wanted.replicas > 1 else ""
    table.add_row("memory of the search", _size(found.memory) + copies)
    table.add_row("shards", f"{found.shards:,} of {found.segments / found.shards:,.0f} segments{copies}")
    if found.gpus:
        table.add_row(
            "GPUs that search", f"{found.gpus:,} of {wanted.gpu_memory:g} GiB, {found.load:.0%} of their capacity"
        )
        table.add_row("cores that encode queries", f"{found.cores:,}")
    else:
        table.add_row("cores that search", f"{found.cores:,}, {found.load:.0%} busy")
    table.add_row("a typical answer", f"{1e3 * found.latency:.0f} ms")
    machines = (f"{found.index_gpus:,} GPUs and " if found.index_gpus else "") + f"{found.index_cores:,} cores"
    table.add_row("time to index", f"{_time(found.index_seconds)} with {machines}")
    work = f"{found.index_gpu_seconds / 3600:,.1f} GPU hours, " if found.index_gpus else ""
    table.add_row("work to index", f"{work}{found.index_core_seconds / 3600:,.1f} core hours")
    return table


def _size(size: float) -> str:
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e6:,.1f} MB"


def _time(seconds: float) -> str:
    for unit, factor in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.1f} {unit}"
    return f"{seconds:.0f} s"
