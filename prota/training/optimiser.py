"""Parameter groups with learning rates by module, warm-up and cosine decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from prota.config.experiment import TrainConfig
from prota.model.prota import ProTA

__all__ = ["describe_groups", "make_optimiser", "parameter_groups", "rate_factor", "set_rates"]

# Share of the steps with a rising learning rate.
_WARMUP = 0.1
# Of matrices only.
_WEIGHT_DECAY = 0.2


def _rates(model: ProTA, config: TrainConfig) -> Iterator[tuple[str, nn.Module | nn.Parameter, float]]:
    """(group, part, learning rate) of every part of the model."""
    # Projections and temperature are pretrained in a CLIP and in a model that training starts from.
    learned = model.config.encoder.kind != "pair" or bool(config.start)
    text, video = model.text_encoder, model.video_encoder
    yield "text tower", text.tower.model, config.lr_text
    yield "vision tower", video.tower.model, config.lr_vision
    yield "text projection", text.tower.projection, config.lr_text if learned else config.lr_new
    yield "frame projection", video.tower.projection, config.lr_vision if learned else config.lr_new
    if model.logit_bias is None:
        yield "logit scale", model.logit_scale, config.lr_text if learned else config.lr_new
    else:
        yield "logit scale", model.logit_scale, config.lr_new
        yield "logit bias", model.logit_bias, config.lr_new
    if video.temporal is not None:
        yield "temporal transformer", video.temporal, config.lr_temporal
    yield "head", model.head, config.lr_new


def parameter_groups(model: ProTA, config: TrainConfig) -> list[dict[str, object]]:
    """Groups for an optimiser. Parts with rate 0 are frozen; biases, norms and scalars have no weight decay."""
    groups: list[dict[str, object]] = []
    seen: dict[int, str] = {}
    for name, part, rate in _rates(model, config):
        parameters = [part] if isinstance(part, nn.Parameter) else list(part.parameters())
        for parameter in parameters:
            if id(parameter) in seen:
                raise ValueError(f"a parameter is in both {seen[id(parameter)]!r} and {name!r}")
            seen[id(parameter)] = name
            parameter.requires_grad_(rate > 0)
        for decays in (True, False):
            chosen = [parameter for parameter in parameters if (parameter.dim() > 1) == decays]
            if rate > 0 and chosen:
                decay = _WEIGHT_DECAY if decays else 0.0
                groups.append({"name": name, "params": chosen, "lr": rate, "rate": rate, "weight_decay": decay})
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in seen]
    if missing:
        raise ValueError(f"parameters in no group: {', '.join(missing)}")
    return groups


def make_optimiser(model: ProTA, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with the moments of CLIP.

    Paper gap: weight decay and moments are not given; 0.2 and (0.9, 0.98), as in CLIP and CLIP4Clip.
    """
    # One kernel for all parameters.
    fused = model.logit_scale.is_cuda
    return torch.optim.AdamW(parameter_groups(model, config), betas=(0.9, 0.98), eps=1e-6, fused=fused)


def rate_factor(step: int, steps: int) -> float:
    """Factor on the learning rates at a step: linear warm-up, then cosine decay to 0."""
    rising = round(_WARMUP * steps)
    if step < rising:
        return (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    return 0.5 * (1 + math.cos(math.pi * progress))


def set_rates(optimiser: torch.optim.Optimizer, factor: float) -> dict[str, float]:
    """Set every group's learning rate; returns them by name."""
    for group in optimiser.param_groups:
        group["lr"] = group["rate"] * factor
    return {group["name"]: group["lr"] for group in optimiser.param_groups}


def describe_groups(model: ProTA, config: TrainConfig) -> list[tuple[str, int, float]]:
    """(part, number of parameters, learning rate), printed before training."""
    rows = []
    for name, part, rate in _rates(model, config):
        parameters = [part] if isinstance(part, nn.Parameter) else list(part.parameters())
        rows.append((name, sum(parameter.numel() for parameter in parameters), rate))
    return rows
