"""Means of weights: the moving one of a run, put on and taken off and going on after a restart, and that of models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

from prota import ProTA
from prota.config.experiment import Experiment
from prota.config.model import Config
from prota.data.batches import ClipReader, open_cache
from prota.data.benchmarks import load_benchmark
from prota.encoders.video import TemporalLayer
from prota.evaluation.metrics import retrieval_metrics
from prota.evaluation.scoring import score_split
from prota.training.averaging import WeightAverage, mean_model
from prota.training.checkpoint import RunFolder
from prota.training.trainer import TrainingLoop
from tests.library.worlds import toy_model
from tests.training.runs import ALONE, curve, train, trained, validations, weights

pytestmark = pytest.mark.train


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1), nn.BatchNorm1d(1))
    made[1].requires_grad_(False)
    return made


def learn(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_equal(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_the_average_is_that_of_the_formula(decay: float) -> None:
    module = model().double()
    average = WeightAverage(module, decay)
    expected = state(module)
    for step in range(1, 30):
        learn(module)
        average.update(step)
        share = min(decay, (1 + step) / (10 + step))
        expected = {name: share * old + (1 - share) * state(module)[name] for name, old in expected.items()}
    own = state(module)
    with average.applied():
        for name in ("0.weight", "0.bias", "2.weight"):
            torch.testing.assert_close(module.state_dict()[name], expected[name], rtol=0, atol=1e-12)
            assert not torch.equal(module.state_dict()[name], own[name])
        # What is frozen, and buffers, are the model's own.
        for name in ("1.weight", "1.bias", "2.running_mean"):
            assert torch.equal(module.state_dict()[name], own[name])
    assert_equal(state(module), own)


def test_a_short_run_is_not_averaged_with_its_beginning() -> None:
    """After 100 steps the first weights have almost no share left, though 0.999 ** 100 is 0.9."""
    module = model()
    nn.init.zeros_(module[0].weight)
    average = WeightAverage(module, 0.999)
    nn.init.ones_(module[0].weight)
    for step in range(1, 101):
        average.update(step)
    with average.applied():
        assert (module[0].weight > 0.999).all()


def test_the_weights_come_back_after_an_error() -> None:
    module = model()
    average = WeightAverage(module, 0.9)
    learn(module)
    own = state(module)
    with pytest.raises(KeyboardInterrupt), average.applied():
        raise KeyboardInterrupt
    assert_equal(state(module), own)


def test_a_restored_average_goes_on_bit_for_bit() -> None:
    first, second = model(), model()
    average, other = WeightAverage(first, 0.9), WeightAverage(second, 0.9)
    for step in (1, 2, 3):
        learn(first)
        average.update(step)
    with average.applied():
        second.load_state_dict(first.state_dict())
    other.restore(average.trained())
    assert_equal(state(second), state(first))
    for step in (4, 5):
        torch.manual_seed(step)
        learn(first)
        torch.manual_seed(step)
        learn(second)
        average.update(step)
        other.update(step)
    with average.applied(), other.applied():
        assert_equal(state(second), state(first))


def test_weights_of_other_parameters_are_refused() -> None:
    average = WeightAverage(model(), 0.9)
    with pytest.raises(ValueError, match="do not match the trained parameters"):
        average.restore({"0.weight": torch.zeros(2, 3)})


@pytest.fixture(scope="module")
def averaged(world_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("averaged") / "run"
    train(world_config, run, "train.ema=0.9")
    return run


def assert_same_run(run: Path, expected: Path) -> None:
    assert curve(run) == curve(expected)
    assert validations(run) == validations(expected)
    for read in (weights, trained):
        for name, value in read(expected).items():
            assert torch.equal(read(run)[name], value), name


def test_an_average_changes_what_is_saved_and_not_what_is_learned(
    averaged: Path, world_config: Path, tmp_path: Path
) -> None:
    train(world_config, tmp_path / "plain")
    assert curve(averaged) == curve(tmp_path / "plain")
    plain, ours = weights(tmp_path / "plain"), trained(averaged)
    model = ProTA.from_pretrained(averaged / "step-00000018")
    assert ours.keys() == dict(model.named_parameters()).keys()
    for name, value in ours.items():
        assert torch.equal(value, plain[name]), name
    assert any(not torch.equal(value, plain[name]) for name, value in weights(averaged).items())
    # The average is what was validated.
    experiment = RunFolder(averaged).experiment()
    split = load_benchmark(experiment.data).split("val")
    scored = score_split(model, ClipReader(open_cache(experiment), experiment, split), split)
    assert asdict(retrieval_metrics(scored.scores, scored.video_of_text)) == validations(averaged)[-1]


@pytest.mark.parametrize("stop_after", [1, 4, 6])
def test_a_stopped_average_goes_on_exactly(averaged: Path, world_config: Path, stop_after: int, tmp_path: Path) -> None:
    train(world_config, tmp_path / "run", "train.ema=0.9", stop_after=stop_after)
    train(world_config, tmp_path / "run", "train.ema=0.9")
    assert_same_run(tmp_path / "run", averaged)


def test_a_killed_average_goes_on_exactly(averaged: Path, world_config: Path, tmp_path: Path) -> None:
    """Nothing is saved when it ends: steps after the last checkpoint are repeated."""
    experiment, run = Experiment.load(world_config, ["train.ema=0.9"]), RunFolder(tmp_path / "run")
    run.claim(experiment)

    def kill() -> bool:
        if len(curve(run.path)) == 8:
            raise SystemError("killed")
        return False

    with pytest.raises(SystemError, match="killed"):
        TrainingLoop(experiment, run, ALONE).fit(should_stop=kill)
    run.release()
    assert RunFolder(tmp_path / "run").state("last").step == 6
    train(world_config, tmp_path / "run", "train.ema=0.9")
    assert_same_run(tmp_path / "run", averaged)


def learned(seed: int, *overrides: str) -> ProTA:
    """The toy model after some learning, which went differently for each seed."""
    made = toy_model(0, *overrides)
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in made.parameters():
            value.add_(0.3 * value.abs().mean() * torch.randn_like(value))
    return made


def test_the_mean_of_models_is_the_mean_of_their_weights() -> None:
    models = [learned(seed) for seed in (1, 2, 3)]
    own = [{name: value.double() for name, value in state(model).items()} for model in models]
    expected = {name: sum(values[name] for values in own) / 3 for name in own[0]}
    mean = mean_model(models)
    assert mean is models[0]
    for name, value in mean.state_dict().items():
        torch.testing.assert_close(value, expected[name].to(value.dtype), rtol=1e-6, atol=1e-7)
    assert_equal(state(mean_model([toy_model(4)])), state(toy_model(4)))


def test_runs_of_two_seeds_have_no_mean() -> None:
    """Their new layers began apart, so that half of each of two is none."""
    first, other = learned(1), toy_model(0)
    apart = toy_model(1)
    with torch.no_grad():
        other.video_encoder.temporal.load_state_dict(apart.video_encoder.temporal.state_dict())
    before = state(first)
    with pytest.raises(ValueError, match=r"different initial weights \(video_encoder\.temporal.*train\.seed"):
        mean_model([first, learned(2), other])
    assert_equal(state(first), before)


def test_weights_that_mean_different_things_have_no_mean() -> None:
    for override, told in (
        ("encoder.picture=whole", "encoder.picture is centre and whole"),
        ("score.lambda_=50", "score.lambda_ is 100.0 and 50.0"),
    ):
        with pytest.raises(ValueError, match=told):
            mean_model([toy_model(), toy_model(0, override)])
    # At which temperature they began does not matter.
    hotter = learned(1, "encoder.logit_scale=30")
    mean = mean_model([toy_model(), hotter])
    torch.testing.assert_close(mean.logit_scale, (toy_model().logit_scale + hotter.logit_scale) / 2)
    # Unless it is a CLIP of another activation, which a transformer that begins as its copy takes over.
    copied = toy_model()
    for layer in copied.video_encoder.modules():
        if isinstance(layer, TemporalLayer):
            layer.mlp.quick = False
    with pytest.raises(ValueError, match="different activation functions"):
        mean_model([toy_model(0), copied])
    # Where towers came from does not matter either, if they are alike.
    elsewhere = toy_model(0)
    elsewhere.config = Config.build("prota", "toy", ["encoder.frames=4", "encoder.vision=elsewhere"])
    assert_equal(state(mean_model([toy_model(), elsewhere])), state(toy_model()))
    elsewhere.text_encoder.tower.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(ValueError, match="different architectures of the towers"):
        mean_model([toy_model(), elsewhere])
