"""CPU time of a frame in vision towers of other models, with random weights of the same shapes, beside prota-small's.

    python benchmarks/towers.py [--rounds 2]

One thread and float32; the towers take turns, and the best round counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

import prota

# Width, inner width, layers, heads, patch: all at 224 pixels.
SHAPES: dict[str, tuple[Any, Any, int, int, int, int, int]] = {
    "CLIP ViT-B/32": (CLIPVisionModel, CLIPVisionConfig, 768, 3072, 12, 12, 32),
    "SigLIP ViT-B/16": (SiglipVisionModel, SiglipVisionConfig, 768, 3072, 12, 12, 16),
    "CLIP ViT-L/14": (CLIPVisionModel, CLIPVisionConfig, 1024, 4096, 24, 16, 14),
}


def tower(shape: tuple[Any, Any, int, int, int, int, int]) -> Callable[[], object]:
    model, config, width, inner, layers, heads, patch = shape
    made = model(
        config(
            hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
            image_size=224, patch_size=patch,
        )
    ).eval()  # fmt: skip
    pictures = torch.randn(2, 3, 224, 224)
    return lambda: made(pixel_values=pictures)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    small = prota.load("prota-small", device="cpu")
    own: Any = small.video_encoder.tower
    pictures = torch.randn(2, 3, 196, 196)
    towers: dict[str, Callable[[], object]] = {"prota-small": lambda: own(pictures)}
    towers |= {name: tower(shape) for name, shape in SHAPES.items()}
    best = dict.fromkeys(towers, float("inf"))
    for _ in range(rounds):
        for name, run in towers.items():
            before = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - before) / 2)
    for name, seconds in best.items():
        print(f"{name}: {seconds:.3f} s a frame, {seconds / best['prota-small']:.1f} x prota-small")


if __name__ == "__main__":
    main()
