"""Models that come with the package: by name, after folders and before hub ids."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prota import ModelFolderError, ProTA
from prota.library.library import Library
from prota.model import model_folder
from prota.models import shipped
from tests.library.worlds import toy_model, write_clips


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
    with pytest.raises(ModelFolderError, match=r"not a model that comes with prota \(those are: prota-tiny\)"):
        ProTA.from_pretrained(name)


def test_a_missing_default_says_so(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"prota-small should come with prota, but .* shipped here: prota-tiny"):
        ProTA.from_pretrained("prota-small")
    with pytest.raises(ModelFolderError, match="prota-small should come with prota"):
        Library.open(tmp_path / "library")


def test_a_new_library_is_made_by_the_default(models: Path, tmp_path: Path) -> None:
    toy_model().save_pretrained(models / shipped.DEFAULT, weights="int8")
    write_clips(tmp_path / "videos", "red-left")
    assert Library.open(tmp_path / "library").index(tmp_path / "videos").indexed == 1
    again = Library.open(tmp_path / "library")
    assert again.name == shipped.DEFAULT
    assert len(again.search("red", k=1)) == 1
