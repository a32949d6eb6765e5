"""The plan of the clips keeps its promises."""

from __future__ import annotations

import itertools

import pytest

from prota.samples.camera import between, centre, extent
from prota.samples.scenes import CLIPS, SCENES, Scene
from prota.samples.sources import SOURCES, open_picture


def test_sixteen_clips_of_which_four_have_three_scenes() -> None:
    assert len(CLIPS) == 16
    assert len({clip.name for clip in CLIPS}) == len(CLIPS)
    assert all(6 <= sum(seconds for _, seconds in clip.cuts) <= 12 for clip in CLIPS)
    joined = [clip for clip in CLIPS if len(clip.cuts) > 1]
    assert len(joined) == 4
    for clip in joined:
        assert len({SCENES[scene].picture for scene, _ in clip.cuts}) == 3


def test_scenes_photographs_and_captions_are_all_used_once() -> None:
    used = [scene for clip in CLIPS for scene, _ in clip.cuts]
    assert sorted(used) == sorted(SCENES)
    assert {scene.picture for scene in SCENES.values()} == set(SOURCES)
    captions = [caption for scene in SCENES.values() for caption in scene.captions]
    assert len(set(captions)) == len(captions) == 48


def test_a_photograph_that_is_used_twice_shows_other_parts_of_itself() -> None:
    """So that a caption is true of one clip only: scenes have at most a margin in common."""
    for one, other in itertools.combinations(SCENES.values(), 2):
        if one.picture == other.picture:
            parts = itertools.product((0, 0.5, 1), repeat=2)
            most = max(shared(seen(one, first), seen(other, second)) for first, second in parts)
            assert most < 0.25, (one.captions[0], other.captions[0])


def seen(scene: Scene, part: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what the camera sees after a part of its way, in the photograph's pixels."""
    view, size = between(scene.start, scene.end, part), open_picture(scene.picture).size
    _, _, across, down = extent(size, view, (320, 240))
    x, y = centre(size, view, (320, 240))
    return x - across / 2, y - down / 2, x + across / 2, y + down / 2


def shared(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """What two boxes have in common, as a share of the smaller one."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    return width * height / min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))


@pytest.mark.parametrize("name", SCENES)
def test_the_camera_stays_on_the_photograph(name: str) -> None:
    scene, (width, height) = SCENES[name], open_picture(SCENES[name].picture).size
    for step in range(11):
        _, _, across, down = extent((width, height), between(scene.start, scene.end, step / 10), (320, 240))
        assert across <= width + 1e-6
        assert down <= height + 1e-6
