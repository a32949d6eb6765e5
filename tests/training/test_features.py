"""Features of a frozen tower: those of the tower, with word of how far they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prota import ProTA
from prota.config.experiment import Experiment
from prota.data.batches import open_cache
from prota.training import features
from prota.training.features import FeatureClips, feature_key


def test_features_are_the_towers_and_progress_is_told(world_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "VIDEOS_AT_ONCE", 5)
    experiment = Experiment.load(world_config)
    model, cache = ProTA.from_config(experiment.model).eval(), open_cache(experiment)
    told: list[tuple[int, int]] = []
    clips = FeatureClips(model, cache, cache.ids[:12], progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 12), (5, 12), (10, 12), (12, 12)]
    assert cache.ids[11] in clips
    assert cache.ids[12] not in clips
    for video_id in cache.ids[:12]:
        pictures = torch.from_numpy(cache.frames(video_id).copy()).permute(0, 3, 1, 2)
        with torch.no_grad():
            expected = model.video_encoder.tower.features(pictures)
        torch.testing.assert_close(torch.from_numpy(clips.frames(video_id)), expected, rtol=0, atol=1e-5)


def test_the_key_tells_towers_and_plans_apart(world_config: Path) -> None:
    experiment = Experiment.load(world_config)
    model, cache = ProTA.from_config(experiment.model), open_cache(experiment)
    key = feature_key(model, cache)
    with torch.no_grad():
        model.head.text.weight[0].weight.add_(1.0)
    assert feature_key(model, cache) == key
    other = ProTA.from_config(Experiment.load(world_config, ["encoder.frame_feature=cls"]).model)
    other.load_state_dict(model.state_dict())
    assert feature_key(other, cache) != key
    with torch.no_grad():
        next(model.video_encoder.tower.model.parameters()).add_(1.0)
    assert feature_key(model, cache) != key
