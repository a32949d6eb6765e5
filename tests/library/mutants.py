"""Files of ../shared/data/decode_tests with some bytes changed, and what `prota index` must make of them.

    python -m tests.library.mutants [--count 200] [--seed 0] [--keep DIR]

Makes the files, indexes them as one folder with a toy model and prints what became of them; exit status 1 where a file
is neither searchable nor listed with a reason, the library does not verify, or the command hangs or fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from prota.library import manage
from prota.library.storage.reader import Snapshot
from prota.video.walk import FoundFile, walk
from tests.library.worlds import toy_model
from tests.processes import REPOSITORY

# Every second file is changed here, at its beginning and end, where containers keep what they say of themselves.
HEADER = 2048
MOST_CHANGES = 16


def write_mutants(source: Path, folder: Path, count: int, seed: int = 0) -> list[Path]:
    """`count` files: those of `source` in turns, each with 4 to 16 of its bytes changed."""
    random = np.random.default_rng(seed)
    found = [file.path for file in walk([source]) if isinstance(file, FoundFile) and file.size]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, place in enumerate(np.resize(random.permutation(len(found)), count)):
        original = found[place]
        data = np.frombuffer(original.read_bytes(), dtype=np.uint8).copy()
        places = random.integers(len(data), size=random.integers(4, MOST_CHANGES + 1))
        if number % 2:
            places = np.where(places % 2, places % HEADER, len(data) - 1 - places % HEADER) % len(data)
        # Never the byte that is there.
        data[places] += random.integers(1, 256, size=len(places)).astype(np.uint8)
        written.append(folder / f"{number:03d}-{original.name}")
        written[-1].write_bytes(data.tobytes())
    return written


# Boxes of MP4 that say where frames are, when and how long they are shown.
TABLES = (b"stts", b"stsz", b"stco", b"stsc", b"ctts", b"stss", b"elst", b"mdhd", b"mvhd", b"tkhd")


def write_table_mutants(source: Path, folder: Path, count: int, seed: int = 0) -> list[Path]:
    """`count` files: MP4s of `source` in turns, each with 1 to 4 bytes of one of its tables changed."""
    random = np.random.default_rng(seed)
    found = sorted(path for path in source.rglob("*") if path.suffix in (".mp4", ".mov") and path.stat().st_size)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, place in enumerate(np.resize(random.permutation(len(found)), count)):
        data = bytearray(found[place].read_bytes())
        boxes = [match.start() for match in re.finditer(b"|".join(TABLES), data)]
        start = int(random.choice(boxes)) if boxes else 4
        end = min(len(data), start - 4 + max(16, int.from_bytes(data[start - 4 : start])))
        for _ in range(random.integers(1, 5)):
            # Mostly its first entries, of which others follow.
            change = random.integers(start + 4, min(end, start + 28) if random.random() < 0.6 else end)
            data[change] = random.choice([0, 255, int(random.integers(256))])
        written.append(folder / f"{number:03d}-{found[place].name}")
        written[-1].write_bytes(data)
    return written


@dataclass
class Outcome:
    """What became of a folder of mutants."""

    indexed: int = 0
    segments: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def index_mutants(files: list[Path], folder: Path, limit: float, timeout: float = 20.0) -> Outcome:
    """Index the files' folder as a user does, in `limit` seconds, and look at every one of them."""
    toy_model().save_pretrained(folder / "model")
    command = [
        sys.executable, "-m", "prota", "index", str(files[0].parent), "-l", str(folder / "lib"),
        "--model", str(folder / "model"), "--device", "cpu", "--workers", "2", "--timeout", str(timeout),
    ]  # fmt: skip
    outcome, before = Outcome(), time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        outcome.problems.append(f"not finished after {limit:g} s")
        return outcome
    outcome.seconds = time.monotonic() - before
    if done.returncode or "Traceback" in done.stderr:
        outcome.problems.append(f"exit status {done.returncode}: {done.stderr[-2000:]}")
        return outcome
    store = Snapshot.open(folder / "lib")
    records = {record.path: record for record in store.videos()}
    held = Counter(store.segments(["video_id"])["video_id"].to_pylist())
    for path in files:
        record = records.get(str(path))
        if record is not None and record.state == "indexed" and held[record.video_id] == record.segments > 0:
            outcome.indexed += 1
        elif record is not None and record.state == "bad" and record.reason and f"bad: {path}: " in done.stderr:
            outcome.reasons[record.reason] += 1
            if re.match(r"\w+(Error|Exception)\b", record.reason):
                outcome.problems.append(f"{path.name}: not a reason for users: {record.reason}")
        else:
            outcome.problems.append(f"{path.name}: neither searchable nor listed: {record}")
    outcome.segments = store.count()
    outcome.problems += manage.verify(folder / "lib")
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for the files and the library; default: temporary")
    options = parser.parse_args()
    source = Path(os.environ.get("PROTA_SHARED", REPOSITORY.parent / "shared")) / "data" / "decode_tests"
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        files = write_mutants(source, folder / "videos", options.count, options.seed)
        outcome = index_mutants(files, folder, limit=60.0 + 20.0 * len(files))
    bad = sum(outcome.reasons.values())
    print(f"{len(files)} files: {outcome.indexed} indexed ({outcome.segments} segments), {bad} bad, "
          f"{len(outcome.problems)} problems; {outcome.seconds:.0f} s")  # fmt: skip
    for reason, number in outcome.reasons.most_common():
        print(f"{number:4d} {reason}")
    for problem in outcome.problems:
        print(problem, file=sys.stderr)
    raise SystemExit(bool(outcome.problems))


if __name__ == "__main__":
    main()
