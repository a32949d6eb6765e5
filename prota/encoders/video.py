"""Frames → frame embeddings → temporal transformer → tokens."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prota.types import Tokens

__all__ = ["FrameTower", "ImageFormat", "JointTower", "TemporalTransformer", "VideoEncoder"]


@dataclass(frozen=True)
class ImageFormat:
    """What a vision encoder wants its pictures to be."""

    size: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]


class FrameTower(nn.Module):
    """A vision encoder and the projection of one feature per picture to the joint width."""

    mean: Tensor
    deviation: Tensor
    feature_mean: Tensor
    feature_deviation: Tensor

    def __init__(
        self,
        model: nn.Module,
        projection: nn.Linear | nn.Identity,
        *,
        feature: Literal["cls", "mean", "cls+mean", "pooler"],
        image: ImageFormat,
        special_tokens: int = 0,
        standardised: bool = False,
        layers: int = 1,
    ) -> None:
        """``special_tokens``: how many tokens, the class token first, the model puts before its patches.

        ``standardised``: features are centred and scaled before a new projection, as `standardise` measured them.
        ``layers``: of how many of the model's last layers the feature is taken, side by side, the last one first.
        """
        super().__init__()
        self.model = model
        self.projection = projection
        self.feature = feature
        self.image = image
        self.register_buffer("mean", torch.tensor(image.mean)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(image.deviation)[:, None, None], persistent=False)
        self.special_tokens = special_tokens
        self.layers = layers
        self.standardised = standardised
        if standardised:
            assert isinstance(projection, nn.Linear)
            self.register_buffer("feature_mean", torch.zeros(projection.in_features))
            self.register_buffer("feature_deviation", torch.ones(projection.in_features))
        self.options = position_options(model, image.size)

    def forward(self, frames: Tensor) -> Tensor:
        """Pictures [F, 3, H, W], or their features [F, C], → [F, D]."""
        features = frames if frames.dim() == 2 else self.features(frames)
        if self.standardised:
            features = (features - self.feature_mean) / self.feature_deviation
        projected: Tensor = self.projection(features)
        return projected

    def standardise(self, features: Tensor) -> None:
        """Centre and scale from now on by these features [F, C] of the training data."""
        if self.standardised:
            self.feature_mean.copy_(features.mean(dim=0))
            self.feature_deviation.copy_(features.std(dim=0).clamp(min=1e-6))

    def features(self, pictures: Tensor) -> Tensor:
        """[F, 3, H, W], uint8 or already normalised floats → [F, C], what the projection takes.

        A tower that does not learn gives the same features every time: training computes them once.
        """
        pictures = _normalised(pictures, self.image, self.mean, self.deviation)
        options = self.options | ({"output_hidden_states": True} if self.layers > 1 else {})
        return self._feature(self.model(pixel_values=pictures, **options))

    def _feature(self, output: Any) -> Tensor:
        feature: Tensor
        if self.feature == "pooler":
            feature = output.pooler_output
            return feature
        states = [output.last_hidden_state]
        for earlier in range(2, self.layers + 1):
            # The last layer's state comes out of the model's own norm, those before it do not.
            state = output.hidden_states[-earlier]
            states.append(F.layer_norm(state, state.shape[-1:]))
        wanted = self.feature.split("+")
        parts = [_part(state, part, self.special_tokens) for state in states for part in wanted]
        return torch.cat(parts, dim=-1)


class JointTower(nn.Module):
    """A vision encoder that takes the frames of a video together and gives one vector."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: Any, image: ImageFormat) -> None:
        super().__init__()
        self.model = model
        self.projection = nn.Identity()
        self.image = image
        self.register_buffer("mean", torch.tensor(image.mean)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(image.deviation)[:, None, None], persistent=False)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        """[B, M, 3, H, W], mask [B, M] → [B, 1, D]; videos of equally many frames go through the model together."""
        frames = _normalised(frames, self.image, self.mean, self.deviation)
        counts, model = mask.sum(dim=1), self.model
        found: list[tuple[Tensor, Tensor]] = []
        for count in sorted(set(counts.tolist())):
            rows = (counts == count).nonzero()[:, 0]
            chosen = frames[rows][mask[rows]].view(len(rows), count, *frames.shape[2:])
            # Of its own number of frames, learned positions are used as they are; of others they are interpolated.
            own = count == model.config.num_frames
            vectors = model(pixel_values_videos=chosen, interpolate_pos_encoding=not own).pooler_output
            found.append((rows, vectors.view(len(rows), -1)))
        order = torch.cat([rows for rows, _ in found]).argsort()
        return torch.cat([vectors for _, vectors in found])[order].unsqueeze(1)


def _normalised(pictures: Tensor, image: ImageFormat, mean: Tensor, deviation: Tensor) -> Tensor:
    """Pictures [..., 3, H, W], uint8 or already normalised floats, as a tower takes them."""
    if pictures.dtype != torch.uint8 and not pictures.is_floating_point():
        raise ValueError(f"pictures must be uint8, or floats already normalised; got {pictures.dtype}")
    if pictures.shape[-2:] != (image.size, image.size):
        raise ValueError(
            f"pictures must be {image.size} x {image.size} (encoder.image_size); "
            f"got {pictures.shape[-2]} x {pictures.shape[-1]}"
        )
    if pictures.dtype == torch.uint8:
        pictures = (pictures / 255 - mean) / deviation
    return pictures.to(mean.dtype)


def _part(state: Tensor, part: str, special_tokens: int) -> Tensor:
    """Class token or mean patch of pictures' tokens [F, T, C] → [F, C]."""
    return state[:, 0] if part == "cls" else state[:, special_tokens:].mean(dim=1)


def position_options(model: Any, size: int) -> dict[str, bool]:
    """What to tell a vision encoder whose pictures are of another size than those it was trained with."""
    takes = inspect.signature(model.forward).parameters
    own = getattr(model.config, "image_size", size)
    return {"interpolate_pos_encoding": True} if size != own and "interpolate_pos_encoding" in takes else {}


class _Attention(nn.Module):
    # Named as in transformers' CLIP, so that its layers' weights load as they are.
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            projection(values).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        out: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        return out


class _FeedForward(nn.Module):
    def __init__(self, width: int, quick: bool) -> None:
        super().__init__()
        self.quick = quick
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.fc1(values)
        # OpenAI's CLIP approximates GELU, later ones do not; layers that start from one do as it does.
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self.quick else F.gelu(hidden)
        out: Tensor = self.fc2(hidden)
        return out


class TemporalLayer(nn.Module):
    """One pre-norm transformer layer of CLIP's kind; no causal mask, padded frames are never attended to."""

    def __init__(self, width: int, heads: int, quick: bool) -> None:
        super().__init__()
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn = _Attention(width, heads)
        self.mlp = _FeedForward(width, quick)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        values = values + self.self_attn(self.layer_norm1(values), mask)
        out: Tensor = values + self.mlp(self.layer_norm2(values))
        return out


# As many as CLIP's text transformer has positions.
MOST_FRAMES = 77


class TemporalTransformer(nn.Module):
    """Frames in their order, with a residual around the whole.

    Paper gap: "a temporal transformer" reusing parameters of CLIP; CLIP4Clip's sequential transformer, whose layers
    and positions start from the first ones of CLIP's text transformer.
    """

    def __init__(self, width: int, layers: int, heads: int, quick_gelu: bool = True) -> None:
        super().__init__()
        self.positions = nn.Embedding(MOST_FRAMES, width)
        self.layers = nn.ModuleList(TemporalLayer(width, heads, quick_gelu) for _ in range(layers))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    @torch.no_grad()
    def start_from_text(self, text_model: Any) -> None:
        """Copy the first layers and positions of a CLIP's text transformer.

        Of one with other shapes nothing can be copied; then the layers start without effect on the frames' directions.
        """
        layers = getattr(getattr(text_model, "encoder", None), "layers", ())
        width, theirs = self.positions.embedding_dim, text_model.config
        shape = theirs.hidden_size, theirs.intermediate_size
        if shape != (width, 4 * width) or len(layers) < len(self.layers):
            self.positions.weight.zero_()
            for module in self.layers:
                assert isinstance(module, TemporalLayer)
                for last in (module.self_attn.out_proj, module.mlp.fc2):
                    last.weight.zero_()
                    last.bias.zero_()
            return
        for own, layer in zip(self.layers, layers, strict=False):
            own.load_state_dict(layer.state_dict())
        positions = text_model.embeddings.position_embedding.weight
        count = min(len(positions), self.positions.num_embeddings)
        self.positions.weight[:count] = positions[:count]

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        """[B, M, D], [B, M] → [B, M, D]."""
        count = frames.shape[1]
        if count > self.positions.num_embeddings:
            raise ValueError(
                f"{count} frames exceed the {self.positions.num_embeddings} positions of the model: sample fewer"
            )
        values = frames + self.positions.weight[:count]
        for layer in self.layers:
            values = layer(values, mask)
        return frames + values


class VideoEncoder(nn.Module):
    """Frames of videos → tokens."""

    def __init__(self, tower: FrameTower | JointTower, temporal: TemporalTransformer | None) -> None:
        super().__init__()
        self.tower = tower
        self.temporal = temporal

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tokens:
        """[B, M, 3, H, W] (uint8, or floats normalised as ``tower.image`` says), mask [B, M] → tokens [B, M, D].

        Only real frames go through the tower. Instead of pictures, ``tower.features`` of them are taken too, [B, M, C].
        A `JointTower` gives one token a video.
        """
        if frames.dim() != 3 and (frames.dim() != 5 or frames.shape[2] != 3):
            raise ValueError(f"frames must be [videos, frames, 3, height, width]; got {list(frames.shape)}")
        device = self.tower.mean.device
        mask = torch.ones(frames.shape[:2], dtype=torch.bool) if mask is None else mask
        if mask.shape != frames.shape[:2] or mask.dtype != torch.bool or not bool(mask.any(dim=1).all()):
            raise ValueError(
                f"the mask of {frames.shape[0]} videos with {frames.shape[1]} frames must be bool, of that shape, with "
                f"a real frame in each video; got {mask.dtype} {list(mask.shape)}"
            )
        mask, frames = mask.to(device), frames.to(device)
        if isinstance(self.tower, JointTower):
            return Tokens(self.tower(frames, mask), mask.new_ones(len(mask), 1))
        real = self.tower(frames[mask])
        embeddings = real.new_zeros(*mask.shape, real.shape[-1])
        embeddings[mask] = real
        if self.temporal is not None:
            embeddings = self.temporal(embeddings, mask)
        return Tokens(embeddings, mask)
