"""Means of weights: a moving one in a run, which is validated and saved while training goes on, and one of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prota.encoders.video import TemporalLayer
from prota.model.prota import ProTA
from prota.model.weights import WeightsError

__all__ = ["WeightAverage", "mean_model"]

# Where towers came from, how weights began and what was left out in training: what became of it is in the weights.
_ORIGINS = {"clip", "vision", "text", "logit_scale"}

# Two matrices drawn apart have a cosine of about 0 ± 0.03, from so many weights on. Those of runs from the same weights
# stay near each other: the least alike one of prota-small and of a mean of four other runs has 0.91.
_MATRIX = 1024
_STRANGERS = 0.3
# This one begins at zero: where it went says nothing of where it came from.
_FROM_ZERO = "gaussian.mean.2.weight"


class WeightAverage:
    """Exponential average of the parameters that learn.

    What is frozen, and buffers, which are measured once, are the model's own. Ranks hold equal weights, so that each
    keeps the same average without asking the others.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._held = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step`` (from 1).

        The first steps count for more, (1 + n) / (10 + n) being the share of the old, or a short run's average would
        be mostly the weights that it began with.
        """
        share = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._held.values()), list(self._parameters.values()), 1 - share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the average as its weights; afterwards with its own again, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def trained(self) -> dict[str, Tensor]:
        """Copies of the weights that training goes on with, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def restore(self, trained: dict[str, Tensor]) -> None:
        """Take the model's present weights as the average, and ``trained`` as those that training goes on with."""
        if trained.keys() != self._parameters.keys():
            raise ValueError("the saved weights are of other parameters than those that learn")
        for name, value in self._parameters.items():
            self._held[name].copy_(value)
            value.copy_(trained[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self._parameters.items():
            own = value.clone()
            value.copy_(self._held[name])
            self._held[name].copy_(own)


@torch.no_grad()
def mean_model(models: Sequence[ProTA]) -> ProTA:
    """The first model, with the mean of all models' weights.

    They must mean the same by their weights, and have begun from the same ones: what differs is named in a ValueError.
    That the mean is any good takes more, namely that they did not go too far apart; so it has to be measured.
    """
    first, *others = models
    if not others:
        return first
    sums = {name: value.double() for name, value in first.state_dict().items()}
    for other in others:
        _require_alike(first, other)
        weights = other.state_dict()
        sums = {name: total + weights[name].to(total) for name, total in sums.items()}
    first.load_state_dict({name: total / len(models) for name, total in sums.items()})
    # How sure one can be of a score is another matter for another model.
    first.relevance = None
    return first


def _require_alike(first: ProTA, other: ProTA) -> None:
    for section in ("encoder", "distribution", "score"):
        own, its = (getattr(model.config, section).model_dump(exclude=_ORIGINS) for model in (first, other))
        for name, value in own.items():
            if its[name] != value:
                raise WeightsError(f"{section}.{name} is {value} and {its[name]}: such weights have no mean")
    # A temporal transformer that began as a copy of CLIP's layers has their activation, whichever that is.
    if _activations(first) != _activations(other):
        raise WeightsError("their temporal transformers have different activations: such weights have no mean")
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in (first, other)]
    if shapes[0] != shapes[1]:
        raise WeightsError("their towers are of different kinds: such weights have no mean")
    strange, likeness = _least_alike(first, other)
    if likeness < _STRANGERS:
        raise WeightsError(
            f"they did not begin from the same weights ({strange} has a cosine of {likeness:.2f}), which takes the "
            "same towers and the same train.seed: such weights have no mean"
        )


def _least_alike(first: ProTA, other: ProTA) -> tuple[str, float]:
    """The matrix that is least alike in two models, and the cosine of the one and the other."""
    its = other.state_dict()
    likeness = {
        name: float(torch.cosine_similarity(value.double().flatten(), its[name].double().flatten(), dim=0))
        for name, value in first.state_dict().items()
        if value.dim() == 2 and value.numel() >= _MATRIX and not name.endswith(_FROM_ZERO)
    }
    return min(likeness.items(), key=lambda pair: pair[1], default=("", 1.0))


def _activations(model: ProTA) -> set[bool]:
    return {layer.mlp.quick for layer in model.video_encoder.modules() if isinstance(layer, TemporalLayer)}
