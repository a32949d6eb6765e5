"""Which of several runs to average: the best on validation, then each further one whose weights make the mean no worse.

    python benchmarks/averaging.py RUN RUN … [--device auto] [--worse 0.05]

Runs must start from the same weights (see `prota export --mean-with`). Prints validation (mean of R@1, R@5 and R@10 of
both directions, then text to video) for each run and each mean that was tried, and last the command that exports the
chosen mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prota.data.batches import ClipReader, open_cache
from prota.data.benchmarks import load_benchmark
from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.scoring import score_split
from prota.model.prota import ProTA
from prota.runs import Run, find_checkpoint
from prota.runtime import autocast_for, start_world
from prota.training.averaging import mean_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--worse", type=float, default=0.05, help="points that a mean may lose by one more run")
    given = parser.parse_args()
    experiment = Run(given.runs[0]).experiment()
    split = load_benchmark(experiment.data).split("val")
    reader = ClipReader(open_cache(experiment), experiment, split)
    device = start_world(given.device).device
    autocast = autocast_for(device)

    def value(runs: list[Path]) -> float:
        models = [ProTA.from_pretrained(find_checkpoint(run)[0]) for run in runs]
        scored = score_split(mean_model(models).to(device), reader, split, autocast=autocast)
        metrics = retrieval_metrics(scored.scores, scored.video_of_text)
        sides = (metrics.text_to_video, metrics.video_to_text)
        mean = sum(side.r1 + side.r5 + side.r10 for side in sides) / 6
        found = " / ".join(f"{number:.1f}" for number in (sides[0].r1, sides[0].r5, sides[0].r10))
        print(f"{mean:.2f}  t→v {found}  {' '.join(map(str, runs))}", flush=True)
        return mean

    single = {run: value([run]) for run in given.runs}
    first, *others = sorted(single, key=single.__getitem__, reverse=True)
    chosen, best = [first], single[first]
    for run in others:
        tried = value([*chosen, run])
        if tried >= best - given.worse:
            chosen, best = [*chosen, run], max(best, tried)
    more = "".join(f" --mean-with {run}" for run in chosen[1:])
    print(f"prota export {chosen[0]} MODEL --weights int8{more}")


if __name__ == "__main__":
    main()
