"""Time and peak memory to encode a clip and a caption on a CPU, in float32 and in what torch offers to be faster.

    python benchmarks/encode.py MODEL [CLIP] [--threads 2 --repeats 9]

MODEL is a model folder (`prota export CONFIG OUT` makes an untrained one), CLIP any video; without one the pictures are
made up. Each row runs in a process of its own; times are medians, float32 and the other way in turns, so that both have
the same neighbours. Likeness is the cosine of tokens with those of float32, the least of all tokens. On a machine with
other work, OMP_WAIT_POLICY=PASSIVE keeps threads from waiting for each other at full speed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))
from score import peak_during, resident

from prota.config.model import EncoderConfig
from prota.model.prota import ProTA

CAPTION = "a man in a red shirt plays an acoustic guitar on the roof of a house"
WAYS = ("float32", "int8", "torch.ao int8", "bfloat16", "compiled")


def pictures(clip: str | None, encoder: EncoderConfig) -> Tensor:
    """[1, M, 3, H, W] uint8, as the model takes them."""
    count, size = encoder.frames, encoder.image_size
    if clip is None:
        coarse = torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        smooth = F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
        return (255 * smooth).to(torch.uint8)[None]
    from prota.video.decode import decode_chosen
    from prota.video.sampling import uniform_indices
    from prota.video.transforms import to_square

    *_, frames = decode_chosen(
        clip,
        lambda timeline: uniform_indices(timeline.times, timeline.duration, count).tolist(),
        lambda frame: to_square(frame, size, encoder.picture),
    )
    return torch.stack([torch.from_numpy(frame) for frame in frames]).permute(0, 3, 1, 2)[None]


def prepared(model: ProTA, way: str) -> Callable[[], AbstractContextManager[object]]:
    """Change the towers; what to encode under."""
    towers = (model.text_encoder.tower, model.video_encoder.tower)
    if way == "int8":
        model.use_int8()
    elif way == "torch.ao int8":
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

        warnings.simplefilter("ignore")
        # A scale per row of the weights, as in our own files; activations have one for all.
        chosen = {torch.nn.Linear: per_channel_dynamic_qconfig}
        for tower in towers:
            tower.model = quantize_dynamic(tower.model, chosen)  # type: ignore[no-untyped-call]
        if model.video_encoder.temporal is not None:
            model.video_encoder.temporal = quantize_dynamic(model.video_encoder.temporal, chosen)  # type: ignore[no-untyped-call]
    elif way == "compiled":
        for tower in towers:
            tower.model.compile()
    if way == "bfloat16":
        return lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext


def encoders(model: ProTA, frames: Tensor) -> dict[str, Callable[[], Tensor]]:
    return {
        "clip": lambda: model.encode_video(frames).direction,
        "caption": lambda: model.encode_text(CAPTION).direction,
    }


@torch.inference_mode()
def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(options.threads)
    model = ProTA.from_pretrained(options.model)
    frames = pictures(options.clip, model.config.encoder)
    context, found = prepared(model, way), dict[str, float]()
    for what, encode in encoders(model, frames).items():
        with context():
            began = time.perf_counter()
            encode()
            found[f"{what}_first"] = time.perf_counter() - began
            # Memory that was freed but not handed back says nothing of what the model takes.
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            found["resident"] = before = resident()
            found[f"{what}_above"] = max(0, peak_during(encode)[2] - before)
    plain = encoders(ProTA.from_pretrained(options.model), frames)
    for what, encode in encoders(model, frames).items():
        expected, times, beside = plain[what](), [], []
        for _ in range(options.repeats):
            began = time.perf_counter()
            plain[what]()
            beside.append(time.perf_counter() - began)
            with context():
                began = time.perf_counter()
                tokens = encode()
                times.append(time.perf_counter() - began)
        found[what], found[f"{what}_beside"] = statistics.median(times), statistics.median(beside)
        found[f"{what}_likeness"] = float(F.cosine_similarity(tokens.float(), expected, dim=-1).min())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder")
    parser.add_argument("clip", nargs="?", help="video file; default: made-up pictures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options)))
        return
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    print(f"model {options.model}, clip {options.clip or 'made up'}\n")
    print(
        "| | clip | float32 beside it | caption | float32 beside it | first clip | peak above | resident | likeness |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for way in options.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--row", way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {way} | failed: {done.stderr.strip().splitlines()[-1]} |")
            continue
        row = json.loads(done.stdout.splitlines()[-1])
        times = " | ".join(
            f"{1e3 * own:.0f} ms | {1e3 * plain:.0f} ms, {plain / own:.1f} ×"
            for own, plain in ((row[what], row[f"{what}_beside"]) for what in ("clip", "caption"))
        )
        print(
            f"| {way} | {times} | {row['clip_first']:.1f} s | {row['clip_above'] / 1e6:.0f} MB | "
            f"{row['resident'] / 1e6:.0f} MB | {row['clip_likeness']:.4f}, {row['caption_likeness']:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
