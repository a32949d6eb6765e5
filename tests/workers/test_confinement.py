"""What a decoder that was taken over can do: read the file that it was given, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from prota.platform import unconfined
from prota.workers import process_pool
from prota.workers.process_pool import DecodePool
from tests.processes import LIMIT, posix
from tests.workers.jobs import attempts, begin_a_result, environment, forge

pytestmark = pytest.mark.process


@pytest.mark.skipif(unconfined() != "", reason=f"no sandbox: {unconfined()}")
def test_a_decoder_reads_its_file_and_reaches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "given.mp4").write_bytes(b"video")
    (tmp_path / "planted.mp4").write_bytes(b"secret")
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        ((_, first), (_, again)) = pool.run(attempts, [("1", tmp_path / "given.mp4"), ("2", tmp_path / "given.mp4")])
    assert first.error is None
    found = dict(first.value)
    assert again.value == found
    assert found.pop("read the given file") == "done: b'video'"
    # Code is still imported, such as that of an encoding.
    assert found.pop("import") == "done: 'wave'"
    assert set(found.values()) <= {"EACCES", "EPERM"}, found
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "given.mp4": b"video",
        "planted.mp4": b"secret",
    }
    assert (tmp_path / "planted.mp4").stat().st_mtime > 0


def test_a_decoder_gets_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"PROTA_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"}
    for name in (*secret, "HARMLESS"):
        monkeypatch.setenv(name, "x")
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        ((_, outcome),) = pool.run(environment, [("1", None)])
    assert "HARMLESS" in outcome.value
    assert secret.isdisjoint(outcome.value)


def test_results_are_data_and_run_nothing(tmp_path: Path) -> None:
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        ((_, outcome),) = pool.run(forge, [("1", str(tmp_path / "made"))])
    assert outcome.value is None
    assert outcome.error is not None
    assert not (tmp_path / "made").exists()


@posix
def test_a_result_that_never_ends_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "SILENCE", 1)
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        ((_, outcome), (_, other)) = pool.run(begin_a_result, [("1", None), ("2", None)])
    assert "crashed" in str(outcome.error)
    assert "crashed" in str(other.error)


def test_a_file_that_cannot_be_opened_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "given.mp4").write_bytes(b"video")
    with DecodePool(workers=1, timeout=LIMIT) as pool:
        found = dict(pool.run(attempts, [(name, tmp_path / name) for name in ("missing.mp4", "given.mp4", ".")]))
    assert found["given.mp4"].error is None
    assert "no such file" in str(found["missing.mp4"].error)
    assert "not a file" in str(found["."].error)
