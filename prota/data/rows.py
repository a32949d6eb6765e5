"""Read CSV, JSON and plain lists; errors name the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prota.data.splits import DataError

__all__ = ["column", "csv_rows", "json_rows", "listed_ids", "numbered_lines", "parse_json", "read_text"]


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, decompressed if its name ends in .gz."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f": relative paths start at the working directory, {Path.cwd()}"
        raise DataError(f"{path} does not exist{where}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8; save it as UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a corrupt gzip file; download it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines, without blank ones."""
    lines = enumerate(io.StringIO(read_text(path), newline=None), start=1)
    found = [(number, line.rstrip("\n")) for number, line in lines if line.strip()]
    if not found:
        raise DataError(f"{path} is empty")
    return found


def listed_ids(path: Path) -> list[str]:
    """Video ids: the column video_id of a CSV file, or one per line."""
    lines = [line.strip() for _, line in numbered_lines(path)]
    if "video_id" in lines[0].split(","):
        return [row["video_id"].strip() for _, row in csv_rows(path)]
    return lines


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with a header (.tsv: tabs), each with the number of its last line."""
    reader = csv.reader(io.StringIO(read_text(path)), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    header: list[str] = []
    empty = True
    try:
        for fields in reader:
            if not header:
                header = [field.strip().lower() for field in fields]
                twice = [name for name, count in Counter(header).items() if name and count > 1]
                if twice:
                    raise DataError(f"{path} has the column {twice[0]} more than once")
            elif fields:
                if len(fields) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(fields)} columns, but the header has {len(header)}; "
                        "captions with commas need double quotes"
                    )
                empty = False
                yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: invalid CSV: {error}") from None
    if empty:
        raise DataError(f"{path} has no rows below the header")


def column(place: Path | str, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of ``names`` that a row has."""
    for name in names:
        if name in row:
            return name
    raise DataError(f"{place}: no column {' or '.join(names)}; columns: {', '.join(row)}")


def parse_json(place: Path | str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: invalid JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line number."""
    for number, line in numbered_lines(path):
        row = parse_json(f"{path}, line {number}", line)
        if not isinstance(row, dict):
            raise DataError(
                f"{path}, line {number}: every line must be a JSON object {{…}}, got a {type(row).__name__}"
            )
        yield number, row
