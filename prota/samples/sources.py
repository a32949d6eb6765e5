"""The photographs: where each comes from and what allows its use, in the words of the package that carries it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from prota.errors import ProtaError

__all__ = ["SOURCES", "SamplesError", "Source", "open_picture", "picture_path"]

PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn", "matplotlib": "matplotlib"}
INSTALL = "pip install scikit-image scikit-learn matplotlib"


class SamplesError(ProtaError, RuntimeError):
    """Why no clips can be made; the message is one line."""

    code = "samples"


@dataclass(frozen=True)
class Source:
    """A photograph inside an installed package."""

    package: str
    file: str
    """Path inside the package."""
    author: str
    licence: str
    """As the package states it, or those who put it there; pictures of which nothing clear is said are not used."""

    @property
    def distribution(self) -> str:
        return PACKAGES[self.package]


CC0 = "CC0"
PUBLIC = "public domain"
CC_BY = "CC BY 2.0 (https://creativecommons.org/licenses/by/2.0/)"
SOURCES = {
    "astronaut": Source("skimage", "data/astronaut.png", "NASA", PUBLIC),
    "brick": Source("skimage", "data/brick.png", "CC0Textures, Bricks25", CC0),
    "camera": Source("skimage", "data/camera.png", "Lav Varshney", CC0),
    "cell": Source("skimage", "data/cell.png", "Paul Müller and others", CC0),
    "chelsea": Source("skimage", "data/chelsea.png", "Stefan van der Walt", CC0),
    "coffee": Source("skimage", "data/coffee.png", "Rachel Michetti, Pikolo Espresso Bar", CC0),
    "coins": Source("skimage", "data/coins.png", "Brooklyn Museum Collection", "no known copyright restrictions"),
    "grass": Source("skimage", "data/grass.png", "linolafett, Grass-01", CC0),
    "gravel": Source("skimage", "data/gravel.png", "CC0Textures, Gravel04", CC0),
    "horse": Source("skimage", "data/horse.png", "Andreas Preuss (marauder)", CC0),
    "hubble": Source("skimage", "data/hubble_deep_field.jpg", "NASA, Hubble eXtreme Deep Field", PUBLIC),
    "retina": Source("skimage", "data/retina.jpg", "Mikael Häggström", CC0),
    "rocket": Source("skimage", "data/rocket.jpg", "SpaceX", PUBLIC),
    "text": Source("skimage", "data/text.png", "Wikipedia, Corner.png", PUBLIC),
    "china": Source("sklearn", "datasets/images/china.jpg", "danielbuechele on Flickr, 6061409035", CC_BY),
    "flower": Source("sklearn", "datasets/images/flower.jpg", "vultilion on Flickr, 6056698931", CC_BY),
    "hopper": Source("matplotlib", "mpl-data/sample_data/grace_hopper.jpg", "United States Navy", PUBLIC),
}


def picture_path(name: str) -> Path:
    """The file of a photograph. The package is found, not imported, and nothing is ever downloaded."""
    source = SOURCES[name]
    found = importlib.util.find_spec(source.package)
    folders = (found.submodule_search_locations if found is not None else None) or []
    if not folders:
        raise SamplesError(f"sample clips are made of photographs in {source.distribution}: {INSTALL}")
    for folder in folders:
        path = Path(folder, source.file)
        if path.is_file():
            return path
    raise SamplesError(
        f"the installed {source.distribution} does not carry {source.file}, of which sample clips are made: {INSTALL}"
    )


def open_picture(name: str) -> Image.Image:
    """RGB; what is transparent becomes white."""
    with Image.open(picture_path(name)) as file:
        if file.mode != "RGBA":
            return file.convert("RGB")
        paper = Image.new("RGBA", file.size, "white")
        paper.alpha_composite(file)
        return paper.convert("RGB")
