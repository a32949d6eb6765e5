"""Which caption and which videos are shown."""

from __future__ import annotations

import pytest
import torch

from prota.figures.drawing import FigureError
from prota.figures.ranked import Choice, RankedSplit


@pytest.fixture
def known(gaussians: RankedSplit) -> RankedSplit:
    """7 videos with 2 captions each, whose scores are set by hand: all own videos lead by 5 but three captions'."""
    scores = torch.zeros(14, 7)
    scores[torch.arange(14), gaussians.video_of_text] = 5.0
    scores[3, 6] = 4.0
    scores[4, 0] = 7.0
    scores[9, 2] = 4.5
    gaussians.scores = scores
    return gaussians


def test_scores_and_ranks_are_those_of_the_split(known: RankedSplit) -> None:
    assert known.own_scores().tolist() == [5.0] * 14
    assert known.ranks().tolist() == [1.0] * 4 + [2.0] + [1.0] * 9
    score, place = known.best_others()
    assert score.tolist() == [0, 0, 0, 4, 7, 0, 0, 0, 0, 4.5, 0, 0, 0, 0]
    assert (place[3], place[4], place[9]) == (6, 0, 2)


def test_by_default_the_closest_right_decision_is_shown(known: RankedSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = known.split.video_ids
    monkeypatch.setattr(known, "row", lambda caption: known.scores[known.captions.index(caption)])
    assert known.choose(None, None, None) == Choice(known.captions[9], ids[4], ids[2])
    assert known.choose(None, ids[1], None) == Choice(known.captions[3], ids[1], ids[6])
    assert known.choose(None, ids[1], ids[0]) == Choice(known.captions[3], ids[1], ids[0])
    # A wrong decision where it is the only one asked for.
    shouted = f" {known.captions[4].upper()}"
    assert known.choose(shouted, None, None) == Choice(known.captions[4], ids[2], ids[0])
    known.scores = -known.scores
    lost = known.choose(None, None, None)
    assert lost.positive != lost.negative


def test_any_words_will_do_with_a_video(gaussians: RankedSplit) -> None:
    ids = gaussians.split.video_ids
    choice = gaussians.choose("something else", ids[0], None)
    assert (choice.caption, choice.positive) == ("something else", ids[0])
    row = gaussians.row("something else").tolist()
    best = max(range(1, 7), key=row.__getitem__)
    assert choice.negative == ids[best]
    assert gaussians.rank("something else", ids[best]) in (1.0, 2.0)


def test_what_is_not_there_is_named(gaussians: RankedSplit) -> None:
    ids = gaussians.split.video_ids
    for arguments, said in (
        (("no such words", None, None), "is not a caption of the test split: pass --video too"),
        ((None, "gone", None), "gone is not one of the 7 test videos"),
        ((None, None, "gone"), "gone is not one of the 7 test videos"),
        (("any words", ids[0], ids[0]), "is the caption's own video"),
        (("  ", ids[0], None), "the caption is empty"),
    ):
        with pytest.raises(FigureError, match=said):
            gaussians.choose(*arguments)


def test_pictures_are_the_frames_that_the_model_sees(gaussians: RankedSplit) -> None:
    ids = gaussians.split.video_ids
    pictures = gaussians.pictures(ids[2], ids[0])
    assert list(pictures) == [ids[2], ids[0]]
    assert pictures[ids[0]].shape == (4, 32, 32, 3)
    assert (pictures[ids[0]] == gaussians.evaluation.reader.read([ids[0]]).frames[0].numpy()).all()
