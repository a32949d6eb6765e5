"""Queries that the model does not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from prota.encoders.saved import FileTokenizer
from prota.library.search.hits import Results
from prota.library.search.queries import Query, Reading, reading
from prota.library.search.rows import Coverage
from prota.models.shipped import MODELS


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return FileTokenizer(MODELS / "prota-small")


@pytest.mark.parametrize(
    "text",
    [
        "ein Hund springt ins Wasser", "zwei Kinder tanzen und singen", "un chien saute dans l'eau",
        "una mujer corta cebollas", "una donna taglia le cipolle", "een hond springt in het water",
        "собака прыгает в воду", "一只狗跳进水里", "犬が水に飛び込む", "كلب يقفز في الماء", "강아지가 물에 뛰어든다",
    ],
)  # fmt: skip
def test_other_languages_are_recognised(text: str, tokenizer: Any) -> None:
    found = reading(text, tokenizer, 32)
    assert found.foreign
    assert not found.common


@pytest.mark.parametrize(
    "text",
    [
        "a dog jumps into water", "minecraft gameplay with a person narrating", "Schwarzenegger lifting weights",
        "Mount Kilimanjaro", "quesadilla recipe", "Jörg and Käthe on the beach", "schnauzer puppy", "um", "café", "hay",
        "information on albinism condition", "los angeles", "un meeting", "taekwondo", "!!", "die hard", "Le Mans",
    ],
)  # fmt: skip
def test_english_and_names_are_left_alone(text: str, tokenizer: Any) -> None:
    found = reading(text, tokenizer, 32)
    assert (found.unread, found.foreign) == ((), False)


def test_what_is_unknown_is_named(tokenizer: Any) -> None:
    assert reading("⚽️👦", tokenizer, 32) == Reading(("⚽️👦",))
    assert reading("a 🐆 runs", tokenizer, 32) == Reading(("🐆",))


@pytest.mark.parametrize(
    ("text", "common"), [("a man", True), ("woman, playing!", True), ("asdfgh", False), ("!!", False)]
)
def test_broad_queries_are_made_of_common_words(text: str, common: bool, tokenizer: Any) -> None:
    assert reading(text, tokenizer, 32).common is common


def test_a_model_of_many_languages_reads_them(tokenizer: Any) -> None:
    class Large:
        size = 250_000

        def pieces(self, text: str, length: int) -> Sequence[str]:
            return list(tokenizer.pieces(text, length))

        def words(self, text: str, length: int) -> list[tuple[str, list[int]]]:
            return list(tokenizer.words(text, length))

    large: Any = Large()
    assert not reading("собака прыгает в воду", large, 32).foreign


def test_hints_are_given_where_they_help() -> None:
    tokens: Any = None
    hit: Any = type("Hit", (), {"probability": 0.9})()
    weak: Any = type("Hit", (), {"probability": 0.1})()
    for query, hits, expected in (
        (Query("ein Hund", tokens, foreign=True), [weak], "English"),
        (Query("ein Hund", tokens, foreign=True), [], "English"),
        (Query("ein Hund", tokens, foreign=True), [hit], None),
        (Query("a 🐆", tokens, unread=("🐆",)), [hit], "🐆"),
        (Query("a dog", tokens), [weak], None),
    ):
        hint = Results(query, hits, 0.5, Coverage()).hint
        assert (expected in hint) if expected and hint else hint is expected


def test_no_good_match_means_that_there_is_none() -> None:
    tokens: Any = None
    strong, weak = (type("Hit", (), {"probability": None, "score": score})() for score in (0.9, 0.1))
    query, hits = Query("like a", tokens), [strong, weak]
    found: Any = hits
    assert Results(query, found, 0.5, Coverage(), least=0.5).good == [strong]
    assert not Results(query, found, 0.5, Coverage()).no_good_match
    assert Results(query, found, 0.5, Coverage(), least=1.0).no_good_match
    assert Results(query, [], 0.5, Coverage()).no_good_match
