"""Models that come with the package: by name, after folders and before hub ids."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from prota import ModelFolderError, ProTA
from prota.config.experiment import Experiment
from prota.encoders.plain import BertText
from prota.library.library import Library
from prota.model.folder import model_folder
from prota.model.relevance import Relevance
from prota.model.weights import read_weights
from prota.models import shipped
from prota.samples.copying import CLIPS
from tests.library.worlds import toy_model, write_clips
from tests.processes import REPOSITORY

pytestmark = pytest.mark.process


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped models, with one that is ready and one that is not."""
    folder = tmp_path / "models"
    monkeypatch.setattr(shipped, "MODELS", folder)
    toy_model().save_pretrained(folder / "prota-tiny", weights="int8")
    (folder / "prota-empty").mkdir()
    return folder


def test_a_shipped_model_has_a_name(models: Path) -> None:
    assert shipped.names() == ["prota-tiny"]
    assert model_folder("prota-tiny") == models / "prota-tiny"
    assert ProTA.from_pretrained("prota-tiny").config.encoder.frames == 4


def test_a_folder_of_that_name_wins(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models / "prota-tiny", tmp_path / "prota-tiny")
    assert model_folder("prota-tiny") == Path("prota-tiny")


@pytest.mark.parametrize("name", ["prota-large", "prota-empty", "a/b/c"])
def test_unknown_names_are_told_the_known_ones(models: Path, name: str) -> None:
    with pytest.raises(ModelFolderError, match=r"not a shipped model \(prota-tiny\)"):
        ProTA.from_pretrained(name)


def test_a_missing_default_says_so(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"prota-small should come with prota, but .* shipped here: prota-tiny"):
        ProTA.from_pretrained("prota-small")
    with pytest.raises(ModelFolderError, match="prota-small should come with prota"):
        Library(tmp_path / "library")


def test_a_new_library_is_made_by_the_default(models: Path, tmp_path: Path) -> None:
    toy_model().save_pretrained(models / shipped.DEFAULT, weights="int8")
    write_clips(tmp_path / "videos", "red-left")
    assert Library(tmp_path / "library").index(tmp_path / "videos").indexed == 1
    again = Library(tmp_path / "library")
    assert again.name == shipped.DEFAULT
    assert len(again.search("red", k=1)) == 1


# The model that comes with the package: it is whole, small enough, and finds things.

FOLDER = shipped.MODELS / shipped.DEFAULT
SHOWN = ("city", "coffee", "flower", "snowboard")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("shipped")
    library = Library(folder / "library")
    library.index([CLIPS / f"{name}.mp4" for name in SHOWN])
    return library


def test_it_is_whole_and_at_most_60_megabytes() -> None:
    assert shipped.names() == ["prota-small"]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 60_000_000
    assert not [path.name for path in FOLDER.iterdir() if path.suffix in (".bin", ".pt", ".pkl", ".pickle")]
    card = (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("Apache-2.0", "MSR-VTT", "research use", "What it is bad at"))
    assert Relevance.load(FOLDER) is not None


def test_its_settings_are_those_of_its_config_file() -> None:
    model = ProTA.from_pretrained("prota-small")
    written = Experiment.load(REPOSITORY / "configs" / "prota-small.toml")
    for section in ("distribution", "score", "loss"):
        assert getattr(model.config, section) == getattr(written, section)
    assert model.config.encoder == written.encoder.replace(vision="facebook/dinov2-small")
    assert all(bool(value.isfinite().all()) for value in read_weights(FOLDER / "model.safetensors").values())


@pytest.mark.parametrize(
    ("words", "clip"),
    [
        ("a cup of coffee on a red saucer", "coffee"),
        ("a black and orange flower", "flower"),
        ("a person snowboarding down a hill", "snowboard"),
    ],
)
def test_it_finds_what_is_there(library: Library, words: str, clip: str) -> None:
    first = library.search(words, k=1)[0]
    assert Path(first.video.path).stem == clip
    assert first.probability is not None
    assert first.probability > 0.3


@pytest.mark.parametrize("words", ["two men playing football on a field", "cars race each other on a track"])
def test_it_says_when_something_is_not_there(library: Library, words: str) -> None:
    results = library.search(words, k=4)
    assert list(results) == []
    assert results.no_good_match


def test_texts_alone_give_the_same_bits_and_the_identity_is_known() -> None:
    ours, whole = ProTA.for_texts("prota-small"), ProTA.from_pretrained("prota-small")
    assert isinstance(ours.text_encoder.tower.model, BertText)
    assert json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))["identity"]["model"] == whole.identity()
    assert ours.identity() == whole.identity()
    with (CLIPS / "samples.csv").open(encoding="utf-8", newline="") as file:
        captions = [row["caption"] for row in csv.DictReader(file)]
    for texts in (captions, captions[:1], ["a cat"], ["Ünïcödé — “a dog”! 你好", ""], ["word " * 50]):
        with torch.inference_mode():
            one, other = ours.encode_text(texts), whole.encode_text(texts)
        assert torch.equal(one.direction, other.direction)
        assert torch.equal(one.weight, other.weight)
        assert one.spread is not None
        assert other.spread is not None
        assert torch.equal(one.spread, other.spread)
        for text in texts:
            assert ours.text_encoder.words(text) == whole.text_encoder.words(text)
            assert ours.text_encoder.pieces(text) == whole.text_encoder.pieces(text)


def test_words_alone_are_close_to_what_they_mean() -> None:
    model = ProTA.from_pretrained("prota-small")
    with torch.inference_mode():
        texts = model.text_encoder(["a man is playing a guitar", "someone plays guitar", "a cat sleeps on a sofa"])
    mask = texts.mask.unsqueeze(-1)
    pooled = torch.nn.functional.normalize((texts.embeddings * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)
    alike = pooled @ pooled.T
    assert alike[0, 1] > alike[0, 2] + 0.2
