"""The moving average of the weights of a run, and the mean of the weights of several models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prota.encoders.video import TemporalLayer
from prota.model.prota import ProTA
from prota.model.weights import WeightsError

__all__ = ["WeightAverage", "mean_model"]

# Settings of how training began; models may differ in them.
_ORIGINS = {"clip", "vision", "text", "logit_scale"}

# Independently initialised matrices of this size have a cosine of about 0 ± 0.03. Those of runs from the same weights
# stay similar: the lowest cosine of prota-small and a mean of four other runs is 0.91.
_MATRIX = 1024
_LOWEST_COSINE = 0.3
# Initialised with zeros, so that it says nothing about the initial weights.
_FROM_ZERO = "gaussian.mean.2.weight"


class WeightAverage:
    """Exponential moving average of the trained parameters; frozen ones and buffers are the model's own.

    All ranks have equal weights and so compute equal averages.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._held = {name: value.detach().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after ``step`` (from 1).

        In the first steps the decay is (1 + n) / (10 + n), so that the initial weights do not dominate short runs.
        """
        share = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._held.values()), list(self._parameters.values()), 1 - share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the model's weights by the average, and restore them exactly at the end."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def trained(self) -> dict[str, Tensor]:
        """Copies of the weights that are trained, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self._parameters.items()}

    @torch.no_grad()
    def restore(self, trained: dict[str, Tensor]) -> None:
        """Use the model's weights as the average, and ``trained`` as the weights that are trained."""
        if trained.keys() != self._parameters.keys():
            raise ValueError("the saved weights do not match the trained parameters")
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
    """The first model with the mean of the weights of all models.

    They must have the same architecture and initial weights; differences raise a WeightsError. That does not make the
    mean a good model, which has to be measured.
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
    # A calibration belongs to one set of weights.
    first.relevance = None
    return first


def _require_alike(first: ProTA, other: ProTA) -> None:
    for section in ("encoder", "distribution", "score"):
        own, its = (getattr(model.config, section).model_dump(exclude=_ORIGINS) for model in (first, other))
        for name, value in own.items():
            if its[name] != value:
                raise WeightsError(f"cannot average: {section}.{name} is {value} and {its[name]}")
    # A temporal transformer that is initialised from CLIP has its activation function.
    if _activations(first) != _activations(other):
        raise WeightsError("cannot average: different activation functions of the temporal transformers")
    shapes = [{name: value.shape for name, value in model.state_dict().items()} for model in (first, other)]
    if shapes[0] != shapes[1]:
        raise WeightsError("cannot average: different architectures of the towers")
    name, cosine = _least_alike(first, other)
    if cosine < _LOWEST_COSINE:
        raise WeightsError(
            f"cannot average: different initial weights ({name} has a cosine of {cosine:.2f}); train with the same "
            "towers and train.seed"
        )


def _least_alike(first: ProTA, other: ProTA) -> tuple[str, float]:
    """Name and cosine of the matrix in which two models differ most."""
    its = other.state_dict()
    cosines = {
        name: float(torch.cosine_similarity(value.double().flatten(), its[name].double().flatten(), dim=0))
        for name, value in first.state_dict().items()
        if value.dim() == 2 and value.numel() >= _MATRIX and not name.endswith(_FROM_ZERO)
    }
    return min(cosines.items(), key=lambda pair: pair[1], default=("", 1.0))


def _activations(model: ProTA) -> set[bool]:
    return {layer.mlp.quick for layer in model.video_encoder.modules() if isinstance(layer, TemporalLayer)}
