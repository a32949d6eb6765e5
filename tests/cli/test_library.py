"""`prota index`, `prota search` and `prota library` as a user runs them."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prota.cli.search import _short
from prota.files import hold
from prota.library.search.hits import Results
from prota.library.search.view import View
from prota.library.storage.reader import Snapshot
from prota.video.decode import read_timeline
from tests.cli.test_commands import prota, succeeds
from tests.library.mutants import index_mutants, write_mutants
from tests.library.object_store import BUCKET, serving
from tests.library.worlds import toy_model, write_clips, write_picture
from tests.processes import LIMIT, python, wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library-cli")
    toy_model().save_pretrained(folder / "model")
    write_clips(folder / "videos", "red-left", "blue-top", "green-right")
    (folder / "videos" / "broken.mp4").write_bytes(b"not a video")
    arguments = ("index", folder / "videos", "-l", folder / "lib", "--model", folder / "model", "--device", "cpu")
    result = prota(*arguments, "--workers", 1)
    assert result.returncode == 0, result.stderr
    assert "3 indexed, 1 bad" in result.stdout
    assert "broken.mp4: " in result.stderr
    assert "prota search " in result.stdout
    again = json.loads(succeeds(*arguments, "--workers", 1, "--json"))
    assert (again["unchanged"], again["still_bad"], again["finished"]) == (4, 1, True)
    return folder


def test_search_prints_moments(world: Path) -> None:
    said = succeeds("search", "red", "on", "the", "left", "-l", world / "lib", "-k", 2, "--device", "cpu")
    assert "“red on the left”" in said
    assert said.count(".mp4") == 2
    # From a file a path can be copied, however long it is.
    assert len([word for word in said.split() if Path(word).parent == world / "videos" and Path(word).exists()]) == 2


def test_a_narrow_window_folds_paths_and_nothing_else(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = prota("search", "red", "-l", world / "lib", "--device", "cpu", COLUMNS="30")
    assert said.stdout.count(" 0:00.0 – 0:01.2 ") == 3
    assert "…" not in said.stdout
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", said.stdout).splitlines())) == 60


def test_without_a_compiler_it_says_so_in_a_line_and_finds_the_same(world: Path, tmp_path: Path) -> None:
    arguments = ("search", "red", "on", "the", "left", "-l", world / "lib", "--json", "--device", "cpu")
    said = prota(*arguments, CC="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert said.returncode == 0
    assert said.stderr.count("\n") == said.stderr.count("no-such-compiler") == 1
    expected, found = (json.loads(output)["moments"] for output in (succeeds(*arguments), said.stdout))
    assert [moment["path"] for moment in found] == [moment["path"] for moment in expected]
    assert [moment["score"] for moment in found] == pytest.approx([moment["score"] for moment in expected], abs=1e-5)


def test_search_as_json_with_reasons_that_add_up(world: Path) -> None:
    said = succeeds("search", "a red thing", "-l", world / "lib", "--json", "--explain", "--device", "cpu")
    answer = json.loads(said)
    assert answer["query"] == "a red thing"
    assert len(answer["moments"]) == 3
    for moment in answer["moments"]:
        why = moment["why"]
        parts = [*why["words"], *why["frames"], why["rest"]]
        assert sum(part["contribution"] for part in parts) == pytest.approx(moment["score"], abs=1e-5)
        assert [word["text"] for word in why["words"]] == ["a", "red", "thing"]
        assert moment["start"] <= moment["best"] <= moment["end"]


@pytest.mark.parametrize("relevance", [(0.9, 0.2, 0.1), (0.3, 0.2, 0.1)])
def test_weaker_matches_are_marked_and_kept(
    relevance: tuple[float, ...], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, good = View.search, sum(value >= 0.5 for value in relevance)

    def judged(view: View, *arguments: Any, **options: Any) -> list[Results]:
        (found,) = search(view, *arguments, **options)
        pairs = zip(found.hits, relevance, strict=True)
        return [replace(found, cutoff=0.5, hits=[replace(hit, probability=value) for hit, value in pairs])]

    monkeypatch.setattr(View, "search", judged)
    arguments = ("search", "red", "-l", world / "lib", "--device", "cpu")
    answer = json.loads(succeeds(*arguments, "--json"))
    assert [moment["weaker"] for moment in answer["moments"]] == [False] * good + [True] * (3 - good)
    assert answer["no_good_match"] == (good == 0)
    said = succeeds(*arguments)
    assert said.count(".mp4") == 3
    assert said.count("weaker") == 3 - good
    assert ("no good match" in said) == (good == 0)


def test_a_table_has_no_column_for_what_is_not_known(world: Path) -> None:
    """The model is not calibrated."""
    assert " match " not in succeeds("search", "red", "-l", world / "lib", "--device", "cpu")


def test_a_filter_that_excludes_all_is_named(world: Path) -> None:
    arguments = ("search", "red", "-l", world / "lib", "--device", "cpu", "--where", "kind = 'picture'")
    assert "--where" in succeeds(*arguments)
    assert json.loads(succeeds(*arguments, "--json"))["moments"] == []


def test_explanations_are_drawn(world: Path) -> None:
    said = succeeds("search", "a red thing", "-l", world / "lib", "--explain", "-k", 1, "--device", "cpu")
    assert "match" in said
    assert "the query" in said
    assert re.search(r"0:00\.\d 0:00\.\d", said)
    assert "<start>" not in said
    assert "unsure" not in said


def test_moments_are_handed_over(world: Path, tmp_path: Path) -> None:
    place = ("-l", world / "lib", "--device", "cpu")
    said = prota("search", "red", *place, "--json", "--export", tmp_path / "x.csv", "--reel", tmp_path / "r.mp4")
    assert said.returncode == 0, said.stderr
    moments = json.loads(said.stdout)["moments"]
    with (tmp_path / "x.csv").open(encoding="utf-8") as file:
        assert [row["path"] for row in csv.DictReader(file)] == [moment["path"] for moment in moments]
    seconds = sum(moment["end"] - moment["start"] for moment in moments)
    assert read_timeline(tmp_path / "r.mp4").duration == pytest.approx(seconds, abs=0.5)
    wrong = prota("search", "red", *place, "--export", tmp_path / "x.txt")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_a_clip_is_cut(world: Path, tmp_path: Path) -> None:
    video = world / "videos" / "red-left.mp4"
    made = json.loads(succeeds("cut", video, "0:00.2", "0.8", "-o", tmp_path / "x.mkv", "--json"))
    assert (made["start"], made["end"], made["frames"], made["sound"]) == (0.2, 0.8, 3, False)
    assert len(read_timeline(tmp_path / "x.mkv").times) == 3
    for code, arguments in {
        1: (video, "50", "60", "-o", tmp_path / "y.mp4"),
        2: (video, "1", "0", "-o", tmp_path / "y.mp4"),
    }.items():
        said = prota("cut", *arguments)
        assert (said.returncode, said.stderr.count("\n"), said.stdout) == (code, 1, "")
    assert prota("cut", video, "soon", "later").returncode == 2
    assert not (tmp_path / "y.mp4").exists()


def test_queries_from_a_file(world: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text("red\n\nblue\n", encoding="utf-8")
    said = succeeds("search", "--queries", tmp_path / "queries.txt", "-l", world / "lib", "--json", "--device", "cpu")
    assert [json.loads(line)["query"] for line in said.splitlines()] == ["red", "blue"]


def test_clips_as_queries(world: Path, tmp_path: Path) -> None:
    clip = world / "videos" / "red-left.mp4"
    said = succeeds("search", "--like", clip, "-l", world / "lib", "--json", "--device", "cpu")
    assert {Path(moment["path"]).stem for moment in json.loads(said)["moments"]} == {"blue-top", "green-right"}
    (tmp_path / "captions.txt").write_text("red on the left\na blue thing\n", encoding="utf-8")
    arguments = ("match", clip, tmp_path / "captions.txt", "--model", world / "model", "--device", "cpu")
    said = succeeds(*arguments)
    assert said.index("red on the left") < said.index("a blue thing")
    scores = [json.loads(line)["score"] for line in succeeds(*arguments, "--json").splitlines()]
    assert scores == sorted(scores, reverse=True)


def test_pictures_beside_videos(world: Path, tmp_path: Path) -> None:
    write_clips(tmp_path / "v", "red-left")
    for colour, name in (("red", "photo.jpg"), ("blue", "other.png"), ("white", "red-left.jpg")):
        write_picture(tmp_path / "v" / name, colour)
    (tmp_path / "v" / "cut.webp").write_bytes(b"RIFF0000WEBP")
    place = ("-l", tmp_path / "lib", "--device", "cpu")
    arguments = ("index", tmp_path / "v", *place, "--model", world / "model", "--workers", 1)
    assert "1 indexed;" in succeeds(*arguments, "--no-pictures")
    result = prota(*arguments)
    assert "2 indexed, 1 unchanged, 1 bad; 2 new segments of 0.0 minutes of video and 2 pictures" in result.stdout
    assert "cut.webp: " in result.stderr
    assert json.loads(succeeds("library", "info", "--json", "-l", tmp_path / "lib"))["pictures"] == 2

    def found(*more: object) -> dict[str, str]:
        moments = json.loads(succeeds("search", *more, *place, "--json"))["moments"]
        return {Path(moment["path"]).name: moment["kind"] for moment in moments}

    pictures = {"photo.jpg": "picture", "other.png": "picture"}
    assert found("red") == pictures | {"red-left.mp4": "video"}
    assert found("red", "--where", "kind = 'picture' AND path LIKE '%.jpg'") == {"photo.jpg": "picture"}
    assert found("--like", tmp_path / "v" / "photo.jpg") == {"other.png": "picture", "red-left.mp4": "video"}
    assert found("--like", tmp_path / "v" / "red-left.jpg").keys() == {"photo.jpg", "other.png", "red-left.mp4"}
    said = succeeds("search", "red", *place, "--explain", "--where", "kind = 'picture'")
    assert said.count("picture │") == 2
    assert "0:00" not in said
    (tmp_path / "captions.txt").write_text("a red thing\n", encoding="utf-8")
    clip = (tmp_path / "v" / "photo.jpg", tmp_path / "captions.txt", "--model", world / "model", "--device", "cpu")
    assert "0:00" not in succeeds("match", *clip)
    assert "intact" in succeeds("library", "verify", "--deep", "-l", tmp_path / "lib")


def test_upkeep(world: Path, tmp_path: Path) -> None:
    assert json.loads(succeeds("library", "info", "--json", "-l", world / "lib"))["segments"] == 3
    assert "intact" in succeeds("library", "verify", "-l", world / "lib")
    assert json.loads(succeeds("library", "verify", "--json", "-l", world / "lib"))["problems"] == []
    shown = succeeds("library", "info", "-l", world / "lib")
    assert "3 indexed" in shown
    assert "broken.mp4: " in shown
    assert "compacted" in succeeds("library", "compact", "-l", world / "lib")
    succeeds("library", "export", tmp_path / "rows.jsonl", "-l", world / "lib")
    assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 3


def test_upkeep_as_json(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "lib", tmp_path / "lib")
    place, clip = ("-l", tmp_path / "lib", "--json"), world / "videos" / "red-left.mp4"
    for arguments, segments in ((("compact",), 3), (("merge", world / "lib"), 3), (("remove", clip), 2)):
        assert json.loads(succeeds("library", *arguments, *place))["segments"] == segments
    assert Path(json.loads(succeeds("library", "export", tmp_path / "rows.jsonl", *place))["file"]).is_file()


def test_a_corrupt_library_says_so_and_is_repaired(world: Path, tmp_path: Path) -> None:
    library = tmp_path / "lib"
    shutil.copytree(world / "lib", library)
    place = ("-l", library, "--device", "cpu")
    whole = json.loads(succeeds("search", "red", *place, "--json"))
    tokens = Snapshot.open(library).tokens([0]).direction.tobytes()
    for path in (library / "segments.lance" / "data").iterdir():
        path.write_bytes(path.read_bytes().replace(tokens, bytes(len(tokens))))
    (library / "library.json").unlink()
    for command in ("search red", "library info", "library verify", "library compact"):
        result = prota(*command.split(), "-l", library)
        assert result.returncode == 1
        assert "prota library repair" in result.stdout + result.stderr
    said = prota("library", "repair", *place)
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("to be indexed again: ") == 1
    assert json.loads(succeeds("search", "red", *place, "--json")) == whole | {"damaged": 0}
    assert json.loads(succeeds("library", "repair", *place, "--json"))["again"] == []
    # Corrupt segments alone: the others are found, and a line says what is missing.
    tokens = Snapshot.open(library).tokens([0]).direction.tobytes()
    for path in (library / "segments.lance" / "data").iterdir():
        path.write_bytes(path.read_bytes().replace(tokens, bytes(len(tokens))))
    result = prota("search", "red", *place)
    assert result.returncode == 0
    assert (result.stdout.count(".mp4"), result.stderr.count("prota library repair")) == (2, 1)
    assert json.loads(succeeds("search", "red", *place, "--json"))["damaged"] == 1


@pytest.mark.s3
def test_all_of_it_on_object_storage(world: Path, tmp_path: Path) -> None:
    with serving():
        place, other = f"s3://{BUCKET}/cli/library", f"s3://{BUCKET}/cli/other"
        said = prota("search", "red", "-l", place)
        assert (said.returncode, said.stderr) == (
            1,
            f"prota: no library at {place}: create one with `prota index FOLDER --library {place}`\n",
        )
        for where, clips in ((place, "red-left.mp4"), (other, "blue-top.mp4")):
            arguments = ("index", world / "videos" / clips, "-l", where, "--model", world / "model", "--device", "cpu")
            assert f"{where}: 1 indexed" in succeeds(*arguments, "--workers", 1)
        assert f"{place}: 2 segments" in succeeds("library", "merge", other, "-l", place)
        assert f"{place}: intact" in succeeds("library", "verify", "-l", place)
        assert f"{place}: compacted" in succeeds("library", "compact", "-l", place)
        assert json.loads(succeeds("library", "info", "--json", "-l", place))["folder"] == place
        succeeds("library", "export", tmp_path / "rows.jsonl", "-l", place)
        assert len((tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 2
        found = json.loads(succeeds("search", "red", "-l", place, "--json", "--device", "cpu"))
        assert len(found["moments"]) == 2
        succeeds("library", "remove", world / "videos" / "red-left.mp4", "-l", place)
        assert json.loads(succeeds("library", "info", "--json", "-l", place))["videos"]["indexed"] == 1
        said = prota("library", "info", "-l", "s3://key:secret@films/x")
        assert said.returncode == 1
        assert "credentials in the environment" in said.stderr
        assert "secret" not in said.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["search", "-l", "LIB"], 2, "--queries FILE"),
        (["search", "   ", "-l", "LIB"], 2, "the query is empty"),
        (["search", "--queries", "gone.txt", "-l", "LIB"], 2, "gone.txt: No such file or directory"),
        (["search", "--queries", os.devnull, "-l", "LIB"], 2, f"{os.devnull} contains no query"),
        (["search", "--like", f"{__file__}@5-2", "-l", "LIB"], 2, "ends before it starts"),
        (["search", "--like", "gone.mp4@2-5", "-l", "LIB"], 1, "gone.mp4: no such file"),
        (["match", "gone.mp4", "gone.txt"], 1, "gone.mp4, gone.txt: no such file"),
        (["index", "VIDEOS", "-l", __file__], 1, f"{__file__}: "),
        (["search", "red", "-l", "nowhere"], 1, "no library at nowhere: create one with `prota index FOLDER"),
        (["search", "red", "-l", __file__], 1, f"no library at {__file__}: create one with `prota index FOLDER"),
        (["search", "red", "-l", "LIB", "--where", "colour = 3"], 1, "duration"),
        (["index", "nowhere", "-l", "LIB"], 1, "nowhere: no such file or folder"),
        (
            ["index", "VIDEOS", "-l", "fresh", "--model", "magic"],
            1,
            "magic: no such folder",
        ),
        (["index", "VIDEOS", "-l", "LIB", "--frames", "5"], 2, "--frames 5"),
        (["library", "info", "-l", "nowhere"], 1, "nowhere"),
        (["library", "export", "rows.xls", "-l", "LIB"], 1, ".parquet"),
        (
            ["library", "export", "no/rows.jsonl", "-l", "LIB"],
            1,
            "cannot export to no/rows.jsonl: there is no folder no",
        ),
        (["search", "red", "-l", "LIB", "--where", ""], 1, "cannot filter by ''"),
    ],
)
def test_mistakes_are_one_line(world: Path, tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    names = {"LIB": world / "lib", "VIDEOS": world / "videos"}
    result = prota(*(names.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_lines_without_words_are_passed_over(world: Path, tmp_path: Path) -> None:
    """Also those of signs that nobody sees."""
    (tmp_path / "q.txt").write_text("\ufeff\nred\n\u200b\nblue\n", encoding="utf-8")
    found = succeeds("search", "--queries", tmp_path / "q.txt", "--json", "-l", world / "lib", "--device", "cpu")
    assert [json.loads(line)["query"] for line in found.splitlines()] == ["red", "blue"]


def test_one_ctrl_c_ends_the_wait_for_another_writer(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "lib", tmp_path / "lib")
    options = ("-l", tmp_path / "lib", "--model", world / "model", "--device", "cpu", "--wait", 1e6)
    command, environment = ("-m", "prota", "index", world / "videos", *options), os.environ | {"FORCE_COLOR": "1"}
    with hold(tmp_path / "lib" / "writer.lock"), python(*command, env=environment) as process:
        assert process.stderr is not None
        # What it says when it tells that it works on something: the bar, once the model is there and signals are taken.
        while "indexing" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate()
    assert process.returncode == 130, complained
    assert "interrupted" in complained
    assert said == ""


def test_ctrl_c_keeps_what_was_finished(world: Path, tmp_path: Path) -> None:
    sides = ("left", "right", "top", "bottom")
    write_clips(tmp_path / "v", *(f"{c}-{s}" for c in ("red", "blue", "pink", "white") for s in sides))
    options = ("-l", tmp_path / "lib", "--model", world / "model", "--device", "cpu", "--workers", 1)
    command = ("index", tmp_path / "v", *options)
    with python("-m", "prota", *command) as process:
        wait_until((tmp_path / "lib" / "library.json").exists)
        process.send_signal(signal.SIGINT)
        _, complained = process.communicate()
    assert process.returncode in (0, 130), complained
    if process.returncode == 130:
        assert "the same command resumes" in complained
    assert "bad" not in succeeds(*command)
    assert json.loads(succeeds("library", "info", "--json", "-l", tmp_path / "lib"))["segments"] == 16
    assert "intact" in succeeds("library", "verify", "-l", tmp_path / "lib")


def test_damaged_files_are_searchable_or_listed_with_a_reason(shared: Path, tmp_path: Path) -> None:
    """As `python -m tests.library.mutants` does it with 200; see docs/experiments/corrupt-files.md."""
    files = write_mutants(shared / "data" / "decode_tests", tmp_path / "videos", 12)
    outcome = index_mutants(files, tmp_path, limit=LIMIT)
    assert outcome.problems == []
    assert outcome.indexed + sum(outcome.reasons.values()) == 12
    # If all or none were bad, the test would show little.
    assert outcome.indexed
    assert outcome.reasons
    assert all("\n" not in reason for reason in outcome.reasons)
    assert "“a man”" in succeeds("search", "a man", "-l", tmp_path / "lib", "--device", "cpu")


def test_paths_below_the_present_folder_are_shown_as_one_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _short(str(tmp_path / "clips" / "a.mp4")) == str(Path("clips") / "a.mp4")
    assert _short("/elsewhere/a.mp4") == "/elsewhere/a.mp4"
