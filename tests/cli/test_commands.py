"""The commands as a user runs them: a whole path from files to a result, and every kind of mistake in one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prota import Config
from prota.cli import main
from prota.errors import EvaluationError
from prota.evaluation.passport import Passport
from prota.evaluation.report import Evaluation
from prota.training.checkpoint import RunFolder
from tests.processes import REPOSITORY, python

pytestmark = pytest.mark.train


def prota(*arguments: object, cwd: Path = REPOSITORY, **variables: str) -> subprocess.CompletedProcess[str]:
    """What `prota` says and returns.

    In this process, which has torch loaded already; in one of its own where environment variables are given.
    """
    command, code = ["prota", *map(str, arguments)], 0
    if variables:
        with python("-m", *command, cwd=cwd, env=os.environ | {"COLUMNS": "120"} | variables) as process:
            said = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, *said)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(cwd)
        patch.setattr(sys, "argv", command)
        patch.setenv("COLUMNS", "120")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


def succeeds(*arguments: object) -> str:
    result = prota(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def run(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    said = succeeds("train", world_config, "-o", folder, "--device", "cpu")
    assert "finished 18 steps" in said
    best = RunFolder(folder).state("best")
    assert f"best on validation at step {best.best_step}: {best.best_value:.1f}" in said
    return folder


def test_check_and_prepare(world_config: Path, tmp_path: Path) -> None:
    table = succeeds("data", "check", world_config, "--json", tmp_path / "inventory.json", "--workers", 1)
    assert "train" in table
    inventory = json.loads((tmp_path / "inventory.json").read_text(encoding="utf-8"))
    assert json.dumps(inventory).count('"total": 19') == 1
    assert json.loads(succeeds("data", "check", world_config, "--json", "-", "--workers", 1)) == inventory
    arguments = ("data", "prepare", world_config, "-s", f"data.cache={tmp_path / 'cache'}", "--workers", 2)
    assert "32 decoded, 0 already cached, 0 quarantined" in succeeds(*arguments)
    (cache,) = json.loads(succeeds(*arguments, "--json"))
    assert (cache["decoded"], cache["kept"], cache["quarantined"]) == (0, 32, {})


def test_what_is_missing_is_named(world_config: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original + "gone,a clip that is not there,test\n", encoding="utf-8")
    result = prota("data", "check", world_config, "-s", f"data.captions={captions}", "--workers", 1)
    assert result.returncode == 1
    assert result.stdout.endswith("test, missing: gone\n--json FILE writes all names and reasons\n")
    cache = tmp_path / "cache"
    nothing = ("-s", f"data.videos={tmp_path}", "-s", f"data.cache={cache}")
    result = prota("data", "prepare", world_config, *nothing, "--workers", 1)
    assert (result.returncode, cache.exists()) == (1, False)
    assert f"prota: none of the 32 videos is in {tmp_path}" in result.stderr
    result = prota("data", "check", world_config, "-s", "data.captions=nowhere.csv", "--workers", 1)
    assert f"nowhere.csv does not exist: relative paths start at the working directory, {REPOSITORY}" in result.stderr


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"prota \S+, Python 3\.\d+\.\d+, torch \S+\n", succeeds("--version"))


def test_scores_are_saved_under_the_name_that_was_given(run: Path, tmp_path: Path) -> None:
    succeeds(
        "evaluate", run, "--device", "cpu", "--json", tmp_path / "r.json", "--save-scores", tmp_path / "scores.txt"
    )
    assert np.load(tmp_path / "scores.txt").shape == (14, 7)


def test_evaluate_writes_a_passport(run: Path) -> None:
    output = succeeds("evaluate", run, "--device", "cpu", "--audit")
    assert "best on validation" in output
    assert "FAILED" not in output
    assert output.count("passed") == 9
    passport = json.loads((run / "results" / "test.json").read_text(encoding="utf-8"))
    assert passport["queries"] == 14
    assert passport["videos"] == 7
    assert len(passport["split_hash"]) == 64
    best = RunFolder(run).state("best")
    assert passport["checkpoint"]["rule"] == f"best on validation at step {best.best_step}"
    assert passport["checkpoint"]["step"] == best.best_step
    assert passport["checkpoint"]["missing"] == {"train": 0, "val": 0}
    assert passport["environment"]["hardware"]["device"] == "cpu"
    assert passport["environment"]["hardware"]["gpu"] is None
    assert passport["config"]["encoder"]["kind"] == "toy"
    assert passport["missing"] == []


def test_another_measurement_has_another_name(run: Path, world_config: Path, tmp_path: Path) -> None:
    """Other captions, or fewer videos, of the same file: no result replaces another."""
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original + "gone,a clip that is not there,test\n", encoding="utf-8")

    def name(*arguments: object) -> str:
        said = succeeds("evaluate", run, "--data", world_config, "--device", "cpu", *arguments)
        return Path(said.rsplit("result: ", 1)[1].strip()).name

    less = ("-s", f"data.captions={captions}", "--allow-missing", 3)
    # Files of one name may lie in several folders.
    copy = tmp_path / world_config.name
    copy.write_text(world_config.read_text(encoding="utf-8"), encoding="utf-8")
    elsewhere = Path(succeeds("evaluate", run, "--data", copy, "--device", "cpu").rsplit("result: ", 1)[1].strip()).name
    assert re.fullmatch(r"test-experiment-[0-9a-f]{8}\.json", elsewhere)
    plain = name().removeprefix("test-").removesuffix(".json")
    assert elsewhere != name() == name("--allow-missing", 3)
    seeds = [name("-s", "train.seed=3"), name("-s", "train.seed = 3"), name("-s", "train.seed=4")]
    assert re.fullmatch(rf"test-{plain}-set-[0-9a-f]{{8}}\.json", seeds[0])
    assert seeds[0] == seeds[1] != seeds[2]
    assert re.fullmatch(rf"test-{plain}-set-[0-9a-f]{{8}}-missing-1\.json", name(*less))


def test_normalisation_is_named(run: Path, tmp_path: Path) -> None:
    said = "query bank of 19 training captions"
    assert said in succeeds("evaluate", run, "--normalisation", "qbnorm", "--device", "cpu")
    passport = json.loads((run / "results" / "test-qbnorm.json").read_text(encoding="utf-8"))
    assert said in passport["normalisation"]
    np.save(tmp_path / "scores.npy", np.random.default_rng(0).random((5, 5)))
    assert "dual softmax" in succeeds("evaluate", "--scores", tmp_path / "scores.npy", "--normalisation", "dsl")


def test_either_backend_gives_the_same_result(run: Path, tmp_path: Path) -> None:
    found = {}
    for backend in ("reference", "auto"):
        result = tmp_path / f"{backend}.json"
        succeeds("evaluate", run, "--device", "cpu", "--backend", backend, "--json", result)
        found[backend] = Passport.read(result)
    assert found["reference"].environment["scored_by"] == ["reference"]
    assert found["auto"].environment["scored_by"] == ["cpu"]
    assert found["auto"].metrics == found["reference"].metrics
    refused = prota("evaluate", run, "--device", "cpu", "--backend", "gpu")
    assert refused.returncode == 2
    assert "'gpu' is not one of" in refused.stderr


def test_any_systems_scores_are_evaluated(run: Path, tmp_path: Path) -> None:
    """A model's own matrix gives the model's own metrics."""
    matrix, result, own = (tmp_path / name for name in ("scores.npy", "result.json", "own.json"))
    succeeds("evaluate", run, "--save-scores", matrix, "--device", "cpu", "--split", "val", "--json", own)
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps([video for video in range(6) for _ in range(2)]))
    succeeds("evaluate", "--scores", matrix, "--targets", targets, "--json", result)
    ours, given = (json.loads(path.read_text(encoding="utf-8")) for path in (own, result))
    assert ours["metrics"] == given["metrics"]
    assert ours["intervals"] == given["intervals"]
    printed = json.loads(succeeds("evaluate", "--scores", matrix, "--targets", targets, "--json", "-"))
    assert printed["metrics"] == given["metrics"]
    assert given["checkpoint"] is None


def test_no_number_is_cut_in_a_narrow_window(tmp_path: Path) -> None:
    """Ranks and recalls of many digits, as a pipe shows them."""
    matrix, result = tmp_path / "scores.npy", tmp_path / "result.json"
    np.save(matrix, np.random.default_rng(0).random((1500, 1500)))
    said = prota("evaluate", "--scores", matrix, "--json", result, COLUMNS="40").stdout
    for direction in Passport.read(result).intervals.values():
        for metric in ("r1", "r5", "r10", "median_rank", "mean_rank"):
            low, high = direction[metric]
            assert f"{low:.1f}–{high:.1f}" in said
    assert "…" not in said


def test_the_scores_outlast_what_fails_later(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EvaluationError("no result today")

    monkeypatch.setattr(Evaluation, "result", fail)
    matrix = tmp_path / "new" / "scores.npy"
    failed = prota("evaluate", run, "--save-scores", matrix, "--device", "cpu")
    assert (failed.returncode, failed.stderr.count("no result today")) == (1, 1)
    assert np.load(matrix).shape == (14, 7)


def test_ablate_goes_on_where_it_stopped(world_config: Path, tmp_path: Path) -> None:
    arguments = ("ablate", world_config, "-o", tmp_path, "--seeds", 2, "-s", "train.epochs=1", "--device", "cpu")
    table = succeeds(*arguments, "--row", "lda", "--row", "prota")
    assert "46.5" in table
    for row in ("lda", "prota"):
        trained, expected = RunFolder(tmp_path / row / "seed-1").experiment(), Config.build(row, "toy")
        assert (trained.score, trained.loss) == (expected.score, expected.loss)
        assert trained.train.seed == 1
    results = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("result.json"))
    assert results == [f"{row}/seed-{seed}/result.json" for row in ("lda", "prota") for seed in range(2)]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert succeeds(*arguments, "--row", "lda", "--row", "prota") == table
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before
    found = json.loads(succeeds(*arguments, "--row", "lda", "--json"))
    assert [sorted(metrics) for metrics in found["rows"]["lda"]] == [["text_to_video", "video_to_text"]] * 2
    changed = prota(*arguments, "--row", "lda", "-s", "train.lr_new=0.1")
    assert changed.returncode == 2
    assert "train.lr_new: 0.001 → 0.1" in changed.stderr
    refused = prota(*arguments, "--row", "lda", "-s", "score.lambda_=50")
    assert refused.returncode == 2
    assert "score.lambda_ cannot be overridden: it distinguishes the rows of an ablation" in refused.stderr


def test_what_was_trained_on_is_no_test(run: Path, world_config: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original.replace(",train", ",TEST").replace(",test", ",train").replace(",TEST", ",test"))
    result = prota("evaluate", run, "--data", world_config, "-s", f"data.captions={captions}", "--device", "cpu")
    assert result.returncode == 1
    assert "19 of the 19 test videos were trained on" in result.stderr


def test_missing_videos_need_permission(world_config: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    gone = "gone,a clip that is not there,train\nlost,another,val\nlost-too,a third,val\n"
    captions.write_text(original + gone, encoding="utf-8")
    arguments = ("train", world_config, "-s", f"data.captions={captions}", "-s", "train.epochs=1", "--device", "cpu")
    result = prota(*arguments, "-o", tmp_path / "run")
    assert result.returncode == 1
    assert "--allow-missing" in result.stderr
    assert "gone" in result.stderr
    trained = json.loads(succeeds(*arguments, "-o", tmp_path / "run", "--allow-missing", 2, "--json"))
    assert (trained["finished"], trained["step"], trained["steps"]) == (True, 6, 6)
    # What the model was trained without is in the passport of the run, and of a checkpoint alone.
    result, folder = tmp_path / "result.json", RunFolder(tmp_path / "run").checkpoint("best")
    for evaluated in ([tmp_path / "run"], [folder, "--data", world_config]):
        said = succeeds("evaluate", *evaluated, "--device", "cpu", "--json", result)
        assert "trained without 1 train items and 2 val items that were missing" in said
        passport = json.loads(result.read_text(encoding="utf-8"))
        assert passport["checkpoint"]["missing"] == {"train": 1, "val": 2}
        assert passport["checkpoint"]["step"] == 6
        assert passport["missing"] == []


def test_features_of_a_frozen_tower_show_their_progress(world_config: Path, tmp_path: Path) -> None:
    arguments = ("train", world_config, "-s", "train.lr_vision=0", "-s", "train.epochs=1", "--device", "cpu")
    result = prota(*arguments, "-o", tmp_path / "run", FORCE_COLOR="1")
    assert result.returncode == 0, result.stderr
    assert "features of the frozen tower" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train", "nowhere.toml", "-o", "RUN"], 2, "cannot read the config file nowhere.toml"),
        (["train", "CONFIG", "-o", "RUN", "-s", "score.xi=0"], 2, "score.xi must be"),
        (["train", "CONFIG", "-o", "RUN", "-s", "score.zeta=1"], 2, "score.zeta is not a setting"),
        (["train", "CONFIG", "-o", "RUN", "-s", f"train.seed={2**63}"], 2, "train.seed must be less than"),
        (["train", "CONFIG", "-o", "RUN", "-s", "data.captions=gone.csv"], 1, "gone.csv"),
        (["train", "CONFIG", "-o", "RUN", "-s", "data.cache=gone"], 1, "gone"),
        (["train", "CONFIG", "-o", "RUN", "--device", "abacus"], 2, "allowed: auto, cpu, cuda"),
        (["train", "CONFIG", "-o", "RUN", "-s", "data.cache="], 2, "data.cache is not set"),
        (["train", "CONFIG", "-o", "RUN", "-s", "encoder.width=30"], 2, "encoder.width=30 must be a multiple"),
        (["evaluate", "RUN", "-s", "train.seed=1"], 2, "--data CONFIG"),
        (["calibrate", "RUN", "-s", "train.seed=1"], 2, "--data CONFIG"),
        (["evaluate"], 2, "--scores FILE"),
        (["evaluate", "nowhere", "--device", "cpu"], 1, "nowhere"),
        (["evaluate", "--scores", "gone.npy"], 1, "prota: gone.npy: no such file"),
        (["evaluate", "RUN", "--split", "exam"], 2, "'exam' is not one of 'test', 'val', 'train'"),
        (["train", "CONFIG", "-o", "TEXT"], 1, "text.npy"),
        (
            ["train", "CONFIG", "-o", "RUN", "-s", "train.epochs=x"],
            2,
            "train.epochs must be a valid integer",
        ),
        (["evaluate", "--scores", "WIDE"], 1, "not square"),
        (["evaluate", "--scores", "TEXT"], 1, "is not a .npy file of numbers"),
        (["evaluate", "--scores", "NAN"], 1, "NaN or infinity"),
        (["evaluate", "--scores", "WORDS"], 1, "is not a .npy file of numbers"),
        (["train", "CONFIG", "-o", "RUN", "--device", "cuda"], 2, "GPUs; use auto or cpu"),
        (["evaluate", "--scores", "WIDE", "--audit"], 2, "need MODEL"),
        (["ablate", "CONFIG", "-o", "RUN", "--row", "magic"], 2, "no row magic in main"),
        (["evaluate", "--scores", "WIDE", "--save-scores", "out.npy"], 2, "need MODEL"),
        (["evaluate", "RUN", "--targets", "WIDE"], 2, "--targets needs --scores"),
        (["data", "prepare", "CONFIG", "-s", "data.cache="], 2, "data.cache is not set"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistakes_get_one_line(arguments: list[str], code: int, said: str, world_config: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((3, 2)))
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    (tmp_path / "text.npy").write_text("not an array")
    names = {
        "CONFIG": world_config,
        "RUN": tmp_path / "run",
        "WIDE": tmp_path / "wide.npy",
        "NAN": tmp_path / "nan.npy",
        "TEXT": tmp_path / "text.npy",
        "WORDS": tmp_path / "words.npy",
    }
    result = prota(*(names.get(argument, argument) for argument in arguments), cwd=tmp_path)
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, contextlib; sys.argv = ['prota', 'train', '--help']\n"
        "from prota.cli import app\n"
        "with contextlib.suppress(SystemExit):\n    app()\n"
        "print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert "--set" in result.stdout
    assert result.stdout.strip().endswith("False")


def test_ctrl_c_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("prota.samples.copying.copy_samples", interrupt)
    said = prota("samples", tmp_path / "clips")
    assert (said.returncode, said.stdout) == (130, "")
    assert said.stderr.splitlines()[-1] == "prota: interrupted; existing data is unchanged"
    monkeypatch.setenv("RANK", "1")
    assert prota("samples", tmp_path / "clips").stderr.splitlines()[-1:] != said.stderr.splitlines()[-1:]
