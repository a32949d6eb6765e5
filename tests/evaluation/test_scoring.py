"""Many processes score what one does, to the last bit; and where one fails, all end and one says why."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prota import Config, ProTA
from prota.cli import main
from prota.config.experiment import Experiment
from prota.data.batches import FrameBatch
from prota.data.splits import Item, Split
from prota.evaluation import report, scoring
from prota.evaluation.report import Evaluation, Measured, SystemUnderTest
from prota.runtime import ALONE, World
from tests.processes import in_processes, python

# 7 videos and 14 captions, so 4 batches and 5 blocks, or with the usual sizes one of each: less than processes.
SMALL = {"videos": 2, "texts": 3}
USUAL = {"videos": 32, "texts": 256}
CASES = {
    "plain": ("prota", [], "none", "captions", SMALL),
    "usual-sizes": ("prota", [], "none", "captions", USUAL),
    "dsl-by-videos": ("prota", [], "dsl", "videos", SMALL),
    "qbnorm": ("lda", [], "qbnorm", "captions", SMALL),
}
SIZES = (2, 3)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_left_as_it_was_where_scoring_fails(training: bool) -> None:
    class Broken:
        def read(self, video_ids: list[str]) -> None:
            raise OSError("the disk is gone")

    model = ProTA.from_config(Config.build("prota", "toy")).train(training)
    split = Split("test", (Item("a", ("a red ball",)),))
    with pytest.raises(OSError, match="the disk is gone"):
        scoring.score_split(model, Broken(), split)  # type: ignore[arg-type]
    assert model.training == training


class Clips:
    """A reader of made-up pictures, which notes in what mode the model was that asked for them."""

    def __init__(self, model: ProTA) -> None:
        self.model, self.training = model, list[bool]()

    def read(self, video_ids: list[str]) -> FrameBatch:
        self.training.append(self.model.training)
        frames = torch.randint(0, 256, (len(video_ids), 2, 32, 32, 3), dtype=torch.uint8)
        return FrameBatch(frames, torch.ones(len(video_ids), 2, dtype=torch.bool))


def test_each_caption_belongs_to_its_video_however_many_it_has() -> None:
    model = ProTA.from_config(Config.build("prota", "toy"))
    split = Split("test", (Item("a", ("one", "two", "three")), Item("b", ("four",)), Item("c", ("five", "six"))))
    scored = scoring.score_split(model, Clips(model), split)  # type: ignore[arg-type]
    assert scored.video_of_text.tolist() == [0, 0, 0, 1, 2, 2]
    assert scored.scores.shape == (6, 3)
    # Row by row as a caption alone is scored.
    alone = scoring.score_texts(model.eval(), ["five"], scored.videos)
    torch.testing.assert_close(scored.scores[4:5], alone)


def test_a_model_in_training_is_scored_as_it_will_be_used() -> None:
    """Layers that are dropped at random in training would make its validation a matter of luck."""
    model = ProTA.from_config(Config.build("prota", "toy")).train()
    reader = Clips(model)
    scoring.score_split(model, reader, Split("val", (Item("a", ("a red ball",)),)))  # type: ignore[arg-type]
    assert reader.training == [False]
    assert model.training


def evaluation(name: str, folder: Path, config: Path) -> Evaluation:
    experiment = Experiment.load(config)
    return Evaluation(SystemUnderTest.load(folder / name, experiment, torch.device("cpu")), "test")


@contextlib.contextmanager
def sizes(batches: dict[str, int]) -> Any:
    """Batches and blocks of these sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in batches.items():
            patch.setattr(scoring, f"{name.upper()}_AT_ONCE", size)
        yield


def measure(name: str, folder: Path, config: Path, world: World) -> tuple[Evaluation, Measured]:
    subject = evaluation(name, folder, config)
    with sizes(CASES[name][4]):
        return subject, subject.measure(CASES[name][2], world=world)  # type: ignore[arg-type]


def connect(name: str, rank: int, size: int, folder: Path) -> World:
    store = torch.distributed.FileStore(f"{folder}/store-{name}-{size}", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return World(rank, size, torch.device("cpu"))


def _work(rank: int, size: int, folder: Path, config: Path) -> None:
    """All cases in one process of many; the first writes down what it found."""
    torch.set_num_threads(1)
    world = connect("cases", rank, size, folder)
    for name, (_, _, normalisation, candidates, _) in CASES.items():
        subject, measured = measure(name, folder, config, world)
        if world.first:
            passport = subject.result(measured, normalisation, candidates)  # type: ignore[arg-type]
            passport.write(folder / f"{name}-{size}.json")
            np.save(folder / f"{name}-{size}.npy", measured.scored.scores.numpy())
        else:
            assert measured.scored.scores.shape == (0, 7)
    world.close()
    ends: list[str] = []
    for fail in (_unreadable, _killed):
        world = connect(fail.__name__, rank, size, folder)
        try:
            world.together(partial(fail, world))
        except (ValueError, RuntimeError) as error:
            ends.append(f"{type(error).__name__}: {error}")
        world.close()
        (folder / f"ends-{size}-{rank}.json").write_text(json.dumps(ends))


def _unreadable(world: World) -> None:
    if not world.first:
        raise ValueError(f"process {world.rank} cannot read its videos")


def _killed(world: World) -> None:
    """The last one goes without a word."""
    if world.rank == world.size - 1:
        os._exit(0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, (preset, overrides, *_) in CASES.items():
        torch.manual_seed(1)
        ProTA.from_config(Config.build(preset, "toy", ["encoder.frames=4", *overrides])).save_pretrained(folder / name)
    return folder


def test_the_audit_scores_in_single_precision(models: Path, world_config: Path) -> None:
    """Half of it rounds otherwise in a batch of another length, and an honest model would seem to leak."""
    name = next(iter(CASES))
    subject = evaluation(name, models, world_config)
    plain = subject.scorer()([0, 1], [0, 1, 2])
    subject.autocast = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    assert torch.equal(subject.scorer()([0, 1], [0, 1, 2]), plain)


@pytest.fixture(scope="module", params=SIZES)
def together(request: pytest.FixtureRequest, models: Path, world_config: Path) -> tuple[Path, int]:
    """The folder with what several processes found, and how many they were."""
    size: int = request.param
    in_processes(_work, size, size, models, world_config)
    return models, size


@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_many_processes_find_what_one_does(name: str, together: tuple[Path, int], world_config: Path) -> None:
    folder, size = together
    subject, measured = measure(name, folder, world_config, ALONE)
    alone = subject.result(measured, *CASES[name][2:4])  # type: ignore[arg-type]
    found = json.loads((folder / f"{name}-{size}.json").read_text(encoding="utf-8"))
    assert np.array_equal(np.load(folder / f"{name}-{size}.npy"), measured.scored.scores.numpy())
    expected = json.loads(json.dumps({"metrics": alone.metrics, "intervals": alone.intervals}))
    assert {key: found[key] for key in expected} == expected
    assert found["environment"]["processes"] == size
    assert found["environment"]["scored_by"] == alone.environment["scored_by"]
    assert found["normalisation"] == alone.normalisation


@pytest.mark.process
def test_where_one_fails_all_end_and_one_says_why(together: tuple[Path, int]) -> None:
    folder, size = together
    told = [json.loads((folder / f"ends-{size}-{rank}.json").read_text()) for rank in range(size)]
    first, second, *others = [[line.partition(":")[0] for line in lines] for lines in told]
    assert second[0] == "ValueError"
    assert "process 1" in told[1][0]
    assert {names[0] for names in (first, *others)} == {"OtherProcessError"}
    assert first[1] == "RuntimeError"
    assert all(names[1:] in ([], ["OtherProcessError"]) for names in (second, *others))


def free_port() -> int:
    """One of those that the system does not hand out by itself: other tests could be given it before it is used."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _say(rank: int, size: int, ports: list[int], commands: list[list[str]], folder: Path) -> None:
    """What `prota` says in one process of many, and how it ends, command after command."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    said = []
    for port, command in zip(ports, commands, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        sys.argv, out, err = ["prota", *command], io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
            main()
        # What the end of a process that failed would do.
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        said.append([out.getvalue(), err.getvalue()])
    (folder / f"said-{rank}.json").write_text(json.dumps(said))


@pytest.mark.process
def test_only_the_first_process_talks_and_writes(models: Path, world_config: Path, tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).random((5, 5))
    np.save(tmp_path / "matrix.npy", matrix)
    commands = [
        ["evaluate", str(models / "plain"), "--data", str(world_config), "--device", "cpu", "--json", f"{tmp_path}/a"],
        ["evaluate", "--scores", str(tmp_path / "matrix.npy"), "--normalisation", "dsl", "--json", f"{tmp_path}/b"],
        ["evaluate", str(tmp_path / "nothing"), "--data", str(world_config), "--device", "cpu"],
        ["evaluate", str(models / "plain"), "--data", str(world_config), "--device", "cuda:77"],
        ["evaluate", "--splat"],
    ]
    ports = [free_port() for _ in commands]
    in_processes(_say, 3, 3, ports, commands, tmp_path)
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in range(3)]
    for other in said[1:]:
        assert other == [["", ""]] * len(commands)
    model, scores, *refused = said[0]
    assert "text → video" in model[0]
    assert json.loads((tmp_path / "a").read_text())["environment"]["processes"] == 3
    alone = report.matrix_result(torch.from_numpy(matrix), torch.arange(5), source="", candidates="captions", dsl=True)
    assert json.loads((tmp_path / "b").read_text())["metrics"] == alone.metrics
    assert "dual softmax" in scores[0]
    for (out, err), part in zip(refused, ("nothing", "torch sees 0 GPUs", "--splat"), strict=True):
        assert out == ""
        assert err.startswith("prota: ")
        assert part in err
        assert err.count("\n") == 1


@pytest.mark.process
def test_torchrun_gives_the_metrics_of_one_process(models: Path, world_config: Path, tmp_path: Path) -> None:
    """As a user would, with the audit, which the first process does alone."""
    command = [
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "prota"),
        *("evaluate", models / "plain", "--data", world_config, "--device", "cpu", "--audit"),
        *("--json", tmp_path / "result.json"),
    ]
    with python(*command) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert output.count("passed") == 9
    subject = evaluation("plain", models, world_config)
    alone = subject.result(subject.measure())
    assert json.loads((tmp_path / "result.json").read_text())["metrics"] == alone.metrics
