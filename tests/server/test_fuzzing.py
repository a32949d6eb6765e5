"""Requests that follow from answers, as programs send them: no answer is an error of the server.

PROTA_TEST_EXAMPLES is how many sequences are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.processes import LIMIT, wait_until
from tests.server.worlds import make_world, serving

EXAMPLES = int(os.environ.get("PROTA_TEST_EXAMPLES", "15"))

# Where the parameters of an operation come from: the answer of another.
FOUND = {"video": "$response.body#/moments/0/video", "segment": "$response.body#/moments/0/segment"}
LINKS: dict[tuple[str, str], dict[str, dict[str, str]]] = {
    ("/api/v1/search", "get"): {
        "video": {"video": FOUND["video"]},
        "segments": {"video": FOUND["video"]},
        "stream": {"video": FOUND["video"]},
        "play": {"video": FOUND["video"]},
        "frame": {"video": FOUND["video"], "t": "$response.body#/moments/0/start"},
        "thumbnail": {"segment": FOUND["segment"], "version": "$response.body#/version"},
        "explain": {"segment": FOUND["segment"], "q": "$request.query.q"},
    },
    ("/api/v1/jobs", "post"): {name: {"job": "$response.body#/id"} for name in ("one_job", "cancel_job", "follow_job")},
}


@pytest.mark.process
@pytest.mark.filterwarnings("ignore")
def test_sequences_of_requests_break_nothing(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with serving(world, "--allow", str(world.videos)) as (process, address, _):
        wait_until(lambda: httpx.get(f"{address}/readyz", timeout=LIMIT).status_code == 200)
        description = httpx.get(f"{address}/openapi.json", timeout=LIMIT).json()
        for (path, method), links in LINKS.items():
            answers = description["paths"][path][method]["responses"]
            answer = next(answers[status] for status in answers if status.startswith("2"))
            answer["links"] = {
                name: {"operationId": name, "parameters": parameters} for name, parameters in links.items()
            }
        # Not any path: one that exists, or one that may not be read.
        job = description["components"]["schemas"]["JobRequest"]
        job["properties"], job["required"] = {"path": job["properties"]["path"]}, ["path"]
        job["properties"]["path"]["anyOf"] = [
            {"type": "string", "enum": [str(world.videos), str(world.videos / "near"), "/etc", "."]}
        ]
        schema = schemathesis.openapi.from_dict(description)
        schema.config.update(base_url=address)
        answered: Counter[tuple[str, bool]] = Counter()

        class Client(schema.as_state_machine()):  # type: ignore[misc]
            def get_call_kwargs(self, case: Any) -> dict[str, Any]:
                return {"timeout": LIMIT}

            def validate_response(self, response: Any, case: Any, **_: Any) -> None:
                answered[case.operation.definition.raw.get("operationId", ""), response.status_code < 400] += 1
                assert response.status_code < 500 or response.status_code == 503, (
                    case.as_curl_command(),
                    response.text,
                )

        run_state_machine_as_test(
            Client,
            settings=settings(
                max_examples=EXAMPLES, stateful_step_count=8, deadline=None, database=None, derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
        assert process.poll() is None
        assert httpx.get(f"{address}/healthz", timeout=LIMIT).status_code == 200
    # What answers named was asked for, and was there.
    assert answered["search", True]
    assert answered["add_job", True]
    assert all(any(answered[name, True] for name in links) for links in LINKS.values()), answered
