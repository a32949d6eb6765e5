"""A library of made-up segments, some of them the same, and queries to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from prota.config.model import Config
from prota.library.storage.reader import Snapshot
from prota.library.storage.writer import Writer
from prota.library.tokens import stored_tokens
from prota.scoring.score import ScoreHead
from prota.types import PreparedTokens
from tests.library.small_library import STAMP, D, content, segments, video

CPU = torch.device("cpu")
NAMES = [f"n{number}" for number in range(12)]


def fill(folder: Path) -> Path:
    """Five segments a video, durations of 50 and 20; every third shows what the first does; one file is gone."""
    with Writer.create(folder, STAMP) as store:
        for start in range(0, len(NAMES), 3):
            names = NAMES[start : start + 3]
            records = [
                video(name, 5, duration=50.0 if place % 2 else 20.0, state="gone" if name == "n4" else "indexed")
                for place, name in enumerate(names)
            ]
            batches = [segments(name, 5) for name in names]
            batches[0] = replace(segments("n0", 5), video_id=content(names[0]))
            store.commit(records, batches)
    return folder


def head() -> ScoreHead:
    torch.manual_seed(0)
    config = Config.build("prota", "toy", [])
    return ScoreHead(D, config.score, config.distribution).eval()


def queries(store: Snapshot, rows: list[int]) -> PreparedTokens:
    """Some segments as queries: those that look the same score the same."""
    return stored_tokens(store.tokens(rows), CPU)
