"""Workers that survive what decoders do: hangs, crashes, exceptions; and that leave nothing behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prota.workers.process_pool import DecodePool, Outcome
from tests.processes import LIMIT, REPOSITORY, gone, posix, python, wait_until
from tests.workers.jobs import double, large, misbehave

pytestmark = pytest.mark.process


def children() -> set[int]:
    listing = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in listing.split()}


def test_every_item_gets_its_result_and_nothing_is_left() -> None:
    before = children()
    with DecodePool(workers=2, timeout=LIMIT) as pool:
        results = dict(pool.run(double, ((str(number), number) for number in range(50))))
        assert {key: outcome.value for key, outcome in results.items()} == {str(n): 2 * n for n in range(50)}
        assert all(outcome.error is None and outcome.seconds >= 0 for outcome in results.values())
        # The same workers serve again.
        crew = children() - before
        assert [outcome.value for _, outcome in pool.run(double, [("a", 4)])] == [8]
        assert children() - before == crew
        assert list(pool.run(double, [])) == []
    assert children() - before == set()


def test_what_goes_wrong_is_told_and_the_rest_goes_on() -> None:
    before = children()
    kinds = ["fine", "exit", "raise", "segfault", "quit", "lambda", "good"]
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        found = dict(pool.run(misbehave, [(kind, kind) for kind in kinds]))
    assert found["exit"].error == "the decoder crashed (exit status 3)"
    assert found["segfault"].error == "the decoder crashed (SIGSEGV)"
    assert found["raise"].error == "not a video: it is a cake"
    assert found["quit"].error == "SystemExit: 4"
    assert "cannot send the result back" in str(found["lambda"].error)
    assert found["fine"].error is found["good"].error is None
    # A traceback tells bugs from what a file or a decoder does.
    assert {kind for kind in kinds if found[kind].bug} == {"raise", "quit"}
    assert found["raise"].bug.startswith("Traceback")
    assert all(found[kind].value is None for kind in kinds[1:-1])
    assert children() - before == set()


def test_a_limit_of_years_is_one() -> None:
    with DecodePool(workers=1, timeout=1e9) as pool:
        assert [outcome.value for _, outcome in pool.run(double, [("a", 2)])] == [4]


def test_an_exception_does_not_cost_the_worker() -> None:
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        found = [outcome for _, outcome in pool.run(misbehave, [("1", "same"), ("2", "raise"), ("3", "same")])]
    assert found[0].value == found[2].value


def test_a_job_that_hangs_is_killed_and_replaced() -> None:
    before = children()
    with DecodePool(workers=1, timeout=1.5) as pool:
        found = dict(pool.run(misbehave, [("1", "hang"), ("2", "fine")]))
    assert found["1"] == Outcome(None, "timed out after 1.5 s", 1.5)
    assert found["2"].error is None
    assert children() - before == set()


def test_large_results_come_back_whole() -> None:
    with DecodePool(workers=2, timeout=LIMIT) as pool:
        for key, outcome in pool.run(large, [(str(number), number) for number in (1, 8, 30)]):
            assert outcome.value is not None
            assert outcome.value.shape == (int(key), 2**20)
            assert (outcome.value == int(key)).all()


def test_items_are_taken_only_when_there_is_room() -> None:
    taken = 0

    def endless() -> Iterator[tuple[str, int]]:
        nonlocal taken
        for taken in itertools.count(1):
            yield str(taken), taken

    before = children()
    with DecodePool(workers=2, timeout=LIMIT) as pool:
        for finished, (_, outcome) in enumerate(pool.run(double, endless()), start=1):
            assert outcome.error is None
            # Besides what is finished: a result in hand and an item in work for each worker.
            assert taken < finished + 4
            if finished == 10:
                break
    assert children() - before == set()


def test_the_next_item_is_begun_before_the_last_result_is_used() -> None:
    taken: list[str] = []

    def noted() -> Iterator[tuple[str, int]]:
        for key in ("a", "b", "c"):
            taken.append(key)
            yield key, 1

    with DecodePool(workers=1, timeout=LIMIT) as pool:
        seen = [(key, "".join(taken)) for key, _ in pool.run(double, noted())]
    assert seen == [("a", "ab"), ("b", "abc"), ("c", "abc")]


def test_arguments_and_jobs_that_cannot_travel_are_that_items_error() -> None:
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        found = dict(pool.run(double, [("bad", threading.Lock()), ("good", 1)]))
        assert "pickle" in str(found["bad"].error)
        assert found["good"].value == 2
    script = (
        "from prota.workers.process_pool import DecodePool\ndef job(x): return x\nlist(DecodePool(1, 1).run(job, []))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert "move it to a module" in result.stderr


def test_workers_that_cannot_start_are_an_error_not_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with DecodePool(workers=2, timeout=LIMIT) as pool, pytest.raises(RuntimeError, match="cannot start"):
        list(pool.run(double, [("a", 1)]))


@pytest.mark.parametrize("settings", [(0, 1.0), (1, 0.0)])
def test_bad_settings_are_refused(settings: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        DecodePool(*settings)


PARENT = """
import signal
from prota.workers.process_pool import DecodePool
from tests.workers.jobs import note_and_hang
# Tests in the background of a shell inherit that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with DecodePool(workers=2, timeout=1e9) as pool:
    list(pool.run(note_and_hang, [("a", 1), ("b", 2)]))
"""


@posix
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_workers_go_with_their_parent(name: str) -> None:
    how = signal.Signals[name]
    with python("-c", PARENT, process_group=0) as parent:
        pids = [int(parent.stderr.readline()) for _ in range(2)]
        os.killpg(parent.pid, how)
        assert parent.wait() == -how
        wait_until(lambda: all(gone(pid) for pid in pids))


def test_memory_has_an_end_where_one_is_set() -> None:
    with DecodePool(workers=1, timeout=LIMIT, memory=2**30) as pool:
        outcomes = dict(pool.run(bytearray, [("large", 2**31), ("small", 10)]))
    assert outcomes["large"].error == "decoding needs more memory than available or allowed"
    assert outcomes["small"].value == bytearray(10)
