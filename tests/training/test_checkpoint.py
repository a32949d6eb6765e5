"""Checkpoints: whole or not there, last and best kept, the same step saved twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from prota import Config, ProTA
from prota.config.base import ConfigError
from prota.config.experiment import Experiment
from prota.files import publish
from prota.runs import TrainingState
from prota.training.averaging import WeightAverage
from prota.training.checkpoint import RunFolder


def make(path: Path) -> tuple[RunFolder, ProTA, torch.optim.Optimizer]:
    path.mkdir(exist_ok=True)
    model = ProTA.from_config(Config.build("dpa", "toy"))
    return RunFolder(path), model, torch.optim.AdamW(model.parameters())


def folders(run: RunFolder) -> list[str]:
    return sorted(path.name for path in run.path.iterdir() if path.is_dir())


def test_last_and_best_are_kept_and_no_other(tmp_path: Path) -> None:
    run, model, optimiser = make(tmp_path)
    for step, best in ((1, False), (2, True), (3, False), (4, False)):
        run.save(model, optimiser, TrainingState(step, 0), best=best)
    assert folders(run) == ["step-00000002", "step-00000004"]
    assert run.state("best").step == 2
    assert run.state("last").step == 4


def test_a_step_saved_again_replaces_what_was_known_of_it(tmp_path: Path) -> None:
    """Stopped at the end of an epoch, resumed, validated: the same step, and now a best one."""
    run, model, optimiser = make(tmp_path)
    run.save(model, optimiser, TrainingState(5, epoch=0), best=False)
    run.save(model, optimiser, TrainingState(5, epoch=1, best_value=40.0, best_step=5), best=True)
    assert run.restore(model, optimiser) == TrainingState(5, 1, 40.0, 5)
    assert len(folders(run)) == 1


@pytest.mark.parametrize("moment", ["publish", "write_atomically", "shutil.rmtree"])
def test_a_saving_that_ends_early_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run, model, optimiser = make(tmp_path)
    run.save(model, optimiser, TrainingState(1, 0), best=True)

    def end(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        target = (
            "prota.training.checkpoint.shutil.rmtree" if moment == "rmtree" else f"prota.training.checkpoint.{moment}"
        )
        patch.setattr(target, end)
        with pytest.raises(KeyboardInterrupt):
            run.save(model, optimiser, TrainingState(2, 0), best=True)
    assert run.restore(model, optimiser) == TrainingState(1, 0)
    run.save(model, optimiser, TrainingState(2, 0), best=True)
    assert run.restore(model, optimiser) == TrainingState(2, 0)
    assert len(folders(run)) == 1


def test_a_run_that_names_a_removed_setting_is_continued_where_that_had_its_default(tmp_path: Path) -> None:
    experiment = Experiment.build("prota", "toy")
    run = RunFolder(tmp_path)
    run.claim(experiment)
    file = tmp_path / "experiment.toml"
    saved = file.read_text(encoding="utf-8")
    assert "[score]\n" in saved
    (tmp_path / "checkpoints.json").write_text('{"last": "step-00000001"}', encoding="utf-8")
    file.write_text(saved.replace("[score]\n", '[score]\nbandwidth = "fixed"\n'), encoding="utf-8")
    run.release()
    run.claim(experiment)
    assert run.experiment() == experiment
    file.write_text(saved.replace("[score]\n", '[score]\nbandwidth = "batch"\n'), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        run.experiment()
    assert str(caught.value) == f"{file}: score.bandwidth was removed: must be 'fixed', got 'batch'"


@pytest.mark.parametrize("bytes_left", [200, 20_000, 2_000_000])
def test_a_full_disk_is_one_line_and_costs_no_checkpoint(tmp_path: Path, bytes_left: int) -> None:
    """No file may be longer, as on a disk with that little left: the settings, the weights or the optimiser fail."""
    resource = pytest.importorskip("resource")
    run, model, optimiser = make(tmp_path)
    model.logit_scale.grad = torch.ones_like(model.logit_scale)
    optimiser.step()
    run.save(model, optimiser, TrainingState(1, 0), best=True)
    largest = max(path.stat().st_size for path in (tmp_path / "step-00000001").iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(bytes_left, largest - 1), before[1]))
    try:
        with pytest.raises(ValueError, match=r"cannot write the checkpoint of step 2 \(.*repeat the command") as caught:
            run.save(model, optimiser, TrainingState(2, 0), best=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000001"]
    assert run.restore(model, optimiser) == TrainingState(1, 0)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("torch.save", RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0\nmore")),
        ("write_atomically", OSError(28, "No space left on device")),
    ],
)
def test_what_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    run, model, optimiser = make(tmp_path)

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"prota.training.checkpoint.{what}", fail)
    with pytest.raises(ValueError, match=r"checkpoint of step 7 \((No space left|\[enforce).*disk full\?") as caught:
        run.save(model, optimiser, TrainingState(7, 0), best=True)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_average_is_the_model_and_training_goes_on_beside_it(tmp_path: Path) -> None:
    run, model, optimiser = make(tmp_path)
    average = WeightAverage(model, 0.9)
    with torch.no_grad():
        model.logit_scale.add_(1.0)
    average.update(1)
    trained = model.logit_scale.item()
    folder = run.save(model, optimiser, TrainingState(1, 0), best=True, average=average)
    assert model.logit_scale.item() == trained
    saved = ProTA.from_pretrained(folder)
    assert trained - 1 < saved.logit_scale.item() < trained
    _, other, its_optimiser = make(tmp_path)
    its_average = WeightAverage(other, 0.9)
    assert run.restore(other, its_optimiser, its_average) == TrainingState(1, 0)
    assert other.logit_scale.item() == trained
    with its_average.applied():
        assert other.logit_scale.item() == saved.logit_scale.item()


def test_a_state_is_read_from_its_folder(tmp_path: Path) -> None:
    run, model, optimiser = make(tmp_path)
    state = TrainingState(3, 1, 40.0, 2, {"train": 4, "val": 0})
    folder = run.save(model, optimiser, state, best=False)
    assert TrainingState.read(folder) == run.state("last") == state
    assert TrainingState.read(tmp_path) is None
    # As it was written before missing items were counted.
    (folder / "state.json").write_text('{"step": 3, "epoch": 1, "best_value": 40.0, "best_step": 2}', encoding="utf-8")
    assert run.state("last") == TrainingState(3, 1, 40.0, 2)
    kinds = (
        '{"step": "3", "epoch": 1}',
        '{"step": 3, "epoch": 1, "missing": 5}',
        '{"step": 3, "epoch": 1, "data": [1]}',
    )
    for damaged in ("{", '{"colour": 3}', "[]", "3", *kinds):
        (folder / "state.json").write_text(damaged, encoding="utf-8")
        with pytest.raises(ValueError, match=r"state\.json is not the state of a run \(.*restore it, or start another"):
            run.state("last")
    (folder / "state.json").unlink()
    with pytest.raises(ValueError, match=r"is incomplete: state\.json is missing: restore it"):
        run.state("last")


def test_lines_that_are_no_steps_are_dropped_and_later_steps_are_forgotten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    strangers = '[1]\n7\nnull\n{"epoch": 1}\n{"step": "1"}\n'
    run.log.write_text('{"step": 1}\n' + strangers + '{"step": 2}\n{"step": 3}\n{"st', encoding="utf-8")
    run.cut_log(2, 0)
    assert run.log.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 2}\n'


def test_a_validation_that_is_still_due_is_not_logged_twice(tmp_path: Path) -> None:
    """The run stopped at the last step of an epoch, was resumed, validated, and killed before it could save."""
    run = RunFolder(tmp_path)
    steps = '{"step": 1, "epoch": 0}\n{"step": 2, "epoch": 0}\n'
    run.log.write_text(steps + '{"step": 2, "epoch": 1, "value": 3.0}\n', encoding="utf-8")
    run.cut_log(2, 1)
    assert len(run.log.read_text(encoding="utf-8").splitlines()) == 3
    run.cut_log(2, 0)
    assert run.log.read_text(encoding="utf-8") == steps


def test_what_cannot_be_continued_is_refused(tmp_path: Path) -> None:
    run, model, optimiser = make(tmp_path)
    assert run.restore(model, optimiser) is None
    with pytest.raises(ValueError, match="has no best checkpoint"):
        run.state("best")
    run.save(model, optimiser, TrainingState(1, 0), best=False)
    other = ProTA.from_config(Config.build("lda", "toy"))
    with pytest.raises(ValueError, match="has other settings"):
        run.restore(other, torch.optim.AdamW(other.parameters()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"checkpoints\.json cannot be read \("),
        ("\udcff", r"checkpoints\.json cannot be read \("),
        ("[]", r"checkpoints\.json is not a list of checkpoints"),
        ('{"last": 5}', r"checkpoints\.json is not a list of checkpoints"),
        (
            '{"last": "step-00000009"}',
            r"names step-00000009 as the last checkpoint, which is missing",
        ),
    ],
)
def test_a_damaged_list_of_checkpoints_is_named(tmp_path: Path, content: str, said: str) -> None:
    run, model, optimiser = make(tmp_path)
    run.save(model, optimiser, TrainingState(1, 0), best=False)
    (tmp_path / "checkpoints.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ValueError, match=said + ".*: restore it, or start another run") as caught:
        run.restore(model, optimiser)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["optimiser.pt", "weights.pt"])
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "another"])
def test_damaged_files_of_a_checkpoint_are_named(tmp_path: Path, name: str, damage: str) -> None:
    run, model, optimiser = make(tmp_path)
    average = WeightAverage(model, 0.9)
    path = run.save(model, optimiser, TrainingState(1, 0), best=False, average=average) / name
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "another":
        torch.save({"param_groups": []}, path)
    else:
        path.write_bytes(whole[: len(whole) // 2 if damage == "half" else 0])
    said = "is missing" if damage == "gone" else "is corrupt or of another run"
    with pytest.raises(ValueError, match=rf"{name} {said}: restore it, or start another run") as caught:
        run.restore(model, optimiser, average)
    assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    assert run.restore(model, optimiser, average) == TrainingState(1, 0)


def test_a_checkpoint_gets_its_name_when_all_of_its_files_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model, optimiser = make(tmp_path)
    flushed: set[str] = set()
    fsync, real = os.fsync, publish

    def noted(descriptor: int) -> None:
        flushed.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def named(staging: Path, final: Path) -> None:
        files = {path.name for path in staging.iterdir()}
        assert {"model.safetensors", "optimiser.pt", "state.json"} <= files <= flushed
        real(staging, final)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr("prota.training.checkpoint.publish", named)
    assert run.save(model, optimiser, TrainingState(1, 0), best=True).is_dir()


class Harmful:
    """What runs code when it is read back without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_somebody_sent_runs_no_code(tmp_path: Path) -> None:
    run, model, optimiser = make(tmp_path / "run")
    folder = run.save(model, optimiser, TrainingState(1, 0), best=True)
    torch.save({"state": Harmful(tmp_path / "harm")}, folder / "optimiser.pt")
    with pytest.raises(ValueError, match=r"optimiser\.pt is corrupt or of another run"):
        run.restore(model, optimiser)
    assert not (tmp_path / "harm").exists()


def test_other_settings_are_refused_only_where_there_is_something_to_continue(tmp_path: Path) -> None:
    """An attempt may have failed for its settings, before it saved anything: mended, it goes on in the same folder."""
    run, model, optimiser = make(tmp_path)
    first, second = (Experiment.build("dpa", "toy", [f"train.seed={seed}"]) for seed in (1, 2))
    for asked in (first, second):
        run.claim(asked)
        assert run.experiment() == asked
        run.release()
    run.save(model, optimiser, TrainingState(1, 0), best=False)
    with pytest.raises(ConfigError, match=r"other settings \(train\.seed: 2 → 1\)"):
        run.claim(first)
    run.release()
    assert run.experiment() == second
