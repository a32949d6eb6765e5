"""Parameter groups and the schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from prota import Config, ProTA
from prota.config.experiment import TrainConfig
from prota.training.optimiser import describe_groups, make_optimiser, parameter_groups, rate_factor, set_rates
from tests.tiny_models import pair_config, write_aligned


@pytest.mark.parametrize("kind", ["toy", "pair"])
def test_every_parameter_is_in_exactly_one_group(kind: str, dinov2_folder: Path, bert_folder: Path) -> None:
    config = Config.build(backbone="toy") if kind == "toy" else pair_config(dinov2_folder, bert_folder)
    model = ProTA.from_config(config)
    train = TrainConfig()
    groups = parameter_groups(model, train)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        new = name.startswith("head.") or (kind == "pair" and (".tower.projection." in name or name == "logit_scale"))
        expected = 1e-3 if new else 1e-4 if name.startswith("video_encoder.temporal.") else 1e-7
        assert rates[id(parameter)] == expected, name
        assert (decays[id(parameter)] > 0) == (parameter.dim() > 1), name
    assert sum(count for _, count, _ in describe_groups(model, train)) == sum(p.numel() for p in model.parameters())


def test_a_rate_of_zero_freezes() -> None:
    model = ProTA.from_config(Config.build(backbone="toy"))
    make_optimiser(model, TrainConfig(lr_vision=0))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("video_encoder.tower")}


def test_a_parameter_without_a_group_is_refused() -> None:
    model = ProTA.from_config(Config.build(backbone="toy"))
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"parameters in no group: extra\.weight, extra\.bias"):
        parameter_groups(model, TrainConfig())


def test_the_schedule_rises_and_falls() -> None:
    factors = [rate_factor(step, 100) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert 0 < factors[99] < 0.001
    assert rate_factor(0, 4) == 1.0
    model = ProTA.from_config(Config.build(backbone="toy"))
    optimiser = make_optimiser(model, TrainConfig())
    rates = set_rates(optimiser, 0.5)
    assert rates["head"] == 5e-4
    assert {group["lr"] for group in optimiser.param_groups} == {5e-4, 5e-5, 5e-8}


def test_the_moments_are_clips() -> None:
    optimiser = make_optimiser(ProTA.from_config(Config.build("prota", "toy")), TrainConfig())
    assert {(*group["betas"], group["eps"]) for group in optimiser.param_groups} == {(0.9, 0.98, 1e-6)}


def test_scale_and_bias_of_the_sigmoid_loss_are_learned_as_new_parts(tmp_path: Path) -> None:
    """SigLIP's own values are where they start; other models start as SigLIP did."""
    folder = write_aligned("siglip", tmp_path / "siglip")
    size = [f"encoder.clip={folder}", "encoder.width=24", "encoder.image_size=32", "encoder.text_length=10"]
    config = Config.build("dpa", None, [*size, "encoder.temporal_layers=0", "loss.contrast=sigmoid"])
    theirs, model = AutoModel.from_pretrained(folder), ProTA.from_config(config)
    assert model.logit_scale.item() == pytest.approx(theirs.logit_scale.item())
    assert model.logit_bias is not None
    assert model.logit_bias.item() == pytest.approx(theirs.logit_bias.item())
    rates = {name: rate for name, _, rate in describe_groups(model, TrainConfig(lr_new=0.5))}
    assert rates["logit scale"] == rates["logit bias"] == 0.5
    model.save_pretrained(tmp_path / "saved")
    for again in (ProTA.from_pretrained(tmp_path / "saved"), ProTA.for_texts(tmp_path / "saved")):
        assert again.logit_bias.item() == model.logit_bias.item()
    toy = ProTA.from_config(Config.build("dpa", "toy", ["loss.contrast=sigmoid"]))
    assert (toy.logit_scale.exp().item(), toy.logit_bias.item()) == (pytest.approx(10), -10)
    assert ProTA.from_config(Config.build("dpa", "toy")).logit_bias is None
