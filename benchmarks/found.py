"""How often a library finds what captions describe, asked through `prota search --json` as a user would.

    python benchmarks/found.py LIBRARY CAPTIONS.csv [--misses]

CAPTIONS.csv has the columns video (or file) and caption. Where it also has start and end, in seconds, and a video has
captions of several moments, the best frame of the own video's first moment must lie within the caption's.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def ask(library: Path, captions: list[str]) -> list[list[dict[str, Any]]]:
    """The moments that each caption finds, the weak ones too."""
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder) / "queries.txt"
        queries.write_text("\n".join(captions) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "prota", "search", "--library", str(library), "--queries", str(queries)]
        said = subprocess.run([*command, "-k", "10", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line)["moments"] for line in said.stdout.splitlines()]


def share(hits: list[bool]) -> str:
    return f"{100 * sum(hits) / len(hits):.1f} % of {len(hits)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("captions", type=Path)
    parser.add_argument("--misses", action="store_true", help="list captions whose own video is not first")
    given = parser.parse_args()
    with given.captions.open(encoding="utf-8", newline="") as file:
        rows = [row | {"name": Path(row.get("video") or row["file"]).name} for row in csv.DictReader(file)]
    starts: dict[str, set[str]] = {}
    for row in rows:
        starts.setdefault(row["name"], set()).add(row.get("start", ""))
    first, among_five, scenes = [], [], []
    for row, moments in zip(rows, ask(given.library, [row["caption"] for row in rows]), strict=True):
        found = list(dict.fromkeys(Path(moment["path"]).name for moment in moments))
        rank = found.index(row["name"]) + 1 if row["name"] in found else None
        first.append(rank == 1)
        among_five.append(rank is not None and rank <= 5)
        if len(starts[row["name"]]) > 1:
            own = [moment["best"] for moment in moments if Path(moment["path"]).name == row["name"]]
            scenes.append(bool(own) and float(row["start"]) <= own[0] <= float(row["end"]))
        if given.misses and rank != 1:
            print(f"{rank or '> 10'}  {row['name']}: {row['caption']}  (first: {found[0] if found else 'nothing'})")
    print(f"own video first: {share(first)} captions; among the first five: {share(among_five)}")
    if scenes:
        print(f"right scene, where a video has several: {share(scenes)}")


if __name__ == "__main__":
    main()
