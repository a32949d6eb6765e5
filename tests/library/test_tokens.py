"""Several videos encoded at once are what each is alone; a model is known by what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prota.config.model import Config, EncoderConfig
from prota.library.indexing.reading import ReadRequest, read_video
from prota.library.segments import SegmentPlan
from prota.library.tokens import encode_video, encode_videos, stamp_of
from tests.library.worlds import broken_model, toy_model, write_clips
from tests.small_world import write_colour_clip


def test_videos_encoded_together_are_what_they_are_alone(tmp_path: Path) -> None:
    model = toy_model()
    paths = write_clips(tmp_path, "red-left", "blue-top")
    write_colour_clip(tmp_path / "long.mp4", "pink", "left", frames=60)
    plan = SegmentPlan(frames=3, fps=2.0)
    contents = [read_video(ReadRequest(path, plan, 32)) for path in (*paths.values(), tmp_path / "long.mp4")]
    contents.append(read_video(ReadRequest(tmp_path / "long.mp4", plan, 32, first=5)))
    together = encode_videos(model, [(str(number), content) for number, content in enumerate(contents)], batch=7)
    assert [batch.first for batch in together] == [0, 0, 0, 5]
    for number, (content, batch) in enumerate(zip(contents, together, strict=True)):
        alone = encode_video(model, str(number), content)
        assert (batch.video_id, len(batch), batch.thumbnails) == (alone.video_id, len(content), alone.thumbnails)
        for name in ("start", "end", "times", "mask"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(alone, name))
        # Matrices of another size may be summed in another order: the last bit of half precision.
        for name in ("direction", "spread", "weight", "pooled"):
            np.testing.assert_allclose(getattr(batch, name), getattr(alone, name), rtol=2e-3, atol=1e-3)


def test_what_half_precision_cannot_hold_is_not_stored(tmp_path: Path) -> None:
    model = broken_model()
    (path,) = write_clips(tmp_path, "red-left").values()
    content = read_video(ReadRequest(path, SegmentPlan(frames=3), 32))
    with pytest.raises(ValueError, match="cannot be stored"):
        encode_video(model, "red", content)


class LaterEncoder(EncoderConfig):
    choice: str = "as before"


class LaterConfig(Config):
    encoder: LaterEncoder = LaterEncoder()


def test_a_model_is_known_by_its_settings_and_weights_but_not_by_settings_that_came_later() -> None:
    model = toy_model()
    before = stamp_of(model, "toy").fingerprint
    for later, same in (({}, True), ({"choice": "as before"}, True), ({"choice": "new"}, False)):
        settings = toy_model().config.model_dump()
        model.config = LaterConfig(**settings | {"encoder": settings["encoder"] | later})
        assert (stamp_of(model, "toy").fingerprint == before) == same
    assert stamp_of(toy_model(1), "toy").fingerprint != before
    assert stamp_of(toy_model(0, "encoder.picture=whole"), "toy").fingerprint != before
