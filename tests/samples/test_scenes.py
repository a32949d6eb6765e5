"""The plan of the clips keeps its promises."""

from __future__ import annotations

import pytest

from prota.samples.camera import between, extent
from prota.samples.scenes import CLIPS, SCENES
from prota.samples.sources import SOURCES, open_picture


def test_about_twenty_clips_of_which_five_and_more_have_three_scenes() -> None:
    assert 18 <= len(CLIPS) <= 24
    assert len({clip.name for clip in CLIPS}) == len(CLIPS)
    assert all(6 <= sum(seconds for _, seconds in clip.cuts) <= 12 for clip in CLIPS)
    joined = [clip for clip in CLIPS if len(clip.cuts) > 1]
    assert len(joined) >= 5
    for clip in joined:
        assert len({SCENES[scene].picture for scene, _ in clip.cuts}) == 3


def test_scenes_photographs_and_captions_are_all_used_once() -> None:
    used = [scene for clip in CLIPS for scene, _ in clip.cuts]
    assert sorted(used) == sorted(SCENES)
    assert {scene.picture for scene in SCENES.values()} == set(SOURCES)
    captions = [caption for scene in SCENES.values() for caption in scene.captions]
    assert len(set(captions)) == len(captions)


@pytest.mark.parametrize("name", SCENES)
def test_the_camera_stays_on_the_photograph(name: str) -> None:
    scene, (width, height) = SCENES[name], open_picture(SCENES[name].picture).size
    for step in range(11):
        _, _, across, down = extent((width, height), between(scene.start, scene.end, step / 10), (320, 240))
        assert across <= width + 1e-6
        assert down <= height + 1e-6
