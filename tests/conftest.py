"""Everything here runs on one thread per worker: the tensors are tiny, and two workers share two cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if sys.platform == "linux":
    # Processes that meet are all here: they need not find this machine by its name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
if not torch.cuda.is_available():
    # Read when a kernel is defined: without a GPU, kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

REPOSITORY = Path(__file__).resolve().parent.parent


def imported(code: str, modules: Collection[str]) -> list[str]:
    """Which of these modules are there when a fresh Python has run some code."""
    code = f"{code}\nimport sys; print(*sorted(set(sys.modules) & set({sorted(modules)!r})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return result.stdout.split()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of research material beside the checkout; never part of the project."""
    folder = Path(os.environ.get("PROTA_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the research material of PROTA_SHARED or ../shared; {folder} is not there")
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import write_clip

    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import write_bert

    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def dinov2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import write_dinov2

    return write_dinov2(tmp_path_factory.mktemp("dinov2"))


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny_models import write_siglip

    return write_siglip(tmp_path_factory.mktemp("siglip"))


@pytest.fixture(scope="session")
def world_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TOML file whose clips, captions and frame cache are ready."""
    from tests.small_world import write_world

    return write_world(tmp_path_factory.mktemp("world") / "data")
