"""Whole runs on generated clips: learning, stopping, killing, resuming, ranks, and bad losses."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.encoders.text import HashTokenizer, TextBatch
from prota.evaluation.report import SystemUnderTest
from prota.losses import MAX_LOGIT_SCALE
from prota.runs import find_checkpoint
from prota.runtime import World
from prota.training import trainer as trainer_module
from prota.training.checkpoint import RunFolder
from prota.training.trainer import NonFiniteLossError, TrainingLoop, layers_of
from tests.cli.test_commands import succeeds
from tests.processes import python, wait_until
from tests.tiny_models import pair_config
from tests.training.runs import ALONE, TERMS, curve, log, train, trained, weights

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def uninterrupted(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(world_config, run)
    return run


def test_a_run_learns_and_leaves_its_record(uninterrupted: Path, world_config: Path) -> None:
    records = [record for record in log(uninterrupted) if "total" in record]
    assert [record["step"] for record in records] == list(range(1, 1 + len(records)))
    assert records[-1]["total"] < records[0]["total"]
    for name in (*TERMS, "lr/head", "lr/temporal transformer", "items_per_second", "data_wait", "gradient_norm"):
        assert name in records[0]
    validations = [record["validation"] for record in log(uninterrupted) if "validation" in record]
    assert len(validations) == 3
    pointers = RunFolder(uninterrupted).pointers()
    assert pointers.keys() == {"last", "best"}
    assert sorted(path.name for path in uninterrupted.glob("step-*")) == sorted(set(pointers.values()))
    assert RunFolder(uninterrupted).experiment() == Experiment.load(world_config)


@pytest.mark.parametrize("stop_after", [1, 4, 6])
def test_a_stopped_run_goes_on_exactly(
    uninterrupted: Path, world_config: Path, stop_after: int, tmp_path: Path
) -> None:
    """Stopped in an epoch, at its end, and after it; the resumed run equals the uninterrupted one, step for step."""
    train(world_config, tmp_path / "run", stop_after=stop_after)
    assert len(curve(tmp_path / "run")) == stop_after
    train(world_config, tmp_path / "run")
    assert curve(tmp_path / "run") == curve(uninterrupted)
    for name, value in weights(uninterrupted).items():
        assert torch.equal(weights(tmp_path / "run")[name], value), name


KILLED = """
import os, signal, sys
from prota.config.experiment import Experiment
from prota.losses import MAX_LOGIT_SCALE
from prota.training.checkpoint import RunFolder
from prota.training.trainer import TrainingLoop
from tests.training.runs import ALONE, curve
run = RunFolder(sys.argv[2])
experiment = Experiment.load(sys.argv[1])
run.claim(experiment)
TrainingLoop(experiment, run, ALONE).fit(
    should_stop=lambda: len(curve(run.path)) == 8 and os.kill(os.getpid(), signal.SIGKILL)
)
"""


def test_a_killed_run_goes_on_exactly(uninterrupted: Path, world_config: Path, tmp_path: Path) -> None:
    """kill -9 after some steps of the second epoch: what was not saved is repeated, and nothing differs."""
    run = tmp_path / "run"
    with python("-c", KILLED, world_config, run) as process:
        assert process.wait() == -signal.SIGKILL
    assert RunFolder(run).state("last").step == 6
    assert "finished" in succeeds("train", world_config, "--out", run, "--device", "cpu")
    assert curve(run) == curve(uninterrupted)
    for name, value in weights(uninterrupted).items():
        assert torch.equal(weights(run)[name], value), name


@pytest.mark.parametrize("told", [(signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM)])
def test_who_is_told_to_stop_saves_and_says_how_to_go_on(
    world_config: Path, tmp_path: Path, told: tuple[signal.Signals, ...]
) -> None:
    """Twice at once, too: schedulers tell every process, and torchrun tells its own again."""
    run = tmp_path / "run"
    options = ("-o", run, "-s", "train.epochs=5000", "--device", "cpu")
    with python("-m", "prota", "train", world_config, *options) as process:
        wait_until((run / "log.jsonl").exists)
        for number in told:
            process.send_signal(number)
            time.sleep(0.1)
        output, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "the same command resumes" in output
    assert "Traceback" not in errors
    assert RunFolder(run).checkpoint("last") is not None


def test_two_ranks_give_the_same_curve(world_config: Path, tmp_path: Path) -> None:
    """With crops, mirrors and an average too: what is done to a video does not depend on who does it."""
    run, augmented = tmp_path / "run", ["train.crop=0.75", "train.ema=0.9"]
    train(world_config, tmp_path / "alone", *augmented)
    command = [
        *("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
        *("-m", "prota", "train", world_config, "--out", run, "--device", "cpu"),
        *(part for override in augmented for part in ("-s", override)),
    ]
    with python(*command) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    ours, alone = curve(run), curve(tmp_path / "alone")
    assert len(ours) == len(alone)
    for two, one in zip(ours, alone, strict=True):
        # fp32 sums in another order; the curve is the same to its rounding.
        assert two == pytest.approx(one, rel=2e-4, abs=1e-6)
    for read in (weights, trained):
        expected = read(tmp_path / "alone")
        for name, value in read(run).items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=2e-3, msg=name)


def test_micro_batches_give_the_same_curve(uninterrupted: Path, world_config: Path, tmp_path: Path) -> None:
    train(world_config, tmp_path / "run", "train.micro_batch=2")
    for micro, whole in zip(curve(tmp_path / "run"), curve(uninterrupted), strict=True):
        assert micro == pytest.approx(whole, rel=2e-4, abs=1e-6)


def test_features_of_a_frozen_tower_change_nothing(
    world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen tower's features are computed once instead of each time."""
    frozen = ["train.lr_vision=0", "train.epochs=1"]
    trainer = train(world_config, tmp_path / "once", *frozen)
    assert trainer.features is not None
    monkeypatch.setattr(TrainingLoop, "_read_features", lambda *_: None)
    assert train(world_config, tmp_path / "always", *frozen).features is None
    for once, always in zip(curve(tmp_path / "once"), curve(tmp_path / "always"), strict=True):
        assert once == pytest.approx(always, rel=1e-4)


def test_checkpoints_change_no_result(
    uninterrupted: Path, world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "CHECKPOINT_STEPS", 2)
    train(world_config, tmp_path / "run")
    for ours, plain in zip(curve(tmp_path / "run"), curve(uninterrupted), strict=True):
        assert ours == pytest.approx(plain, rel=1e-5, abs=1e-7)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_layers_give_the_same_curve(uninterrupted: Path, world_config: Path, tmp_path: Path) -> None:
    trainer = train(world_config, tmp_path / "run", "train.compile=true", stop_after=4)
    towers = (trainer.model.text_encoder.tower.model, trainer.model.video_encoder.tower.model)
    assert all(layer._compiled_call_impl is not None for tower in towers for layer in layers_of(tower))
    for ours, plain in zip(curve(tmp_path / "run"), curve(uninterrupted), strict=False):
        assert ours == pytest.approx(plain, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.captions_per_video=1", "train.crop=0.5", "train.frames=2"],
        ["data.dilution=2", "loss.label_smoothing=0.1"],
        ["train.captions_per_video=2", "loss.soft_targets=0.3"],
        ["train.crop=0.5", "train.mixing=0.5"],
    ],
)
def test_every_way_of_training_runs(world_config: Path, overrides: list[str], tmp_path: Path) -> None:
    train(world_config, tmp_path / "run", "train.epochs=1", *overrides)
    values = [value for terms in curve(tmp_path / "run") for value in terms]
    assert all(map(torch.isfinite, torch.tensor(values)))
    # It would make a plan for each new number of frames.
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_loss_that_is_no_number_stops_with_its_videos(world_config: Path, tmp_path: Path) -> None:
    experiment = Experiment.load(world_config)
    run = RunFolder(tmp_path / "run")
    run.claim(experiment)
    trainer = TrainingLoop(experiment, run, ALONE)
    with torch.no_grad():
        trainer.model.logit_scale.fill_(float("nan"))
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan at step 0; .* batch on rank 0: \w+-\w+"):
        trainer.fit()
    assert run.checkpoint("last") is None


def test_a_gradient_that_is_no_number_is_not_learned(
    world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "CHECKPOINT_STEPS", 1)
    experiment = Experiment.load(world_config)
    run = RunFolder(tmp_path / "run")
    run.claim(experiment)
    trainer = TrainingLoop(experiment, run, ALONE)
    trainer.model.video_encoder.tower.projection.weight.register_hook(lambda gradient: gradient * float("nan"))
    before = trainer.model.logit_scale.item()
    with pytest.raises(NonFiniteLossError, match=r"the gradient's norm is nan at step 0"):
        trainer.fit()
    assert trainer.model.logit_scale.item() == before
    assert run.checkpoint("last") is None


def test_gradients_and_the_temperature_keep_to_their_limits(world_config: Path, tmp_path: Path) -> None:
    model = train(world_config, tmp_path / "run", "encoder.logit_scale=1000", stop_after=1).model
    assert log(tmp_path / "run")[0]["gradient_norm"] > 1
    gradients = [value.grad.flatten() for value in model.parameters() if value.grad is not None]
    assert float(torch.cat(gradients).norm()) == pytest.approx(1, rel=1e-3)
    assert float(model.logit_scale.detach().exp()) == pytest.approx(MAX_LOGIT_SCALE, rel=1e-4)


def test_checkpoints_between_validations_fall_on_any_step(
    world_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "CHECKPOINT_STEPS", 6)
    saved = []
    experiment = Experiment.load(world_config, ["train.validate_epochs=3"])
    run = RunFolder(tmp_path / "run")
    run.claim(experiment)
    original = run.save

    def save(model: Any, optimiser: Any, state: Any, **others: Any) -> Path:
        saved.append(state.step)
        return original(model, optimiser, state, **others)

    run.save = save  # type: ignore[method-assign]
    TrainingLoop(experiment, run, ALONE).fit()
    assert saved == [6, 12, 18]


def test_a_second_process_in_a_run_folder_is_refused(world_config: Path, tmp_path: Path) -> None:
    experiment = Experiment.load(world_config)
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.claim(experiment)
    with pytest.raises(ValueError, match="another process is training in"):
        second.claim(experiment)
    first.release()
    second.claim(experiment)


def test_missing_test_videos_are_refused_before_training(world_config: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original + "gone,a clip that is not there,test\n", encoding="utf-8")
    with pytest.raises(ValueError, match="--allow-missing"):
        train(world_config, tmp_path / "run", f"data.captions={captions}")


def test_what_is_missing_is_recorded_and_must_stay_missing(world_config: Path, tmp_path: Path) -> None:
    """A run that finds other videos when it goes on would have other batches: it is refused."""
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original + "gone,not there,train\nlost,not there either,val\n", encoding="utf-8")
    run, settings = tmp_path / "run", (f"data.captions={captions}", "train.epochs=1")
    train(world_config, run, *settings, stop_after=2, allow_missing=1)
    assert RunFolder(run).state("last").missing == {"train": 1, "val": 1}
    captions.write_text(original + "lost,not there either,val\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"from 1 train videos and 1 val videos to 0 train videos and 1 val"):
        train(world_config, run, *settings, allow_missing=1)
    captions.write_text(original + "gone,not there,train\nlost,not there either,val\n", encoding="utf-8")
    train(world_config, run, *settings, allow_missing=1)
    assert RunFolder(run).state("best").missing == {"train": 1, "val": 1}


def test_other_data_than_a_run_began_with_is_refused(world_config: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.csv"
    original = (world_config.parent / "captions.csv").read_text(encoding="utf-8")
    captions.write_text(original, encoding="utf-8")
    run, settings = tmp_path / "run", (f"data.captions={captions}", "train.epochs=1")
    train(world_config, run, *settings, stop_after=2)
    lines = original.splitlines()
    others = ["".join(f"{line}\n" for line in lines if not line.endswith(",val"))]
    for split in ("train", "val"):
        line = next(line for line in lines if line.endswith(f",{split}"))
        others.append(original.replace(line, f"{line.split(',')[0]},something else,{split}"))
    for other in others:
        captions.write_text(other, encoding="utf-8")
        with pytest.raises(ValueError, match="captions or videos have changed"):
            train(world_config, run, *settings)
        RunFolder(run).release()
    captions.write_text(original, encoding="utf-8")
    train(world_config, run, *settings)
    assert find_checkpoint(run)[2] is not None
    SystemUnderTest.load(run, None, torch.device("cpu"))
    # A video that was learned from is called a test video now.
    video = next(line for line in lines if line.endswith(",train")).split(",")[0]
    moved = "\n".join(line.replace(",train", ",test") if line.startswith(video) else line for line in lines)
    captions.write_text(moved + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot check train/test overlap"):
        SystemUnderTest.load(run, None, torch.device("cpu"))


def test_an_attempt_that_failed_does_not_take_the_folder(world_config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.cache is not set"):
        train(world_config, tmp_path / "run", "data.cache=")
    train(world_config, tmp_path / "run", "train.epochs=1")
    assert RunFolder(tmp_path / "run").experiment().train.epochs == 1


def test_what_is_measured_before_the_first_step_is_not_random(
    world_config: Path, dinov2_folder: Path, bert_folder: Path, tmp_path: Path
) -> None:
    towers = pair_config(dinov2_folder, bert_folder, "encoder.frames=4")
    experiment = Experiment(**Experiment.load(world_config).model_dump() | towers.model_dump())
    trainer = TrainingLoop(experiment, RunFolder(tmp_path / "run"), ALONE)
    for module in trainer.model.video_encoder.tower.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    means = []
    for _ in range(2):
        trainer.model.train()
        trainer._begin()
        means.append(trainer.model.video_encoder.tower.feature_mean.clone())
    assert torch.equal(*means)
    assert bool(means[0].any())


def test_texts_are_tokenised_by_the_thread_that_reads(world_config: Path, tmp_path: Path) -> None:
    """So that the time is spent beside the step, and counted as waiting where it is not."""
    experiment = Experiment.load(world_config, ["train.epochs=1"])
    run = RunFolder(tmp_path / "run")
    run.claim(experiment)
    trainer = TrainingLoop(experiment, run, ALONE)
    tokenizer, threads = trainer.model.text_encoder.tokenizer, list[tuple[int, bool]]()

    class Watched(HashTokenizer):
        def __call__(self, texts: Sequence[str], length: int) -> TextBatch:
            threads.append((len(texts), threading.current_thread() is threading.main_thread()))
            return super().__call__(texts, length)

    trainer.model.text_encoder.tokenizer = Watched(tokenizer.size)
    trainer.fit()
    # Six batches of six beside the steps; then the twelve captions of validation, with no step to wait.
    assert threads == [(6, False)] * 6 + [(12, True)]


class Told:
    """A reporter that takes down how far the features are."""

    def __init__(self) -> None:
        self.features: list[tuple[int, int]] = []

    def computed(self, done: int, total: int) -> None:
        self.features.append((done, total))

    def started(self, *_: object) -> None: ...

    def stepped(self, record: dict[str, Any]) -> None: ...

    def validated(self, record: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("rank", [0, 1])
def test_features_are_reported_by_the_first_rank_alone(rank: int, world_config: Path, tmp_path: Path) -> None:
    experiment, report = Experiment.load(world_config, ["train.lr_vision=0"]), Told()
    TrainingLoop(experiment, RunFolder(tmp_path), World(rank, 2, torch.device("cpu")), report=report)
    told = report.features
    assert told == sorted(told)
    assert [told[0], told[-1]] == [(0, 25), (25, 25)] if rank == 0 else not told


def test_the_best_step_is_told(uninterrupted: Path, world_config: Path) -> None:
    experiment = Experiment.load(world_config)
    best = max((record for record in log(uninterrupted) if "validation" in record), key=lambda r: r["value"])
    # Finished already: fit has nothing left to do but to say how it stands.
    result = TrainingLoop(experiment, RunFolder(uninterrupted), ALONE).fit()
    assert (result.finished, result.steps, result.state.step) == (True, 18, 18)
    assert (result.state.best_step, result.state.best_value) == (best["step"], best["value"])
    assert find_checkpoint(uninterrupted)[1] == f"best on validation at step {best['step']}"


def test_other_settings_in_a_run_folder_are_refused(uninterrupted: Path, world_config: Path) -> None:
    with pytest.raises(ValueError, match=r"other settings \(train\.seed: 0 → 5\); use the same settings"):
        train(world_config, uninterrupted, "train.seed=5")


def test_what_cannot_be_trained_is_refused(world_config: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.batch_size=64 exceeds the 19 training videos"):
        train(world_config, tmp_path / "a", "train.batch_size=64")
    with pytest.raises(ValueError, match=r"encoder\.frames=5, but the frame cache .* was filled with 4"):
        train(world_config, tmp_path / "b", "encoder.frames=5")
    experiment = Experiment.load(world_config)
    with pytest.raises(ValueError, match=r"train\.batch_size=6 must be a multiple of the 4 processes"):
        TrainingLoop(experiment, RunFolder(tmp_path / "c"), World(0, 4, torch.device("cpu")))


def test_training_never_reads_the_test_split(world_config: Path, tmp_path: Path) -> None:
    """With the test clips' frames gone, a run is the same."""
    experiment = Experiment.load(world_config)
    run = RunFolder(tmp_path / "run")
    run.claim(experiment)
    trainer = TrainingLoop(experiment, run, ALONE)
    assert not any("test" in name for name in vars(trainer))
    seen: list[str] = []
    cache = trainer.main.reader.cache
    original = cache.frames
    cache.frames = lambda video_id: (seen.append(video_id), original(video_id))[1]  # type: ignore[method-assign]
    trainer.fit()
    assert trainer.val_split is not None
    assert set(seen) == {item.video_id for split in (trainer.main.split, trainer.val_split) for item in split.items}
