"""Towers that multiply whole numbers: for CPUs, where these are the faster products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Int8Linear", "round_rows", "use_int8"]

_TOP = 127
# Of a scale's 24 significant bits: 127 times such a number is exact in float32, so rounding rounded weights again
# finds the same scales and changes nothing.
_SCALE_BITS = 16


class Int8Linear(nn.Module):
    """A linear layer of int8: weights are rounded once, with a scale per row, inputs as they come, with one per token.

    To the outside its weights are what the rounded ones stand for: it is saved, and known, as an ordinary layer.
    """

    whole: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        whole, scale = round_rows(layer.weight)
        self.register_buffer("whole", whole.T.contiguous(), persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    @property
    def weight(self) -> Tensor:
        return self.whole.T.float() * self.scale[:, None]

    def forward(self, values: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        if values.device.type != "cpu":
            return F.linear(values, self.weight.to(values.dtype), self.bias)
        rows = values.reshape(-1, self.in_features)
        largest = torch.maximum(rows.amax(dim=1, keepdim=True), -rows.amin(dim=1, keepdim=True))
        scale = largest.clamp(min=torch.finfo(rows.dtype).tiny) / 127
        products = torch._int_mm((rows / scale).round_().to(torch.int8), self.whole)
        out = products.to(rows.dtype).mul_(scale).mul_(self.scale)
        if self.bias is not None:
            out += self.bias
        return out.view(*values.shape[:-1], self.out_features)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def use_int8(model: nn.Module) -> None:
    """Replace the linear layers inside, for good: they can no longer be trained."""
    for name, part in list(model.named_children()):
        # Subclasses are looked into by what they belong to.
        if type(part) is nn.Linear:
            setattr(model, name, Int8Linear(part))
        else:
            use_int8(part)


def round_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, columns] → int8 of the same shape, and scales [rows] > 0: no weight moves by more than half its scale."""
    matrix = matrix.detach().float()
    largest = matrix.abs().amax(dim=1).double()
    mantissa, exponent = torch.frexp(largest / _TOP)
    scale = torch.ldexp((mantissa * 2**_SCALE_BITS).round() / 2**_SCALE_BITS, exponent).float()
    # Rows of zeros, or of numbers too small to divide by, are zeros; any scale does for them.
    scale = torch.where(scale < torch.finfo(torch.float32).tiny, 1.0, scale)
    return (matrix / scale[:, None]).round().clamp(-_TOP, _TOP).to(torch.int8), scale
