"""Damage to the files of a library, and what a user sees of it: a right answer, a line, and always a way back.

    python -m tests.library.storage.damage [--count 300] [--seed 0]

Exit status 1 where an answer is wrong without a word, or where nothing leads back to the whole library.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from prota.library.library import Library
from prota.library.manage import compact, remove, repair, verify
from prota.library.records import LibraryError
from prota.library.search.view import View
from prota.library.storage.reader import Snapshot
from prota.model.prota import ProTA
from tests.library.worlds import hits_of, toy_model, write_picture
from tests.small_world import write_colour_clip

__all__ = ["Damaged", "answers", "damage", "make", "survive"]

KINDS = ("bit", "bit", "bit", "bit", "page", "cut", "gone")
QUERIES = ("red on the left", "a blue thing", "green")
PAGE = 512

Answers = list[tuple[str, float, float, float, float, bytes]]


def make(folder: Path) -> ProTA:
    """Videos, a picture and a library of them in `folder`, with fragments, deleted rows and a copy of a file."""
    videos = folder / "videos"
    videos.mkdir(parents=True)
    for colour, side in (("red", "left"), ("blue", "top"), ("green", "right"), ("pink", "left")):
        write_colour_clip(videos / f"{colour}.mp4", colour, side, frames=60)
    write_picture(videos / "photo.jpg")
    model = toy_model()
    library = Library(folder / "lib", model)
    assert library.index([videos / "red.mp4", videos / "pink.mp4"], workers=1).finished
    compact(folder / "lib", grace=0)
    shutil.copy(videos / "red.mp4", videos / "copy.mp4")
    assert library.index(videos, workers=1).finished
    remove(folder / "lib", [str(videos / "pink.mp4")])
    (videos / "pink.mp4").unlink()
    return model


def answers(folder: Path, model: ProTA) -> tuple[Answers, int]:
    """What a search shows of the whole library, and the number of corrupt segments that it reports."""
    view = View(Snapshot.open(folder / "lib"), model)
    found = [hit for query in QUERIES for hit in hits_of(view, query)]
    shown = [(str(hit.path), hit.start, hit.end, hit.score, hit.best, hit.thumbnail) for hit in found]
    return shown, view.snapshot.damage


def damage(library: Path, seed: int) -> str:
    """Do one thing to one of its files, and tell what."""
    choose = random.Random(seed)
    files = sorted(path for path in library.rglob("*") if path.is_file() and path.name != "writer.lock")
    path, kind = choose.choice(files), choose.choice(KINDS)
    content = bytearray(path.read_bytes())
    place = choose.randrange(len(content))
    if kind == "bit":
        content[place] ^= 1 << choose.randrange(8)
    elif kind == "page":
        content[place : place + PAGE] = bytes(len(content[place : place + PAGE]))
    else:
        del content[place:]
    path.write_bytes(content)
    if kind == "gone":
        path.unlink()
    return f"{kind} at {place} of {path.relative_to(library)}"


class Damaged:
    """What became of a damaged library."""

    def __init__(self, what: str) -> None:
        self.what, self.problem = what, ""
        self.seen, self.noticed, self.ways = "", False, "none needed"

    def __repr__(self) -> str:
        return f"{self.what}: {self.seen}, {'' if self.noticed else 'not '}found by verify, {self.ways} {self.problem}"


def survive(whole: Path, into: Path, model: ProTA, seed: int) -> Damaged:
    """Damage a copy of a library, search it, verify it, and bring it back. The videos stay where they are."""
    shutil.copytree(whole / "lib", into / "lib")
    expected, _ = answers(whole, model)
    result = Damaged(damage(into / "lib", seed))
    try:
        shown, corrupt = answers(into, model)
        result.seen = "as before" if shown == expected else "fewer, with a line" if corrupt else "WRONG"
        result.problem = "wrong without a word" if result.seen == "WRONG" else ""
    except LibraryError as error:
        result.seen = f"error {error.code}"
    result.noticed = bool(verify(into / "lib"))
    done = repair(into / "lib")
    again, folders = bool(done.again), bool(done.missing)
    if again:
        Library(into / "lib", model).index(done.again, workers=1)
    if folders:
        Library(into / "lib", model).index(whole / "videos", workers=1)
    if again or folders or not done.nothing:
        result.ways = "restored" + " and indexed again" * again + " with its folders" * folders
    if problems := verify(into / "lib"):
        result.problem += f" not whole after repair: {problems}"
    elif answers(into, model) != (expected, 0):
        result.problem += " other answers after repair"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    problems = []
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole"
        model = make(whole)
        for number in range(options.seed, options.seed + options.count):
            into = Path(temporary) / str(number)
            result = survive(whole, into, model, number)
            shutil.rmtree(into)
            outcomes[f"{result.seen}; {'' if result.noticed else 'not '}found by verify; {result.ways}"] += 1
            if result.problem:
                problems.append(f"{number}: {result}")
                print(problems[-1], file=sys.stderr, flush=True)
    for outcome, count in outcomes.most_common():
        print(f"{count:4d} {outcome}")
    print(f"{len(problems)} of {options.count} with problems")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
