"""The community's own annotation files, read as they are published, and any folder of clips with a CSV or JSONL.

The sizes of the benchmarks' own lists are verified; ``train_list`` and ``test_list`` replace a list, and then any size
goes. Captions lose white space at their ends and runs of it inside, nothing else. Empty captions are kept out; a video
left without any stays in its split without captions, where the doctor reports it and ``require_complete`` counts it as
missing.

DiDeMo's descriptions of a video are joined into one paragraph, in the order of ``*_data.json``, those of exactly the
listed file name, as CLIP4Clip does: some videos occur there under two names (``x.mov`` and ``x.``), of which the lists
have one. Where ``*_data.json`` is absent, ``*.jsonl`` takes its place; it orders descriptions by time, merges the two
names, and lacks two listed test videos and one listed training video, which then have no caption.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prota.data.splits import SPLITS, Benchmark, DataError, Item, Split, SplitName, examples, hold_back
from prota.experiment import DataConfig

__all__ = ["SIZES", "load_benchmark"]

# Videos a list has; for LSMDC lines of its files, where now and then two sentences share a clip.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "msrvtt-9k": {"train": (9_000,), "test": (1_000,)},
    "msrvtt-7k": {"train": (7_010,), "test": (1_000,)},
    "msrvtt-full": {"train": (6_513,), "val": (497,), "test": (2_990,)},
    "msvd": {"train": (1_200,), "val": (100,), "test": (670,)},
    "lsmdc": {"train": (101_079,), "val": (7_408,), "test": (1_000,)},
    # Three videos of the original training list cannot be had any more.
    "didemo": {"train": (8_392, 8_395), "val": (1_065,), "test": (1_004,)},
}
LSMDC_FILES: dict[SplitName, str] = {
    "train": "LSMDC16_annos_training.csv",
    "val": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",
}
LSMDC_COLUMNS = 6
VIDEO_COLUMNS = ("video", "video_id", "file")
CAPTION_COLUMNS = ("caption", "sentence", "text")

_HALVES = re.compile("[\ud800-\udfff]")

Captions = Mapping[str, Sequence[str]]
Splits = dict[SplitName, Split | None]


def load_benchmark(config: DataConfig) -> Benchmark:
    """The splits that ``config`` describes, with ``config.validation`` videos held back from training."""
    loaded = _LOADERS[config.benchmark](config)
    if not config.validation:
        return loaded
    if loaded.val is not None:
        raise DataError(
            f"data.validation={config.validation}, but {loaded.name} brings a validation split of {len(loaded.val)} "
            "videos of its own: leave data.validation at 0"
        )
    train, val = hold_back(loaded.split("train"), config.validation)
    return Benchmark(loaded.name, train, val, loaded.test)


def _load_msrvtt(config: DataConfig) -> Benchmark:
    """9k and 7k: the sentence of the test CSV is the query, or all of the JSON's; full: always all of the JSON's."""
    folder, name = _annotations(config), config.benchmark
    variant = name.removeprefix("msrvtt-")
    source = _first(folder / "MSRVTT_data.json", folder / "MSRVTT_data.json.gz")
    captions = _msrvtt_captions(source)

    def split(part: SplitName, file: str) -> Split:
        path, replaced = _list_file(config, part, folder / file)
        return _sized(name, path, replaced, Split(part, _pick(path, _ids(path), captions, source)))

    train = split("train", f"MSRVTT_train.{variant}.csv")
    if variant == "full":
        return Benchmark(name, train, split("val", "MSRVTT_val.full.csv"), split("test", "MSRVTT_test.full.csv"))
    if config.test_captions == "all":
        return Benchmark(name, train, None, split("test", "MSRVTT_JSFUSION_test.csv"))
    path, replaced = _list_file(config, "test", folder / "MSRVTT_JSFUSION_test.csv")
    rows = [row for _, row in _csv_rows(path)]
    video, sentence = (_column(path, rows[0], (column,)) for column in ("video_id", "sentence"))
    items = tuple(_item(path, row[video], [row[sentence]]) for row in rows)
    return Benchmark(name, train, None, _sized(name, path, replaced, Split("test", items)))


def _msrvtt_captions(source: Path) -> Captions:
    tree = _json(source, _read(source))
    captions: dict[str, list[str]] = {}
    try:
        for sentence in tree["sentences"]:
            captions.setdefault(sentence["video_id"], []).append(sentence["caption"])
    except (KeyError, TypeError):
        raise DataError(f"{source} is not MSRVTT_data.json: it lacks sentences with video_id and caption") from None
    return captions


def _load_msvd(config: DataConfig) -> Benchmark:
    folder = _annotations(config)
    source = folder / "captions_msvd.json"
    captions = _json(source, _read(source))
    if not isinstance(captions, dict) or not all(isinstance(texts, list) for texts in captions.values()):
        raise DataError(f"{source} is not captions_msvd.json: it must map each clip id to a list of captions")
    splits: Splits = {}
    for name in SPLITS:
        path, replaced = _list_file(config, name, folder / f"{name}_list.txt")
        splits[name] = _sized("msvd", path, replaced, Split(name, _pick(path, _ids(path), captions, source)))
    return _benchmark("msvd", splits)


def _load_lsmdc(config: DataConfig) -> Benchmark:
    """Training and validation files are the user's to bring: those splits are None where they are not there.

    A list of the user's own is either such a file or plain ids, which then choose from the benchmark's own file.
    """
    folder = _annotations(config)
    splits: Splits = {}
    for name in SPLITS:
        own = folder / LSMDC_FILES[name]
        path, replaced = _list_file(config, name, own)
        if replaced and not any("\t" in line for _, line in _lines(path)):
            items = _pick(path, _ids(path), _lsmdc_captions(own)[0], own)
            splits[name] = Split(name, items)
        elif name == "test" or path.exists() or replaced:
            captions, lines = _lsmdc_captions(path)
            split = Split(name, tuple(_item(path, video, texts) for video, texts in captions.items()))
            splits[name] = _sized("lsmdc", path, replaced, split, lines)
    return _benchmark("lsmdc", splits)


def _lsmdc_captions(path: Path) -> tuple[Captions, int]:
    """The sentences of each clip, and how many lines the file has. No header and no quoting: tabs alone count."""
    captions: dict[str, list[str]] = {}
    lines = _lines(path)
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != LSMDC_COLUMNS:
            raise DataError(
                f"{path}, line {number}: {len(fields)} tab-separated columns; LSMDC has {LSMDC_COLUMNS}: "
                "clip id, four times, sentence"
            )
        captions.setdefault(fields[0].strip(), []).append(fields[-1])
    return captions, len(lines)


def _load_didemo(config: DataConfig) -> Benchmark:
    """Paragraph to video, see the module's docstring. A video's id is its listed name up to the first dot."""
    folder = _annotations(config)
    splits: Splits = {}
    for name in SPLITS:
        sources = (folder / f"{name}_data.json", folder / f"{name}.jsonl")
        if name != "test" and not any(source.exists() for source in sources):
            continue
        source = _first(*sources)
        path, replaced = _list_file(config, name, folder / f"{name}_list.txt")
        by_name = _didemo_descriptions(source)
        by_id: dict[str, list[str]] = {}
        for file, texts in by_name.items():
            by_id.setdefault(file.partition(".")[0], []).extend(texts)
        files = _ids(path)
        paragraphs = {}
        for file in files:
            video = file.partition(".")[0]
            paragraphs[video] = [" ".join(by_name.get(file, by_id.get(video, [])))]
        ids = [file.partition(".")[0] for file in files]
        splits[name] = _sized("didemo", path, replaced, Split(name, _pick(path, ids, paragraphs, source)))
    return _benchmark("didemo", splits)


def _didemo_descriptions(source: Path) -> dict[str, list[str]]:
    """The descriptions of each video, by its name in the file: with extension in the JSON, without in the JSONL."""
    descriptions: dict[str, list[str]] = {}
    try:
        if source.suffix == ".jsonl":
            for _, row in _json_rows(source):
                if not isinstance(row["text"], list):
                    raise TypeError
                descriptions.setdefault(row["clip_id"], []).extend(row["text"])
        else:
            for row in _json(source, _read(source)):
                descriptions.setdefault(row["video"], []).append(row["description"])
        if not all(isinstance(text, str) for texts in descriptions.values() for text in texts):
            raise TypeError
    except (KeyError, TypeError):
        form = "clip_id and a list text" if source.suffix == ".jsonl" else "video and description"
        raise DataError(f"{source} is not DiDeMo's: every entry must have {form}") from None
    return descriptions


def _load_folder(config: DataConfig) -> Benchmark:
    """Rows of video, caption and perhaps split; several rows of a video are several captions. No split: all is test."""
    if config.train_list or config.test_list:
        raise DataError(
            "benchmark='folder' has no lists: leave out train_list and test_list, use a split column instead"
        )
    path = Path(config.captions).expanduser()
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise DataError(f"data.captions={config.captions!r} is not a .csv, .tsv or .jsonl file")
    rows = _json_rows(path) if kind == ".jsonl" else _csv_rows(path)
    captions: dict[SplitName, dict[str, list[str]]] = {name: {} for name in SPLITS}
    for number, row in rows:
        place = f"{path}, line {number}"
        video = row[_column(place, row, VIDEO_COLUMNS)]
        texts = row[_column(place, row, CAPTION_COLUMNS)]
        name = str(row.get("split", "test")).strip().lower()
        if name not in SPLITS:
            raise DataError(f"{place}: the split is {name!r}; allowed: {', '.join(SPLITS)}")
        item = _item(place, video, texts if isinstance(texts, list) else [texts])
        captions[name].setdefault(item.video_id, []).extend(item.captions)
    made = {
        name: Split(name, tuple(Item(video, tuple(texts)) for video, texts in videos.items()))
        for name, videos in captions.items()
        if videos
    }
    return _benchmark("folder", made)


_LOADERS: dict[str, Callable[[DataConfig], Benchmark]] = {
    "msrvtt-9k": _load_msrvtt,
    "msrvtt-7k": _load_msrvtt,
    "msrvtt-full": _load_msrvtt,
    "msvd": _load_msvd,
    "lsmdc": _load_lsmdc,
    "didemo": _load_didemo,
    "folder": _load_folder,
}


def _annotations(config: DataConfig) -> Path:
    if not config.annotations:
        raise DataError(f"data.annotations is empty; set it to the folder of {config.benchmark}'s annotation files")
    folder = Path(config.annotations).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"data.annotations={config.annotations!r} is not a folder; set it to that of the annotation files"
        )
    return folder


def _list_file(config: DataConfig, split: SplitName, own: Path) -> tuple[Path, bool]:
    """The list of a split, and whether it is one that replaces the benchmark's own."""
    given = {"train": config.train_list, "val": "", "test": config.test_list}[split]
    return (Path(given).expanduser(), True) if given else (own, False)


def _benchmark(name: str, splits: Mapping[SplitName, Split | None]) -> Benchmark:
    return Benchmark(name, splits.get("train"), splits.get("val"), splits.get("test"))


def _item(place: Path | str, video: Any, texts: Iterable[Any]) -> Item:
    """An item with clean captions, without the empty ones."""
    if not isinstance(video, str) or not video.strip():
        raise DataError(f"{place}: a video is called {video!r}; it must have an id, a path or a file's name")
    cleaned = []
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{place}: video {video} has the caption {text!r}; it must be text")
        if _HALVES.search(text):
            # JSON can write half of a character that no tokenizer can read.
            raise DataError(f"{place}: video {video} has the caption {text!r} with half a character; write it again")
        cleaned.append(" ".join(text.split()))
    return Item(video.strip(), tuple(text for text in cleaned if text))


def _pick(path: Path, ids: Sequence[str], captions: Captions, source: Path) -> tuple[Item, ...]:
    """An item for each listed id; one that ``source`` knows nothing of has no captions, all of them are an error."""
    items = tuple(_item(source, video, captions.get(video, [])) for video in ids)
    if not any(item.captions for item in items):
        raise DataError(
            f"none of the {len(ids)} videos in {path} ({examples(ids)}) has a caption in {source}: "
            "the two do not belong together"
        )
    return items


def _sized(benchmark: str, path: Path, replaced: bool, split: Split, found: int | None = None) -> Split:
    """``split`` if it has the published size or is the user's own."""
    found, expected = len(split) if found is None else found, SIZES[benchmark][split.name]
    if not replaced and found not in expected:
        raise DataError(
            f"{path}: {benchmark}'s {split.name} list has {' or '.join(f'{size:,}' for size in expected)} entries, "
            f"found {found:,}; get the original file, or name your own list in data.train_list or data.test_list"
        )
    return split


def _first(*paths: Path) -> Path:
    for path in paths:
        if path.exists():
            return path
    raise DataError(f"{' or '.join(path.name for path in paths)} is not in {paths[0].parent}; put it there")


def _read(path: Path) -> str:
    """The text of a UTF-8 file, gunzipped where its name says so."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f": paths count from where prota is started, here {Path.cwd()}"
        raise DataError(f"{path} is not there{where}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8; save it as UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is not a whole gzip file; fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _lines(path: Path) -> list[tuple[int, str]]:
    """Numbered lines that are not blank."""
    lines = enumerate(io.StringIO(_read(path), newline=None), start=1)
    found = [(number, line.rstrip("\n")) for number, line in lines if line.strip()]
    if not found:
        raise DataError(f"{path} is empty")
    return found


def _ids(path: Path) -> list[str]:
    """Video ids: a CSV's column video_id, or one on each line."""
    lines = [line.strip() for _, line in _lines(path)]
    if "video_id" in lines[0].split(","):
        return [row["video_id"].strip() for _, row in _csv_rows(path)]
    return lines


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV with a header (tabs in a .tsv), each with the number of its last line."""
    reader = csv.reader(io.StringIO(_read(path)), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
    header: list[str] = []
    empty = True
    try:
        for fields in reader:
            if not header:
                header = [field.strip().lower() for field in fields]
                twice = [name for name, count in Counter(header).items() if name and count > 1]
                if twice:
                    raise DataError(f"{path} has the column {twice[0]} more than once; give each a name of its own")
            elif fields:
                if len(fields) != len(header):
                    raise DataError(
                        f"{path}, line {reader.line_num}: {len(fields)} columns where the header has {len(header)}; "
                        "put a caption with commas in double quotes"
                    )
                empty = False
                yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a CSV: {error}") from None
    if empty:
        raise DataError(f"{path} has no rows below a header")


def _column(place: Path | str, row: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of ``names`` that a row has."""
    for name in names:
        if name in row:
            return name
    raise DataError(f"{place}: no column {' or '.join(names)}; there are: {', '.join(row)}")


def _json(place: Path | str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from None


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line number."""
    for number, line in _lines(path):
        row = _json(f"{path}, line {number}", line)
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: a {type(row).__name__}; every line must be a JSON object {{…}}")
        yield number, row
