"""Nothing outlives the process that started it, however that dies: workers, jobs, a cluster, what tests start."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.leftovers import marked
from tests.library.worlds import toy_model, write_clips
from tests.processes import LIMIT, gone, python, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are known by their environment"),
]


# Ray's own helpers try for a minute to report that their cluster has died; that they end is seen at the end of the run.
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """With a file that takes hours to read, although it takes no room on the disk."""
    toy_model().save_pretrained(tmp_path / "model")
    write_clips(tmp_path / "videos", "red-left", "blue-top")
    with (tmp_path / "videos" / "film.mp4").open("wb") as file:
        file.truncate(2**42)
    return tmp_path / "videos"


def reading(mark: str, *workers: str) -> bool:
    """Whether these are there, among the processes with a mark, and one of them has the film open."""
    found, files = marked(mark), []
    for number in found:
        with suppress(OSError):
            files += [os.readlink(file) for file in Path(f"/proc/{number}/fd").iterdir()]
    there = [any(worker in command for command in found.values()) for worker in workers]
    return all(there) and any(file.endswith("/film.mp4") for file in files)


@pytest.mark.parametrize(
    ("options", "worker"),
    [
        (("--device", "cpu"), "prota.workers.process_pool"),
        pytest.param(("--device", "cpu", "--ray", "local"), "ray::Encoder", marks=pytest.mark.ray),
    ],
)
def test_workers_end_with_an_index_that_is_killed(videos: Path, options: tuple[str, ...], worker: str) -> None:
    folder, mark = videos.parent, f"PROTA_TEST_KILLED={videos}"
    command = ("-m", "prota", "index", videos, "-l", folder / "lib", "--model", folder / "model", *options)
    with python(*command, env=os.environ | {"PROTA_TEST_KILLED": str(videos)}) as process:
        wait_until(lambda: reading(mark, worker))
        assert process.poll() is None
    wait_until(lambda: all(command.startswith(AGENTS) for command in marked(mark).values()))


def test_jobs_and_their_workers_end_with_a_server_that_is_killed(videos: Path) -> None:
    folder, mark = videos.parent, f"PROTA_TEST_KILLED={videos}"
    options = ("--model", folder / "model", "--device", "cpu", "--allow", videos, "--port", 0)
    command = ("-m", "prota", "serve", "-l", folder / "lib", *options)
    with python(*command, env=os.environ | {"PROTA_TEST_KILLED": str(videos)}) as process:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert address is not None
        answer = httpx.post(f"{address[0]}/api/v1/jobs", json={"path": str(videos)}, timeout=LIMIT)
        assert answer.status_code == 202
        wait_until(lambda: reading(mark, "prota.server.jobs", "prota.workers.process_pool"))
        assert process.poll() is None
    wait_until(lambda: not marked(mark))


RUN = """
import os, subprocess, sys, time
from tests import leftovers
leftovers.watch()
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"]) for _ in range(2)]
print(*(child.pid for child in children), flush=True)
time.sleep(1e6)
"""


def test_what_tests_started_ends_with_a_run_that_is_killed() -> None:
    with python("-c", RUN) as process:
        assert process.stdout is not None
        children = [int(number) for number in process.stdout.readline().split()]
        assert len(children) == 2
        assert not any(map(gone, children))
    wait_until(lambda: all(map(gone, children)))
