"""From what is wanted to what it takes. Sizes are arithmetic; times are measured ones, carried to other sizes.

What a time is carried by: on a GPU a search reads all tokens once and scores them for each query, both in proportion to
them. On a CPU it takes a part that stays (reading and scoring the candidates) and one that grows with the segments
(finding them), both known from two sizes. Shards search at the same time, so each has to be only so large that its own
time fits; replicas share the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from prota.library.segments import SegmentPlan
from prota.planning import constants as known
from prota.settings import ConfigError, Section

__all__ = ["EXACT", "Plan", "Wanted", "estimate", "gpu_room", "segment_bytes", "token_bytes"]

EXACT = 20_000
"""Segments up to which a CPU scores every one (`prota.library.search.EXACT_SEGMENTS`, which imports torch)."""
# Seconds. A target that leaves a shard less than this is one that no number of shards meets.
_LEAST = 1e-4
# What the constants were measured with.
_FRAMES, _WIDTH, _GPU_WIDTH = 12, 384, 512
# Bytes of a number; int8 has a scale for each token besides, product quantisation one byte for eight numbers.
_BYTES = {"fp16": 2.0, "int8": 1.0, "pq": 1 / 8}


class Wanted(Section):
    """What is asked of a library; defaults are those of `prota index` and `prota-small`."""

    hours: float = Field(gt=0, le=1e9, description="hours of video")
    queries_per_second: float = Field(10.0, gt=0, le=1e6)
    device: Literal["gpu", "cpu"] = "gpu"
    target_ms: float = Field(200.0, gt=0, le=60_000, description="a typical answer's milliseconds")
    replicas: int = Field(1, ge=1, le=100, description="copies of every shard")
    tokens: Literal["fp16", "int8", "pq"] = "fp16"
    frames: int = Field(12, ge=1, le=64)
    fps: float = Field(1.0, gt=0, le=60)
    overlap: float = Field(0.5, ge=0, lt=1)
    width: int = Field(384, ge=8, le=4096)
    points: bool = Field(False, description="tokens without a spread, as heads without Gaussians have them")
    lines: Literal[240, 720] = 720
    busy: float = Field(0.6, gt=0, lt=1, description="share of the time that machines may work")
    gpu_memory: float = Field(known.GPU_MEMORY.value / 2**30, ge=0.1, description="GiB of a GPU")
    host_memory: float = Field(known.HOST_MEMORY.value / 2**30, ge=0.1, description="GiB of a machine without a GPU")
    index_gpus: int | None = Field(None, ge=1, description="GPUs that index; default: those that search")
    index_cores: int | None = Field(None, ge=1, description="cores that index; default: those that search")


@dataclass(frozen=True)
class Plan:
    """What it takes. Bytes and seconds."""

    segments: int
    segment_bytes: float
    storage: float
    """On disk or object storage, one copy."""
    memory: float
    """Of all searching machines together, replicas included: of GPUs the tokens, of CPUs what two stages need."""
    shards: int
    """Of one replica."""
    gpus: int
    cores: int
    """That search; with GPUs, those that encode queries."""
    load: float
    """Share of the queries that a shard's machine could answer at most."""
    latency: float
    """Of a typical answer; a late shard makes it longer, see docs/scale.md."""
    index_gpu_seconds: float
    index_core_seconds: float
    index_gpus: int
    index_cores: int
    index_seconds: float


def token_bytes(wanted: Wanted) -> float:
    """A segment's tokens."""
    sides = 1 if wanted.points else 2
    scale = 4.0 if wanted.tokens == "int8" else 0.0
    return sides * wanted.frames * (wanted.width * _BYTES[wanted.tokens] + scale)


def segment_bytes(wanted: Wanted) -> float:
    """A segment on disk: tokens, pooled vector (twice: the index), time, weight and mask of frames, thumbnail, rest."""
    measured = known.STORED_SEGMENT.value
    rest = measured - (2 * _FRAMES * _WIDTH * _BYTES["fp16"] + 2 * 4 * _WIDTH + 9 * _FRAMES)
    return token_bytes(wanted) + 2 * 4 * wanted.width + 9 * wanted.frames + rest + known.THUMBNAIL.value


def estimate(wanted: Wanted) -> Plan:
    """The plan; ConfigError where no number of machines would answer in time."""
    step = SegmentPlan(wanted.frames, wanted.fps, wanted.overlap).step
    segments = math.ceil(wanted.hours * 3600 / step)
    # What is left of the target for the shards.
    fixed = known.TEXT_ENCODING.value + known.EXCHANGE.value
    search = _on_gpus if wanted.device == "gpu" else _on_cpus
    shards, gpus, cores, load, taken, memory = search(wanted, segments, wanted.target_ms / 1e3 - fixed)
    texts = 2 * wanted.queries_per_second * known.TEXT_ENCODING.value / wanted.busy
    cores += math.ceil(texts)
    decoding = known.DECODING_240 if wanted.lines == 240 else known.DECODING_720
    frames = wanted.hours * 3600 * wanted.fps
    index_gpus = (wanted.index_gpus or gpus) if wanted.device == "gpu" else 0
    default_cores = index_gpus * int(known.CORES_PER_GPU.value) if index_gpus else cores
    index_cores = wanted.index_cores or default_cores
    core_seconds = wanted.hours * decoding.value + segments * known.WRITING.value
    core_seconds += 0 if index_gpus else frames * known.CPU_ENCODING.value
    gpu_seconds = frames / known.GPU_ENCODING.value if index_gpus else 0.0
    return Plan(
        segments=segments,
        segment_bytes=segment_bytes(wanted),
        storage=segments * segment_bytes(wanted),
        memory=memory,
        shards=shards,
        gpus=gpus,
        cores=cores,
        load=load,
        latency=fixed + taken,
        index_gpu_seconds=gpu_seconds,
        index_core_seconds=core_seconds,
        index_gpus=index_gpus,
        index_cores=index_cores,
        index_seconds=max(core_seconds / index_cores, gpu_seconds / max(1, index_gpus)),
    )


_Search = tuple[int, int, int, float, float, float]
"""Shards, GPUs, cores, load, seconds, bytes of memory."""


def gpu_room(wanted: Wanted) -> float:
    """Bytes of tokens of one version of a library that a GPU has room for."""
    return known.USABLE.value * wanted.gpu_memory * 2**30 / known.VERSIONS.value


def _on_gpus(wanted: Wanted, segments: int, budget: float) -> _Search:
    """Every token is scored. Queries that come while a GPU reads are scored in its next turn, together."""
    rate = wanted.queries_per_second / wanted.replicas
    size = token_bytes(wanted)
    reading = known.GPU_READING.value / 1e6 * size / (2 * _FRAMES * _GPU_WIDTH * _BYTES["fp16"])
    scoring = known.GPU_SCORING.value / 1e6 * wanted.frames * wanted.width / (_FRAMES * _GPU_WIDTH)
    slower = max(reading, scoring)
    _require(budget > _LEAST, wanted, 0.0)
    # A query waits for half a turn on average where the GPU is never idle, then its own turn.
    shards = max(
        math.ceil(segments * size / gpu_room(wanted)),
        math.ceil(segments * scoring * rate / wanted.busy),
        math.ceil(segments * slower * 1.5 / budget),
    )
    turn = segments / shards * slower
    taken = turn * (1 + min(1.0, rate * turn) / 2)
    load = rate * segments / shards * scoring
    return shards, shards * wanted.replicas, 0, load, taken, segments * size * wanted.replicas


def _on_cpus(wanted: Wanted, segments: int, budget: float) -> _Search:
    """Two cores a search, as measured; up to EXACT segments all are scored, beyond that the candidates."""
    rate = wanted.queries_per_second / wanted.replicas
    wide = wanted.width / _WIDTH
    bulk = token_bytes(wanted) / (2 * _FRAMES * _WIDTH * _BYTES["fp16"])
    if segments <= EXACT:
        stays, grows = 0.0, known.EXACT_10K.value / 1e4 * bulk
    else:
        slope = (known.TWO_STAGES_1M.value - known.TWO_STAGES_100K.value) / 900_000
        stays, grows = (known.TWO_STAGES_100K.value - 100_000 * slope) * bulk, slope * wide
    # Queries come at random and wait for others: the mean wait of a queue whose server takes equally long for each.
    waits = 1 + wanted.busy / (2 * (1 - wanted.busy))
    _require(budget > stays * waits + _LEAST, wanted, stays * waits)
    memory = segments * known.SEARCH_MEMORY.value * wide
    shards = max(
        math.ceil(memory / (known.USABLE.value * wanted.host_memory * 2**30)),
        math.ceil(segments * grows / (budget / waits - stays)),
    )
    taken = stays + segments / shards * grows
    pairs = math.ceil(rate * taken / wanted.busy)
    load = rate * taken / pairs
    return shards, 0, 2 * shards * pairs * wanted.replicas, load, taken * waits, memory * wanted.replicas


def _require(possible: bool, wanted: Wanted, least: float) -> None:
    if not possible:
        needed = 1e3 * (known.TEXT_ENCODING.value + known.EXCHANGE.value + least)
        raise ConfigError(
            f"target_ms = {wanted.target_ms:g} is not allowed; allowed: above {needed:.0f}, which an answer takes here "
            "however many machines there are"
        )
