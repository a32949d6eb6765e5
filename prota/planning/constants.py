"""The figures that a plan is computed from, each with where it was measured, and those that had to be assumed.

A test looks every quotation up in its document: a figure cannot change there and stay here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALL", "Constant"]

_RESULTS, _SCALE = "docs/results.md", "docs/scale.md"
_SEARCH = "python benchmarks/search.py, 2 cores of a shared AMD EPYC server with other work on them, D = 384, 12 frames"
_KERNELS = "python benchmarks/kernels.py, one NVIDIA H200, D = 512, 12 frames, 32 words, bf16"
_DECODING = "python benchmarks/decoding.py, one core of a shared AMD EPYC server"


@dataclass(frozen=True)
class Constant:
    """A number and why it may be believed."""

    value: float
    unit: str
    meaning: str
    source: str
    """The command and the machine it was measured with; for an assumption, the reason for it."""
    document: str | None = None
    """Where it is written down; None: assumed, not measured."""
    quote: str = ""
    """How it stands there."""

    @property
    def measured(self) -> bool:
        return self.document is not None


STORED_SEGMENT = Constant(
    20.2 * 2**30 / 1e6, "bytes", "a segment on disk without its thumbnail, fp16 tokens, D = 384, 12 frames",
    _SEARCH, _RESULTS, "A million segments take 20.2 GiB on disk",
)  # fmt: skip
THUMBNAIL = Constant(
    4245, "bytes", "a thumbnail, JPEG of 160 pixels", _DECODING, _SCALE, "thumbnails of 4245 bytes"
)  # fmt: skip
SEARCH_MEMORY = Constant(
    2.6 * 2**30 / 1e6, "bytes", "memory of the two-stage search for a segment, D = 384",
    _SEARCH, _RESULTS, "two stages need 2.6 GiB",
)  # fmt: skip
TWO_STAGES_100K = Constant(
    0.052, "s", "a two-stage search of 100,000 segments on 2 cores, p50",
    _SEARCH, _RESULTS, "| 100,000 | two stages, IVF | **52 ms** |",
)  # fmt: skip
TWO_STAGES_1M = Constant(
    0.147, "s", "a two-stage search of 1,000,000 segments on 2 cores, p50",
    _SEARCH, _RESULTS, "| 1,000,000 | two stages, IVF | 147 ms |",
)  # fmt: skip
EXACT_10K = Constant(
    0.096, "s", "an exact search of 10,000 segments on 2 cores, p50",
    _SEARCH, _RESULTS, "| 10,000 | exact, tokens in memory | 96 ms |",
)  # fmt: skip
WRITING = Constant(
    2 * 475 / 1e6, "core seconds", "writing and indexing a segment in the library",
    _SEARCH, _RESULTS, "were written and indexed in 475 s",
)  # fmt: skip
GPU_READING = Constant(
    6.17e-3, "s", "the best of 1,000,000 segments for one query: the time to read their tokens",
    _KERNELS, _RESULTS, "1 query of 32 words | 6.17 ms |",
)  # fmt: skip
GPU_SCORING = Constant(
    0.135 / 64, "s", "the same for each of 64 queries at once: the time to compute their scores",
    _KERNELS, _RESULTS, "64 queries of 32 words | 135 ms |",
)  # fmt: skip
GPU_MEMORY = Constant(
    139 * 2**30, "bytes", "memory of a GPU", "one NVIDIA H200", _RESULTS, "out of memory (139 GiB)"
)  # fmt: skip
CPU_ENCODING = Constant(
    2 * 0.851 / 12, "core seconds", "encoding a frame with prota-small in float32",
    "python benchmarks/encode.py prota-small, 2 idle cores of an AMD EPYC server", _RESULTS, "| float32 | 851 ms |",
)  # fmt: skip
TEXT_ENCODING = Constant(
    0.018, "s", "encoding a query with prota-small on 2 cores",
    "python benchmarks/encode.py prota-small, 2 idle cores of an AMD EPYC server", _RESULTS, "| 18 ms | | 91 MB |",
)  # fmt: skip
GPU_ENCODING = Constant(
    391 * 6, "frames a second", "what training reaches, forward and backward; encoding alone is faster, not measured",
    "python benchmarks/training.py configs/subset-tuned.toml, one NVIDIA H200, bf16, DINOv2-small at 196 x 196",
    _RESULTS, "| 128 | whole | 3.05 | 391 |",
)  # fmt: skip
DECODING_240 = Constant(
    33, "core seconds", "reading an hour of video of 240 lines, a frame a second",
    _DECODING, _SCALE, "33 s of CPU an hour of video",
)  # fmt: skip
DECODING_720 = Constant(
    140, "core seconds", "reading an hour of video of 720 lines, a frame a second",
    f"{_DECODING}; clips of 240 lines, enlarged", _SCALE, "140 s of CPU an hour of video",
)  # fmt: skip
USABLE = Constant(
    0.9, "share", "of a machine's memory that tokens may fill", "the rest is the program's and its buffers'"
)
VERSIONS = Constant(
    2, "versions", "of a library that a GPU holds", "`prota serve` loads the next one beside the one that is searched"
)
EXCHANGE = Constant(
    0.002, "s", "asking all shards and merging their answers", "two hops in a data centre; not measured"
)
CORES_PER_GPU = Constant(16, "cores", "that a machine has for each GPU", "as the H200 machine that was measured on")
HOST_MEMORY = Constant(64 * 2**30, "bytes", "memory of a machine without a GPU", "a usual size")

ALL = {name: value for name, value in sorted(globals().items()) if isinstance(value, Constant)}
"""All of them by name."""
