"""Run folders with logs written by hand, whose curves are known."""

from __future__ import annotations

import json
from pathlib import Path

from prota.config.experiment import Experiment


def write_run(
    folder: Path, *overrides: str, steps: int = 4, shift: float = 0.0, preset: str = "prota", validations: bool = True
) -> Path:
    """At step n: log σ² −n and −2n of text and video, margin 1/n, each plus ``shift``; R@1 10 n every other step."""
    folder.mkdir(parents=True)
    experiment = Experiment.build(preset, "toy", overrides)
    (folder / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    lines = []
    for step in range(1, steps + 1):
        values = {"text_log_var": -step + shift, "video_log_var": -2 * step + shift, "margin": 1 / step + shift}
        lines.append({"step": step, "total": 1.0, "epoch": 0, **values})
        if validations and step % 2 == 0:
            metrics = {"text_to_video": {"r1": 10.0 * step + shift}, "video_to_text": {"r1": 0.0}}
            lines.append({"step": step, "epoch": 1, "validation": metrics, "value": 0.0})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder
