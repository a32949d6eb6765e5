"""Published annotation files of the benchmarks, and any folder of clips with a CSV or JSONL file of captions.

The sizes of the benchmarks' own lists are checked; those of ``train_list`` and ``test_list`` are not. White space in
captions is normalised, and empty captions are dropped; a video without captions stays in its split, is reported by
`prota data check`, and counts as missing.

DiDeMo's descriptions of a video are joined into one paragraph, in the order of ``*_data.json``, only those of the exact
file name listed, as in CLIP4Clip: some videos have two names there (``x.mov`` and ``x.``), of which the lists have one.
If ``*_data.json`` is missing, ``*.jsonl`` is read instead; it orders descriptions by time and merges the two names. It
lacks two listed test videos and one listed training video, which then have no caption.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prota.config.experiment import DataConfig
from prota.data.rows import column, csv_rows, json_rows, listed_ids, numbered_lines, parse_json, read_text
from prota.data.splits import SPLITS, Benchmark, DataError, Item, Split, SplitName, examples, hold_back

__all__ = ["SIZES", "load_benchmark", "load_source"]

# Videos of each list; for LSMDC lines of its files, as some clips have two sentences.
SIZES: dict[str, dict[str, tuple[int, ...]]] = {
    "msrvtt-9k": {"train": (9_000,), "test": (1_000,)},
    "msrvtt-7k": {"train": (7_010,), "test": (1_000,)},
    "msrvtt-full": {"train": (6_513,), "val": (497,), "test": (2_990,)},
    "msvd": {"train": (1_200,), "val": (100,), "test": (670,)},
    "lsmdc": {"train": (101_079,), "val": (7_408,), "test": (1_000,)},
    # Three videos of the original training list are no longer available.
    "didemo": {"train": (8_392, 8_395), "val": (1_065,), "test": (1_004,)},
}
LSMDC_FILES: dict[SplitName, str] = {
    "train": "LSMDC16_annos_training.csv",
    "val": "LSMDC16_annos_val.csv",
    "test": "LSMDC16_challenge_1000_publictect.csv",
}
LSMDC_COLUMNS = 6
VIDEO_COLUMNS = ("video", "video_id", "file", "id")
CAPTION_COLUMNS = ("caption", "sentence", "text", "captions")

_HALVES = re.compile("[\ud800-\udfff]")

Captions = Mapping[str, Sequence[str]]
Splits = dict[SplitName, Split | None]


def load_benchmark(config: DataConfig) -> Benchmark:
    """Load the splits, with ``config.validation`` videos held out from training."""
    loaded = _LOADERS[config.benchmark](config)
    if not config.validation:
        return loaded
    if loaded.val is not None:
        raise DataError(
            f"data.validation={config.validation} must be 0: {loaded.name} has its own validation split of "
            f"{len(loaded.val)} videos"
        )
    train, val = hold_back(loaded.split("train"), config.validation)
    return Benchmark(loaded.name, train, val, loaded.test)


def _load_msrvtt(config: DataConfig) -> Benchmark:
    """9k and 7k: test with the sentence of the test CSV or all of the JSON file; full: always all of the JSON file."""
    folder, name = _annotations(config), config.benchmark
    variant = name.removeprefix("msrvtt-")
    source = _first(folder / "MSRVTT_data.json", folder / "MSRVTT_data.json.gz")
    captions = _msrvtt_captions(source)

    def split(part: SplitName, file: str) -> Split:
        path, replaced = _list_file(config, part, folder / file)
        return _sized(name, path, Split(part, _pick(path, listed_ids(path), captions, source)), replaced=replaced)

    train = split("train", f"MSRVTT_train.{variant}.csv")
    if variant == "full":
        return Benchmark(name, train, split("val", "MSRVTT_val.full.csv"), split("test", "MSRVTT_test.full.csv"))
    if config.test_captions == "all":
        return Benchmark(name, train, None, split("test", "MSRVTT_JSFUSION_test.csv"))
    path, replaced = _list_file(config, "test", folder / "MSRVTT_JSFUSION_test.csv")
    rows = [row for _, row in csv_rows(path)]
    video, sentence = (column(path, rows[0], (name,)) for name in ("video_id", "sentence"))
    items = tuple(_item(path, row[video], [row[sentence]]) for row in rows)
    return Benchmark(name, train, None, _sized(name, path, Split("test", items), replaced=replaced))


def _msrvtt_captions(source: Path) -> Captions:
    tree = parse_json(source, read_text(source))
    captions: dict[str, list[str]] = {}
    try:
        for sentence in tree["sentences"]:
            captions.setdefault(sentence["video_id"], []).append(sentence["caption"])
    except (KeyError, TypeError):
        raise DataError(f"{source} is not MSRVTT_data.json: it has no sentences with video_id and caption") from None
    return captions


def _load_msvd(config: DataConfig) -> Benchmark:
    folder = _annotations(config)
    source = folder / "captions_msvd.json"
    captions = parse_json(source, read_text(source))
    if not isinstance(captions, dict) or not all(isinstance(texts, list) for texts in captions.values()):
        raise DataError(f"{source} is not captions_msvd.json: it must map clip ids to lists of captions")
    splits: Splits = {}
    for name in SPLITS:
        path, replaced = _list_file(config, name, folder / f"{name}_list.txt")
        splits[name] = _sized(
            "msvd", path, Split(name, _pick(path, listed_ids(path), captions, source)), replaced=replaced
        )
    return _benchmark("msvd", splits)


def _load_lsmdc(config: DataConfig) -> Benchmark:
    """Training and validation splits are None if their files are missing.

    A replaced list is either such a file, or ids that select from the benchmark's own file.
    """
    folder = _annotations(config)
    splits: Splits = {}
    for name in SPLITS:
        own = folder / LSMDC_FILES[name]
        path, replaced = _list_file(config, name, own)
        if replaced and not any("\t" in line for _, line in numbered_lines(path)):
            items = _pick(path, listed_ids(path), _lsmdc_captions(own)[0], own)
            splits[name] = Split(name, items)
        elif name == "test" or path.exists() or replaced:
            captions, lines = _lsmdc_captions(path)
            split = Split(name, tuple(_item(path, video, texts) for video, texts in captions.items()))
            splits[name] = _sized("lsmdc", path, split, replaced=replaced, found=lines)
    return _benchmark("lsmdc", splits)


def _lsmdc_captions(path: Path) -> tuple[Captions, int]:
    """The sentences of each clip, and the number of lines. Tab-separated, without header or quoting."""
    captions: dict[str, list[str]] = {}
    lines = numbered_lines(path)
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
    """Paragraphs (see the docstring of the module). A video's id is its listed name up to the first dot."""
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
        files = listed_ids(path)
        paragraphs = {}
        for file in files:
            video = file.partition(".")[0]
            paragraphs[video] = [" ".join(by_name.get(file, by_id.get(video, [])))]
        ids = [file.partition(".")[0] for file in files]
        splits[name] = _sized("didemo", path, Split(name, _pick(path, ids, paragraphs, source)), replaced=replaced)
    return _benchmark("didemo", splits)


def _didemo_descriptions(source: Path) -> dict[str, list[str]]:
    """Descriptions by the video's name in the file: with extension in the JSON file, without in the JSONL file."""
    descriptions: dict[str, list[str]] = {}
    try:
        if source.suffix == ".jsonl":
            for _, row in json_rows(source):
                if not isinstance(row["text"], list):
                    raise TypeError
                descriptions.setdefault(row["clip_id"], []).extend(row["text"])
        else:
            for row in parse_json(source, read_text(source)):
                descriptions.setdefault(row["video"], []).append(row["description"])
        if not all(isinstance(text, str) for texts in descriptions.values() for text in texts):
            raise TypeError
    except (KeyError, TypeError):
        form = "clip_id and a list text" if source.suffix == ".jsonl" else "video and description"
        raise DataError(f"{source} is not a DiDeMo file: every entry must have {form}") from None
    return descriptions


def _load_folder(config: DataConfig) -> Benchmark:
    """Rows of video, caption and optionally split (default: test); several rows of a video are several captions."""
    if config.train_list or config.test_list:
        raise DataError("benchmark='folder' has no lists: remove train_list and test_list, use a split column instead")
    return _benchmark("folder", _folder_splits(config, "test"))


def load_source(config: DataConfig) -> Split:
    """The training split of a further source; rows without a split belong to it."""
    split = _folder_splits(config, "train")["train"]
    if split is None:
        raise DataError(f"{config.captions} has no rows of the split train")
    return split


def _folder_splits(config: DataConfig, default: SplitName) -> Splits:
    """The splits of a file of captions; ``default`` is the split of rows without one.

    A caption may have a tag, in a column of its own or, in JSONL, as a pair: ``"captions": [["human", "a cat"], …]``.
    """
    path = Path(config.captions).expanduser()
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise DataError(f"data.captions={config.captions!r} must be a .csv, .tsv or .jsonl file")
    rows = json_rows(path) if kind == ".jsonl" else csv_rows(path)
    captions: dict[SplitName, dict[str, list[str]]] = {name: {} for name in SPLITS}
    tags: Counter[str] = Counter()
    for number, row in rows:
        place = f"{path}, line {number}"
        video = row[column(place, row, VIDEO_COLUMNS)]
        texts = row[column(place, row, CAPTION_COLUMNS)]
        name = str(row.get("split", default)).strip().lower()
        if name not in SPLITS:
            raise DataError(f"{place}: the split must be one of {', '.join(SPLITS)}, got {name!r}")
        tagged = [_tagged(text, row.get("tag", "")) for text in (texts if isinstance(texts, list) else [texts])]
        tags.update(str(tag) for tag, _ in tagged)
        item = _item(place, video, [text for tag, text in tagged if _wanted(str(tag), config.tags)])
        captions[name].setdefault(item.video_id, []).extend(item.captions)
    unknown = [wanted for wanted in config.tags if not any(_wanted(tag, (wanted,)) for tag in tags)]
    if unknown:
        raise DataError(f"no caption in {path} has the tag {unknown[0]}; tags: {', '.join(sorted(tags))}")
    splits: Splits = {}
    for split, videos in captions.items():
        # With tags, a video without such captions is skipped; otherwise it is reported as missing.
        items = tuple(Item(video, tuple(texts)) for video, texts in videos.items() if texts or not config.tags)
        splits[split] = Split(split, items) if items else None
    return splits


def _tagged(text: Any, tag: Any) -> tuple[Any, Any]:
    """(tag, caption); a caption may itself be such a pair."""
    return (text[0], text[1]) if isinstance(text, list) and len(text) == 2 else (tag, text)


def _wanted(tag: str, tags: Sequence[str]) -> bool:
    """Whether a tag is one of these or belongs to one, as human:coco belongs to human."""
    return not tags or any(tag == wanted or tag.startswith(f"{wanted}:") for wanted in tags)


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
    if not config.captions:
        raise DataError(f"data.captions is not set: set it to the folder of {config.benchmark}'s annotation files")
    folder = Path(config.captions).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.captions={config.captions!r} is not a folder of annotation files")
    return folder


def _list_file(config: DataConfig, split: SplitName, own: Path) -> tuple[Path, bool]:
    """The list of a split, and whether it replaces the benchmark's own."""
    given = {"train": config.train_list, "val": "", "test": config.test_list}[split]
    return (Path(given).expanduser(), True) if given else (own, False)


def _benchmark(name: str, splits: Mapping[SplitName, Split | None]) -> Benchmark:
    return Benchmark(name, splits.get("train"), splits.get("val"), splits.get("test"))


def _item(place: Path | str, video: Any, texts: Iterable[Any]) -> Item:
    """An item with normalised captions, without empty ones."""
    if not isinstance(video, str) or not video.strip():
        raise DataError(f"{place}: the video must be an id, a path or a file name, got {video!r}")
    cleaned = []
    for text in texts:
        if not isinstance(text, str):
            raise DataError(f"{place}: the caption of {video} must be text, got {text!r}")
        if _HALVES.search(text):
            # JSON can contain lone surrogates, which tokenizers cannot encode.
            raise DataError(f"{place}: the caption {text!r} of {video} is not valid Unicode (a lone surrogate)")
        cleaned.append(" ".join(text.split()))
    return Item(video.strip(), tuple(text for text in cleaned if text))


def _pick(path: Path, ids: Sequence[str], captions: Captions, source: Path) -> tuple[Item, ...]:
    """An item for each listed id, without captions if ``source`` has none; if none has captions, raise an error."""
    items = tuple(_item(source, video, captions.get(video, [])) for video in ids)
    if not any(item.captions for item in items):
        raise DataError(
            f"none of the {len(ids)} videos in {path} ({examples(ids)}) has a caption in {source}: "
            "the two files do not match"
        )
    return items


def _sized(benchmark: str, path: Path, split: Split, *, replaced: bool, found: int | None = None) -> Split:
    """Check that ``split`` has the published size, unless its list was replaced."""
    found, expected = len(split) if found is None else found, SIZES[benchmark][split.name]
    if not replaced and found not in expected:
        raise DataError(
            f"{path}: {benchmark}'s {split.name} list has {' or '.join(f'{size:,}' for size in expected)} entries, "
            f"found {found:,}; use the original file, or set data.train_list or data.test_list"
        )
    return split


def _first(*paths: Path) -> Path:
    for path in paths:
        if path.exists():
            return path
    raise DataError(f"{' or '.join(path.name for path in paths)} is missing from {paths[0].parent}")
