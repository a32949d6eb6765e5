"""How good a model's stored relevance is on videos that it knows nothing of, with captions and with single words.

    python benchmarks/relevance.py MODEL --data CONFIG [-s SECTION.FIELD=VALUE …] [--split test] [--before FOLDER]

Every query is asked in libraries drawn from the split, half of them without its video, as in `prota calibrate`; the
background is the one that is stored with the model. ``--before`` also measures the fit that is stored with another
model, with this one's scores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from prota.cli.options import load_system
from prota.evaluation.calibration import Queries, facts_of, key_words, measure
from prota.evaluation.report import Evaluation
from prota.evaluation.scoring import score_split, score_texts
from prota.model.relevance import Relevance


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-s", "--set", action="append", default=[])
    parser.add_argument("--split", default="test")
    parser.add_argument("--before", type=Path)
    given = parser.parse_args()
    system = load_system(given.model, given.data, given.set, "auto")
    own = system.model.relevance
    relevances = {"stored": own, "before": Relevance.load(given.before) if given.before else None}
    if own is None:
        raise SystemExit(f"{given.model} is not calibrated")
    evaluation, model = Evaluation(system, given.split), system.model
    scored = score_split(model, evaluation.reader, evaluation.split, autocast=evaluation.autocast)
    captions = [caption for _, caption in evaluation.split.pairs]
    words, shares = key_words([item.captions for item in evaluation.split.items])
    kinds = {"captions": (captions, Queries.captions(scored.scores, scored.video_of_text, facts_of(model, captions)))}
    if words:
        kinds["words"] = (words, Queries(score_texts(model, words, scored.videos), shares, facts_of(model, words)))
    background = own.background.to(model.logit_scale.device)
    print(f"{given.model}, {given.split}: {len(evaluation.split)} videos, {len(captions)} captions, {len(words)} words")
    for kind, (texts, queries) in kinds.items():
        unrelated = score_texts(model, texts, background)
        for name, relevance in relevances.items():
            if relevance is not None:
                found = measure(relevance, queries, unrelated)
                print(
                    f"{kind}, {name}: {found.trials} trials, calibration error {found.error:.3f}, "
                    f"absent refused {found.refused:.1%}, right answers shown {found.kept:.1%}"
                )


if __name__ == "__main__":
    main()
