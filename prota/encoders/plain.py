"""Towers in plain torch, for models that are loaded to be asked: importing transformers takes seconds.

Their weights have the hub's names. In evaluation mode they compute what those of transformers do, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["BertText", "ClipText", "ClipVision", "Dinov2"]


class BertText(nn.Module):
    """BERT, without its pooler."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' BertConfig; some exception if this is another model."""
        super().__init__()
        fixed = {"model_type": "bert", "is_decoder": False, "add_cross_attention": False, "chunk_size_feed_forward": 0}
        fixed |= {"position_embedding_type": "absolute"}
        if any(settings.get(name, value) != value for name, value in fixed.items()):
            raise ValueError("not BERT's encoder")
        width, eps = settings["hidden_size"], settings["layer_norm_eps"]
        self.embeddings = _group(
            word_embeddings=_embedding(settings["vocab_size"], width),
            position_embeddings=_embedding(settings["max_position_embeddings"], width),
            token_type_embeddings=_embedding(settings["type_vocab_size"], width),
            LayerNorm=nn.LayerNorm(width, eps),
        )
        layers = (_BertLayer(settings) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layer=nn.ModuleList(layers))

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.get_submodule("word_embeddings")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """[A, N], [A, N] → an object with ``last_hidden_state`` [A, N, C]."""
        parts: Any = self.embeddings
        positions = parts.position_embeddings.weight[: input_ids.shape[1]]
        values = parts.LayerNorm(parts.word_embeddings(input_ids) + parts.token_type_embeddings.weight[0] + positions)
        real = attention_mask.bool()
        # Without padding, attention is computed in another way, which may differ in the last bit.
        mask = None if bool(real.all()) else real[:, None, None, :].expand(-1, 1, real.shape[1], -1)
        for layer in self.encoder.get_submodule("layer").children():
            values = layer(values, mask)
        return SimpleNamespace(last_hidden_state=values)


class _BertLayer(nn.Module):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner, eps = settings["hidden_size"], settings["intermediate_size"], settings["layer_norm_eps"]
        self.heads, self.activation = settings["num_attention_heads"], _activation(settings["hidden_act"])
        inputs = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        mixed = _group(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, eps))
        self.attention = _group(**{"self": _group(**inputs), "output": mixed})
        self.intermediate = _group(dense=nn.Linear(width, inner))
        self.output = _group(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width, eps))

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        attention: Any = self.attention
        one: Any = attention.get_submodule("self")
        inner: Any = self.intermediate
        output: Any = self.output
        mixed = _attend([one.query(values), one.key(values), one.value(values)], self.heads, mask)
        values = attention.output.LayerNorm(attention.output.dense(mixed) + values)
        result: Tensor = output.LayerNorm(output.dense(self.activation(inner.dense(values))) + values)
        return result


class ClipText(nn.Module):
    """CLIP's text transformer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' CLIPTextConfig; some exception if this is another model."""
        super().__init__()
        width = settings["hidden_size"]
        self.embeddings = _group(
            token_embedding=_embedding(settings["vocab_size"], width),
            position_embedding=_embedding(settings["max_position_embeddings"], width),
        )
        layers = (_ClipLayer(settings, causal=True) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layers=nn.ModuleList(layers))
        self.final_layer_norm = nn.LayerNorm(width, settings["layer_norm_eps"])

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.get_submodule("token_embedding")

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """[A, N], [A, N] → an object with ``last_hidden_state`` [A, N, C]."""
        parts: Any = self.embeddings
        count = input_ids.shape[1]
        values = parts.token_embedding(input_ids) + parts.position_embedding.weight[:count]
        real = attention_mask.bool()
        mask = None
        if not bool(real.all()):
            earlier = torch.ones(count, count, dtype=torch.bool, device=real.device).tril()
            mask = earlier & real[:, None, None, :]
        for layer in self.encoder.get_submodule("layers").children():
            values = layer(values, mask)
        return SimpleNamespace(last_hidden_state=self.final_layer_norm(values))


class _ClipLayer(nn.Module):
    def __init__(self, settings: Mapping[str, Any], causal: bool = False) -> None:
        super().__init__()
        width, inner, eps = settings["hidden_size"], settings["intermediate_size"], settings["layer_norm_eps"]
        self.heads, self.activation = settings["num_attention_heads"], _activation(settings["hidden_act"])
        self.causal = causal
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        self.self_attn = _group(**{name: nn.Linear(width, width) for name in names})
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.mlp = _group(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width))

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        one: Any = self.self_attn
        mlp: Any = self.mlp
        normal = self.layer_norm1(values)
        projected = [one.q_proj(normal), one.k_proj(normal), one.v_proj(normal)]
        mixed = _attend(projected, self.heads, mask, causal=self.causal)
        values = values + one.out_proj(mixed)
        result: Tensor = values + mlp.fc2(self.activation(mlp.fc1(self.layer_norm2(values))))
        return result


class ClipVision(nn.Module):
    """CLIP's vision transformer, for pictures of its own size."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' CLIPVisionConfig; some exception if this is another model."""
        super().__init__()
        width, size, patch = settings["hidden_size"], settings["image_size"], settings["patch_size"]
        self.config = SimpleNamespace(image_size=size)
        self.embeddings = _group(
            patch_embedding=nn.Conv2d(settings["num_channels"], width, patch, stride=patch, bias=False),
            position_embedding=_embedding((size // patch) ** 2 + 1, width),
        )
        self.embeddings.class_embedding = nn.Parameter(torch.empty(width))
        self.pre_layrnorm = nn.LayerNorm(width, settings["layer_norm_eps"])
        layers = (_ClipLayer(settings) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layers=nn.ModuleList(layers))
        self.post_layernorm = nn.LayerNorm(width, settings["layer_norm_eps"])

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        """[F, 3, H, W] → an object with ``pooler_output`` [F, C]."""
        parts: Any = self.embeddings
        patches = parts.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        values = torch.cat([parts.class_embedding.expand(len(patches), 1, -1), patches], dim=1)
        values = self.pre_layrnorm(values + parts.position_embedding.weight)
        for layer in self.encoder.get_submodule("layers").children():
            values = layer(values)
        return SimpleNamespace(pooler_output=self.post_layernorm(values[:, 0, :]))


class Dinov2(nn.Module):
    """DINOv2, for pictures of any size that its patches divide."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of transformers' Dinov2Config; some exception if this is another model."""
        super().__init__()
        fixed = {"model_type": "dinov2", "use_swiglu_ffn": False, "use_mask_token": True, "qkv_bias": True}
        if any(settings.get(name, value) != value for name, value in fixed.items()):
            raise ValueError("not DINOv2")
        width, size, patch = settings["hidden_size"], settings["image_size"], settings["patch_size"]
        self.config, self.patch = SimpleNamespace(image_size=size), patch
        projection = nn.Conv2d(settings["num_channels"], width, patch, stride=patch)
        self.embeddings = _group(patch_embeddings=_group(projection=projection))
        self.embeddings.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.embeddings.mask_token = nn.Parameter(torch.empty(1, width))
        self.embeddings.position_embeddings = nn.Parameter(torch.empty(1, (size // patch) ** 2 + 1, width))
        layers = (_Dinov2Layer(settings) for _ in range(settings["num_hidden_layers"]))
        self.encoder = _group(layer=nn.ModuleList(layers))
        self.layernorm = nn.LayerNorm(width, settings["layer_norm_eps"])

    def forward(self, pixel_values: Tensor) -> SimpleNamespace:
        """[F, 3, H, W] → an object with ``last_hidden_state`` [F, T, C] and ``pooler_output`` [F, C]."""
        parts: Any = self.embeddings
        patches = parts.patch_embeddings.projection(pixel_values).flatten(2).transpose(1, 2)
        values = torch.cat([parts.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        height, width = pixel_values.shape[-2:]
        values = values + self._positions(height // self.patch, width // self.patch)
        for layer in self.encoder.get_submodule("layer").children():
            values = layer(values)
        values = self.layernorm(values)
        return SimpleNamespace(last_hidden_state=values, pooler_output=values[:, 0, :])

    def _positions(self, height: int, width: int) -> Tensor:
        """Those of so many patches."""
        learned: Tensor = self.embeddings.get_parameter("position_embeddings")
        side = int((learned.shape[1] - 1) ** 0.5)
        if (height, width) == (side, side):
            return learned
        grid = learned[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        resized = F.interpolate(grid.float(), size=(height, width), mode="bicubic", align_corners=False)
        patches = resized.to(learned.dtype).permute(0, 2, 3, 1).view(1, height * width, -1)
        return torch.cat([learned[:, :1], patches], dim=1)


class _Dinov2Layer(nn.Module):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = settings["hidden_size"], int(settings["hidden_size"] * settings["mlp_ratio"])
        self.heads, self.activation = settings["num_attention_heads"], _activation(settings["hidden_act"])
        self.norm1, self.norm2 = (nn.LayerNorm(width, settings["layer_norm_eps"]) for _ in range(2))
        inputs = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        self.attention = _group(attention=_group(**inputs), output=_group(dense=nn.Linear(width, width)))
        self.mlp = _group(fc1=nn.Linear(width, inner), fc2=nn.Linear(inner, width))
        self.layer_scale1, self.layer_scale2 = nn.Module(), nn.Module()
        for scale in (self.layer_scale1, self.layer_scale2):
            scale.lambda1 = nn.Parameter(torch.empty(width))

    def forward(self, values: Tensor) -> Tensor:
        one: Any = self.attention
        mlp: Any = self.mlp
        normal, inputs = self.norm1(values), one.attention
        mixed = _attend([inputs.query(normal), inputs.key(normal), inputs.value(normal)], self.heads, None)
        values = one.output.dense(mixed) * self.layer_scale1.lambda1 + values
        inner = mlp.fc2(self.activation(mlp.fc1(self.norm2(values))))
        result: Tensor = inner * self.layer_scale2.lambda1 + values
        return result


def _group(**parts: nn.Module) -> nn.Module:
    """Modules under their names; what is computed with them is the owner's matter."""
    group = nn.Module()
    for name, part in parts.items():
        group.add_module(name, part)
    return group


def _embedding(count: int, width: int) -> nn.Embedding:
    # Making up random numbers on the device meta imports half of torch.
    return nn.Embedding(count, width, _weight=torch.empty(count, width))


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ("gelu", "quick_gelu"):
        raise ValueError(f"the activation {name}")
    return F.gelu if name == "gelu" else _quick_gelu


def _quick_gelu(values: Tensor) -> Tensor:
    return values * torch.sigmoid(1.702 * values)


def _attend(projected: Sequence[Tensor], heads: int, mask: Tensor | None, *, causal: bool = False) -> Tensor:
    """Queries, keys and values [A, N, C] → [A, N, C]; ``causal`` counts only without a mask."""
    count, length, width = projected[0].shape
    query, key, value = (values.view(count, length, heads, -1).transpose(1, 2) for values in projected)
    scale, causal = (width // heads) ** -0.5, causal and mask is None
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
    return mixed.transpose(1, 2).flatten(-2)
