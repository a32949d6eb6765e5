"""One small cluster of Ray for all tests that need one; they run in one worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.library.object_store import Proxy, serving

NODE = {"num_cpus": 2, "object_store_memory": 2 * 10**8}
# A node that is killed refuses at once, and is to be missed soon; by itself Ray asks five times, 3 s apart. One that is
# only slow still has 10 s for each answer.
WATCHFUL = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}


def workers(node: Any, name: str) -> list[int]:
    """Processes of a node that run an actor of this class."""
    raylet = node.all_processes["raylet"][0].process.pid
    found = []
    for process in Path("/proc").iterdir():
        try:
            # The name is in brackets and may hold anything.
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet and name in (process / "cmdline").read_text():
                found.append(int(process.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.fixture(scope="session")
def proxy() -> Iterator[Proxy]:
    with serving() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def cluster(proxy: Proxy) -> Iterator[Any]:
    """A node, to which this process belongs, and to which tests add others. Its workers know from the environment where
    the object store is."""
    head = {**NODE, "include_dashboard": False, "_system_config": WATCHFUL}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
