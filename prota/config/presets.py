"""Two tables of named settings, heads with their losses and backbones; a row lists differences from the defaults."""

from __future__ import annotations

from typing import Any

__all__ = ["BACKBONES", "PRESETS", "preset_fields"]

# The rows of the paper's ablation table, by its own names; then two rows of ours. Defaults are the row `prota`.
_POINTS: dict[str, Any] = {"similarity": "cosine"}
_NO_LOSS: dict[str, Any] = {"eta": 0.0, "beta": 0.0}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "global-pooling": {"score": _POINTS | {"aggregation": "pooling"}, "loss": _NO_LOSS},
    "mean-max": {"score": _POINTS | {"weights": "uniform", "lambda_": "max"}, "loss": _NO_LOSS},
    "lda": {"score": _POINTS | {"weights": "uniform"}, "loss": _NO_LOSS},
    "lda+dot-intra": {"score": _POINTS | {"weights": "intra", "gram": "dot"}, "loss": _NO_LOSS},
    "lda+dot-intra+inter": {"score": _POINTS | {"gram": "dot"}, "loss": _NO_LOSS},
    "lda+intra": {"score": _POINTS | {"weights": "intra"}, "loss": _NO_LOSS},
    "dpa": {"score": _POINTS, "loss": _NO_LOSS},
    "dpa-p": {"loss": _NO_LOSS},
    "dpa-p+kl": {"loss": {"eta": 0.0}},
    "prota": {},
    # Weighted token interaction of DRL: hard maximum, weights from bare tokens.
    "wti": {"score": _POINTS | {"weights": "intra", "gram": "none", "lambda_": "max"}, "loss": _NO_LOSS},
    # As printed, on normalised tokens: Eq. 5 without softmax, Eq. 9 without residual, -W2, Eq. 13's numerator alone.
    "prota-printed": {
        "distribution": {"mean": "plain"},
        "score": {"similarity": "printed", "intra": "none"},
        "loss": {"margin": "literal"},
    },
}

BACKBONES: dict[str, dict[str, dict[str, Any]]] = {
    "clip-vit-b32": {},
    "clip-vit-b16": {"encoder": {"clip": "openai/clip-vit-base-patch16"}},
    "siglip2-b16": {
        "encoder": {"clip": "google/siglip2-base-patch16-224", "width": 768, "picture": "whole-bilinear"},
    },
    "siglip2-so400m": {
        "encoder": {
            "clip": "google/siglip2-so400m-patch14-384",
            "width": 1152,
            "image_size": 384,
            "picture": "whole-bilinear",
        },
    },
    "metaclip2-h14": {"encoder": {"clip": "facebook/metaclip-2-worldwide-huge-quickgelu", "width": 1024}},
    "dinov2-small+minilm": {
        "encoder": {"kind": "pair", "width": 384, "temporal_layers": 2},
        "score": {"text_pooling": "mean"},
    },
    "toy": {"encoder": {"kind": "toy", "width": 32, "image_size": 32, "temporal_layers": 2}},
}


def preset_fields() -> set[tuple[str, str]]:
    """(section, field) of every setting that some preset sets."""
    return {(section, field) for row in PRESETS.values() for section, fields in row.items() for field in fields}
