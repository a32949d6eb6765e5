"""What commands load before they answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prota.library.library import Library
from prota.model.prota import ProTA
from prota.samples.copying import CLIPS
from tests.processes import python

pytestmark = pytest.mark.process

COMMAND = """
import atexit, sys
atexit.register(lambda: print(*sorted(set({modules!r}) & set(sys.modules)), file=sys.stderr))
sys.argv = ["prota", *{arguments!r}]
from prota.__main__ import start
start()
"""
HEAVY = ["torch", "transformers", "huggingface_hub", "av", "cv2", "sklearn", "scipy", "sympy", "matplotlib", "ray"]
HEAVY += ["torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton", "fastapi", "rich.progress"]


def prota(*arguments: object) -> tuple[int, str, list[str], set[str]]:
    """Exit status, output, lines of errors, and which of the heavy modules were imported."""
    with python("-c", COMMAND.format(modules=HEAVY, arguments=[*map(str, arguments)])) as process:
        said, errors = process.communicate()
    *lines, modules = errors.splitlines()
    return process.returncode, said, lines, set(modules.split())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the shipped model."""
    folder = tmp_path_factory.mktemp("start") / "library"
    Library(folder).index([CLIPS / "cat.mp4", CLIPS / "coffee.mp4"])
    return folder


def test_a_search_loads_what_a_text_needs(library: Path) -> None:
    arguments = ("search", "a", "cat", "--library", library, "--device", "cpu", "--json")
    code, said, errors, modules = prota(*arguments)
    assert (code, errors, modules) == (0, [], {"torch"})
    expected = Library(library, ProTA.from_pretrained("prota-small")).search("a cat").hits
    found = json.loads(said)["moments"]
    assert [(Path(hit["path"]).stem, hit["score"], hit["probability"]) for hit in found] == [
        (Path(hit.video.path).stem, hit.score, hit.probability) for hit in expected
    ]
    assert found[0]["path"].endswith("cat.mp4")


def test_a_table_and_an_explanation_need_no_more(library: Path) -> None:
    code, said, errors, modules = prota("search", "a", "cat", "-l", library, "--explain", "--device", "cpu")
    assert (code, errors, modules) == (0, [], {"torch"})
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
    code, said, errors, modules = prota(*(str(library) if each == "LIBRARY" else each for each in arguments))
    assert (code, said, modules) == (1, "", set())
    assert len(errors) == 1
    assert "nowhere" in errors[0]


def test_videos_need_no_transformers_either(tmp_path: Path) -> None:
    library, clip, captions = tmp_path / "library", CLIPS / "cat.mp4", tmp_path / "captions.txt"
    captions.write_text("a cat\n", encoding="utf-8")
    for arguments in (
        ("index", clip, CLIPS / "coffee.mp4", "-l", library),
        ("search", "--like", clip, "-l", library, "--json"),
        ("match", clip, captions, "--json"),
    ):
        code, said, _, modules = prota(*arguments, "--device", "cpu")
        assert code == 0
        assert modules & {"torch", "transformers", "torch._dynamo"} == {"torch"}
    assert json.loads(said)["caption"] == "a cat"
