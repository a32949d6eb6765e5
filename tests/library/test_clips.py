"""Clips as queries: moments like them, and captions that describe them."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch

from prota.errors import UsageError
from prota.library.indexing.reading import PART, ReadRequest, read_video
from prota.library.library import Library
from prota.library.records import LibraryError
from prota.library.search.clips import clip_query, match_captions
from prota.library.search.queries import ClipRange, Query, parse_clip
from prota.library.segments import SegmentPlan
from prota.library.tokens import encode_video, stored_tokens
from tests.library.worlds import hits_of, toy_model, write_clips, write_picture
from tests.small_world import write_colour_clip

pytestmark = pytest.mark.process


def test_clips_and_stretches_are_told_apart(tmp_path: Path) -> None:
    assert parse_clip("a.mp4") == ClipRange(Path("a.mp4"))
    assert parse_clip("a b@c.mp4@12-20.5") == ClipRange(Path("a b@c.mp4"), 12, 20.5)
    odd = tmp_path / "x@1-2"
    odd.touch()
    assert parse_clip(str(odd)) == ClipRange(odd)
    with pytest.raises(UsageError, match="ends before it starts"):
        parse_clip("a.mp4@5-5")


def test_what_looks_like_a_clip_is_found_and_the_clip_itself_is_not(tmp_path: Path) -> None:
    paths = write_clips(tmp_path / "v", "red-left", "blue-top", "green-right")
    write_colour_clip(tmp_path / "v" / "twin.mp4", "red", "left", frames=7)
    library = Library(tmp_path / "lib", toy_model())
    library.index(tmp_path / "v", frames=4)
    hits = hits_of(library.view, clip_query(library.model, ClipRange(paths["red-left"])), 10)
    assert Path(hits[0].video.path).stem == "twin"
    assert "red-left" not in {Path(hit.video.path).stem for hit in hits}
    with pytest.raises(LibraryError, match="it is shorter"):
        clip_query(library.model, ClipRange(paths["red-left"], 50, 60))
    for path, said in (("nowhere.mp4", "no such file$"), ("x.mp4@2", "FILE@START-END in seconds"), ("v", "a folder")):
        with pytest.raises(LibraryError, match=said):
            clip_query(library.model, ClipRange(tmp_path / path))


def test_a_stretch_is_its_own_frames_and_not_its_neighbours(tmp_path: Path) -> None:
    """Two colours in one clip, which is one segment: each half is like the clip of its own colour."""
    write_colour_clip(tmp_path / "red.mp4", "red", "left", frames=10)
    write_colour_clip(tmp_path / "blue.mp4", "blue", "left", frames=10)
    both = tmp_path / "both.mp4"
    with av.open(str(both), "w") as file:
        stream = file.add_stream("libx264", rate=5, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for name in ("red", "blue"):
            with av.open(str(tmp_path / f"{name}.mp4")) as part:
                for frame in part.decode(video=0):
                    picture = frame.to_ndarray(width=64, height=64, format="rgb24")
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))
    model = toy_model()
    whole = clip_query(model, ClipRange(both))
    red, blue, short = (clip_query(model, ClipRange(both, *span)) for span in ((0, 2), (2, 4), (2.01, 2.02)))
    frames = int(whole.tokens.mask.sum())
    assert int(red.tokens.mask.sum()) + int(blue.tokens.mask.sum()) == frames
    assert int(short.tokens.mask.sum()) == 1
    assert (red.text, whole.text) == ("like both.mp4@0-2", "like both.mp4")
    assert red.like == blue.like == whole.like
    for query, name in ((red, "red"), (blue, "blue")):
        alone = clip_query(model, ClipRange(tmp_path / f"{name}.mp4"))
        other = clip_query(model, ClipRange(tmp_path / f"{'blue' if name == 'red' else 'red'}.mp4"))
        near, far = (_likeness(query, item) for item in (alone, other))
        assert near > far


def _likeness(first: Query, second: Query) -> float:
    one, two = (query.tokens.direction[0][query.tokens.mask[0]].mean(dim=0) for query in (first, second))
    return float(torch.cosine_similarity(one, two, dim=0))


def write_film(path: Path) -> None:
    """300 seconds, a picture each: grey, then from 200 s on coloured."""
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=1, options={"crf": "18", "g": "10"})
        stream.width, stream.height, stream.pix_fmt = 48, 48, "yuv420p"
        for number in range(300):
            picture = np.full((48, 48, 3), 40 + number % 50, dtype=np.uint8)
            if number >= 200:
                picture[:, :24] = (220, 30, 30)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


def test_a_long_clip_is_looked_at_to_its_end(tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    write_film(film)
    model = toy_model()
    plan = SegmentPlan(4)
    whole = read_video(ReadRequest(film, plan, model.config.encoder.image_size, count=10_000))
    assert whole.total > 2 * PART
    for start, end in ((3, 6), (127, 130.5), (250, 254), (296, 300)):
        assert (found := clip_query(model, ClipRange(film, start, end)).like) is not None
        shares = np.minimum(whole.ends, end) - np.maximum(whole.starts, start)
        assert min(found[2], end) - max(found[1], start) == pytest.approx(shares.max())
    assert (middle := clip_query(model, ClipRange(film)).like) is not None
    assert middle[1:] == (whole.starts[whole.total // 2], whole.ends[whole.total // 2])
    with pytest.raises(LibraryError, match="it is shorter"):
        clip_query(model, ClipRange(film, 400, 410))
    captions = ["red on the left", "grey", "a thing", "words"]
    batch = encode_video(model, "film", whole)
    tokens = stored_tokens(batch, torch.device("cpu"))
    with torch.no_grad():
        scores = model.score(model.encode_text(captions), tokens)
    assert len(set(scores.argmax(dim=1).tolist()) - set(range(PART))) > 0, "not all in the first part"
    for match in match_captions(model, film, captions):
        best = scores[captions.index(match.caption)]
        assert match.score == pytest.approx(best.max().item(), abs=1e-5)
        assert match.start == whole.starts[best.argmax()]


def test_captions_come_best_first_with_the_models_scores(tmp_path: Path) -> None:
    paths = write_clips(tmp_path, "red-left")
    model = toy_model()
    captions = ["red on the left", "", "blue", "a green thing on top"]
    found = match_captions(model, paths["red-left"], captions)
    assert {match.caption for match in found} == {caption for caption in captions if caption}
    assert [match.score for match in found] == sorted((match.score for match in found), reverse=True)
    assert all(0 <= match.start < match.end for match in found)
    with pytest.raises(LibraryError, match="no captions"):
        match_captions(model, paths["red-left"], ["", " "])
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(LibraryError, match="broken"):
        match_captions(model, tmp_path / "broken.mp4", captions)


def test_what_looks_like_a_picture_is_found_and_the_picture_itself_is_not(tmp_path: Path) -> None:
    model, photo = toy_model(), write_picture(tmp_path / "v" / "photo.png", "red")
    write_picture(tmp_path / "v" / "twin.webp", "red")
    write_picture(tmp_path / "v" / "other.png", "blue")
    write_clips(tmp_path / "v", "green-top")
    library = Library(tmp_path / "lib", model)
    library.index(tmp_path / "v", frames=4)
    found = [Path(hit.video.path).name for hit in hits_of(library.view, clip_query(model, ClipRange(photo)), 10)]
    assert found[0] == "twin.webp"
    assert set(found) == {"twin.webp", "other.png", "green-top.mp4"}
    clip = clip_query(model, ClipRange(tmp_path / "v" / "green-top.mp4"))
    assert {Path(hit.video.path).name for hit in hits_of(library.view, clip, 10)} == {
        "photo.png", "twin.webp", "other.png"
    }  # fmt: skip
    with pytest.raises(LibraryError, match="is a picture"):
        clip_query(model, ClipRange(photo, 0, 1))
    (match,) = match_captions(model, photo, ["a red thing"])
    assert (match.start, match.end) == (0.0, 0.0)
