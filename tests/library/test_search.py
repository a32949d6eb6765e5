"""Searching a library: exact or in two stages, with filters, explanations and odd queries."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prota.encoders.text import HashTokenizer
from prota.library.library import Library
from prota.library.records import LibraryError
from prota.library.search import view as view_module
from prota.library.search.queries import clean_query
from prota.library.search.rows import CANDIDATES, FILTERED_CANDIDATES, RowFinder
from prota.library.search.view import View
from prota.library.storage import reader as storage_reader
from prota.library.storage.reader import Snapshot
from prota.model import weights as model_weights
from prota.model.prota import ProTA
from prota.model.relevance import Fit, Relevance
from tests.library.worlds import encoded, hits_of, toy_model, write_clips, write_picture
from tests.small_world import write_colour_clip

NAMES = ("red-left", "blue-top", "green-right", "pink-left", "white-top", "black-bottom")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("search")
    write_clips(folder / "v", *NAMES)
    write_colour_clip(folder / "v" / "long.mp4", "red", "left", frames=80)
    opened = Library(folder / "lib", toy_model())
    opened.index(folder / "v", frames=4)
    return opened


def test_moments_come_best_first_with_the_models_own_scores(library: Library) -> None:
    hits = library.search("red on the left", k=20)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert {Path(hit.video.path).stem for hit in hits} == {*NAMES, "long"}
    query = encoded(library.view, "red on the left")
    for hit in hits:
        assert 0 <= hit.start <= hit.best <= hit.end <= hit.video.duration + 0.5
        assert library.view.explain(query, hit.row).score == pytest.approx(hit.score, abs=1e-5)


def test_two_stages_find_what_exact_search_finds(library: Library) -> None:
    store = Snapshot.open(library.location)
    staged = View(store, library.model, exact_segments=1)
    for words in ("red on the left", "a pink thing", "bottom half black"):
        exact = [(hit.row, round(hit.score, 5)) for hit in library.search(words, k=3)]
        assert [(hit.row, round(hit.score, 5)) for hit in hits_of(staged, words, k=3)] == exact
        assert [(hit.row, round(hit.score, 5)) for hit in hits_of(staged, words, k=3, exact=True)] == exact


@pytest.mark.parametrize("exact_segments", [1, 10_000])
def test_queries_that_are_asked_together_find_what_they_find_alone(library: Library, exact_segments: int) -> None:
    texts = ["red", "a pink thing on the left of the picture", "bottom half black"]
    store = Snapshot.open(library.location)
    view = View(store, library.model, exact_segments=exact_segments)
    queries = view.encode(texts)
    for text, query, results in zip(texts, queries, view.search(queries, 5), strict=True):
        assert query.tokens.mask.all()
        assert results.query is query
        together, alone = results.hits, hits_of(view, text, 5)
        assert [(hit.row, hit.best) for hit in together] == [(hit.row, hit.best) for hit in alone]
        assert [hit.score for hit in together] == pytest.approx([hit.score for hit in alone], abs=1e-6)
        assert view.scores(query, [hit.row for hit in alone]) == pytest.approx([hit.score for hit in alone], abs=1e-6)


@pytest.mark.parametrize("exact_segments", [1, 10_000])
@pytest.mark.parametrize("like", [False, True])
def test_a_long_scene_leaves_room_for_others(
    library: Library, exact_segments: int, like: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it matches best, or is the query itself: there are as many moments as asked for."""
    store = Snapshot.open(library.location)
    view = View(store, library.model, exact_segments=exact_segments)
    query = encoded(view, "red on the left")
    (long,) = [video for video in store.videos() if video.path.endswith("long.mp4")]
    assert long.segments == 7, "more than the five that are asked for"
    query = replace(query, like=(long.video_id, 0.0, long.duration)) if like else query
    wanted = [(hit.row, hit.start, hit.end) for hit in hits_of(view, query, 5)]
    monkeypatch.setattr(view_module, "_LEAST_MOMENTS", 1)
    monkeypatch.setattr(view_module, "_SEGMENTS_PER_MOMENT", 1)
    assert [(hit.row, hit.start, hit.end) for hit in hits_of(view, query, 5)] == wanted
    assert len(wanted) == 5
    assert [hit.row for hit in hits_of(view, query, 1)] == [wanted[0][0]]
    assert any(hit.video == long for hit in hits_of(view, query, 7)) is not like


def test_a_moment_is_as_long_whoever_asks_for_more(library: Library) -> None:
    most = [(hit.row, hit.start, hit.end) for hit in library.search("red on the left", k=20)]
    for k in (1, 2, 5):
        assert [(hit.row, hit.start, hit.end) for hit in library.search("red on the left", k=k)] == most[:k]


def test_who_asks_for_one_moment_has_it_chosen_from_as_many_segments(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scene may go on for longer than the few segments that one moment would be given."""
    asked: list[int] = []
    real = RowFinder.find

    def noted(finder: RowFinder, tokens: Any, count: int, *others: Any) -> Any:
        asked.append(count)
        return real(finder, tokens, count, *others)

    monkeypatch.setattr(RowFinder, "find", noted)
    for k in (1, 24, 25):
        library.search("red on the left", k=k)
    assert asked == [24 * 8, 24 * 8, 25 * 8]


@pytest.mark.parametrize("exact_segments", [1, 10_000])
def test_filters_leave_out_what_does_not_fit(library: Library, exact_segments: int) -> None:
    store = Snapshot.open(library.location)
    view = View(store, library.model, exact_segments=exact_segments)
    short = hits_of(view, "red on the left", k=20, where="duration < 3")
    assert {Path(hit.video.path).stem for hit in short} == set(NAMES)
    assert hits_of(view, "red", k=5, where="duration > 1000") == []
    with pytest.raises(LibraryError, match="duration"):
        hits_of(view, "red", where="length < 3")


def test_odd_queries(library: Library) -> None:
    assert clean_query("  a\tman\x00 plays\n\nguitar ") == "a man plays guitar"
    for nothing in ("", "   ", "\x00\x01\n"):
        with pytest.raises(LibraryError, match="empty"):
            library.search(nothing)
    for words in ("猫が寝ている", "кошка спит", "🐈", "<script>alert(1)</script>", "'; drop table", "word " * 500):
        assert library.search(words, k=2)
    assert encoded(library.view, "word " * 500).cut
    assert not encoded(library.view, "a word").cut
    with pytest.raises(LibraryError, match="at least 1"):
        library.search("a word", k=0)


def test_only_what_is_longer_than_the_model_reads_is_cut(library: Library) -> None:
    encoder = library.model.text_encoder
    around = len(encoder.tokenizer.pieces("a", 10_000)) - 1
    assert not encoded(library.view, "a " * (encoder.length - around)).cut
    assert encoded(library.view, "a " * (encoder.length - around + 1)).cut


def test_a_query_does_nothing_twice(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is opened once, weights are hashed once, a text is tokenised once, moments are found once."""
    library.model.save_pretrained(tmp_path / "model")
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    hashing = SimpleNamespace(file_digest=hashlib.file_digest, sha256=hashlib.sha256)
    monkeypatch.setattr(model_weights, "hashlib", hashing)
    count(hashing, "file_digest")
    count(storage_reader, "open_at_head")
    count(HashTokenizer, "__call__")
    count(HashTokenizer, "pieces")
    count(view_module, "find_moments")
    count(RowFinder, "find")
    opened = Library(library.location, tmp_path / "model", existing=True)
    opened.search("red on the left")
    once = {"open_at_head": 1, "file_digest": 1, "__call__": 1, "pieces": 1, "find_moments": 1, "find": 1}
    assert calls == once
    opened.search("a blue thing")
    assert calls == once | {"__call__": 2, "pieces": 2, "find_moments": 2, "find": 2}


def test_another_model_of_the_same_name_is_refused(library: Library, tmp_path: Path) -> None:
    toy_model(1).save_pretrained(tmp_path / "model")
    with pytest.raises(LibraryError):
        _ = Library(library.location, tmp_path / "model").view
    other = Library(library.location, toy_model(1))
    with pytest.raises(LibraryError):
        _ = other.view


def test_without_a_library_no_model_is_read_to_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProTA, "from_pretrained", lambda _: pytest.fail("read"))
    with pytest.raises(LibraryError):
        Library(tmp_path / "lib", existing=True)


def test_what_is_told_of_a_hit_names_no_folder(library: Library) -> None:
    hit = library.search("red").hits[0]
    assert list(hit.fields()) == ["kind", "start", "end", "best", "score", "probability"]
    assert hit.fields()["score"] == hit.score


def test_a_copy_that_is_there_speaks_for_one_that_is_gone(tmp_path: Path) -> None:
    first = write_clips(tmp_path / "v" / "a", "red-left")["red-left"]
    second = tmp_path / "v" / "b" / "red-left.mp4"
    second.parent.mkdir()
    second.write_bytes(first.read_bytes())
    library = Library(tmp_path / "lib", toy_model())
    options = {"frames": 4}
    library.index(tmp_path / "v", **options)
    assert [hit.video.path for hit in library.search("red")] == [str(first)]
    first.unlink()
    library.index(tmp_path / "v", **options)
    assert [hit.video.path for hit in library.search("red")] == [str(second)]


def test_videos_whose_files_are_gone_are_not_found(tmp_path: Path) -> None:
    paths = write_clips(tmp_path / "v", "red-left", "blue-top")
    library = Library(tmp_path / "lib", toy_model())
    options = {"frames": 4}
    library.index(tmp_path / "v", **options)
    assert len(library.search("red")) == 2
    paths["red-left"].unlink()
    library.index(tmp_path / "v", **options)
    assert [Path(hit.video.path).stem for hit in library.search("red")] == ["blue-top"]


def test_an_empty_library_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    library = Library(tmp_path / "lib", toy_model())
    library.index(tmp_path / "v")
    assert library.search("anything").hits == []


def test_opening_by_the_models_own_name(tmp_path: Path) -> None:
    model = toy_model()
    model.save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "v", "red-left")
    Library(tmp_path / "lib", tmp_path / "model").index(tmp_path / "v", frames=4)
    again = Library(tmp_path / "lib")
    assert again.search("red")[0].score == pytest.approx(Library(tmp_path / "lib", model).search("red")[0].score)
    assert torch.equal(again.model.logit_scale, model.logit_scale)


def test_a_calibrated_model_says_when_nothing_matches(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Snapshot.open(library.location)
    background = library.model.encode_video(torch.randint(0, 256, (5, 4, 3, 32, 32), dtype=torch.uint8)).detach()
    never, margin = Fit((-50.0, 0.0, 0.0, 0.0, 0.0), 0.5, 8), Fit((0.0, 0.0, 5.0, 0.0, 0.0), 0.5, 8)
    strict = View(store, library.model)
    monkeypatch.setattr(library.model, "relevance", Relevance(never, background))
    (results,) = strict.search(strict.encode(["red on the left"]), k=3)
    assert [hit.probability for hit in results.hits] == pytest.approx([0.0] * 3, abs=1e-9)
    assert results.good == []
    assert results.no_good_match
    mild = View(store, library.model)
    monkeypatch.setattr(library.model, "relevance", Relevance(margin, background))
    (results,) = mild.search(mild.encode(["red on the left"]), k=3)
    values = [hit.probability for hit in results.hits]
    assert values == sorted(values, reverse=True)
    assert results.good[0] == results.hits[0]
    assert not results.no_good_match
    monkeypatch.undo()
    assert all(hit.probability is None for hit in library.search("red on the left"))


@pytest.mark.parametrize("exact_segments", [0, 1000])
def test_a_filter_makes_a_small_library_of_a_large_one(
    library: Library, exact_segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best of few need not stand out as much as the best of many."""
    store = Snapshot.open(library.location)
    background = library.model.encode_video(torch.randint(0, 256, (5, 4, 3, 32, 32), dtype=torch.uint8)).detach()
    # This relevance says the size and nothing else: 1 / (1 + e^(log size)).
    size = Relevance(Fit((0.0, 0.0, 0.0, 0.0, -1.0), 0.5, 10_000), background)
    monkeypatch.setattr(library.model, "relevance", size)
    view = View(store, library.model, exact_segments=exact_segments)
    whole = store.count()
    one = store.segments(["video_id"])["video_id"].to_pylist()[0]
    few = store.segments(["video_id"])["video_id"].to_pylist().count(one)
    assert whole > 8
    for where, searched in ((None, whole), (f"video_id = '{one}'", max(few, 8)), ("duration < 1000", whole)):
        hits = hits_of(view, "red on the left", k=3, where=where)
        assert hits[0].probability == pytest.approx(1 / (1 + searched), rel=1e-5), where


def test_a_filter_gets_more_candidates(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Snapshot.nearest

    def noted(store: Snapshot, vector: Any, count: int, *others: Any, **named: Any) -> Any:
        asked.append(count)
        return real(store, vector, count, *others, **named)

    monkeypatch.setattr(Snapshot, "nearest", noted)
    store = Snapshot.open(library.location)
    view = View(store, library.model, exact_segments=0)
    everything = hits_of(view, "red on the left")
    assert hits_of(view, "red on the left", where="duration < 1000") == everything
    # Who asks for many needs more to choose from: twice as many segments as their moments are made of.
    hits_of(view, "red on the left", k=100)
    assert asked == [CANDIDATES, FILTERED_CANDIDATES, 2 * 8 * 100]


def test_a_library_remembers_a_model_folder_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_model().save_pretrained(tmp_path / "models" / "mine")
    write_clips(tmp_path / "v", "red-left")
    monkeypatch.chdir(tmp_path)
    Library("lib", "models/mine").index("v", frames=4)
    monkeypatch.chdir(tmp_path / "v")
    assert len(Library(tmp_path / "lib").search("red").hits) == 1


@pytest.mark.parametrize("exact_segments", [1, 10_000])
def test_pictures_are_found_beside_videos_and_filters_know_them(tmp_path: Path, exact_segments: int) -> None:
    write_clips(tmp_path / "kind = video", "red-left", "blue-top")
    for colour in ("red", "green"):
        write_picture(tmp_path / "kind = video" / f"{colour}.png", colour)
    library = Library(tmp_path / "lib", toy_model())
    library.index(tmp_path / "kind = video", frames=4)

    def found(where: str | None) -> set[str]:
        store = Snapshot.open(library.location)
        view = View(store, library.model, exact_segments=exact_segments)
        return {Path(hit.video.path).stem for hit in hits_of(view, "red", 10, where)}

    everything = {"red-left", "blue-top", "red", "green"}
    assert found(None) == everything
    assert found("kind = 'picture'") == found("KIND in ('picture') AND duration = 0") == {"red", "green"}
    assert found("not (kind = 'picture')") == found("kind <> 'picture'") == {"red-left", "blue-top"}
    # What stands in a text is no column.
    assert found("path like '%kind = video%' and kind = 'video'") == {"red-left", "blue-top"}
    assert found("path like '%it''s kind%'") == set()
    with pytest.raises(LibraryError, match="cannot filter"):
        found("kind = 3 +")
    picture = next(hit for hit in library.search("red").hits if hit.video.kind == "picture")
    assert picture.start == picture.best == picture.end == 0.0


def test_a_probability_equal_to_the_cutoff_is_a_good_match(library: Library) -> None:
    found = library.search("red on the left", k=3)
    probable = [replace(hit, probability=value) for hit, value in zip(found.hits, (0.51, 0.5, 0.49), strict=True)]
    results = replace(found, hits=probable, cutoff=0.5)
    assert [hit.probability for hit in results.good] == [0.51, 0.5]
    assert [moment["weaker"] for moment in results.to_dict()["moments"]] == [False, False, True]
