"""Everything here runs on one thread per worker: the tensors are tiny, and two workers share two cores.

A test without a marker is fast; `make check` runs those alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from tests import leftovers
from tests.processes import LIMIT, REPOSITORY

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONPATH"] = str(REPOSITORY)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# torch.compile's cache has no key for ATEN_CPU_CAPABILITY: code compiled for AVX-512 computed NaN with AVX2.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(REPOSITORY / ".pytest_cache" / "inductor" / torch.backends.cpu.get_cpu_capability()),
)
if sys.platform == "linux":
    # Processes that meet are all here: they need not find this machine by its name.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
if not torch.cuda.is_available():
    # Read when a kernel is defined: without a GPU, kernels run in Triton's interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

MARKERS = ("ray", "s3", "browser", "process", "interpreter", "train")
WATCHER = pytest.StashKey[tuple[str, subprocess.Popen[bytes]]]()


def pytest_configure(config: pytest.Config) -> None:
    # One for the whole run: xdist's workers are its processes.
    if not hasattr(config, "workerinput"):
        config.stash[WATCHER] = leftovers.watch()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no worker is alone with them at the end."""
    slow = {item.path for item in items if any(map(item.get_closest_marker, MARKERS))}
    items.sort(key=lambda item: item.path not in slow)


class _ByFile(LoadScopeScheduling):
    """The tests of a file share what they made, so one worker has them; those of a cluster of Ray share the cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/cluster" if file.startswith("tests/cluster/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    # Else xdist would put files with many tests first.
    config.option.loadscopereorder = False
    return _ByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that leaves processes behind has failed."""
    if WATCHER not in session.config.stash:
        return
    mark, watcher = session.config.stash[WATCHER]
    # Two helpers of multiprocessing, where this process ran the tests itself; else they end with it.
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
    # What has been told to end may take a moment; some of Ray's helpers a minute, when their cluster goes before them.
    until = time.monotonic() + LIMIT
    while (left := leftovers.marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    for number, command in left.items():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print(f"\nleft running: {number} {command}", file=sys.stderr)
    watcher.communicate()


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
