"""What fused scoring changes in the ranking of real videos, against the reference in float64.

    python benchmarks/ranking.py RUN [--data CONFIG] [--set SECTION.FIELD=VALUE …] [--device cuda|cpu]

Encodes the test split of a trained run once, scores it by every backend and dtype of the device, and prints for each:
the largest difference of a score, the share of top-10 places that hold the same video, the share of queries whose ten
best are the same ten, R@1 and R@10.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from prota.config.experiment import Experiment
from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.report import Evaluation, SystemUnderTest
from prota.evaluation.scoring import encode_videos
from prota.kernels import cpu, fused
from prota.types import PreparedTokens


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", "-s", action="append", default=[])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    data = Experiment.load(options.data, options.set) if options.data else None
    system = SystemUnderTest.load(options.run, data, torch.device(options.device))
    evaluation = Evaluation(system, "test")
    head, split = system.model.head.eval(), evaluation.split
    videos = encode_videos(system.model, evaluation.reader, split.video_ids, autocast=evaluation.autocast)
    captions = [caption for _, caption in split.pairs]
    owners = torch.tensor([place for place, item in enumerate(split.items) for _ in item.captions])
    texts = []
    for start in range(0, len(captions), 256):
        with evaluation.autocast():
            texts.append(system.model.encode_text(captions[start : start + 256]).without_source())

    def scored(score: Callable[[PreparedTokens, PreparedTokens], Tensor]) -> Tensor:
        return torch.cat([score(part, videos).double().cpu() for part in texts])

    double = videos.without_source().to(torch.float64)
    exact = scored(lambda left, _: head.reference_score(left.to(torch.float64), double))
    ways: dict[str, Callable[[PreparedTokens, PreparedTokens], Tensor]] = {
        "reference, float32": lambda left, right: head.reference_score(left, right)
    }
    if options.device == "cpu":
        ways["fused, float32"] = lambda left, right: cpu.score(left, right, head.config)
    else:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            ways[f"fused, {str(dtype).removeprefix('torch.')}"] = partial(fused.score, config=head.config, dtype=dtype)
    best = exact.topk(10, dim=1).indices
    print(f"{split.name}: {len(captions)} texts, {len(split)} videos, {options.device}")
    print(f"{'':22s} {'largest diff':>12s} {'same place':>11s} {'same ten':>9s} {'R@1':>7s} {'R@10':>7s}")
    for name, scores in {"reference, float64": exact, **{name: scored(way) for name, way in ways.items()}}.items():
        found = scores.topk(10, dim=1).indices
        place = (found == best).double().mean() * 100
        ten = (found.sort(dim=1).values == best.sort(dim=1).values).all(dim=1).double().mean() * 100
        metrics = retrieval_metrics(scores.float(), owners).text_to_video
        off = float((scores - exact).abs().max())
        print(f"{name:22s} {off:12.2e} {place:9.2f} % {ten:7.2f} % {metrics.r1:7.2f} {metrics.r10:7.2f}")


if __name__ == "__main__":
    main()
