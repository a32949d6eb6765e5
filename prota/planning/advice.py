"""Where the design must change on the way to a billion segments: sentences that appear when a threshold is passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from prota.planning import constants as known
from prota.planning.estimate import EXACT, Plan, Wanted, estimate, gpu_room, token_bytes

__all__ = ["advice"]

_MEASURED_SEGMENTS = 1_000_000
_OBJECT_STORAGE = 2e12
_TIERS = 1e14
_MANY_GPUS = 8
_MANY_CORES = 256
_MANY_SHARDS = 10


def advice(wanted: Wanted, plan: Plan) -> list[str]:
    """What to know about this plan, in the order in which it becomes necessary with growth."""
    return [note for rule in _RULES for note in rule(wanted, plan)]


def _stages(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if wanted.device == "cpu" and plan.segments > EXACT:
        yield (
            f"candidate stage: above {EXACT:,} segments a CPU scores the 500 nearest by pooled vector. Without a "
            f"filter that lost nothing of {_MEASURED_SEGMENTS:,} made-up segments; of real ones 1,030 were tried."
        )
    per_shard = plan.segments / plan.shards
    if wanted.device == "cpu" and per_shard > _MEASURED_SEGMENTS:
        yield (
            f"beyond what was measured: a shard holds {per_shard:,.0f} segments, and search times are known up to "
            f"{_MEASURED_SEGMENTS:,}; the rest is a straight line."
        )


def _shards(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if plan.shards > 1:
        yield f"more than one machine: {plan.shards:,} shards (prota serve --ray)."
    if plan.shards > _MANY_SHARDS:
        yield (
            "tail latency: an answer waits for the slowest shard; with this many, ask late shards a second time or "
            "answer without them. Simulated, the median of 100 shards is 5.3 times that of one, 2.8 times where late "
            "ones are asked again (docs/scale.md)."
        )


def _decoding(wanted: Wanted, plan: Plan) -> Iterator[str]:
    ratio = plan.index_core_seconds / max(plan.index_gpu_seconds, 1.0)
    if plan.index_gpus > 1 and plan.index_cores < ratio * plan.index_gpus:
        yield (
            f"decoding, not encoding, takes the time to index: {ratio:.0f} cores would keep up with a GPU. Decoding on "
            "GPUs is not built."
        )


def _storage(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if plan.storage > _OBJECT_STORAGE:
        yield "object storage: more than a usual disk holds; the library may lie at s3://, gs:// or az:// (--library)."
    if plan.storage > _TIERS:
        thumbnails = plan.segments * known.THUMBNAIL.value
        yield (
            f"tiered storage: not built. {plan.storage / 1e12:,.0f} TB do not belong on one tier: codes in memory, "
            f"tokens on local SSD, the {thumbnails / 1e12:,.0f} TB of thumbnails on object storage."
        )


def _smaller_tokens(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if wanted.tokens != "fp16":
        yield f"{wanted.tokens} tokens are an estimate: libraries store fp16, and a GPU's search reads fp16 or bf16."
    if plan.gpus <= _MANY_GPUS or wanted.tokens == "pq":
        return
    smaller, what = (("int8", "int8"), ("pq", "product-quantised"))[wanted.tokens == "int8"]
    other = estimate(wanted.replace(tokens=smaller))
    share = (
        "keeps 98.1 to 99.4 % of the ten best on made-up pairs (docs/results.md)" if smaller == "int8" else "not tried"
    )
    held = math.ceil(other.memory / wanted.replicas / gpu_room(wanted)) * wanted.replicas
    yield (
        f"{what} tokens: not built; {plan.memory / 2**40:,.1f} → {other.memory / 2**40:,.1f} TiB of GPU memory, which "
        f"{held:,} GPUs hold; {share}."
    )
    if other.gpus > held:
        yield f"but scoring, not memory, asks for {other.gpus:,} GPUs then: smaller tokens alone do not help further."


def _candidates_on_gpus(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if plan.gpus > _MANY_GPUS:
        pooled = plan.segments * wanted.width * 2.0
        ratio = token_bytes(wanted) / (wanted.width * 2)
        held = math.ceil(pooled / gpu_room(wanted)) * wanted.replicas
        yield (
            f"candidate stage on GPUs: not built; pooled vectors in fp16 are {ratio:.0f} times smaller than tokens "
            f"({pooled / 2**40:,.2f} TiB, {held:,} GPUs), tokens of the best few hundred come from SSD. What it loses "
            "above 1,000,000 segments must be measured first."
        )


def _many_cores(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if wanted.device == "cpu" and plan.cores > _MANY_CORES:
        yield (
            "finding candidates grows with the segments, since a quarter of the index is searched for each query: one "
            "that searches few partitions of quantised vectors (IVF_PQ) is needed, or GPUs."
        )


def _billion(wanted: Wanted, plan: Plan) -> Iterator[str]:
    if plan.segments >= 1e9:
        pooled = plan.segments * wanted.width * 4
        yield (
            f"a billion segments: pooled vectors alone are {pooled / 1e12:,.1f} TB in fp32, so they must be quantised "
            "too; one library becomes several, by date or by source, each with versions and compaction of its own."
        )


_RULES: tuple[Callable[[Wanted, Plan], Iterator[str]], ...] = (
    _stages,
    _shards,
    _decoding,
    _storage,
    _smaller_tokens,
    _candidates_on_gpus,
    _many_cores,
    _billion,
)
