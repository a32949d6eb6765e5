"""What commands load before they answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prota.library.library import Library
from prota.model.prota import ProTA
from prota.samples.copying import CLIPS
from tests.library.worlds import toy_model, write_clips
from tests.processes import python

pytestmark = pytest.mark.process

# Python's own way to say that a module is not there.
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys({modules!r}))
sys.argv = ["prota", *{arguments!r}]
from prota.__main__ import start
start()
"""
HEAVY = ["transformers", "huggingface_hub", "av", "cv2", "sklearn", "scipy", "sympy", "matplotlib", "pandas", "ray"]
HEAVY += ["torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton", "fastapi", "rich.progress"]


def without(modules: list[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, output and errors of `prota` where these modules cannot be imported."""
    with python("-c", BLOCKED.format(modules=modules, arguments=[*map(str, arguments)])) as process:
        said, errors = process.communicate()
    return process.returncode, said, errors


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the shipped model."""
    folder = tmp_path_factory.mktemp("start") / "library"
    Library.open(folder).index([CLIPS / "cat.mp4", CLIPS / "coffee.mp4"])
    return folder


def test_a_search_loads_what_a_text_needs(library: Path) -> None:
    arguments = ("search", "a", "cat", "--library", library, "--device", "cpu", "--json", "--all")
    code, said, errors = without(HEAVY, *arguments)
    assert (code, errors) == (0, "")
    expected = Library.open(library, ProTA.from_pretrained("prota-small")).search("a cat", everything=True)
    found = json.loads(said)["moments"]
    assert [(Path(hit["path"]).stem, hit["score"], hit["relevance"]) for hit in found] == [
        (Path(hit.video.path).stem, hit.score, hit.relevance) for hit in expected
    ]
    assert found[0]["path"].endswith("cat.mp4")


def test_a_table_and_an_explanation_need_no_more(library: Path) -> None:
    code, said, errors = without(HEAVY, "search", "a", "cat", "-l", library, "--explain", "--device", "cpu")
    assert (code, errors) == (0, "")
    assert "cat.mp4" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "a cat", "-l", "nowhere"),
        ("search", "a cat", "-l", "LIBRARY", "--model", "nowhere"),
        ("index", "nowhere", "-l", "LIBRARY"),
    ],
)
def test_a_wrong_path_is_told_before_torch_is_loaded(arguments: tuple[str, ...], library: Path) -> None:
    code, said, errors = without(
        [*HEAVY, "torch"], *(str(library) if each == "LIBRARY" else each for each in arguments)
    )
    assert (code, said) == (1, "")
    assert "nowhere" in errors
    assert len(errors.splitlines()) == 1


def test_a_clip_as_a_query_loads_the_rest(tmp_path: Path) -> None:
    toy_model().save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "videos", "red-left", "blue-top")
    Library.open(tmp_path / "library", tmp_path / "model").index(tmp_path / "videos")
    clip = tmp_path / "videos" / "red-left.mp4"
    code, said, errors = without([], "search", "--like", clip, "-l", tmp_path / "library", "--device", "cpu", "--json")
    assert (code, errors) == (0, "")
    assert [Path(hit["path"]).stem for hit in json.loads(said)["moments"]] == ["blue-top"]
