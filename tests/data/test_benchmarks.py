"""Every loader on small made-up files, each error by its sentence, and the published files where they are at hand."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prota.config.experiment import DataConfig
from prota.data import benchmarks
from prota.data.benchmarks import load_benchmark
from prota.data.doctor import require_disjoint
from prota.data.splits import Benchmark, DataError


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks of a few videos, so that made-up files have the right size."""
    small = {
        "msrvtt-9k": {"train": (3,), "test": (2,)},
        "msrvtt-7k": {"train": (2,), "test": (2,)},
        "msrvtt-full": {"train": (2,), "val": (1,), "test": (2,)},
        "msvd": {"train": (2,), "val": (1,), "test": (1,)},
        "lsmdc": {"train": (3,), "val": (1,), "test": (1,)},
        "didemo": {"train": (1, 2), "val": (1,), "test": (3,)},
    }
    monkeypatch.setattr(benchmarks, "SIZES", small)


def load(benchmark: str, folder: Path, **settings: Any) -> Benchmark:
    return load_benchmark(DataConfig(benchmark=benchmark, captions=str(folder), **settings))  # type: ignore[arg-type]


def captions(loaded: Benchmark, split: str) -> dict[str, list[str]]:
    return {item.video_id: list(item.captions) for item in loaded.split(split).items}


def write_msrvtt(folder: Path) -> Path:
    """Videos v0 … v5 with two captions each; v4 and v5 are the test videos."""
    sentences = [
        {"video_id": f"v{i}", "caption": f"{word} {i} ", "sen_id": i} for word in ("one", "two") for i in range(6)
    ]
    (folder / "MSRVTT_data.json").write_text(json.dumps({"videos": [], "sentences": sentences}))
    for name, ids in {
        "MSRVTT_train.9k.csv": "v0 v1 v2",
        "MSRVTT_train.7k.csv": "v0 v1",
        "MSRVTT_train.full.csv": "v0 v1",
        "MSRVTT_val.full.csv": "v2",
        "MSRVTT_test.full.csv": "v5 v4",
    }.items():
        (folder / name).write_text("\n".join(["video_id", *ids.split()]) + "\n")
    (folder / "MSRVTT_JSFUSION_test.csv").write_text(
        'key,vid_key,video_id,sentence\r\nret0,m4,v4,two 4\r\nret1,m5,v5,"own, and  other "\r\n'
    )
    return folder


def write_msvd(folder: Path) -> Path:
    texts = {video: [f"{video} one", f"{video}  two"] for video in ("a_1_2", "b_1_2", "c_1_2", "d_1_2")}
    (folder / "captions_msvd.json").write_text(json.dumps(texts))
    for name, ids in {"train": "b_1_2 a_1_2", "val": "c_1_2", "test": "d_1_2"}.items():
        (folder / f"{name}_list.txt").write_text("\n".join(ids.split()))
    return folder


def write_lsmdc(folder: Path, *splits: str) -> Path:
    clips = {
        "train": [("m_00.1-00.2", 'He says "no.'), ("m_00.3-00.4", "She runs."), ("m_00.1-00.2", "He waits.")],
        "val": [("n_00.1-00.2", "A dog.")],
        "test": [("o_00.1-00.2", "SOMEONE sits.")],
    }
    for name in splits or clips:
        lines = ["\t".join([clip, "0", "1", "0", "1", text]) for clip, text in clips[name]]
        (folder / benchmarks.LSMDC_FILES[name]).write_text("\n".join(lines) + "\n")  # type: ignore[index]
    return folder


def write_didemo(folder: Path) -> Path:
    """Test in JSON, with a video under two names; validation in both forms, ordered differently; training in JSONL."""

    def described(*pairs: tuple[str, str]) -> str:
        return json.dumps([{"video": video, "description": text, "times": []} for video, text in pairs])

    (folder / "train.jsonl").write_text('{"clip_id": "1@N0_t", "text": ["first.", "second."]}\n')
    (folder / "val.jsonl").write_text('{"clip_id": "1@N0_v", "text": ["early", "late"]}\n')
    (folder / "val_data.json").write_text(described(("1@N0_v.mov", "late"), ("1@N0_v.mov", "early")))
    (folder / "test_data.json").write_text(
        described(
            ("2@N0_a.mov", "a1\n"), ("2@N0_b.", "b1"), ("2@N0_a.", "other"), ("2@N0_a.mov", "a2"), ("2@N0_x.mp4", "x")
        )
    )
    (folder / "train_list.txt").write_text("1@N0_t.avi\n")
    (folder / "val_list.txt").write_text("1@N0_v.mov\n")
    (folder / "test_list.txt").write_text("2@N0_b.\n2@N0_a.mov\n2@N0_c.mp4\n\n")
    return folder


pytestmark = pytest.mark.usefixtures("_small")


def test_msrvtt_takes_test_sentences_from_the_csv(tmp_path: Path) -> None:
    loaded = load("msrvtt-9k", write_msrvtt(tmp_path))
    assert captions(loaded, "train") == {f"v{i}": [f"one {i}", f"two {i}"] for i in range(3)}
    assert captions(loaded, "test") == {"v4": ["two 4"], "v5": ["own, and other"]}
    assert loaded.val is None
    assert load("msrvtt-7k", tmp_path).split("train").video_ids == ["v0", "v1"]


def test_msrvtt_with_all_captions_of_the_test_videos(tmp_path: Path) -> None:
    loaded = load("msrvtt-9k", write_msrvtt(tmp_path), test_captions="all")
    assert captions(loaded, "test") == {"v4": ["one 4", "two 4"], "v5": ["one 5", "two 5"]}


def test_msrvtt_full_queries_with_every_caption(tmp_path: Path) -> None:
    loaded = load("msrvtt-full", write_msrvtt(tmp_path))
    assert [len(split) for split in loaded.splits] == [2, 1, 2]
    assert captions(loaded, "test") == {"v5": ["one 5", "two 5"], "v4": ["one 4", "two 4"]}


def test_msrvtt_from_a_gzip_file(tmp_path: Path) -> None:
    plain = load("msrvtt-9k", write_msrvtt(tmp_path)).split("train").hash
    path = tmp_path / "MSRVTT_data.json"
    (tmp_path / "MSRVTT_data.json.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert load("msrvtt-9k", tmp_path).split("train").hash == plain
    (tmp_path / "MSRVTT_data.json.gz").write_bytes(gzip.compress(b"{}" * 999)[:-12])
    with pytest.raises(DataError, match="is a corrupt gzip file"):
        load("msrvtt-9k", tmp_path)


def test_own_lists_may_have_any_size(tmp_path: Path) -> None:
    write_msrvtt(tmp_path)
    (tmp_path / "train.txt").write_text("v3\n\n v1 \n")
    (tmp_path / "test.csv").write_text("video_id,sentence\nv5,mine\n")
    lists = {"train_list": str(tmp_path / "train.txt"), "test_list": str(tmp_path / "test.csv")}
    loaded = load("msrvtt-9k", tmp_path, **lists)
    assert loaded.split("train").video_ids == ["v3", "v1"]
    assert captions(loaded, "test") == {"v5": ["mine"]}
    assert captions(load("msrvtt-full", tmp_path, **lists), "test") == {"v5": ["one 5", "two 5"]}


def test_validation_is_held_back_unless_the_benchmark_has_its_own(tmp_path: Path) -> None:
    loaded = load("msrvtt-9k", write_msrvtt(tmp_path), validation=1)
    assert [(split.name, len(split)) for split in loaded.splits] == [("train", 2), ("val", 1), ("test", 2)]
    with pytest.raises(DataError, match=r"validation=1 must be 0: msrvtt-full has its own validation split of 1"):
        load("msrvtt-full", tmp_path, validation=1)


def test_msvd(tmp_path: Path) -> None:
    loaded = load("msvd", write_msvd(tmp_path))
    assert captions(loaded, "train") == {v: [f"{v} one", f"{v} two"] for v in ("b_1_2", "a_1_2")}
    assert [len(split.pairs) for split in loaded.splits] == [4, 2, 2]


def test_lsmdc_joins_the_sentences_of_a_clip(tmp_path: Path) -> None:
    loaded = load("lsmdc", write_lsmdc(tmp_path))
    assert captions(loaded, "train") == {"m_00.1-00.2": ['He says "no.', "He waits."], "m_00.3-00.4": ["She runs."]}
    assert captions(loaded, "test") == {"o_00.1-00.2": ["SOMEONE sits."]}


def test_lsmdc_without_training_files(tmp_path: Path) -> None:
    loaded = load("lsmdc", write_lsmdc(tmp_path, "test"))
    assert loaded.train is None
    assert loaded.val is None
    with pytest.raises(DataError, match="lsmdc has no train split; splits: test"):
        load("lsmdc", tmp_path, validation=5)


def test_lsmdc_lists_are_annotations_or_ids(tmp_path: Path) -> None:
    write_lsmdc(tmp_path)
    (tmp_path / "ids.txt").write_text("m_00.3-00.4\n")
    (tmp_path / "own.csv").write_text("p_00.1-00.2\t0\t1\t0\t1\tA boat.\nq_00.1-00.2\t0\t1\t0\t1\tA car.\n")
    loaded = load("lsmdc", tmp_path, train_list=str(tmp_path / "ids.txt"), test_list=str(tmp_path / "own.csv"))
    assert captions(loaded, "train") == {"m_00.3-00.4": ["She runs."]}
    assert captions(loaded, "test") == {"p_00.1-00.2": ["A boat."], "q_00.1-00.2": ["A car."]}


def test_didemo_joins_descriptions_into_paragraphs(tmp_path: Path) -> None:
    loaded = load("didemo", write_didemo(tmp_path))
    assert captions(loaded, "train") == {"1@N0_t": ["first. second."]}
    assert captions(loaded, "val") == {"1@N0_v": ["late early"]}
    # Not "other", which was said of the same video under a name that is not listed.
    assert captions(loaded, "test") == {"2@N0_b": ["b1"], "2@N0_a": ["a1 a2"], "2@N0_c": []}


def test_didemo_with_fewer_files(tmp_path: Path) -> None:
    write_didemo(tmp_path)
    (tmp_path / "val_data.json").unlink()
    (tmp_path / "train.jsonl").unlink()
    loaded = load("didemo", tmp_path)
    assert loaded.train is None
    assert captions(loaded, "val") == {"1@N0_v": ["early late"]}
    (tmp_path / "test_data.json").unlink()
    with pytest.raises(DataError, match=r"test_data.json or test.jsonl is missing from"):
        load("didemo", tmp_path)


def test_didemo_lists_without_extensions_take_all_names(tmp_path: Path) -> None:
    write_didemo(tmp_path)
    (tmp_path / "own.txt").write_text("2@N0_a\n")
    assert captions(load("didemo", tmp_path, test_list=str(tmp_path / "own.txt")), "test") == {
        "2@N0_a": ["a1 a2 other"]
    }


def folder_benchmark(path: Path, text: str | bytes, **settings: Any) -> Benchmark:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_benchmark(DataConfig(benchmark="folder", captions=str(path), **settings))


def test_folder_from_csv(tmp_path: Path) -> None:
    rows = [
        "\ufefffile, Caption,split,more",
        "sub/a.mp4,one,train,",
        'b,"two,\nthree",Train ,x',
        "sub/a.mp4,four,train,",
        "c,,test,",
    ]
    text = "\n".join(rows)
    loaded = folder_benchmark(tmp_path / "x.csv", text)
    assert captions(loaded, "train") == {"sub/a.mp4": ["one", "four"], "b": ["two, three"]}
    assert captions(loaded, "test") == {"c": []}
    held = folder_benchmark(tmp_path / "x.csv", text, validation=1)
    assert [len(split) for split in held.splits] == [1, 1, 1]


def test_folder_without_a_split_column_is_all_test(tmp_path: Path) -> None:
    loaded = folder_benchmark(tmp_path / "x.tsv", "video_id\tsentence\na\tone, two\n")
    assert captions(loaded, "test") == {"a": ["one, two"]}
    assert loaded.train is None


def test_folder_from_jsonl(tmp_path: Path) -> None:
    text = '{"video": "a", "text": ["one", " "], "split": "val"}\n\n{"video": "a", "text": "two", "split": "val"}\n'
    loaded = folder_benchmark(tmp_path / "x.jsonl", text)
    assert captions(loaded, "val") == {"a": ["one", "two"]}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.csv", "", "has no rows below the header"),
        ("x.csv", "video,caption\n", "has no rows below the header"),
        ("x.csv", "clip,caption\na,b\n", "line 2: no column video or video_id or file or id; columns: clip, caption"),
        ("x.csv", "video,title\na,b\n", "line 2: no column caption or sentence or text"),
        ("x.csv", "video,caption\na,one, two\n", "line 2: 3 columns, but the header has 2; captions with commas"),
        ("x.csv", "video,caption\na\n", "line 2: 1 columns"),
        ("x.csv", 'video,caption\na,"one\n', "line 2: invalid CSV"),
        ("x.csv", "video,caption\n ,one\n", "line 2: the video must be an id"),
        ("x.csv", "video,caption,Caption\na,one,two\n", "has the column caption more than once"),
        ("x.csv", "video,caption,split\na,one,dev\n", "got 'dev'"),
        ("x.csv", b"video,caption\na,one\nb,caf\xe9\n", "line 3: byte 0xe9 is not UTF-8"),
        ("x.jsonl", "", "is empty"),
        ("x.jsonl", '{"video": "a", "text": "b"}\n{"video"\n', "line 2: invalid JSON"),
        ("x.jsonl", '["a", "b"]\n', "line 1: every line must be a JSON object"),
        ("x.jsonl", '{"video": 7, "text": "b"}\n', "line 1: the video must be an id"),
        ("x.jsonl", '{"video": "a", "text": ["b", 7]}\n', "line 1: the caption of a must be text, got 7"),
        ("x.jsonl", '{"video": "a", "text": "b \\ud83d"}\n', "is not valid Unicode"),
        ("x.jsonl", '{"video": "a", "text": "b", "split": ["test"]}\n', "line 1: the split must be"),
        ("x.txt", "a b\n", "must be a .csv, .tsv or .jsonl file"),
    ],
)
def test_malformed_folders(tmp_path: Path, name: str, text: str | bytes, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        folder_benchmark(tmp_path / name, text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_has_no_lists_and_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no lists: remove train_list and test_list"):
        folder_benchmark(tmp_path / "x.csv", "video,caption\na,b\n", test_list="mine")
    with pytest.raises(DataError, match=r"y.csv does not exist"):
        load_benchmark(DataConfig(benchmark="folder", captions=str(tmp_path / "y.csv")))
    (tmp_path / "z.csv").mkdir()
    with pytest.raises(DataError, match=r"z.csv cannot be read: Is a directory"):
        load_benchmark(DataConfig(benchmark="folder", captions=str(tmp_path / "z.csv")))


@pytest.mark.parametrize(
    ("write", "benchmark", "file", "text", "sentence"),
    [
        (write_msrvtt, "msrvtt-9k", "MSRVTT_train.9k.csv", "video_id\nv0\n", "train list has 3 entries, found 1"),
        (write_msrvtt, "msrvtt-9k", "MSRVTT_train.9k.csv", "v0\nv0\nv1\n", r"lists 1 videos more than once \(v0\)"),
        (
            write_msrvtt,
            "msrvtt-9k",
            "MSRVTT_train.9k.csv",
            "w0\nw1\n",
            r"none of the 2 videos in .* \(w0, w1\) has a cap",
        ),
        (write_msrvtt, "msrvtt-9k", "MSRVTT_train.9k.csv", "video_id\n", "has no rows below the header"),
        (write_msrvtt, "msrvtt-9k", "MSRVTT_train.9k.csv", None, "MSRVTT_train.9k.csv does not exist"),
        (
            write_msrvtt,
            "msrvtt-9k",
            "MSRVTT_JSFUSION_test.csv",
            "video_id\nv4\n",
            "no column sentence; columns: video_id",
        ),
        (write_msrvtt, "msrvtt-9k", "MSRVTT_data.json", "[]", "it has no sentences with video_id and caption"),
        (write_msrvtt, "msrvtt-9k", "MSRVTT_data.json", '{"sentences":\n[}', "invalid JSON at line 2, column 2"),
        (
            write_msrvtt,
            "msrvtt-full",
            "MSRVTT_data.json",
            None,
            "or MSRVTT_data.json.gz is missing from",
        ),
        (write_msvd, "msvd", "captions_msvd.json", '{"a": "text"}', "must map clip ids to lists of captions"),
        (write_msvd, "msvd", "captions_msvd.json", '{"a_1_2": [1]}', "the caption of a_1_2 must be text, got 1"),
        (write_msvd, "msvd", "test_list.txt", "d_1_2\na_1_2\n", "msvd's test list has 1 entries, found 2"),
        (write_lsmdc, "lsmdc", "LSMDC16_annos_val.csv", "a\tb\n", "line 1: 2 tab-separated columns; LSMDC has 6"),
        (write_lsmdc, "lsmdc", "LSMDC16_annos_val.csv", "a\t0\t1\t0\t1\tx\n" * 2, "val list has 1 entries, found 2"),
        (write_lsmdc, "lsmdc", "LSMDC16_challenge_1000_publictect.csv", None, "does not exist"),
        (write_didemo, "didemo", "test_data.json", '[{"video": "a"}]', "every entry must have video and description"),
        (write_didemo, "didemo", "train.jsonl", '{"clip_id": "a", "text": "b"}', "must have clip_id and a list text"),
        (write_didemo, "didemo", "val_list.txt", "1@N0_v.mov\n1@N0_v.mp4\n", "lists 1 videos more than once"),
        (write_didemo, "didemo", "train_list.txt", "1@N0_t.a\n1\n2\n", "train list has 1 or 2 entries, found 3"),
    ],
)
def test_malformed_benchmarks(
    tmp_path: Path, write: Callable[[Path], Path], benchmark: str, file: str, text: str | None, sentence: str
) -> None:
    path = write(tmp_path) / file
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(DataError, match=sentence) as error:
        load(benchmark, tmp_path)
    assert "\n" not in str(error.value)


def test_no_folder_of_annotations(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.captions is not set: set it to the folder of msvd's"):
        load_benchmark(DataConfig(benchmark="msvd"))
    with pytest.raises(DataError, match="is not a folder"):
        load("msvd", tmp_path / "nothing")


class TestPublished:
    """The files as the community has them; research material, absent elsewhere."""

    @pytest.fixture(autouse=True)
    def _published(self, monkeypatch: pytest.MonkeyPatch, _small: None) -> None:
        monkeypatch.undo()

    @pytest.fixture
    def annotations(self, shared: Path) -> Path:
        folder = shared / "data" / "annotations"
        if not folder.is_dir():
            pytest.skip(f"needs the annotations in {folder}")
        return folder

    @pytest.mark.parametrize(
        ("benchmark", "folder", "videos", "pairs"),
        [
            ("msrvtt-9k", "MSRVTT", [9_000, 1_000], [180_000, 1_000]),
            ("msrvtt-7k", "MSRVTT", [7_010, 1_000], [140_200, 1_000]),
            ("msrvtt-full", "MSRVTT", [6_513, 497, 2_990], [130_260, 9_940, 59_800]),
            ("msvd", "MSVD", [1_200, 100, 670], [48_774, 4_290, 27_763]),
            ("lsmdc", "LSMDC", [1_000], [1_000]),
            # One listed training video has no description in train.jsonl; train_data.json is not here.
            ("didemo", "DiDeMo", [8_392, 1_065, 1_004], [8_391, 1_065, 1_004]),
        ],
    )
    def test_sizes(self, annotations: Path, benchmark: str, folder: str, videos: list[int], pairs: list[int]) -> None:
        loaded = load(benchmark, annotations / folder)
        assert [len(split) for split in loaded.splits] == videos
        assert [len(split.pairs) for split in loaded.splits] == pairs
        require_disjoint(loaded)

    def test_the_csv_wins_over_the_json(self, annotations: Path) -> None:
        one = captions(load("msrvtt-9k", annotations / "MSRVTT"), "test")
        every = captions(load("msrvtt-9k", annotations / "MSRVTT", test_captions="all"), "test")
        with (annotations / "MSRVTT" / "MSRVTT_JSFUSION_test.csv").open(encoding="utf-8", newline="") as file:
            assert one == {row["video_id"]: [row["sentence"]] for row in csv.DictReader(file)}
        with gzip.open(annotations / "MSRVTT" / "MSRVTT_data.json.gz", "rt", encoding="utf-8") as file:
            printed = {(row["video_id"], row["caption"]) for row in json.load(file)["sentences"]}
        # 35 sentences differ as they are printed, 12 of them in more than white space.
        assert sum((video, texts[0]) not in printed for video, texts in one.items()) == 35
        assert sum(texts[0] not in every[video] for video, texts in one.items()) == 12

    def test_the_subset(self, annotations: Path, shared: Path) -> None:
        clips = shared / "data" / "msrvtt_clips"
        lists = {
            "train_list": str(clips / "MSRVTT_train.9k.subset.csv"),
            "test_list": str(clips / "MSRVTT_JSFUSION_test.subset.csv"),
        }
        loaded = load("msrvtt-9k", annotations / "MSRVTT", **lists)
        assert [(len(split), len(split.pairs)) for split in loaded.splits] == [(4_782, 95_640), (477, 477)]
        every = load("msrvtt-9k", annotations / "MSRVTT", **lists, test_captions="all", validation=300)
        assert [(split.name, len(split)) for split in every.splits] == [("train", 4_482), ("val", 300), ("test", 477)]
        assert len(every.split("test").pairs) == 9_540
        require_disjoint(every)

    def test_didemo_forms_name_the_same_videos(self, annotations: Path, tmp_path: Path) -> None:
        """JSON and JSONL have the same validation videos; of the test videos the JSONL lacks two."""
        folder = annotations / "DiDeMo"
        by_json = load("didemo", folder)
        for path in folder.iterdir():
            if not path.name.endswith("_data.json"):
                (tmp_path / path.name).symlink_to(path)
        by_lines = load("didemo", tmp_path)
        for name, lacking in {"val": 0, "test": 2}.items():
            first, second = captions(by_json, name), captions(by_lines, name)
            assert list(first) == list(second)
            assert sum(not texts for texts in second.values()) == lacking
            # Same words in another order, except for the videos that the JSON has under two names.
            differ = [v for v in first if second[v] and sorted(first[v][0].split()) != sorted(second[v][0].split())]
            assert len(differ) == {"val": 29, "test": 33}[name]
