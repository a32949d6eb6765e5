"""Time and peak memory to encode a clip and a caption on a CPU, in float32 and in what torch offers to be faster.

    python benchmarks/encode.py MODEL [CLIP] [--threads 2 --repeats 9]

MODEL is a model folder (`prota export CONFIG OUT` makes an untrained one), CLIP any video; without one the pictures are
made up. Each row runs in a process of its own. Times are medians and, since neighbours only ever slow things down, the
fastest; with --threads 1 they are the thread's own time on a core, which neighbours hardly touch. Likeness is the
cosine of tokens with those of float32, the least of all tokens.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import tempfile
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

from prota.model import ProTA

CAPTION = "a man in a red shirt plays an acoustic guitar on the roof of a house"
WAYS = ("float32", "int8", "torch.ao int8", "bfloat16", "compiled")


def pictures(clip: str | None, count: int, size: int) -> Tensor:
    """[1, M, 3, H, W] uint8."""
    if clip is None:
        coarse = torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        smooth = F.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
        return (255 * smooth).to(torch.uint8)[None]
    from prota.frames.decode import decode_chosen
    from prota.frames.sampling import uniform_indices
    from prota.frames.transforms import resize_crop

    *_, frames = decode_chosen(
        clip,
        lambda timeline: uniform_indices(timeline.times, timeline.duration, count),
        lambda frame: resize_crop(frame, size),
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
            tower.model = quantize_dynamic(tower.model, chosen)
        if model.video_encoder.temporal is not None:
            model.video_encoder.temporal = quantize_dynamic(model.video_encoder.temporal, chosen)
    elif way == "compiled":
        for tower in towers:
            tower.model.compile()
    if way == "bfloat16":
        return lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext


@torch.inference_mode()
def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    torch.set_num_threads(options.threads)
    model = ProTA.from_pretrained(options.model)
    frames = pictures(options.clip, model.config.encoder.frames, model.config.encoder.image_size)
    context, clock = prepared(model, way), time.thread_time if options.threads == 1 else time.perf_counter
    found: dict[str, float] = {}
    tokens: dict[str, Tensor] = {}
    work: dict[str, Callable[[], Tensor]] = {
        "clip": lambda: model.encode_video(frames).direction,
        "caption": lambda: model.encode_text(CAPTION).direction,
    }
    for what, encode in work.items():
        with context():
            began = time.perf_counter()
            tokens[what] = encode()
            found[f"{what}_first"] = time.perf_counter() - began
            before = resident()
            # The watching thread would slow down what is timed.
            found[f"{what}_above"] = max(0, peak_during(encode)[2] - before)
            times = []
            for _ in range(options.repeats):
                began = clock()
                encode()
                times.append(clock() - began)
        found |= {what: statistics.median(times), f"{what}_best": min(times)}
    # What was freed but not handed back says nothing of what the model takes.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    found["resident"] = resident()
    kept = Path(options.folder) / "float32.pt"
    if way == "float32":
        torch.save(tokens, kept)
    for what, expected in torch.load(kept, weights_only=True).items():
        found[f"{what}_likeness"] = float(F.cosine_similarity(tokens[what], expected, dim=-1).min())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder")
    parser.add_argument("clip", nargs="?", help="video file; default: made-up pictures")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.row, options)))
        return
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}")
    print(f"model {options.model}, clip {options.clip or 'made up'}\n")
    print("| | clip, median (fastest) | caption, median (fastest) | first clip | peak above | resident | likeness |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for way in dict.fromkeys(["float32", *options.ways]):
            command = [sys.executable, __file__, *sys.argv[1:], "--row", way, "--folder", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {way} | failed: {done.stderr.strip().splitlines()[-1]} |")
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            times = " | ".join(f"{1e3 * row[w]:.0f} ms ({1e3 * row[f'{w}_best']:.0f})" for w in ("clip", "caption"))
            print(
                f"| {way} | {times} | {row['clip_first']:.1f} s | {row['clip_above'] / 1e6:.0f} MB | "
                f"{row['resident'] / 1e6:.0f} MB | {row['clip_likeness']:.4f}, {row['caption_likeness']:.4f} |"
            )


if __name__ == "__main__":
    main()
