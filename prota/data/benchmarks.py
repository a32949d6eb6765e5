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

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prota.config.experiment import DataConfig
from prota.data.rows import column, csv_rows, json_rows, listed_ids, numbered_lines, parse_json, read_text
from prota.data.splits import SPLITS, Benchmark, DataError, Item, Split, SplitName, examples, hold_back

__all__ = ["SIZES", "load_benchmark", "load_source"]

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
VIDEO_COLUMNS = ("video", "video_id", "file", "id")
CAPTION_COLUMNS = ("caption", "sentence", "text", "captions")

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
        raise DataError(f"{source} is not MSRVTT_data.json: it lacks sentences with video_id and caption") from None
    return captions


def _load_msvd(config: DataConfig) -> Benchmark:
    folder = _annotations(config)
    source = folder / "captions_msvd.json"
    captions = parse_json(source, read_text(source))
    if not isinstance(captions, dict) or not all(isinstance(texts, list) for texts in captions.values()):
        raise DataError(f"{source} is not captions_msvd.json: it must map each clip id to a list of captions")
    splits: Splits = {}
    for name in SPLITS:
        path, replaced = _list_file(config, name, folder / f"{name}_list.txt")
        splits[name] = _sized(
            "msvd", path, Split(name, _pick(path, listed_ids(path), captions, source)), replaced=replaced
        )
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
        if replaced and not any("\t" in line for _, line in numbered_lines(path)):
            items = _pick(path, listed_ids(path), _lsmdc_captions(own)[0], own)
            splits[name] = Split(name, items)
        elif name == "test" or path.exists() or replaced:
            captions, lines = _lsmdc_captions(path)
            split = Split(name, tuple(_item(path, video, texts) for video, texts in captions.items()))
            splits[name] = _sized("lsmdc", path, split, replaced=replaced, found=lines)
    return _benchmark("lsmdc", splits)


def _lsmdc_captions(path: Path) -> tuple[Captions, int]:
    """The sentences of each clip, and how many lines the file has. No header and no quoting: tabs alone count."""
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
        files = listed_ids(path)
        paragraphs = {}
        for file in files:
            video = file.partition(".")[0]
            paragraphs[video] = [" ".join(by_name.get(file, by_id.get(video, [])))]
        ids = [file.partition(".")[0] for file in files]
        splits[name] = _sized("didemo", path, Split(name, _pick(path, ids, paragraphs, source)), replaced=replaced)
    return _benchmark("didemo", splits)


def _didemo_descriptions(source: Path) -> dict[str, list[str]]:
    """The descriptions of each video, by its name in the file: with extension in the JSON, without in the JSONL."""
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
        raise DataError(f"{source} is not DiDeMo's: every entry must have {form}") from None
    return descriptions


def _load_folder(config: DataConfig) -> Benchmark:
    """Rows of video, caption and perhaps split; several rows of a video are several captions. No split: all is test."""
    if config.train_list or config.test_list:
        raise DataError(
            "benchmark='folder' has no lists: leave out train_list and test_list, use a split column instead"
        )
    return _benchmark("folder", _folder_splits(config, "test"))


def load_source(config: DataConfig) -> Split:
    """What is learned from a further source: its rows of the split train; all of them where there is no split."""
    split = _folder_splits(config, "train")["train"]
    if split is None:
        raise DataError(f"{config.captions} has no rows of the split train: there is nothing to learn from")
    return split


def _folder_splits(config: DataConfig, default: SplitName) -> Splits:
    """The splits of a file of captions; ``default`` is that of rows without one.

    A caption may have a tag, in a column of its own or, in JSONL, as a pair: ``"captions": [["human", "a cat"], …]``.
    """
    path = Path(config.captions).expanduser()
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise DataError(f"data.captions={config.captions!r} is not a .csv, .tsv or .jsonl file")
    rows = json_rows(path) if kind == ".jsonl" else csv_rows(path)
    captions: dict[SplitName, dict[str, list[str]]] = {name: {} for name in SPLITS}
    tags: Counter[str] = Counter()
    for number, row in rows:
        place = f"{path}, line {number}"
        video = row[column(place, row, VIDEO_COLUMNS)]
        texts = row[column(place, row, CAPTION_COLUMNS)]
        name = str(row.get("split", default)).strip().lower()
        if name not in SPLITS:
            raise DataError(f"{place}: the split is {name!r}; allowed: {', '.join(SPLITS)}")
        tagged = [_tagged(text, row.get("tag", "")) for text in (texts if isinstance(texts, list) else [texts])]
        tags.update(str(tag) for tag, _ in tagged)
        item = _item(place, video, [text for tag, text in tagged if _wanted(str(tag), config.tags)])
        captions[name].setdefault(item.video_id, []).extend(item.captions)
    unknown = [wanted for wanted in config.tags if not any(_wanted(tag, (wanted,)) for tag in tags)]
    if unknown:
        raise DataError(f"no caption in {path} has the tag {unknown[0]}; there are: {', '.join(sorted(tags))}")
    splits: Splits = {}
    for split, videos in captions.items():
        # With tags, a video without such captions is not wanted; otherwise one without captions is an omission.
        items = tuple(Item(video, tuple(texts)) for video, texts in videos.items() if texts or not config.tags)
        splits[split] = Split(split, items) if items else None
    return splits


def _tagged(text: Any, tag: Any) -> tuple[Any, Any]:
    """(tag, caption) of a caption that may be such a pair itself."""
    return (text[0], text[1]) if isinstance(text, list) and len(text) == 2 else (tag, text)


def _wanted(tag: str, tags: Sequence[str]) -> bool:
    """Whether a tag is one of these or a part of one: human:coco is a part of human."""
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
        raise DataError(f"data.captions is empty; set it to the folder of {config.benchmark}'s annotation files")
    folder = Path(config.captions).expanduser()
    if not folder.is_dir():
        raise DataError(f"data.captions={config.captions!r} is not a folder of annotation files")
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


def _sized(benchmark: str, path: Path, split: Split, *, replaced: bool, found: int | None = None) -> Split:
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
